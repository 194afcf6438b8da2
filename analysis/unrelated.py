"""How alike experts of two checkpoints look when nothing relates them, and whether matched ones are more so.

An assignment is the best of all there are, so among random ones it would always be the first. What it has to pass are
the best assignments of the same two sides with every relation between them undone: their tokens, or their directions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from analysis.cosines import unit_rows
from analysis.nulls import beyond, beyond_chance, random_rows

Drawn = Callable[[int, torch.Generator], Iterator[Float[Tensor, "draw expert expert_b"]]]
"""From how many draws and a generator to cosines of all pairs of experts that nothing relates, a layer at a time."""

DRAWS, FEWEST, _DRAWN_NUMBERS = 199, 99, 100_000_000


def beside_another_prompt(prompt: Int[Tensor, " token"], generator: torch.Generator) -> Int[Tensor, " token"]:
    """For each token one at the same part of another prompt, all tokens of a prompt in the same one.

    Tokens of one prompt are alike, so they have to stay together: with single tokens exchanged, two routers that have
    nothing in common but prompts with a topic each pass for related in most cases (75 % of simulations, at 5 %).

    Args:
        prompt: Of each token, in order.
        generator: Where the order of prompts comes from.

    Returns:
        Places among the tokens; prompts of other lengths are stretched over each other.

    Source:
        Ours: prompts are what was drawn, so prompts are what is exchanged.
    """
    sizes = torch.bincount(prompt)
    held, starts = sizes.nonzero()[:, 0], sizes.cumsum(0) - sizes
    other = torch.zeros_like(sizes)
    other[held] = held[torch.randperm(len(held), generator=generator)]
    to, rank = other[prompt], torch.arange(len(prompt)) - starts[prompt]
    return starts[to] + rank * sizes[to] // sizes[prompt]


def correlations(
    first: Float[Tensor, "token expert"], second: Float[Tensor, "token expert_b"]
) -> Float[Tensor, "expert expert_b"]:
    """Cosines of columns minus their means.

    Returns:
        -1 to 1, NaN for a column that does not vary.

    Source:
        Pearson 1895.
    """
    one, other = (unit_rows((side - side.mean(0)).mT) for side in (first, second))
    return (one @ other.mT).clamp(-1, 1)


def turned(
    first: Float[Tensor, "expert expert"],
    second: Float[Tensor, "expert_b expert_b"],
    dimensions: int,
    draws: int,
    generator: torch.Generator,
) -> Float[Tensor, "draw expert expert_b"]:
    """Cosines between two sides of which one was turned at random, each side's own cosines staying as they are.

    Args:
        first: Cosines within one side, NaN where a vector has none.
        second: The same of the other.
        dimensions: Of the space in which the vectors lie.
        draws: How many turns.
        generator: Where they come from.

    Returns:
        -1 to 1; NaN as in what is given.

    Source:
        A corner of a uniformly random orthogonal matrix is G (G'G + W)^-1/2, G normal and W Wishart: Eaton 1989,
        Group Invariance Applications in Statistics, ch. 7.
    """
    one, other = (_vectors(side, dimensions) for side in (first, second))
    rows, columns = one.shape[-1], other.shape[-1]
    corner = torch.randn(draws, rows, columns, dtype=torch.float64, generator=generator)
    rest = random_rows(draws, columns, dimensions - rows, generator)
    whole = torch.linalg.cholesky(corner.mT @ corner + rest @ rest.mT)
    turn = torch.linalg.solve_triangular(whole, corner.mT, upper=False).mT
    found = one @ turn @ other.mT
    lost = first.diagonal().isnan()[:, None] | second.diagonal().isnan()
    return found.masked_fill(lost, torch.nan)


def beyond_unrelated(
    cosines: Float[Tensor, "layer expert expert_b"], drawn: Drawn, by_number: bool, generator: torch.Generator
) -> tuple[dict[str, int | float | str], Float[Tensor, "layer 1 1"]]:
    """Whether the best assignment of each layer is better than the best where nothing relates the two sides.

    Args:
        cosines: Of all pairs.
        drawn: The same by chance, layer by layer.
        by_number: Judge pairs of one number instead of the best assignment.
        generator: Where chance comes from.

    Returns:
        Facts: the mean likeness of all pairs of the assignment, poor ones included, and by chance; how many layers lie
        above the largest of all layers by chance, and the least p. Then the p of each layer, corrected for all.

    Source:
        Max-statistic over layers, each in standard deviations: Westfall & Young 1993; p = (1 + as good) / (1 + draws).
    """
    draws = min(DRAWS, max(FEWEST, _DRAWN_NUMBERS // max(cosines.numel(), 1)))
    observed = torch.stack([_quality(table, by_number) for table in cosines])
    tables = drawn(draws, generator)
    chance = torch.stack([torch.stack([_quality(table, by_number) for table in each]) for each in tables], 1)
    by_layer = beyond_chance(observed, chance)
    found, p = beyond(by_layer)
    facts: dict[str, int | float | str] = {
        "mean likeness of the whole assignment": float(observed.nanmean()),
        "the same of unrelated experts": float(chance.nanmean()),
        "layers that match beyond chance (max-statistic)": f"{found} of {len(by_layer)}",
        "permutation p": p,
    }
    return facts, by_layer[:, None, None]


def _vectors(cosines: Float[Tensor, "expert expert"], dimensions: int) -> Float[Tensor, "expert rank"]:
    """Vectors with these cosines, in as few dimensions as there are; 0 for an expert without any."""
    values, axes = torch.linalg.eigh(cosines.nan_to_num())
    roots = axes * values.clamp(min=0).sqrt()
    # The symmetric root hangs on no choice among equal axes; it needs a dimension for each expert.
    return roots @ axes.mT if len(cosines) <= dimensions else roots[:, -dimensions:]


def _quality(cosines: Float[Tensor, "expert expert_b"], by_number: bool) -> Float[Tensor, ""]:
    """The mean likeness of the pairs of the best assignment, or of one number, that have one."""
    if by_number:
        return cosines.diagonal().nanmean()
    return cosines[best(cosines)].nanmean()


def best(cosines: Float[Tensor, "expert expert_b"]) -> tuple[Int[Tensor, " pair"], Int[Tensor, " pair"]]:
    """The pairs of the largest sum: as many as there can be, one without a cosine in place of none that has some.

    Returns:
        Rows and columns.

    Source:
        Kuhn 1955 (the assignment problem); scipy's implementation, Crouse 2016.
    """
    # Below any cosine: an expert without evidence takes the place of none that has some.
    rows, columns = linear_sum_assignment(cosines.nan_to_num(nan=-2.0), maximize=True)
    return torch.from_numpy(rows), torch.from_numpy(columns)
