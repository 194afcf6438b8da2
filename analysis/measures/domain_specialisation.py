"""Which experts each kind of prompt uses."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from analysis.effect import shuffled
from analysis.measure import Chance, Values, measure
from analysis.nulls import above_the_largest, beyond, central_band
from analysis.result import Axis, Reason
from analysis.statistic import State

DRAWS = 499
Count = Literal["selected", "served"]
Per = Literal["selection", "token"]


@measure(
    title="Domain specialisation",
    question="Which experts does each kind of prompt use?",
    unit="share of the category's selections (0 to 1; 1/E is even; k/E per token)",
    family="specialisation",
    source="Muennighoff et al. 2024, arXiv 2409.02060 (as its script: counts over the sum of counts)",
    axes=("layer", "expert", "category"),
)
def domain_specialisation(prompt_counts: State, *, count: Count = "selected", per: Per = "selection") -> Values:
    """An expert's share of all (token, slot) pairs of a category, layer by layer.

    `selection` as the published script divides, so a category's shares sum to 1; `token` as the published text does:
    the share of tokens that used the expert, which sum to k. A fully soft router is counted by combine weight.

    Formula:
        s_ec = N_ec / sum_j N_jc
        N_ec: (token, slot) pairs of prompts of category c that selected expert e. per token: N_ec / T_c, T_c the tokens
        of c. information (a fact): H(mean_c s_c) - mean_c H(s_c) in bits, s_c the shares of category c over experts.

    Returns:
        Layer by expert by category, 0 to 1, categories by name. NaN for a category without tokens. The facts hold what
        an expert tells of the category, in bits, categories weighing the same.

    Raises:
        Nothing of its own.

    Source:
        Muennighoff et al. 2024, arXiv 2409.02060.

    Caveat:
        An expert that is busy everywhere is high in every category: compare across categories, and with the band of
        shuffled labels. Categories that differ in vocabulary or length differ in routing for that reason too.
    """
    names = sorted(set(prompt_counts.prompts.categories))
    codes = _codes(prompt_counts, names)
    shares = _shares(prompt_counts, codes[None], len(names), count)[0]
    told = information(shares)
    values = shares * _scale(prompt_counts, codes, len(names), count) if per == "token" else shares
    layers, experts = prompt_counts.shape.layers, prompt_counts.shape.experts
    facts: dict[str, int | float | str] = {
        "even share": (prompt_counts.shape.top_k if per == "token" else 1) / experts,
        "information about the category (bits), mean over layers": float(told.nanmean()),
    }
    facts |= {f"layer {name}: information (bits)": float(bits) for name, bits in zip(layers, told, strict=True)}
    caveats = ("By combine weight: every token uses every expert.",) if prompt_counts.soft else ()
    if bool(values.isnan().any()):
        caveats += ("NaN: a category none of whose tokens was routed.",)
    axes = (Axis("layer", layers), Axis("expert", tuple(f"E{e}" for e in range(experts))), Axis("category", (*names,)))
    return Values(values, axes, caveats, facts)


@domain_specialisation.chance
def null(prompt_counts: State, *, count: Count, per: Per, generator: torch.Generator) -> Chance | Reason:
    """The same shares under shuffled category labels.

    Returns:
        Mean and central 95 % band per layer, expert and category. Facts: `permutation p` for the information about the
        category, mean over layers; how many layers tell the category, and the p of the one that tells most, corrected
        for the number of layers.

    Source:
        Fisher 1935; p = (1 + draws at least as large) / (1 + draws). Westfall & Young 1993 for several layers.
    """
    names = sorted(set(prompt_counts.prompts.categories))
    if len(names) < 2:
        return Reason(f"{len(names)} category: there are no labels to shuffle")
    codes = _codes(prompt_counts, names)
    labels = torch.cat([codes[None], shuffled(codes, DRAWS, generator)])
    shares = _shares(prompt_counts, labels, len(names), count)
    bits = information(shares)
    told, by_layer = bits.nanmean(-1), above_the_largest(bits)
    found, least = beyond(by_layer)
    drawn = shares[1:]
    if per == "token":
        drawn = drawn * torch.stack([_scale(prompt_counts, row, len(names), count) for row in labels[1:]])
    p = float((told >= told[0] - 1e-12).double().mean())
    how = f"{DRAWS} random permutations of the category labels over prompts; layers corrected by the max-statistic"
    facts = {
        "permutation p": p,
        "layers that tell the category (corrected)": found,
        "p of the layer that tells most (corrected)": least,
    }
    return Chance(drawn.mean(0), *central_band(drawn), how, facts, by_layer[:, None, None])


def information(shares: Float[Tensor, "... layer expert category"]) -> Float[Tensor, "... layer"]:
    """What the expert of one selection tells of the category, all categories weighing the same.

    Returns:
        Bits, 0 (every category uses the experts alike) to log2 of the categories; NaN where one has no tokens.

    Source:
        Shannon 1948: entropy of the mean share minus mean entropy.
    """
    entropy = torch.special.entr(shares.mean(-1)).sum(-1) - torch.special.entr(shares).sum(-2).mean(-1)
    return entropy / torch.log(torch.tensor(2.0, dtype=shares.dtype))


def _codes(state: State, names: list[str]) -> Int[Tensor, " prompt"]:
    return torch.tensor([names.index(c) for c in state.prompts.categories], dtype=torch.long)


def _array(state: State, count: Count) -> Float[Tensor, "prompt layer expert"]:
    return state["weights" if state.soft else count].double()


def _shares(
    state: State, labels: Int[Tensor, "draw prompt"], categories: int, count: Count
) -> Float[Tensor, "draw layer expert category"]:
    numbers = _array(state, count)
    members = torch.nn.functional.one_hot(labels, categories).double().mT
    sums = (members @ numbers.flatten(1)).unflatten(-1, numbers.shape[1:])
    return (sums / sums.sum(-1, keepdim=True)).permute(0, 2, 3, 1)


def _scale(
    state: State, codes: Int[Tensor, " prompt"], categories: int, count: Count
) -> Float[Tensor, "layer one category"]:
    # Selections (or combine weight) per token of each category and layer.
    members = torch.nn.functional.one_hot(codes, categories).double().T
    per_layer = members @ _array(state, count).sum(-1)
    return (per_layer / (members @ state["tokens"].double())[:, None]).T[:, None, :]
