"""One expert written out: what it computes, its slopes, and its Jacobian in closed form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

Gate = Callable[[Tensor | None, Tensor], Tensor]
"""phi of the gate's pre-activation (None without a gate) and the up projection's; elementwise in both."""


@dataclass(frozen=True, eq=False)
class Expert:
    """y = down phi(gate x + b, up x + b) + b, with phi elementwise in its two arguments.

    `gate` is [hidden, model], None for an expert without a gate; `up` [hidden, model]; `down` [model, hidden].
    """

    gate: Tensor | None
    up: Tensor
    down: Tensor
    phi: Gate
    gate_bias: Tensor | None = None
    up_bias: Tensor | None = None
    down_bias: Tensor | None = None

    def __call__(self, x: Float[Tensor, "row model"]) -> Float[Tensor, "row model"]:
        """Output of the expert for rows of x, its combine weight left out."""
        return self.project(self.phi(*self.preactivations(x)))

    def project(self, activations: Float[Tensor, "row hidden"]) -> Float[Tensor, "row model"]:
        """Output of the expert from its gated activations."""
        return F.linear(activations, self.down, self.down_bias)

    def preactivations(
        self, x: Float[Tensor, "row model"]
    ) -> tuple[Float[Tensor, "row hidden"] | None, Float[Tensor, "row hidden"]]:
        """What goes into phi: of the gate (None without one) and of the up projection, biases included."""
        gate = None if self.gate is None else F.linear(x, self.gate, self.gate_bias)
        return gate, F.linear(x, self.up, self.up_bias)

    def slopes_each(
        self, x: Float[Tensor, "row model"]
    ) -> tuple[Float[Tensor, "row hidden"] | None, Float[Tensor, "row hidden"]]:
        """Slopes of phi by gate (None without one) and by up at each row of x, exact for any elementwise phi."""
        return self.slopes_at(*self.preactivations(x))

    def slopes_at(
        self, gate: Float[Tensor, "row hidden"] | None, up: Float[Tensor, "row hidden"]
    ) -> tuple[Float[Tensor, "row hidden"] | None, Float[Tensor, "row hidden"]]:
        """The slopes of phi at these pre-activations: those observed in flight cost no product of matrices."""
        with torch.enable_grad():
            up = up.detach().requires_grad_()
            if gate is None:
                return None, torch.autograd.grad(self.phi(None, up).sum(), up)[0]
            gate = gate.detach().requires_grad_()
            found = torch.autograd.grad(self.phi(gate, up).sum(), (gate, up))
        return found[0], found[1]

    def slopes(self, x: Float[Tensor, "row model"]) -> tuple[Float[Tensor, " hidden"] | None, Float[Tensor, " hidden"]]:
        """Mean over the rows of x of the slopes of phi by gate and by up."""
        gate, up = self.slopes_each(x)
        return None if gate is None else gate.mean(0), up.mean(0)

    def mean_jacobian(self, x: Float[Tensor, "row model"]) -> Float[Tensor, "model model"]:
        """Mean over the rows of x of dy/dx in closed form: one product of two matrices."""
        return self.along(x, torch.eye(self.up.shape[1], dtype=x.dtype, device=x.device))

    def along(self, x: Float[Tensor, "row model"], directions: Float[Tensor, "model n"]) -> Float[Tensor, "model n"]:
        """The mean Jacobian times `directions`, without building it."""
        gate_slope, up_slope = self.slopes(x)
        inner = up_slope[:, None] * (self.up @ directions)
        if self.gate is not None and gate_slope is not None:
            inner = inner + gate_slope[:, None] * (self.gate @ directions)
        return self.down @ inner

    def jvp(self, x: Float[Tensor, "row model"], v: Float[Tensor, "*row model"]) -> Float[Tensor, "row model"]:
        """dy/dx at each row of x times v (one direction for all rows, or one for each)."""
        gate_slope, up_slope = self.slopes_each(x)
        inner = up_slope * F.linear(v, self.up)
        if self.gate is not None and gate_slope is not None:
            inner = inner + gate_slope * F.linear(v, self.gate)
        return F.linear(inner, self.down)

    def to(self, dtype: torch.dtype) -> Expert:
        """The same expert in another precision."""
        names = ("gate", "up", "down", "gate_bias", "up_bias", "down_bias")
        tensors = {name: getattr(self, name) for name in names}
        return replace(self, **{name: None if t is None else t.detach().to(dtype) for name, t in tensors.items()})
