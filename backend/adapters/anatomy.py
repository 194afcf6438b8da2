"""Where the parts of a Mixture-of-Experts model live: layers, routers, experts, and one expert written out.

An adapter says where parts live and nothing else. Geometry reads what is here and never the model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from analysis.errors import GeometryError, UnknownName
from analysis.slots import SLOTS, Shape


class Unsupported(GeometryError):
    """Raised when a model has experts in a layout no adapter reads; the text says which and what would help."""


class AdapterLies(GeometryError):
    """Raised when what an adapter says of a model is not what the model does, before any figure is drawn."""


Gate = Callable[[Tensor | None, Tensor], Tensor]


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

    def __call__(self, x: Tensor) -> Tensor:
        """Output of the expert for rows of x, its combine weight left out."""
        return self.project(self.phi(*self._preactivations(x)))

    def project(self, activations: Tensor) -> Tensor:
        """Output of the expert from its gated activations [row, hidden]."""
        return F.linear(activations, self.down, self.down_bias)

    def slopes(self, x: Tensor) -> tuple[Tensor | None, Tensor]:
        """Mean over the rows of x of d phi / d gate and d phi / d up, exact for any elementwise phi."""
        with torch.enable_grad():
            gate, up = (None if t is None else t.detach().requires_grad_() for t in self._preactivations(x))
            assert up is not None
            wanted = [up] if gate is None else [gate, up]
            found = [slope.mean(0) for slope in torch.autograd.grad(self.phi(gate, up).sum(), wanted)]
        return (None, found[0]) if gate is None else (found[0], found[1])

    def mean_jacobian(self, x: Tensor) -> Tensor:
        """Mean over the rows of x of dy/dx, [model, model], in closed form: one product of two matrices."""
        return self.along(x, torch.eye(self.up.shape[1], dtype=x.dtype, device=x.device))

    def along(self, x: Tensor, directions: Tensor) -> Tensor:
        """The mean Jacobian times `directions` [model, n], without building it."""
        gate_slope, up_slope = self.slopes(x)
        inner = up_slope[:, None] * (self.up @ directions)
        if self.gate is not None and gate_slope is not None:
            inner = inner + gate_slope[:, None] * (self.gate @ directions)
        return self.down @ inner

    def to(self, dtype: torch.dtype) -> Expert:
        """The same expert in another precision."""
        names = ("gate", "up", "down", "gate_bias", "up_bias", "down_bias")
        tensors = {name: getattr(self, name) for name in names}
        return replace(self, **{name: None if t is None else t.detach().to(dtype) for name, t in tensors.items()})

    def _preactivations(self, x: Tensor) -> tuple[Tensor | None, Tensor]:
        gate = None if self.gate is None else F.linear(x, self.gate, self.gate_bias)
        return gate, F.linear(x, self.up, self.up_bias)


@dataclass(frozen=True, eq=False)
class MoeLayer(ABC):
    """One MoE layer: its label (decoder index), where it lies, its modules and its k.

    A family that is not fused experts subclasses this and says how its call is read and where its weights are.
    """

    label: str
    name: str
    experts: nn.Module
    router: nn.Module
    block: nn.Module
    top_k: int

    @abstractmethod
    def size(self) -> tuple[int, int, int]:
        """Experts, model width, hidden width of one expert."""

    @abstractmethod
    def expert(self, index: int) -> Expert:
        """One expert; its tensors are views of the model's."""

    @abstractmethod
    def alone(self, index: int, x: Tensor) -> Tensor:
        """What the model's own code makes of x with this expert alone at weight 1: what `expert` must equal."""

    @abstractmethod
    def weights(self, name: str) -> Tensor:
        """A weight slot of this layer, without the layer axis."""

    @abstractmethod
    def read_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
        """Expert input [token, model], chosen experts and weights [token, k] from a call of the experts module."""

    def rows(self) -> nn.Module:
        """The module whose input is the router's true input: the linear map of it, where that is a child."""
        return self.router

    def flight_order(self, indices: Tensor, pieces: int) -> Tensor | None:
        """Which selections (flat, token by slot) the model's activations belong to, in its order; None if unknown.

        `pieces` is in how many calls of `_apply_gate` they came.
        """
        return None

    def identity(self, indices: Tensor) -> Tensor:
        """True where a selection is an identity expert: it returns its input, and no weights serve it."""
        return torch.zeros_like(indices, dtype=torch.bool)

    def skipped(self, indices: Tensor, weights: Tensor) -> Tensor:
        """True where a selection is a skip expert, which adds nothing."""
        return torch.zeros_like(indices, dtype=torch.bool)

    def dropped(self, indices: Tensor, weights: Tensor) -> Tensor:
        """True where capacity dropped a selection."""
        return torch.zeros_like(indices, dtype=torch.bool)


@dataclass(frozen=True, eq=False)
class Anatomy:
    """The MoE layers of a model, first layer first, and the sizes they share."""

    layers: tuple[MoeLayer, ...]
    shape: Shape
    model_type: str

    def weights(self, name: str, layer: int | None = None) -> Tensor:
        """A weight slot on the CPU: all layers stacked, or one of them (an index into `layers`) without that axis.

        Raises:
            UnknownName: If no weight slot has this name.
            GeometryError: If the model has no such weights (experts without a gate, a router without rows).
        """
        if name not in SLOTS:
            raise UnknownName(f"no weight slot {name!r}; known: {', '.join(SLOTS)}")
        if layer is not None:
            return self.layers[layer].weights(name).detach().cpu()
        return torch.stack([each.weights(name).detach().cpu() for each in self.layers])
