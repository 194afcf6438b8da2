"""The little linear algebra that representations need: Grams, orthonormal rows, principal axes of few sampled rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.linalg import get_blas_funcs, get_lapack_funcs
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
    if not rows.numel():
        return rows.new_zeros(*rows.shape[:-1], rows.shape[-2], dtype=torch.float64)
    flat = rows.double().contiguous().reshape(-1, *rows.shape[-2:])
    found = torch.from_numpy(np.stack([_lower_gram(one) for one in flat]))
    return (found.tril() + found.tril(-1).mT).reshape(*rows.shape[:-1], rows.shape[-2])


def lower_products(rows: Float[Tensor, "row entry"]) -> Float[Tensor, "row row"]:
    """The lower triangle of the rows' inner products, in the rows' own precision and on their device.

    Returns:
        In the square of the rows' unit; what lies above the diagonal is not to be read.

    Source:
        BLAS syrk on a processor: it forms half, which a product of two matrices cannot know. A card forms both halves.
    """
    if rows.device.type != "cpu" or rows.dtype not in (torch.float32, torch.float64):
        return rows @ rows.mT
    return torch.from_numpy(_lower_gram(rows))


def _lower_gram(rows: Float[Tensor, "row entry"]) -> np.ndarray:
    """The lower triangle of the Gram, 0 above, in the order that LAPACK wants."""
    entries = rows.contiguous().numpy()
    (syrk,) = get_blas_funcs(("syrk",), (entries,))
    return syrk(1.0, entries.T, trans=1, lower=1)


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
    batch, (count, model) = rows.shape[:-2], rows.shape[-2:]
    cells, most = math.prod(batch), min(count, model)
    axes = torch.empty(cells, min(components, most), model, dtype=torch.float64)
    variances, rank = torch.zeros(cells, most, dtype=torch.float64), torch.zeros(cells, dtype=torch.int64)
    # One set after the other in one place: it stays in the cache, and fresh pages would cost more than the sums.
    centred = torch.empty(count, model, dtype=torch.float64)
    for cell, (x, w) in enumerate(zip(rows.reshape(cells, count, model), weights.reshape(cells, count), strict=True)):
        found = _axes_of_one(x.double(), w.double(), centred, axes[cell])
        variances[cell, : len(found)], rank[cell] = found, len(found)
    return Principal(axes.reshape(*batch, *axes.shape[1:]), variances.reshape(*batch, most), rank.reshape(batch))


def _axes_of_one(
    x: Float[Tensor, "row model"],
    w: Float[Tensor, " row"],
    centred: Float[Tensor, "row model"],
    axes: Float[Tensor, "component model"],
) -> Float[Tensor, " rank"]:
    """Fills `axes`, with `centred` to work in, and gives the variances that are not 0."""
    share = w / w.sum()
    mean, root = share @ x, share.sqrt()
    torch.sub(x, mean, out=centred)
    # Weights go to the small matrices: one pass over the rows is what this costs beside the Gram.
    if len(x) < x.shape[1]:
        variances, vectors = _largest_first(_lower_gram(centred) * torch.outer(root, root).numpy(), len(axes))
        torch.mm((vectors * root[:, None]).mT, centred, out=axes)
    else:
        variances, vectors = _largest_first(_lower_gram(centred.mul_(root[:, None]).mT), len(axes))
        axes.copy_(vectors.mT)
    eps = torch.finfo(torch.float64).eps
    # The second: what rounding leaves of rows that are all the same is no direction.
    floor = torch.maximum(variances[0] * max(x.shape) * eps, (64 * eps) ** 2 * mean.square().sum())
    variances = variances[variances > floor]
    _polish(axes, len(variances))
    return variances


def _largest_first(lower: np.ndarray, count: int) -> tuple[Float[Tensor, " row"], Float[Tensor, "row vector"]]:
    """All eigenvalues, negative ones taken for the rounding they are, and the eigenvectors of the largest `count`.

    Of a symmetric matrix, by its lower triangle.
    """
    size = len(lower)
    if count * 4 > size:
        values, vectors = torch.linalg.eigh(torch.from_numpy(lower), UPLO="L")
        return values.flip(-1).clamp(min=0), vectors.flip(-1)[:, :count]
    # Half the time of all vectors: tridiagonal form, values by QL, a few vectors by inverse iteration, turned back.
    sytrd, sterf, stein, ormqr = get_lapack_funcs(("sytrd", "sterf", "stein", "ormqr"), dtype=np.float64)
    reflectors, diagonal, beside, scales, _ = sytrd(lower, lower=1)
    values, failed = sterf(diagonal, beside)
    one_block = np.ones(size, dtype=np.int32), np.full(size, size, dtype=np.int32)
    vectors, missing = stein(diagonal, beside, values[-count:], *one_block)
    if failed or missing:
        return _largest_first(lower, size)
    turn = np.asfortranarray(reflectors[1:, :-1])
    vectors[1:] = ormqr("L", "N", turn, scales, np.asfortranarray(vectors[1:]), 64 * count)[0]
    return torch.from_numpy(values[::-1].copy()).clamp(min=0), torch.from_numpy(vectors[:, ::-1].copy())


def _polish(axes: Float[Tensor, "component model"], rank: int) -> None:
    # Cholesky QR: what the Gram gave is orthonormal to eps x first / n-th variance, and one pass mends that.
    axes[rank:] = torch.nan
    held = axes[:rank]
    held /= held.norm(dim=-1, keepdim=True)
    products, same = held @ held.mT, torch.eye(len(held), dtype=torch.float64)
    if rank and float((products - same).abs().max()) > 1e-14:
        held.copy_(torch.linalg.solve_triangular(torch.linalg.cholesky(products), same, upper=False) @ held)
