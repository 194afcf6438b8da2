"""How sure the router was (margins, probabilities, entropy, logsumexp), what overruled it, and its mean per prompt."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from analysis.slots import BLOCKS, LayerBatch, block_of_token
from analysis.statistic import Spec, statistic

MARGIN_EDGES = (0.0, *(10 ** (power / 8) for power in range(-48, 17)))
"""Bin edges of the margin histogram, in score units: below 0, 0 to 1e-6, eight bins a decade up to 100, above."""

_CELL = ("block", "layer")
_PROMPT = ("prompt", "layer")


@statistic(
    needs=("layers",),
    arrays={
        "count": Spec(_CELL, torch.int64),
        "margins": Spec((*_CELL, len(MARGIN_EDGES) + 1), torch.int64),
        "scored": Spec(_CELL, torch.int64),
        "probabilities": Spec((*_CELL, "expert"), routed=False),
        "entropy": Spec(_CELL),
        "logits_seen": Spec(_CELL, torch.int64),
        "logsumexp": Spec(_CELL),
        "logsumexp_squared": Spec(_CELL),
        "margin": Spec(_CELL),
        "first": Spec((*_CELL, "expert"), torch.int64, routed=False),
        "displaced": Spec(_CELL, torch.int64),
        "prompt_scored": Spec(_PROMPT, torch.int64),
        "prompt_probabilities": Spec((*_PROMPT, "expert"), routed=False),
        "prompt_top": Spec((*_PROMPT, "expert"), routed=False),
        "prompt_squares": Spec(_PROMPT),
        "prompt_mass": Spec(_PROMPT),
        "prompt_mass_squared": Spec(_PROMPT),
    },
)
def router_sums(batch: LayerBatch) -> dict[str, Tensor]:
    """Sums over tokens of what the router thought, and the histogram of the gap between the k-th and the next score.

    A token whose margin, probabilities or logits are hidden (NaN) is left out of that sum; `margins` summed over its
    bins, `scored` and `logits_seen` count those that are in.

    Returns:
        Token counts; `probabilities` sums to `scored` over experts; `entropy` in nats; `logsumexp` in logit units;
        `margin` in score units; `first` counts the tokens whose likeliest selected expert it is (an earlier slot wins
        a tie); `displaced` the selections whose probability lies below the k-th highest: what a selection bias or a
        limit to groups put in. By prompt: `prompt_top` counts the tokens among whose k likeliest experts it is (ties
        for the last places share them), `prompt_mass` sums what these k have of the probability, `prompt_squares` the
        squares of all probabilities.

    Source:
        Zoph et al. 2022, arXiv 2202.08906 (z-loss: mean squared logsumexp); Fedus et al. 2021, arXiv 2101.03961
        (`first`: what its balance loss counts); DeepSeek-AI 2024, arXiv 2412.19437 (`prompt_top`: what its sequence
        loss counts); margins, entropy and `displaced`: ours.
    """
    layers = len(batch.shape.layers)
    cell = block_of_token(batch.prompts, batch.keys) * layers + batch.layer
    p, s = batch.probabilities.double(), batch.logits.double()
    scored, seen, gap = ~p.isnan().any(-1), ~s.isnan().any(-1), ~batch.margins.isnan()
    lse = torch.logsumexp(s[seen], -1)
    edges = torch.tensor(MARGIN_EDGES, dtype=torch.float64, device=cell.device)
    gaps = batch.margins[gap].double()
    bins = torch.bucketize(gaps, edges, right=True)
    shown, chosen = p[scored], batch.indices[scored]
    best = shown.topk(chosen.shape[-1], dim=-1).values
    likeliest, displaced = _against_rank(shown, chosen, best[:, -1:])

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
        "probabilities": total(scored, shown),
        "entropy": total(scored, torch.special.entr(shown).sum(-1)),
        "logits_seen": total(seen, one[seen]),
        "logsumexp": total(seen, lse),
        "logsumexp_squared": total(seen, lse**2),
        "margin": total(gap, gaps),
        "first": total(scored, likeliest),
        "displaced": total(scored, displaced),
        **_by_prompt(shown, best, batch.keys.prompt[scored], len(batch.prompts)),
    }


def _by_prompt(
    p: Float[Tensor, "token expert"], best: Float[Tensor, "token k"], prompt: Int[Tensor, " token"], prompts: int
) -> dict[str, Tensor]:
    bar, mass = best[:, -1:], best.sum(-1)
    above, at = p > bar, p == bar
    # Which of two equals a top-k takes is not ours to repeat: they share the places that are left.
    left = (best == bar).sum(-1, keepdim=True).double() / at.sum(-1, keepdim=True)
    top = torch.where(at, left, above.double())
    sums = {"probabilities": p, "top": top, "squares": p.square().sum(-1), "mass": mass, "mass_squared": mass**2}
    found = {"prompt_scored": torch.bincount(prompt, minlength=prompts)}
    for name, values in sums.items():
        empty = torch.zeros(prompts, *values.shape[1:], dtype=values.dtype, device=values.device)
        found[f"prompt_{name}"] = empty.index_add_(0, prompt, values)
    return {name: array.unsqueeze(1) for name, array in found.items()}


def _against_rank(
    p: Float[Tensor, "token expert"], indices: Int[Tensor, "token k"], bar: Float[Tensor, "token 1"]
) -> tuple[Int[Tensor, "token expert"], Int[Tensor, " token"]]:
    """Each token's likeliest selected expert (one-hot, empty for identity experts); its selections below the bar.

    The bar is the k-th best: equal to it is no displacement, since a choice among ties is not ours to repeat.
    """
    experts = p.shape[-1]
    real = indices < experts
    chosen = p.gather(1, indices.long().clamp(max=experts - 1)).masked_fill(~real, -1)
    best = chosen.argmax(1, keepdim=True)
    first = torch.zeros_like(p, dtype=torch.int64)
    first.scatter_(1, indices.long().clamp(max=experts - 1).gather(1, best), real.gather(1, best).long())
    return first, ((chosen < bar) & real).sum(1)
