"""Sigmoid top-k balanced by the auxiliary loss.

Sigmoids over their sum stand for the probabilities, as in Megatron and ERNIE.
"""

from analysis.lab.balanced import BalancedByLoss
from analysis.lab.router import SigmoidTopKRouter


class SigmoidAuxRouter(BalancedByLoss, SigmoidTopKRouter):
    """Sigmoid top-k with a balancing loss; its gradient, unlike softmax's, can move the mean row."""
