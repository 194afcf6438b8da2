"""Mean Jacobians of a layer's experts in closed form, and all their inner products without holding them all.

For y = down phi(gate x, up x) with phi elementwise, dy/dx = down (diag(a) gate + diag(b) up), where a and b are the
slopes of phi at x. The weights do not depend on x, so the mean over tokens needs only the mean of a and of b: two
vectors per expert. Nothing here differentiates.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from analysis.linalg import lower_products
from analysis.precision import working_dtype
from analysis.slots import Layered

BUDGET = 256 * 2**20
"""Bytes of working memory that the Gram of all pairs may take, beside the weights themselves."""

PROBES = 64
"""Directions of a sketch."""

AFFORDABLE = 3e10
"""Operations per layer up to which `auto` multiplies everything out: a second or so of one core."""

Method = Literal["auto", "exact", "sketch"]

Weights = tuple[Layered | None, Layered | None, Layered | None]
"""The slots gate, up and down; gate is None for experts without one."""

Slopes = tuple[Float[Tensor, "layer expert hidden"] | None, Float[Tensor, "layer expert hidden"]]
"""Mean slopes of phi by gate and by up."""

_CHUNK = 2**12  # products summed in the working precision before they are added up in float64; a cache holds them


@dataclass(frozen=True, eq=False)
class MeanJacobians:
    """One mean Jacobian per expert of a layer, not multiplied out: weights as they are, and the mean slopes of phi.

    `gate` and `gate_slope` are None for experts without a gate. A slope of NaN (no tokens) makes its expert NaN and no
    other. `beside` is the layer's shared expert, of a hidden width of its own; products and images have it last.
    """

    gate: Float[Tensor, "expert hidden model"] | None
    up: Float[Tensor, "expert hidden model"]
    down: Float[Tensor, "expert model hidden"]
    gate_slope: Float[Tensor, "expert hidden"] | None
    up_slope: Float[Tensor, "expert hidden"]
    beside: MeanJacobians | None = None

    @property
    def every(self) -> list[tuple[MeanJacobians, int]]:
        """All experts, `beside` last: whose they are and which."""
        beside = [] if self.beside is None else self.beside.every
        return [*((self, expert) for expert in range(len(self.up))), *beside]

    @property
    def dtype(self) -> torch.dtype:
        """In which precision they are multiplied out."""
        return working_dtype(self.up)

    def inner(self, expert: int, columns: slice = slice(None)) -> Float[Tensor, "hidden column"]:
        """diag(a) gate + diag(b) up of one expert: what its down projection is applied to."""
        up = self.up[expert][:, columns].to(self.dtype)
        found = self.up_slope[expert].to(self.dtype)[:, None] * up
        if self.gate is None or self.gate_slope is None:
            return found
        gate = self.gate[expert][:, columns].to(self.dtype)
        return found.addcmul_(self.gate_slope[expert].to(self.dtype)[:, None], gate)

    def dense(self, expert: int) -> Float[Tensor, "model model"]:
        """The mean Jacobian of one expert: one product of two matrices."""
        return self.down[expert].to(self.dtype) @ self.inner(expert)

    def along(self, directions: Float[Tensor, "direction model"]) -> Float[Tensor, "every direction model"]:
        """Each expert's mean Jacobian times each direction, without building it; the one beside them last."""
        v, found = directions.to(self.dtype), []
        for expert in range(len(self.up)):
            hidden = self.up_slope[expert].to(self.dtype) * (v @ self.up[expert].to(self.dtype).mT)
            if self.gate is not None and self.gate_slope is not None:
                hidden += self.gate_slope[expert].to(self.dtype) * (v @ self.gate[expert].to(self.dtype).mT)
            found.append(hidden @ self.down[expert].to(self.dtype).mT)
        images = torch.stack(found)
        return images if self.beside is None else torch.cat([images, self.beside.along(directions).to(images)])


