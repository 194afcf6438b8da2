"""The little linear algebra that representations need: Grams, orthonormal rows, principal axes of few sampled rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.linalg import get_blas_funcs
from torch import Tensor


@dataclass(frozen=True)
class Principal:
    """Principal axes of a cloud of rows, most variance first, and everything that says how far to trust them.

    `axes` are orthonormal rows; those past `rank` are NaN, never an arbitrary direction of the null space.
    `variances` are all of them, with 0 past the rank, in the square of the rows' unit.
    """

    axes: Float[Tensor, "... component model"]
    variances: Float[Tensor, "... direction"]
    rank: Int[Tensor, "*case"]


def gram(rows: Float[Tensor, "... row model"]) -> Float[Tensor, "... row row"]:
    """Inner products of all pairs of rows, in float64, at half the work of a plain product.

    Returns:
        Exactly symmetric, in the square of the rows' unit.

    Source:
        BLAS syrk.
    """
    syrk = get_blas_funcs(("syrk",), dtype=np.float64)[0]
    if not rows.numel():
        return rows.new_zeros(*rows.shape[:-1], rows.shape[-2], dtype=torch.float64)
    flat = rows.double().contiguous().reshape(-1, *rows.shape[-2:]).numpy()
    found = torch.from_numpy(np.stack([np.asarray(syrk(1.0, one.T, trans=1)).T for one in flat]))
    return (found.tril() + found.tril(-1).mT).reshape(*rows.shape[:-1], rows.shape[-2])


def orthonormal(rows: Float[Tensor, "... row model"]) -> Float[Tensor, "... row model"]:
    """Orthonormal rows that span what the rows span, in float64.

    Returns:
        Unit vectors without unit; meaningless if the rows depend on each other.

    Source:
        Householder QR. A float32 basis is orthonormal to 1e-7 only, which arccos would read as an angle of 4e-4.
    """
    return torch.linalg.qr(rows.double().mT).Q.mT


def principal_axes(
    rows: Float[Tensor, "... row model"], weights: Float[Tensor, "... row"], components: int
) -> Principal:
    """Weighted principal component analysis of a batch of row sets, exact for the rows given.

    The mean is `sum w x / sum w`, the covariance `sum w (x - mean)(x - mean)' / sum w`. With fewer rows than
    dimensions the Gram of the rows is diagonalised instead of the covariance, which has the same spectrum.

    Args:
        rows: Padding is allowed where its weight is 0; it must be finite there.
        weights: Not negative; 0 takes a row out.
        components: How many axes to give.

    Returns:
        Axes, all variances and the numerical rank (variances above first x max(sizes) x eps, and above
        what rounding leaves of equal rows).

    Source:
        Pearson 1901; the Gram form: Sirovich 1987. The n-th axis is exact to eps x first / n-th variance.
    """
    cells = math.prod(rows.shape[:-2])
    flat = rows.reshape(cells, *rows.shape[-2:]), weights.reshape(cells, rows.shape[-2])
    # One set after the other: a set fits into the cache, a batch of 64 does not.
    found = [_axes_of_one(x.double(), w.double(), components) for x, w in zip(*flat, strict=True)]
    batch, directions = rows.shape[:-2], min(rows.shape[-2:])
    if not found:
        axes = rows.new_empty(*batch, min(components, directions), rows.shape[-1], dtype=torch.float64)
        return Principal(axes, axes.new_empty(*batch, directions), torch.zeros(batch, dtype=torch.int64))
    axes, variances, rank = (torch.stack(part) for part in zip(*found, strict=True))
    return Principal(
        axes.reshape(batch + axes.shape[1:]), variances.reshape(batch + variances.shape[1:]), rank.reshape(batch)
    )


def _axes_of_one(
    x: Float[Tensor, "row model"], w: Float[Tensor, " row"], components: int
) -> tuple[Float[Tensor, "component model"], Float[Tensor, " direction"], Int[Tensor, ""]]:
    share = w / w.sum()
    mean = share @ x
    scaled = (x - mean).mul_(share.sqrt()[:, None])
    if len(x) < x.shape[1]:
        variances, vectors = _largest_first(gram(scaled))
        axes = vectors[:, :components].mT @ scaled
    else:
        variances, vectors = _largest_first(gram(scaled.mT))
        axes = vectors[:, :components].mT
    eps = torch.finfo(torch.float64).eps
    # The second: what rounding leaves of rows that are all the same is no direction.
    floor = torch.maximum(variances[:1] * max(x.shape) * eps, (64 * eps) ** 2 * mean.square().sum())
    kept = variances > floor
    axes = _polished(axes, kept[:components])
    return axes, torch.where(kept, variances, 0.0), kept.sum()


def _largest_first(
    symmetric: Float[Tensor, "row row"],
) -> tuple[Float[Tensor, " row"], Float[Tensor, "row row"]]:
    values, vectors = torch.linalg.eigh(symmetric)
    return values.flip(-1).clamp(min=0), vectors.flip(-1)


def _polished(axes: Float[Tensor, "component model"], kept: Bool[Tensor, " component"]) -> Float[Tensor, "all model"]:
    # Cholesky QR: what the Gram gave is orthonormal to eps x first / n-th variance, and one pass mends that.
    unit = axes[kept] / axes[kept].norm(dim=-1, keepdim=True)
    whole = torch.full_like(axes, torch.nan)
    whole[kept] = torch.linalg.solve_triangular(torch.linalg.cholesky(unit @ unit.mT), unit, upper=False)
    return whole
