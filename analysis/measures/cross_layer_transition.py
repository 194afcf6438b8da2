"""Whether the expert of one layer says which expert the next layer uses."""

from __future__ import annotations

from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from analysis.errors import TooFew
from analysis.measure import Chance, Values, measure
from analysis.result import Axis, Reason
from analysis.statistic import State


@measure(
    title="Cross-layer transition",
    question="Does the expert a token uses in one layer say which expert it uses in the next?",
    unit="difference of shares (-1 to 1; 0 is independence)",
    family="specialisation",
    source="Muennighoff et al. 2024, arXiv 2409.02060 (pairs of equal rank in its script); minus independence: ours",
    axes=("layer", "expert", "expert_b"),
    needs_selection=True,
)
def cross_layer_transition(layer_transitions: State, *, same_rank: bool = False) -> Values:
    """Of the tokens that used expert i, the share that used j in the next MoE layer, minus that share of all tokens.

    `same_rank` pairs the first choice of one layer with the first of the next, the second with the second, and so on,
    as the published script does, and takes shares of these pairs.

    Formula:
        D_ij = N_ij / N_i - N_j / T
        N_i: tokens that selected i in a layer; N_j: that selected j in the next MoE layer; N_ij: both; T: all tokens.
        same_rank: N_ij counts pairs of equal rank; N_i and N_j are its row and column sums, T its total.

    Returns:
        Pair of layers by expert by expert of the next layer, -1 to 1; 0 where the two know nothing of each other. NaN
        in the row of an expert without tokens.

    Raises:
        TooFew: If the model has a single MoE layer.

    Source:
        Muennighoff et al. 2024, arXiv 2409.02060, for the pairs.

    Caveat:
        Experts follow each other where both follow the topic: the figure does not say that one layer causes the other.
        Tokens of a prompt are alike, so the floor of independent tokens is too narrow; the interval is over prompts.
    """
    if len(layer_transitions.shape.layers) < 2:
        raise TooFew(f"MoE layers {list(layer_transitions.shape.layers)}: a transition needs two of them")
    both, first, second, total = _counts(layer_transitions, same_rank)
    share = second / total
    values = both / first[..., :, None] - share[:, None, :]
    dead = int((first == 0).sum())
    best = (both / first[..., :, None]).amax(-1)
    facts = {
        "mean absolute difference": float(values.abs().nanmean()),
        "pairs": int((~values.isnan()).sum()),
        "best guess of the next expert": float((best.nan_to_num() * first).sum() / first.sum()),
        "without knowing the last": float(share.amax(-1).mean()),
        "dead experts": dead,
    }
    caveats = (f"NaN: {dead} expert(s) without tokens in the first layer of a pair.",) if dead else ()
    names = layer_transitions.shape.layers
    experts = tuple(f"E{e}" for e in range(layer_transitions.shape.experts))
    pairs = tuple(f"{one} to {other}" for one, other in pairwise(names))
    axes = (Axis("layer", pairs), Axis("expert", experts), Axis("expert_b", experts))
    return Values(values, axes, caveats, facts)


@cross_layer_transition.chance
def null(layer_transitions: State, *, same_rank: bool, generator: torch.Generator) -> Chance | Reason:
    """The two layers' choices dealt to tokens independently of each other, each expert keeping its load.

    Returns:
        Differences of shares: mean 0 and 95 % band per pair of experts; NaN for an expert without tokens.

    Source:
        Ours: N_ij is hypergeometric given both loads; its normal band.
    """
    _, first, second, total = _counts(layer_transitions, same_rank)
    if not bool((total > 1).all()):
        return Reason("no two tokens were routed")
    share = (second / total)[:, None, :]
    spread = (share * (1 - share) * (total[..., None] - first[..., :, None]) / (total[..., None] - 1)).clamp(min=0)
    half = 1.96 * (spread / first[..., :, None]).sqrt()
    how = "independence of adjacent layers given each expert's load: hypergeometric, normal band"
    return Chance(torch.zeros_like(half), -half, half, how)


def _counts(
    state: State, same_rank: bool
) -> tuple[
    Float[Tensor, "pair expert expert"],
    Float[Tensor, "pair expert"],
    Float[Tensor, "pair expert"],
    Float[Tensor, "pair one"],
]:
    pairs = state["same_rank" if same_rank else "both"].sum(0)[:-1].double()
    if same_rank:
        # Loads within the pairs themselves: an identity expert at the same rank leaves the other without a partner.
        return pairs, pairs.sum(-1), pairs.sum(-2), pairs.sum((-1, -2))[:, None]
    chosen = state["selected"].sum(0).double()
    tokens = state["tokens"].sum().double().expand(len(pairs), 1)
    return pairs, chosen[:-1], chosen[1:], tokens
