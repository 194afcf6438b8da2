"""Per block and layer: how sure the router was: margins, probabilities, entropy, logsumexp."""

from __future__ import annotations

import torch
from torch import Tensor

from analysis.slots import BLOCKS, LayerBatch, block_of_token
from analysis.statistic import Spec, statistic

MARGIN_EDGES = (0.0, *(10 ** (power / 8) for power in range(-48, 17)))
"""Bin edges of the margin histogram, in score units: below 0, 0 to 1e-6, eight bins a decade up to 100, above."""

_CELL = ("block", "layer")


@statistic(
    needs=("layers",),
    arrays={
        "count": Spec(_CELL, torch.int64),
        "margins": Spec((*_CELL, len(MARGIN_EDGES) + 1), torch.int64),
        "scored": Spec(_CELL, torch.int64),
        "probabilities": Spec((*_CELL, "expert")),
        "entropy": Spec(_CELL),
        "logits_seen": Spec(_CELL, torch.int64),
        "logsumexp": Spec(_CELL),
        "logsumexp_squared": Spec(_CELL),
    },
)
def router_sums(batch: LayerBatch) -> dict[str, Tensor]:
    """Sums over tokens of what the router thought, and the histogram of the gap between the k-th and the next score.

    A token whose margin, probabilities or logits are hidden (NaN) is left out of that sum; `margins` summed over its
    bins, `scored` and `logits_seen` count those that are in.

    Returns:
        Token counts; `probabilities` sums to `scored` over experts; `entropy` in nats; `logsumexp` in logit units.

    Source:
        Zoph et al. 2022, arXiv 2202.08906 (z-loss: mean squared logsumexp); margins and entropy: ours.
    """
    layers = len(batch.shape.layers)
    cell = block_of_token(batch.prompts, batch.keys) * layers + batch.layer
    p, s = batch.probabilities.double(), batch.logits.double()
    scored, seen, gap = ~p.isnan().any(-1), ~s.isnan().any(-1), ~batch.margins.isnan()
    lse = torch.logsumexp(s[seen], -1)
    edges = torch.tensor(MARGIN_EDGES, dtype=torch.float64, device=cell.device)
    bins = torch.bucketize(batch.margins[gap].double(), edges, right=True)

    def total(where: Tensor, values: Tensor) -> Tensor:
        size = (BLOCKS * layers, *values.shape[1:])
        cells = torch.zeros(size, dtype=values.dtype, device=values.device).index_add_(0, cell[where], values)
        return cells.view(BLOCKS, layers, *values.shape[1:])

    one = torch.ones_like(cell)
    histogram = torch.bincount(cell[gap] * (len(edges) + 1) + bins, minlength=BLOCKS * layers * (len(edges) + 1))
    return {
        "count": total(one.bool(), one),
        "margins": histogram.view(BLOCKS, layers, len(edges) + 1),
        "scored": total(scored, one[scored]),
        "probabilities": total(scored, p[scored]),
        "entropy": total(scored, torch.special.entr(p[scored]).sum(-1)),
        "logits_seen": total(seen, one[seen]),
        "logsumexp": total(seen, lse),
        "logsumexp_squared": total(seen, lse**2),
    }
