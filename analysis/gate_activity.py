"""How strongly an expert's gate answers a token: one number from its hidden neurons, in five ways."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from analysis.expert import Expert
from analysis.precision import working_dtype

Activity = Literal["mean", "norm", "mean_size", "input_norm", "positive"]
ACTIVITIES: tuple[Activity, ...] = ("mean", "norm", "mean_size", "input_norm", "positive")
"""Over neurons n, z the gate's pre-activation: mean phi(z_n), |phi(z)|, mean |phi(z_n)|, |z|, share of z_n > 0."""


def gate_activity(
    expert: Expert, gate: Float[Tensor, "row hidden"] | None, up: Float[Tensor, "row hidden"]
) -> Float[Tensor, "row activity"]:
    """The five numbers at these pre-activations, in the order of `ACTIVITIES`.

    phi(z) is phi with an up projection of 1; an expert without a gate answers with its up projection alone.

    Returns:
        In units of the activation; the last is a share, 0 to 1.

    Source:
        Ahrac et al. 2026, arXiv 2605.12476, correlate scores with gate activations; which number of them is unknown.
    """
    dtype = working_dtype(expert.up)
    up = up.to(dtype)
    z = up if gate is None else gate.to(dtype)
    answer = expert.phi(None, up) if gate is None else expert.phi(z, torch.ones_like(z))
    found = (answer.mean(-1), answer.norm(dim=-1), answer.abs().mean(-1), z.norm(dim=-1), (z > 0).to(dtype).mean(-1))
    return torch.stack(found, -1)
