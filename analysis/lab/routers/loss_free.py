"""Softmax top-k balanced without a loss: a bias that only selection sees, moved by a rule (arXiv 2408.15664)."""

from jaxtyping import Float
from torch import Tensor

from analysis.lab.balanced import BalancedByBias
from analysis.lab.router import SoftmaxTopKRouter


class LossFreeRouter(BalancedByBias, SoftmaxTopKRouter):
    """Selects by softmax over all experts plus bias, mixes by the scores alone."""

    def selection_scores(self, logits: Float[Tensor, "token expert"]) -> Float[Tensor, "token expert"]:
        """Score plus bias, in the unit of the score."""
        return self.scores(logits) + self.e_score_correction_bias
