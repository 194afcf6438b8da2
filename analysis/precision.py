"""In which precision products of an expert's matrices are computed."""

from __future__ import annotations

import torch
from torch import Tensor

SMALL = 2**18
"""Numbers in one matrix of an expert up to which float64 costs next to nothing."""


def working_dtype(matrix: Tensor) -> torch.dtype:
    """float64 for small or double matrices, float32 for the rest: never the half precision of a checkpoint.

    Returns:
        The type in which to multiply by this matrix.

    Source:
        Ours: in float32 a row's product depends in its last digits on the rows beside it, so a sum over tokens would
        depend on how they were cut into batches; for large matrices (about 1e-6) that is cheaper than float64.
    """
    small = matrix.dtype == torch.float64 or matrix.shape[-1] * matrix.shape[-2] <= SMALL
    return torch.float64 if small else torch.float32
