"""Subspaces and the angles between them: the Grassmann manifold, in float64."""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from analysis.linalg import gram, orthonormal

NEAR = 0.99
"""Above this cosine an angle is taken from its sine: arccos loses eps / angle, which below it is 1e-14 at most."""

CHUNK = 256
"""Pairs whose residuals are held at once: 70 MB for 16 axes in 2,048 dimensions."""


def principal_angles(a: Float[Tensor, "... n model"], b: Float[Tensor, "... m model"]) -> Float[Tensor, "... angle"]:
    """Angles between the subspaces spanned by two orthonormal sets of rows, smallest first.

    Args:
        a: Orthonormal rows; a basis of less than float64 is made orthonormal again.
        b: The same, of as many dimensions; there are min(n, m) angles.

    Returns:
        Radians, 0 to pi/2, to about 1e-15 at either end.

    Source:
        Björck & Golub 1973, Math. Comp. 27: cosines from the inner products, small angles from the sines of what is
        left of the vectors themselves (I - M'M would lose the same digits as arccos).
    """
    a, b = (basis if basis.dtype == torch.float64 else orthonormal(basis) for basis in (a, b))
    left_size, right_size = a.shape[-2], b.shape[-2]
    if left_size < right_size:
        a, b = b, a
    left, cosines, right = torch.linalg.svd(a @ b.mT, full_matrices=False)
    angles = cosines.clamp(max=1).arccos()
    near = int((cosines > NEAR).sum(-1).max()) if cosines.numel() else 0
    if not near:
        return angles
    # Rotated to the principal vectors, so that only those of small angles need their residual.
    vectors = right[..., :near, :] @ b
    residual = vectors - (cosines[..., :near, None] * left.mT[..., :near, :]) @ a
    residual = residual - (residual @ a.mT) @ a
    sines = torch.linalg.svdvals(torch.linalg.qr(residual.mT, mode="r").R).flip(-1)
    few = torch.where(cosines[..., :near] > NEAR, sines.clamp(max=1).arcsin(), angles[..., :near])
    return torch.cat([few, angles[..., near:]], -1).sort(-1).values


def all_pair_angles(bases: Float[Tensor, "expert n model"]) -> Float[Tensor, "expert expert n"]:
    """Principal angles of every two of these subspaces: one matrix product, one batch of small SVDs.

    Args:
        bases: Orthonormal rows in float64; a basis with a NaN has no angles.

    Returns:
        Radians, 0 to pi/2, smallest first; exactly 0 on the diagonal. NaN where a basis is.

    Source:
        Björck & Golub 1973; batching is ours.
    """
    experts, n, _ = bases.shape
    known = _known(bases)
    angles = torch.full((experts, experts, n), math.nan, dtype=torch.float64)
    angles[known, known] = 0
    first, second = torch.triu_indices(len(known), len(known), 1)
    held = bases[known]
    blocks = gram(held.flatten(0, 1)).view(len(known), n, len(known), n).transpose(1, 2)
    found = _angles_of(blocks[first, second], held, held, (first, second))
    angles[known[first], known[second]] = angles[known[second], known[first]] = found
    return angles


def cross_angles(
    a: Float[Tensor, "expert n model"], b: Float[Tensor, "expert_b n model"]
) -> Float[Tensor, "expert expert_b n"]:
    """Principal angles of every subspace of one family with every one of another.

    Args:
        a: Orthonormal rows in float64; a basis with a NaN has no angles.
        b: The same.

    Returns:
        Radians, 0 to pi/2, smallest first. NaN where a basis is.

    Source:
        Björck & Golub 1973; batching is ours.
    """
    n, rows, columns = a.shape[1], _known(a), _known(b)
    angles = torch.full((len(a), len(b), n), math.nan, dtype=torch.float64)
    first, second = torch.cartesian_prod(torch.arange(len(rows)), torch.arange(len(columns))).view(-1, 2).T
    left, right = a[rows], b[columns]
    blocks = (left.flatten(0, 1) @ right.flatten(0, 1).mT).view(len(rows), n, len(columns), n).transpose(1, 2)
    angles[rows[first], columns[second]] = _angles_of(blocks[first, second], left, right, (first, second))
    return angles


