"""Experts as a list of modules that the block calls one by one: classes of transformers 4, or a module of one's own.

No module is told the whole routing, so it is read where it happens: the block's own `topk` says who was chosen, each
expert's call which rows it got, and the product with its output what weight they have.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from analysis.expert import Expert
from backend.adapters.anatomy import AdapterLies, Called, Returned, Unsupported, as_rows
from backend.adapters.fused import ROUTER_NAMES, FusedLayer

GATED = (("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2"), ("wi_0", "wi_1", "wo"))
PLAIN = (("up_proj", "down_proj"), ("wi", "wo"), ("fc1", "fc2"), ("w1", "w2"))
"""Names of an expert's linear maps: gate, up and down; or up and down."""
ACTIVATIONS = ("act_fn", "act", "activation", "activation_fn")
OWN = "describe it in an adapter of your own (backend/README.md, 'A model of your own')"
PRODUCTS = ("mul", "mul_", "__mul__", "__rmul__", "__imul__", "multiply")


@dataclass(frozen=True, eq=False)
class ListedLayer(FusedLayer):
    """Modules with the same linear maps, in a `ModuleList` or `ModuleDict` beside a router."""

    def size(self) -> tuple[int, int, int]:
        """Experts, model width, hidden width of one expert."""
        up = self._linear(0)[1].weight
        return len(self._modules()), up.shape[1], up.shape[0]

    def expert(self, index: int) -> Expert:
        """One expert as views of its module's tensors."""
        gate, up, down = self._linear(index)
        weights = [None if each is None else each.weight.detach() for each in (gate, up, down)]
        biases = [None if each is None or each.bias is None else each.bias.detach() for each in (gate, up, down)]
        assert weights[1] is not None and weights[2] is not None
        return Expert(weights[0], weights[1], weights[2], self.phi, *biases)

    def alone(self, index: int, x: Tensor) -> Tensor:
        """The module's own forward."""
        return self._modules()[index](x)

    @contextmanager
    def listen(self, called: Called, returned: Returned | None = None) -> Iterator[None]:
        """Told when the block ends; what a shared expert adds to its output is taken off again."""
        state = threading.local()

        def begin(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            state.x = as_rows(args[0] if args else next(iter(kwargs.values())))
            state.reader = _Reader()
            state.reader.__enter__()

        def given(index: int) -> Any:
            def hook(_: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
                state.reader.calls.append(_Call(index, as_rows(args[0]), output))

            return hook

        def end(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            reader, state.reader = state.reader, None
            reader.__exit__(None, None, None)
            with torch.no_grad():
                called(state.x, *reader.routing(self.name, self.top_k, state.x))
                if returned is not None:
                    returned(self._routed(state.x, as_rows(output[0] if isinstance(output, tuple) else output)))

        handles = [self.block.register_forward_pre_hook(begin, with_kwargs=True)]
        handles += [expert.register_forward_hook(given(n)) for n, expert in enumerate(self._modules())]
        handles.append(self.block.register_forward_hook(end))
        try:
            yield
        finally:
            if getattr(state, "reader", None) is not None:  # the block failed halfway
                state.reader.__exit__(None, None, None)
            for handle in handles:
                handle.remove()

    def _routed(self, x: Tensor, output: Tensor) -> Tensor:
        if self._shared_module() is None:
            return output
        return output - (self.shared_weight(x)[:, None] * self.shared_alone(x)).to(output.dtype)

    def _modules(self) -> list[nn.Module]:
        return list(self.experts.children())

    def _linear(self, index: int) -> tuple[nn.Linear | None, nn.Linear, nn.Linear]:
        maps = linear_maps(self._modules()[index])
        assert maps is not None
        return maps

    def first(self) -> tuple[Tensor | None, Tensor]:
        """The gate's and the up projections [expert, hidden, model]."""
        gates, ups, _ = zip(*map(self._linear, range(len(self._modules()))), strict=True)
        gate = None if gates[0] is None else torch.stack([each.weight for each in gates])
        return gate, torch.stack([each.weight for each in ups])

    def down(self) -> Tensor:
        """The down projections [expert, model, hidden]."""
        return torch.stack([self._linear(index)[2].weight for index in range(len(self._modules()))])

    def phi(self, gate: Tensor | None, up: Tensor) -> Tensor:
        """What stands between them."""
        act: Any = activation(self._modules()[0])
        return act(up) if gate is None else act(gate) * up


@dataclass
class _Call:
    """One call of one expert: its rows, its output, and what that was multiplied by."""

    index: int
    rows: Tensor
    output: Tensor
    weight: Tensor | None = None


class _Reader(TorchFunctionMode):
    """Reads choices and weights off the operations of a block; every one goes through unchanged."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[_Call] = []
        self.chosen: Tensor | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in (torch.topk, Tensor.topk):
            self.chosen = out[1]
        elif self.calls and len(args) == 2 and getattr(func, "__name__", "") in PRODUCTS:
            self._weigh(*args)
        return out

    def _weigh(self, left: Any, right: Any) -> None:
        last = self.calls[-1]
        for output, weight in ((left, right), (right, left)):
            if output is last.output and last.weight is None and isinstance(weight, Tensor):
                last.weight = weight.detach()

    def routing(self, name: str, top_k: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """Chosen experts and weights [token, k].

        Raises:
            AdapterLies: If they cannot be read off what the block did.
        """
        chosen = None if self.chosen is None else self.chosen.reshape(-1, top_k)
        if chosen is None or len(chosen) != len(x):
            raise AdapterLies(f"{name}: no `topk` of the block says which {top_k} experts each token gets; {OWN}")
        weights = torch.full(chosen.shape, torch.nan, dtype=x.dtype, device=x.device)
        for call in self.calls:
            token, slot = self._who(name, call, chosen, x)
            if call.weight is None or call.weight.numel() != len(token):
                raise AdapterLies(f"{name}: no weight for each row multiplies expert {call.index}'s output; {OWN}")
            weights[token, slot] = call.weight.reshape(-1).to(weights.dtype)
        if weights.isnan().any():
            raise AdapterLies(f"{name}: not every chosen expert was called with its tokens; {OWN}")
        return chosen, weights

    def _who(self, name: str, call: _Call, chosen: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Which (token, slot) pairs a call served: those that chose it, slot by slot or token by token."""
        slot, token = torch.where(chosen.T == call.index)
        by_token = token.argsort(stable=True)
        for order in (torch.arange(len(token), device=token.device), by_token):
            if torch.equal(x[token[order]], call.rows):
                return token[order], slot[order]
        raise AdapterLies(f"{name}: expert {call.index} was not called with the tokens that chose it; {OWN}")


def linear_maps(expert: nn.Module) -> tuple[nn.Linear | None, nn.Linear, nn.Linear] | None:
    """Gate (or none), up and down of one expert, by their names; None if it has other ones."""
    for names in (*GATED, *PLAIN):
        maps: list[Any] = [getattr(expert, each, None) for each in names]
        if all(isinstance(each, nn.Linear) for each in maps):
            return (maps[0], maps[1], maps[2]) if len(maps) == 3 else (None, maps[0], maps[1])
    return None


def activation(expert: nn.Module) -> Any:
    """The expert's activation function; None if it keeps none under a known name."""
    return next((found for each in ACTIVATIONS if callable(found := getattr(expert, each, None))), None)


def find(name: str, modules: Mapping[str, nn.Module], label: str, top_k: int | None) -> ListedLayer | None:
    """The layer whose experts are listed in `modules[name]`, or None if that is no list of experts beside a router.

    Raises:
        Unsupported: If it is one, but its experts' activation or k is not told.
    """
    experts, block = modules[name], modules.get(name.rpartition(".")[0])
    if type(experts) not in (nn.ModuleList, nn.ModuleDict) or block is None or not [*experts.children()]:
        return None
    router = next((child for n in ROUTER_NAMES if isinstance(child := getattr(block, n, None), nn.Module)), None)
    if router is None or any(linear_maps(child) is None for child in experts.children()):
        return None
    if top_k is None:
        raise Unsupported(f"neither the router of {name} nor the config says how many experts a token gets")
    if activation(next(experts.children())) is None:
        raise Unsupported(f"the experts of {name} keep their activation under none of {', '.join(ACTIVATIONS)}; {OWN}")
    return ListedLayer(label, name, experts, router, block, top_k)
