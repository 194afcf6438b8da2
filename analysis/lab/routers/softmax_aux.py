"""Softmax top-k balanced by the Switch auxiliary loss, a layer at a time.

Convention (three are in use): coefficient * E * sum_i f_i P_i with f_i = selections of i / (k * tokens), P the mean
softmax over all tokens; balanced value 1. Layers are summed, not concatenated as in transformers' own OLMoE, where
opposite imbalances of two layers cancel.
"""

from analysis.lab.balanced import BalancedByLoss
from analysis.lab.router import SoftmaxTopKRouter


class SoftmaxAuxRouter(BalancedByLoss, SoftmaxTopKRouter):
    """Softmax top-k with the Switch load-balancing loss."""
