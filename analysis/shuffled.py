"""Chance for mean Jacobians of experts whose weights are shuffled: each matrix keeps its entries and loses their order.

Nothing is drawn. A cosine's mean and spread need no more of a shuffled matrix than the mean and the variance of its
entries, and those are what shuffling keeps.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from analysis.jacobians import MeanJacobians, probes
from analysis.precision import working_dtype


def shuffled_cosines(
    jacobians: MeanJacobians, directions: int
) -> tuple[Float[Tensor, "every every"], Float[Tensor, "every every"]]:
    """Where the cosine of two mean Jacobians lies once the entries of each weight matrix are dealt out at random.

    Shuffled are the entries of gate, up and down, each matrix of each expert by itself, so neither rows nor columns nor
    what the matrices have to do with each other remain. Kept are the entries, hence their means, and each hidden
    neuron's mean slopes. A Jacobian then has a mean, constant over entries, and noise of four sizes: along the constant
    direction of outputs and of inputs, of one of them, of neither.

    Args:
        jacobians: A layer's.
        directions: Of the input, along which they are compared: all of `model`, or fewer, those of a sketch.

    Returns:
        Mean and standard deviation of the cosine of two different experts, -1 to 1 and 0 or more, to leading order in
        1 / model and 1 / hidden; NaN for an expert without tokens.

    Source:
        Ours, by the delta method: for independent J and K of means m and variances t, var <J, K> is the sum over sizes
        of n t_J t_K, and along both constants m_J^2 t_K + m_K^2 t_J, less what lengthens its own Jacobian too. Entries
        dealt out count as independent, which they are but for 1 / entries.
    """
    model = jacobians.down.shape[1]
    # How much of the constant direction the probes see: everything, where they are all directions.
    along = 1.0 if directions == model else float(probes(model, directions).sum(-1).square().sum() / model**2)
    places = torch.tensor([1, model - 1, directions - 1, (model - 1) * (directions - 1)], dtype=torch.float64)
    found = [_moments(own, expert, along) for own, expert in jacobians.every]
    mean, noise = torch.stack([m for m, _ in found]), torch.stack([t for _, t in found])
    size = (mean.square() + noise @ places).sqrt()
    # Noise along a Jacobian's own mean lengthens it as well, which a cosine does not see.
    fixed = mean.square()[:, None] * noise[:, 0] * (1 - (mean / size).square()).square()
    spread = ((noise * places) @ noise.mT + fixed + fixed.mT).sqrt()
    norms = size[:, None] * size
    return mean[:, None] * mean / norms, spread / norms


def _moments(own: MeanJacobians, expert: int, along: float) -> tuple[Float[Tensor, ""], Float[Tensor, " four"]]:
    """Mean along both constant directions; variance along both, along that of inputs, of outputs, along neither."""
    model, up_slope = own.down.shape[1], own.up_slope[expert].double()
    down_variance, down_mean = _of_entries(own.down[expert])
    variance, mean = _of_entries(own.up[expert])
    inner_variance, inner_mean = up_slope.square() * variance, up_slope * mean
    if own.gate is not None and own.gate_slope is not None:
        variance, mean = _of_entries(own.gate[expert])
        gate_slope = own.gate_slope[expert].double()
        inner_variance, inner_mean = inner_variance + gate_slope.square() * variance, inner_mean + gate_slope * mean
    neither = down_variance * inner_variance.sum()
    of_inputs = down_variance * inner_mean.square().sum() * model * along
    of_outputs = down_mean.square() * inner_variance.sum() * model
    noise = torch.stack([neither + of_inputs + of_outputs, neither + of_inputs, neither + of_outputs, neither])
    return down_mean * inner_mean.sum() * model * along**0.5, noise


def _of_entries(matrix: Float[Tensor, "row column"]) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    variance, mean = torch.var_mean(matrix.to(working_dtype(matrix)), correction=0)
    return variance.double(), mean.double()
