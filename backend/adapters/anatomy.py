"""Where the parts of a Mixture-of-Experts model live: layers, routers, experts.

An adapter says where parts live and nothing else. Geometry reads what is here and never the model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from analysis.errors import GeometryError, UnknownName
from analysis.expert import Expert
from analysis.slots import SLOTS, Layered, Shape

STACKED = ("router_weight", "router_bias")
"""Slots small enough to hold for all layers at once."""

Called = Callable[[Tensor, Tensor, Tensor], None]
"""Told the experts' input [token, model], the chosen experts and their combine weights [token, k]."""
Returned = Callable[[Tensor], None]
"""Told what the routed experts returned [token, model]."""


class Unsupported(GeometryError):
    """Raised when a model has experts in a layout no adapter reads; the text says which and what would help."""


class AdapterLies(GeometryError):
    """Raised when what an adapter says of a model is not what the model does, before any figure is drawn."""


@dataclass(frozen=True, eq=False)
class MoeLayer(ABC):
    """One MoE layer: its label (decoder index), where it lies, its modules and its k.

    A family that is not fused experts subclasses this and says how its routing is heard and where its weights are.
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

    @contextmanager
    def listen(self, called: Called, returned: Returned | None = None) -> Iterator[None]:
        """Tell each call of the routed experts inside, and afterwards what they returned where somebody asks.

        Hooks are gone at the end, error or not. They fire on the thread that runs the model, in that order.
        """
        handles = [
            self.experts.register_forward_pre_hook(
                lambda _, args, kwargs: called(*self.read_call(args, kwargs)), with_kwargs=True
            )
        ]
        if returned is not None:
            tell = returned
            handles.append(self.experts.register_forward_hook(lambda _, args, output: tell(as_rows(output))))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def read_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
        """Expert input, chosen experts and weights from a call of the experts module: its three arguments by position.

        Their names differ between models.
        """
        x, indices, weights = (*args, *kwargs.values())
        return as_rows(x), as_rows(indices), as_rows(weights)

    def read_logits(self, output: Any) -> Any:
        """The router's scores before any selection, in what it returned; something else where it shows none."""
        return output[0] if isinstance(output, tuple) else output

    def rows(self) -> nn.Module:
        """The module whose input is the router's true input: the linear map of it, where that is a child."""
        return self.router

    def flight_order(self, indices: Tensor, pieces: int) -> Tensor | None:
        """Which selections (flat, token by slot) the model's activations belong to, in its order; None if unknown.

        `pieces` is in how many calls of `_apply_gate` they came.
        """
        return None

    def gate_and_up(self, fused: Tensor) -> tuple[Tensor, Tensor]:
        """The pre-activations of gate and up projection in what `_apply_gate` is given."""
        gate, up = fused.chunk(2, dim=-1)
        return gate, up

    def shared(self) -> Expert | None:
        """The expert that serves every token, where the model has one beside the routed ones."""
        return None

    def shared_alone(self, x: Tensor) -> Tensor:
        """What the model's own code makes of x with that expert alone: what `shared` must equal."""
        raise Unsupported(f"{self.name} has no shared expert")

    def shared_weight(self, x: Tensor) -> Tensor:
        """What that expert's output is multiplied by at each row of x, in float32 or more: 1 where nothing is."""
        return torch.ones(len(x), dtype=torch.promote_types(x.dtype, torch.float32), device=x.device)

    def identity(self, indices: Tensor) -> Tensor:
        """True where a selection is an identity expert: it returns its input, and no weights serve it."""
        return torch.zeros_like(indices, dtype=torch.bool)

    def skipped(self, indices: Tensor, weights: Tensor) -> Tensor:
        """True where a selection is a skip expert, which adds nothing."""
        return torch.zeros_like(indices, dtype=torch.bool)

    def dropped(self, indices: Tensor, weights: Tensor) -> Tensor:
        """True where capacity dropped a selection."""
        return torch.zeros_like(indices, dtype=torch.bool)


def as_rows(tensor: Tensor) -> Tensor:
    """The same numbers with one row a token."""
    return tensor.reshape(-1, tensor.shape[-1])


@dataclass(frozen=True, eq=False)
class Anatomy:
    """The MoE layers of a model, first layer first, and the sizes they share."""

    layers: tuple[MoeLayer, ...]
    shape: Shape
    model_type: str

    @property
    def adapter(self) -> str:
        """What reads it: the name of the adapter's file."""
        return type(self.layers[0]).__module__.rpartition(".")[2]

    def weights(self, name: str, layer: int | None = None) -> Tensor:
        """A weight slot on the CPU: all layers stacked, or one of them (an index into `layers`) without that axis.

        Raises:
            UnknownName: If no weight slot has this name.
            GeometryError: If the model has no such weights (experts without a gate, no shared expert, a router without
                rows).
        """
        if name not in SLOTS:
            raise UnknownName(f"no weight slot {name!r}; known: {', '.join(SLOTS)}")
        if layer is not None:
            return self.layers[layer].weights(name).detach().cpu()
        return torch.stack([each.weights(name).detach().cpu() for each in self.layers])

    def without_shared(self) -> Anatomy:
        """The same model, of whose shared expert nothing is said."""
        return replace(self, shape=replace(self.shape, shared=0))

    def slot(self, name: str) -> Layered:
        """A weight slot as measures read it: the router's rows stacked, the experts' matrices one layer at a time."""
        return self.weights(name) if name in STACKED else LayerByLayer(self, name)


@dataclass(frozen=True, eq=False)
class LayerByLayer:
    """A weight slot that brings one layer to the CPU when it is asked for, since all of them may not fit."""

    anatomy: Anatomy
    name: str

    def __len__(self) -> int:
        return len(self.anatomy.layers)

    def __getitem__(self, layer: int) -> Tensor:
        return self.anatomy.weights(self.name, layer)