def _known(bases: Float[Tensor, "expert n model"]) -> Int[Tensor, " known"]:
    return (~bases.isnan().flatten(1).any(-1)).nonzero()[:, 0]


def _angles_of(
    blocks: Float[Tensor, "pair n n"],
    a: Float[Tensor, "expert n model"],
    b: Float[Tensor, "expert_b n model"],
    pairs: tuple[Tensor, Tensor],
) -> Float[Tensor, "pair n"]:
    """From the inner products of each pair of bases; the bases are looked at again where an angle is small."""
    cosines = torch.linalg.svdvals(blocks)
    found = cosines.clamp(max=1).arccos()
    for near in (cosines[:, 0] > NEAR).nonzero()[:, 0].split(CHUNK):
        found[near] = principal_angles(a[pairs[0][near]], b[pairs[1][near]])
    return found


def all_pair_overlaps(bases: Float[Tensor, "... expert n model"]) -> Float[Tensor, "... expert expert"]:
    """Mean squared cosine of the principal angles of every two subspaces, without an SVD.

    Returns:
        0 to 1; exactly 1 on the diagonal. NaN where a basis is.

    Source:
        |U'V|_F^2 / n.
    """
    *_, experts, n, _ = bases.shape
    products = gram(bases.flatten(-3, -2)).unflatten(-1, (experts, n)).unflatten(-3, (experts, n))
    shared = products.square().sum((-1, -3)) / n
    shared.diagonal(dim1=-2, dim2=-1).mul_(0).add_(1)
    return shared.clamp(max=1)


def geodesic(angles: Float[Tensor, "... angle"]) -> Float[Tensor, "*case"]:
    """Length of the shortest path between two subspaces.

    Returns:
        Radians, 0 to sqrt(n) pi/2 for n angles.

    Source:
        Edelman, Arias & Smith 1998, SIAM J. Matrix Anal. Appl. 20: the root of the sum of squared angles.
    """
    return angles.square().sum(-1).sqrt()


def overlap(angles: Float[Tensor, "... angle"]) -> Float[Tensor, "*case"]:
    """Mean squared cosine of the principal angles: the share of one subspace that lies in the other.

    Returns:
        0 (orthogonal) to 1 (the same); n/d on average for unrelated subspaces.

    Source:
        Krzanowski 1979, JASA 74; |U'V|_F^2 / n.
    """
    return angles.cos().square().mean(-1)


def random_angles(n: int, model: int, draws: int, generator: torch.Generator) -> Float[Tensor, "draw angle"]:
    """Principal angles of independent pairs of uniformly random n-dimensional subspaces.

    One of the two may be taken as fixed, so squared cosines are the eigenvalues of an n x n matrix-variate Beta, drawn
    through two Wisharts (Bartlett): the cost does not grow with the dimension.

    Args:
        n: Dimension of the subspaces, at most half of `model`.
        model: Dimension of the space.
        draws: How many pairs.
        generator: Where the draws come from.

    Returns:
        Radians, smallest first.

    Source:
        Absil, Edelman & Koev 2006, Linear Algebra Appl. 414; Bartlett 1933.
    """
    inside, outside = (_wishart(n, freedom, draws, generator) for freedom in (n, model - n))
    lower = torch.linalg.cholesky(inside + outside)
    half = torch.linalg.solve_triangular(lower, inside, upper=False)
    beta = torch.linalg.solve_triangular(lower, half.mT, upper=False)
    cosines = torch.linalg.eigvalsh((beta + beta.mT) / 2).clamp(0, 1).sqrt()
    return cosines.flip(-1).arccos()


def _wishart(n: int, freedom: int, draws: int, generator: torch.Generator) -> Float[Tensor, "draw n n"]:
    lower = torch.randn(draws, n, n, dtype=torch.float64, generator=generator).tril(-1)
    # torch draws no chi-squares from a generator of one's own; numpy does, seeded by it.
    numpy = np.random.default_rng(int(torch.randint(2**62, (), generator=generator)))
    squares = torch.from_numpy(numpy.chisquare(freedom - np.arange(n), (draws, n)))
    factor = lower + torch.diag_embed(squares.sqrt())
    return factor @ factor.mT
