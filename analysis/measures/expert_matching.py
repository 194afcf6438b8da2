"""Which expert of one checkpoint is which of another."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from analysis.errors import BadKnob
from analysis.evidence import LEVEL, Evidence, Likeness, likeness, mixture
from analysis.knob import Range
from analysis.loads import over_layers
from analysis.matching import ALONE, Partners, assigned, told
from analysis.measure import Chance, Inputs, Values, measure
from analysis.result import Axis
from analysis.unrelated import beyond_unrelated

By = Literal["co-selection", "router row", "centroid", "jacobian", "output", "mix"]
Weight = Annotated[float, Range(0)]
Show = Literal["all pairs", "matched", "same number"]
MIXED = "none: kinds of evidence share hidden states, so chance cannot be drawn for each apart; ask each for its own"


@measure(
    title="Expert matching",
    question="Which expert of b does the work of which expert of a?",
    unit="likeness (cosine, -1 to 1; 0 is unrelated)",
    family="compare",
    source="Assignment: Kuhn 1955; matching the units of two networks: Li et al. 2016, arXiv 1511.07543; bounds: ours",
    axes=("layer", "expert", "expert_b"),
    reads=(
        "token_routes",
        "router_weight",
        "centroid_sums",
        "slope_sums",
        "gate_weight",
        "up_weight",
        "down_weight",
        "output_sums",
    ),
    slow=True,  # mean Jacobians of both sides, where they are the evidence
)
def expert_matching(
    a: Inputs,
    b: Inputs,
    *,
    evidence: By = "co-selection",
    show: Show = "all pairs",
    co_selection: Weight = 1.0,
    router_row: Weight = 1.0,
    centroid: Weight = 1.0,
    jacobian: Weight = 1.0,
    output: Weight = 1.0,
) -> Values:
    """Likeness of every expert of a and every expert of b, and the assignment with the largest sum of it.

    `co-selection`: of who takes which token; `router row`: of rows minus their mean row; `centroid`: of the mean inputs
    of served tokens minus that of all tokens; `jacobian`: of mean Jacobians, `output`: of mean outputs, both over the
    common tokens and minus their mean over experts. `mix` is their mean, weighted by the five numbers. A pair counts as
    matched where it is in the assignment and above what the most alike of all pairs of unrelated experts reaches.
    `matched` shows those alone, `same number` the pairs that two steps of one run would have.

    Formula:
        S_ef = u_e . v_f / (|u_e| |v_f|);  assignment = argmax_pi sum_e S_{e,pi(e)}
        u_e: 1 for each token that expert e of a takes, 0 for the others, minus their mean; v_f: the same of b.
        other evidence: the vectors named above. mix: sum_i w_i S^i_ef / sum_i w_i.

    Returns:
        Layer by expert of a by expert of b, -1 to 1. NaN for an expert of which there is no evidence, and for pairs
        that are not shown. `partner` (kept beside the answer) has for each expert of a its number in b, or -1.

    Raises:
        NotComparable: If layers or widths differ (but for co-selection), or no tokens end together (for it).
        BadKnob: If a weight of the mix is negative, or all are 0.

    Source:
        Li et al. 2016, arXiv 1511.07543, for one-to-one matching of units across networks.

    Caveat:
        Separately trained models write into hidden states of their own: rows, centroids, Jacobians and outputs lie in
        spaces that have nothing to do with each other, and only co-selection can see that two experts do the same. It
        takes tokens for independent, which those of one prompt are not, so two experts of one topic may pass for one;
        its p takes prompts for independent instead.
        Within a run numbers hold from step to step, and matching is not needed. A rarely used expert cannot be told
        from chance. Experts that split or merged have no single partner.
    """
    weights = (co_selection, router_row, centroid, jacobian, output)
    found = _likeness(a, b, evidence, weights)
    partner = assigned(found)
    values, caveats = _shown(found, partner, show), []
    unknown = found.cosines.isnan()
    if bool(unknown.any()):
        caveats.append(f"NaN: of {int(unknown.sum())} of {unknown.numel()} pairs an expert has nothing to compare.")
    if show != "all pairs":
        caveats.append(f"NaN: pairs that are not {show if show == 'matched' else 'of the same number'} are left out.")
    facts = told(partner, evidence) | _quality(found, partner, a.shape.layers)
    axes = (
        Axis("layer", a.shape.layers),
        *(Axis(n, _labels(side.shape.experts)) for n, side in (("expert", a), ("expert_b", b))),
    )
    return Values(values, axes, tuple(caveats), facts, {"partner": partner})


@expert_matching.chance
def null(
    a: Inputs,
    b: Inputs,
    *,
    evidence: By,
    show: Show,
    co_selection: float,
    router_row: float,
    centroid: float,
    jacobian: float,
    output: float,
    generator: torch.Generator,
) -> Chance:
    """Experts of b matched at random with unrelated experts of a.

    Returns:
        Mean 0 and, either way, the bound that the most alike of all pairs of a layer passes in 5 % of cases at most.
        Facts: the mean likeness of the whole assignment, and of the best one where nothing relates the sides: each
        prompt beside another one of b (co-selection), or the directions of b turned at random (others); layers that
        are beyond it, and the p of that. The p of each layer, corrected for all; none for a mix, whose kinds share
        hidden states.

    Source:
        co-selection: Hoeffding 1963 for draws without replacement. Vectors: the squared cosine of independent uniform
        directions is Beta(1/2, (D - 1)/2), D the width, its square for Jacobians. All pairs: Bonferroni 1936. p: ours;
        max-statistic over layers, Westfall & Young 1993.
    """
    found = _likeness(a, b, evidence, (co_selection, router_row, centroid, jacobian, output))
    facts: dict[str, int | float | str] = {"permutation p": MIXED}
    p = None
    if found.unrelated:
        facts, p = beyond_unrelated(found.cosines, found.unrelated, show == "same number", generator)
    bound = found.bound
    how = f"the most alike of {bound[0].numel()} pairs of unrelated experts a layer, {LEVEL:.0%} of cases at most"
    return Chance(torch.zeros_like(bound), -bound, bound, how, facts, p)


def _likeness(a: Inputs, b: Inputs, evidence: By, weights: tuple[float, ...]) -> Likeness:
    kinds: tuple[Evidence, ...] = ("co-selection", "router row", "centroid", "jacobian", "output")
    if evidence != "mix":
        return likeness(a, b, evidence)
    if not any(weights):
        raise BadKnob("all weights of the mix are 0; one of them has to be above 0")
    return mixture(a, b, dict(zip(kinds, weights, strict=True)))


def _shown(found: Likeness, partner: Partners, show: Show) -> Float[Tensor, "layer expert expert_b"]:
    if show == "all pairs":
        return found.cosines
    number = torch.arange(found.cosines.shape[-1])
    wanted = partner if show == "matched" else torch.arange(partner.shape[1]).expand_as(partner)
    return torch.where(wanted[..., None] == number, found.cosines, torch.nan)


def _quality(found: Likeness, partner: Partners, layers: tuple[str, ...]) -> dict[str, int | float | str]:
    """Mean likeness of matched pairs against that of all pairs, and the layer in which fewest have a partner."""
    matched = _shown(found, partner, "matched")
    share = (partner != ALONE).double().mean(-1)
    least = over_layers(share, layers, "lowest")
    return {
        "matched under their own number": int((partner == torch.arange(partner.shape[1])).sum()),
        "mean likeness of matched pairs": float(matched.nanmean()),
        "mean likeness of random pairs": float(found.cosines.nanmean()),
        "layer with fewest matched": least["lowest layer"],
        "share matched there": least["lowest value"],
    }


def _labels(experts: int) -> tuple[str, ...]:
    return tuple(f"E{e}" for e in range(experts))