def of_layer(
    weights: Weights,
    slopes: Slopes,
    layer: int,
) -> MeanJacobians:
    """The mean Jacobians of one layer, from weight slots (gate, up, down) and mean slopes (by gate, by up).

    Returns:
        In units of output per unit of input; the weights are read here, one layer at a time.

    Source:
        Ours: all layers at once do not fit.
    """
    gate, up, down = (None if slot is None else slot[layer] for slot in weights)
    assert up is not None and down is not None
    return MeanJacobians(gate, up, down, None if slopes[0] is None else slopes[0][layer], slopes[1][layer])


def gram(jacobians: MeanJacobians, budget: int = BUDGET) -> Float[Tensor, "every every"]:
    """Inner products <J_e, J_f> of all pairs of mean Jacobians, exact.

    Blocks of input columns of every J are formed and dropped, so E x model x width numbers are held and never E x model
    x model; the inner map of a column is formed once, which blocks of output rows would not allow.

    Args:
        jacobians: The layer's.
        budget: Bytes the blocks may take.

    Returns:
        Symmetric, in squared units of the Jacobian, float64; NaN in the rows of an expert without tokens.

    Source:
        Liu 2026, arXiv 2605.16349, for the quantity; the blocks are ours.
    """
    every, model = jacobians.every, jacobians.down.shape[1]
    size = torch.empty((), dtype=jacobians.dtype).element_size()
    width = min(model, max(1, budget // (len(every) * model * size)))
    total = torch.zeros(len(every), len(every), dtype=torch.float64, device=jacobians.up.device)
    block = torch.empty(len(every), model, width, dtype=jacobians.dtype, device=jacobians.up.device)
    for start in range(0, model, width):
        columns = slice(start, min(start + width, model))
        held = block[..., : columns.stop - start]
        for row, (own, expert) in zip(held, every, strict=True):
            row.copy_(own.down[expert].to(own.dtype) @ own.inner(expert, columns))
        total += row_products(held.reshape(len(every), -1))
    return total


def row_products(rows: Float[Tensor, "row entry"]) -> Float[Tensor, "row row"]:
    """Inner products of all pairs of long rows, summed up in float64 whatever the rows are in.

    Returns:
        Symmetric, float64, in the squared unit of the rows.

    Source:
        Ours: millions of float32 products lose digits when they are summed in one go.
    """
    total = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device)
    for start in range(0, rows.shape[1], _CHUNK):
        # A copy: rows that lie megabytes apart cost a product half its speed.
        part = rows[:, start : start + _CHUNK].contiguous()
        total += lower_products(part).double()
    return total.tril() + total.tril(-1).mT


def pair_product(jacobians: MeanJacobians, first: int, second: int) -> Float[Tensor, ""]:
    """<J_e, J_f> of one pair through hidden x hidden products: cheaper than forming them for a handful of pairs.

    Returns:
        The inner product, in squared units of the Jacobian.

    Source:
        Ours: tr((D A)'(D' A')) = sum of (D'D') * (A A''), elementwise, with D down and A the inner map.
    """
    down = [jacobians.down[e].to(jacobians.dtype) for e in (first, second)]
    inner = [jacobians.inner(e) for e in (first, second)]
    return ((down[0].mT @ down[1]) * (inner[0] @ inner[1].mT)).sum(dtype=torch.float64)


def cosines(products: Float[Tensor, "*case expert expert"]) -> Float[Tensor, "*case expert expert"]:
    """Cosines from a Gram.

    Returns:
        -1 to 1, 1 on the diagonal; NaN for an expert of norm 0 or NaN.

    Source:
        Ours.
    """
    norms = products.diagonal(dim1=-2, dim2=-1).sqrt()
    found = (products / (norms[..., :, None] * norms[..., None, :])).clamp(-1, 1)
    same = torch.eye(products.shape[-1], dtype=torch.bool, device=products.device)
    return torch.where(same & ~found.isnan(), torch.ones_like(found), found)


@lru_cache(maxsize=16)
def probes(model: int, count: int, seed: int = 0) -> Float[Tensor, "probe model"]:
    """Fixed random directions v with E[v v'] = I, so that E|J v|^2 is the squared Frobenius norm of J.

    They are orthogonal to each other, frame by frame of `model`, which makes a whole frame exact and a part of it
    better than independent directions.

    Returns:
        Rows of length sqrt(model), float64; do not write into them.

    Source:
        Hutchinson 1990; orthogonal probes: ours, uniform frames by QR (Mezzadri 2007).
    """
    generator = torch.Generator().manual_seed(seed)
    frames = []
    for start in range(0, count, model):
        wanted = min(model, count - start)
        q, r = torch.linalg.qr(torch.randn(model, wanted, dtype=torch.float64, generator=generator))
        frames.append((q * r.diagonal().sign()).mT * model**0.5)
    return torch.cat(frames)


def sketched_products(
    images: Float[Tensor, "expert probe model"],
) -> tuple[Float[Tensor, "expert expert"], Float[Tensor, "expert expert"]]:
    """Products of Jacobians from their images of the same probes, and how far the cosines may be off.

    Returns:
        The Gram, in squared units of the Jacobian, and the standard errors of its cosines (jackknife over probes, NaN
        for one probe).

    Source:
        <J_e, J_f> = E <J_e v, J_f v>: Hutchinson 1990; jackknife of a ratio: Efron & Stein 1981.
    """
    each = torch.einsum("epm,fpm->pef", images.double(), images.double())
    whole, count = each.sum(0), len(each)
    without = cosines(whole - each)
    error = ((count - 1) / count * (without - without.mean(0)).square().sum(0)).sqrt()
    return whole / count, torch.where(torch.tensor(count > 1), error, torch.nan)


def products(jacobians: MeanJacobians, method: Method) -> tuple[Float[Tensor, "every every"], float]:
    """The Gram of all mean Jacobians of a layer, a shared expert's last, and how far a sketch's cosines may be off.

    Returns:
        <J_e, J_f> in squared units of the Jacobian; the largest standard error of a cosine, 0 for exact values.

    Source:
        Liu 2026, arXiv 2605.16349. Exact costs E products [d, h] [h, d] and one of [E, d d] by its transpose.
    """
    model, widths = jacobians.down.shape[1], [own.down.shape[2] for own, _ in jacobians.every]
    if not is_sketched(model, widths, method):
        return gram(jacobians), 0.0
    found, errors = sketched_products(jacobians.along(probes(model, min(PROBES, model)).to(jacobians.up.device)))
    return found, 0.0 if model <= PROBES else float(errors.nan_to_num().max())  # a whole frame of probes is exact


def is_sketched(model: int, widths: list[int], method: Method) -> bool:
    """Whether `products` sends probes through experts of these hidden widths and multiplies nothing out.

    Returns:
        True where that was asked for, or where all else would take too long.

    Source:
        Ours.
    """
    cost = 2.0 * model * model * sum(hidden + len(widths) for hidden in widths)
    return method == "sketch" or (method == "auto" and cost > AFFORDABLE)


def directions(model: int, widths: list[int], method: Method) -> int:
    """In how many directions of the input `products` sees each Jacobian: all, or those of its probes.

    Returns:
        1 to `model`.

    Source:
        Ours.
    """
    return min(PROBES, model) if is_sketched(model, widths, method) else model


def scatter(model: int, seen: int) -> tuple[float, str]:
    """How far the cosine of two unrelated Jacobians is from 0, by chance and, seen in few directions, by the sketch.

    Returns:
        Standard deviation, 0 to 1, and how to write it.

    Source:
        Ours: two random directions in model x seen dimensions.
    """
    said = f"1/{model}" if seen == model else f"1/sqrt({model} x {seen}), as {seen} probes see them"
    return (model * seen) ** -0.5, said
