"""Sigmoid top-k balanced by a bias that only selection sees: DeepSeek-V3's, without its groups (arXiv 2412.19437)."""

from jaxtyping import Float
from torch import Tensor

from analysis.lab.balanced import BalancedByBias
from analysis.lab.router import SigmoidTopKRouter


class SigmoidFreeRouter(BalancedByBias, SigmoidTopKRouter):
    """Selects by sigmoid plus bias, mixes by the scores alone."""

    def selection_scores(self, logits: Float[Tensor, "token expert"]) -> Float[Tensor, "token expert"]:
        """Score plus bias, in the unit of the score."""
        return self.scores(logits) + self.e_score_correction_bias
