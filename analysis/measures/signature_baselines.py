"""How alike prompts would be if experts had no names or routing were blind: floors under the signature effect."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from analysis.cosines import unit_rows
from analysis.effect import label_codes, within_and_across
from analysis.knob import Seed
from analysis.measure import Values, measure
from analysis.nulls import uniform_loads
from analysis.prompt_pairs import distinct_pairs
from analysis.result import Axis
from analysis.signatures import Weighting, directions, layer_cosines, said, signatures, weighting_of
from analysis.statistic import State
from analysis.used import told

DRAWS = 50
QUANTITIES = ("within", "across", "permuted", "balanced")
Method = Literal["closed_form", "simulated"]
Permuted = Literal["experts", "slots"]
Balanced = Literal["distinct", "independent"]
NO_BALANCE = "NaN: combine weights cannot be dealt out anew, and blind routing does not say what they would be."


@measure(
    title="Signature baselines",
    question="Are prompts of one category routed more alike than nameless experts or blind routing would make them?",
    unit="mean cosine over pairs of prompts (0 to 1)",
    family="routing",
    source="Avinash 2026, arXiv 2603.11114 (permutation and load-balance baselines); the closed forms are ours",
    axes=("layer", "quantity"),
    null="two of its four lines are themselves what chance gives",
    slow_if={"method": "simulated"},
)
def signature_baselines(
    prompt_counts: State,
    *,
    permuted: Permuted = "experts",
    balanced: Balanced = "distinct",
    method: Method = "closed_form",
    weighting: Weighting = "auto",
    seed: Seed = 0,
) -> Values:
    """Mean cosine within and across categories, beside the same mean over all pairs under two kinds of chance.

    `permuted`: `experts` gives the experts of each prompt and layer new names at random, whose average is
    `(sum a)(sum b) / (E |a| |b|)` exactly; `slots` deals all selections of a layer out to the prompts anew. `balanced`:
    blind routing of each prompt's tokens to k `distinct` experts, about `1 / (1 + (E - k) / (T k))`, or of each of its
    kT slots by itself (`independent`), about `1 / (1 + (E - 1) / (T k))`. The paper does not say which of each pair it
    means. `simulated` draws instead: all forms but the first are ratios of averages, half a hundredth too low at T = 8.

    Formula:
        within, across: mean of s_a . s_b / (|s_a| |s_b|) over pairs of prompts of equal, of different category
        permuted: mean of 1 / (E |s_a| |s_b|);  balanced: mean of 1 / sqrt((1 + w_a) (1 + w_b)), w_a = (E - k) / (k T_a)
        s_a: share of each of the E experts in the selections of prompt a, k by each of its T_a tokens. All means are
        over pairs of different texts, the second line's over all such pairs.

    Returns:
        Layer by quantity, 0 to 1. NaN for `balanced` of combine weights. Facts: how many pairs of prompts each mean is
        of, those without a signature left out; `permuted` is of those of the first two lines together.

    Raises:
        TooFew: If there are not two categories, or no category has two prompts.
        BadKnob: If the seed is not 0 to 2**32 - 1.

    Source:
        Avinash 2026, arXiv 2603.11114, reports within > balanced > across.

    Caveat:
        Within above balanced says that prompts share experts, not that they share them because of the task: the same
        words do it too. Where prompts differ in length, so do their floors; both floors are means over all pairs.
    """
    pairs, shares = distinct_pairs(prompt_counts.prompts), signatures(prompt_counts, weighting)
    labels = label_codes(prompt_counts.prompts.categories)[None]
    within, across = within_and_across(layer_cosines(directions(shares, False)), pairs, labels)
    generator = None if method == "closed_form" else torch.Generator().manual_seed(seed)
    reading = (permuted, balanced, weighting_of(prompt_counts, weighting) == "weight")
    chance = _chance(prompt_counts, shares, reading, generator)
    floors = [_average(worlds, pairs).expand(shares.shape[1]) for worlds in chance]
    values = torch.stack([within.mean[0], across.mean[0], *floors], -1)
    caveats = said(prompt_counts, weighting, shares)
    if bool(values.isnan().any()) and not any(c.startswith("NaN: ") for c in caveats):
        caveats += (NO_BALANCE,)
    axes = (Axis("layer", prompt_counts.shape.layers), Axis("quantity", QUANTITIES))
    used = told(within.count[0].long().tolist(), "pairs within") | told(across.count[0].long().tolist(), "pairs across")
    if not bool(values[:, -1].isnan().any()):
        there = prompt_counts["tokens"] > 0
        used["pairs balanced, in every layer"] = int((pairs & there & there[:, None]).sum())
    return Values(values, axes, caveats, _facts(values) | used)


def _facts(values: Float[Tensor, "layer quantity"]) -> dict[str, int | float | str]:
    means = {name: float(mean) for name, mean in zip(QUANTITIES, values.nanmean(0), strict=True)}
    known = sorted((n for n in QUANTITIES if means[n] == means[n]), key=lambda name: -means[name])
    return {**{f"mean {name}": means[name] for name in known}, "order": " > ".join(known)}


def _chance(
    counts: State,
    shares: Float[Tensor, "prompt layer expert"],
    reading: tuple[Permuted, Balanced, bool],
    generator: torch.Generator | None,
) -> Iterator[Iterable[Tensor]]:
    """Worlds of permuted and of blind routing: rows of prompts whose products are cosines.

    Drawn from the generator there are `DRAWS` of each. Without one there is a single world of one number a prompt,
    since each expected cosine is a product of two such numbers. Blind routing knows no layer: one stands for all.
    """
    permuted, balanced, weighted = reading
    nothing = [torch.full((len(shares), 1, 1), torch.nan, dtype=torch.float64)]
    tokens, size = counts["tokens"], counts.shape.top_k if balanced == "distinct" else 1
    if permuted == "slots" and weighted:
        yield nothing
    elif generator is None:
        yield [_renamed_once(shares) if permuted == "experts" else _dealt_once(counts["selected"].double())]
    else:
        worlds = _renamed(shares, generator) if permuted == "experts" else _dealt(counts["selected"], generator)
        yield (unit_rows(world) for world in worlds)
    if weighted or counts.soft:
        yield nothing
    elif generator is None:
        spread = (counts.shape.experts - size) / (counts.shape.top_k * tokens.double())
        blind = torch.where(tokens > 0, (1 + spread) ** -0.5, torch.nan)
        yield [blind[:, None, None]]
    else:
        rounds = tokens * (counts.shape.top_k // size)
        draws = (uniform_loads(rounds, size, counts.shape.experts, generator) for _ in range(DRAWS))
        yield (unit_rows(world)[:, None] for world in draws)


def _average(worlds: Iterable[Tensor], pairs: Bool[Tensor, "prompt prompt"]) -> Float[Tensor, " layer"]:
    return torch.stack([_mean_product(world, pairs) for world in worlds]).mean(0)


def _renamed_once(shares: Float[Tensor, "prompt layer expert"]) -> Float[Tensor, "prompt layer 1"]:
    return shares.sum(-1, keepdim=True) / (shares.shape[-1] ** 0.5 * shares.norm(dim=-1, keepdim=True))


def _dealt_once(selected: Float[Tensor, "prompt layer expert"]) -> Float[Tensor, "prompt layer 1"]:
    own, total = selected.sum(-1), selected.sum(0)
    every = total.sum(-1)
    alike = (total * (total - 1)).sum(-1) / (every * (every - 1))
    return (own * (alike / (own + own * (own - 1) * alike)).sqrt())[..., None]


def _renamed(shares: Float[Tensor, "prompt layer expert"], generator: torch.Generator) -> Iterator[Tensor]:
    # Sorted first, so that the names the experts had decide nothing.
    ordered = shares.sort(-1).values
    for _ in range(DRAWS):
        yield ordered.gather(-1, torch.rand(shares.shape, generator=generator).argsort(-1))


def _dealt(selected: Int[Tensor, "prompt layer expert"], generator: torch.Generator) -> Iterator[Tensor]:
    prompts, layers, experts = selected.shape
    totals = selected.sum(0).sort(-1).values
    names = [torch.arange(experts).repeat_interleave(total) for total in totals]
    owners = [torch.arange(prompts).repeat_interleave(selected[:, layer].sum(-1)) for layer in range(layers)]
    for _ in range(DRAWS):
        world = torch.zeros(prompts, layers, experts, dtype=torch.float64)
        for layer, (name, owner) in enumerate(zip(names, owners, strict=True)):
            cell = owner * experts + name[torch.randperm(len(name), generator=generator)]
            world[:, layer] = torch.bincount(cell, minlength=prompts * experts).view(prompts, experts)
        yield world


def _mean_product(
    rows: Float[Tensor, "prompt layer feature"], pairs: Bool[Tensor, "prompt prompt"]
) -> Float[Tensor, " layer"]:
    known = ~rows.isnan().any(-1)
    filled = rows.masked_fill(~known[..., None], 0).transpose(0, 1)
    both = pairs.double()
    used = known.double().T
    return ((both @ filled) * filled).sum((-1, -2)) / ((used @ both) * used).sum(-1)
