"""What the MoE layers of one forward pass saw and did, read under hooks that change nothing and do not outlive it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from analysis.expert import Expert
from backend.adapters.anatomy import AdapterLies, Anatomy, Called, MoeLayer, Returned, as_rows
from backend.adapters.flight import Call, Flight, Seen, observed, output_sizes, preactivations


@dataclass
class Trace:
    """One MoE layer of one pass, the wanted rows only; None where the model showed nothing.

    `scores` is what the router ranked: the input of the very `topk` call whose indices the experts were given.
    """

    router_input: Tensor | None = None
    logits: Tensor | None = None
    scores: Tensor | None = None
    expert_input: Tensor | None = None
    indices: Tensor | None = None
    weights: Tensor | None = None
    output: Tensor | None = None
    block_output: Tensor | None = None
    output_norms: Tensor | None = None
    output_extremes: Tensor | None = None
    gate_in: Tensor | None = None
    up_in: Tensor | None = None
    task_gradient: Tensor | None = None


class _TopkReader(TorchFunctionMode):
    """Remembers the last `topk` of this thread; every call goes through unchanged."""

    def __init__(self) -> None:
        super().__init__()
        self.last: tuple[Tensor, Tensor] | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func in (torch.topk, Tensor.topk):
            self.last = (args[0] if args else kwargs["input"], out[1])
        return out

    def ranked(self, indices: Tensor) -> Tensor | None:
        """The scores whose `topk` gave exactly these indices, or None if the last one did not."""
        if self.last is None:
            return None
        (scores, found), self.last = self.last, None
        same = found.shape == indices.shape and torch.equal(found.long(), indices.long())
        return scores if same and scores.dim() == 2 else None


@dataclass(frozen=True)
class Extra:
    """What to keep besides the routing.

    `layers`: what router and experts read, and the logits; of the experts what they returned, each output's size, each
    pre-activation. With what they returned comes what the block made of it, where a shared expert is to be found in the
    difference.
    """

    layers: bool = True
    outputs: bool = False
    norms: bool = False
    gate: bool = False


@contextmanager
def watch(anatomy: Anatomy, rows: Tensor, total: int, extra: Extra | None = None) -> Iterator[list[Trace]]:
    """Record each MoE layer of the forward passes run inside by this thread; hooks are gone afterwards, error or not.

    Args:
        anatomy: Where the layers are.
        rows: Which rows of the flattened [batch, sequence] to keep: those that are no padding.
        total: How many rows the flattened batch has, so that a layer which sees others is noticed.
        extra: What to keep of the experts; norms and pre-activations are observed in flight.

    Raises:
        AdapterLies: In the pass, if a layer runs twice, sees other rows than the batch has, or if observed outputs do
            not add up to what it returned.
    """
    traces = [Trace() for _ in anatomy.layers]
    with ExitStack() as stack:
        reader = stack.enter_context(_TopkReader())
        recorder = _Recorder(reader, rows, total, threading.get_ident(), extra or Extra())
        for layer, trace in zip(anatomy.layers, traces, strict=True):
            flight = None
            if recorder.extra.norms or recorder.extra.gate:
                flight = stack.enter_context(observed(layer.experts, recorder.mine, before=recorder.extra.gate))
            stack.enter_context(layer.listen(*recorder.ears(layer, trace, flight)))
            for register, hook, options in recorder.hooks(layer, trace):
                stack.callback(register(hook, **options).remove)
        yield traces


Registration = tuple[Callable[..., Any], Callable[..., None], dict[str, Any]]


@dataclass(frozen=True)
class _Recorder:
    """Makes the hooks of one pass. They copy the wanted rows at once, since a model may write over a tensor later.

    A foreign thread's pass through the same model leaves no trace.
    """

    reader: _TopkReader
    rows: Tensor
    total: int
    thread: int
    extra: Extra

    def hooks(self, layer: MoeLayer, trace: Trace) -> list[Registration]:
        """What to register beside the routed experts: on the router, and on the block where its output is wanted."""

        def router_input(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if self.mine():
                trace.router_input = self.keep(args[0] if args else next(iter(kwargs.values())))

        def router_output(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            if self.mine():
                trace.logits = self.scores(layer.read_logits(output), layer)

        def block_output(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            out = output[0] if isinstance(output, tuple) else output
            # One row of the model's width for each row of the batch, or it is something else.
            if self.mine() and isinstance(out, Tensor) and out.numel() == self.total * layer.size()[1]:
                trace.block_output = self.keep(out)

        if not self.extra.layers:
            return []
        # The router first, its linear child second: what stands between them (a norm) belongs to the router's input.
        inputs = dict.fromkeys((layer.router, layer.rows()))
        found: list[Registration] = [(m.register_forward_pre_hook, router_input, {"with_kwargs": True}) for m in inputs]
        found.append((layer.router.register_forward_hook, router_output, {}))
        if self.extra.outputs and layer.shared() is not None:
            found.append((layer.block.register_forward_hook, block_output, {}))
        return found

    def ears(self, layer: MoeLayer, trace: Trace, flight: Flight | None) -> tuple[Called, Returned | None]:
        """Who hears of the experts' calls and, where more than those is wanted, of what they returned."""
        pending: list[tuple[Tensor, Tensor, Tensor]] = []

        def called(x: Tensor, indices: Tensor, weights: Tensor) -> None:
            if self.mine():
                self.keep_call(layer, trace, x, indices, weights)
                if flight is not None:
                    pending.append((x, indices, weights))

        def returned(output: Tensor) -> None:
            if not self.mine():
                return
            if self.extra.outputs:
                trace.output = self.keep(output)
            if flight is None:
                return
            x, indices, weights = pending.pop()
            call = Call(*(self.keep(tensor) for tensor in (x, indices, weights, output)))
            with torch.no_grad():
                _fill(trace, layer, call, flight.land(layer, indices, self.keep), self.extra)

        return called, returned if self.extra.outputs or flight is not None else None

    def mine(self) -> bool:
        """True on the thread that watches."""
        return threading.get_ident() == self.thread

    def keep_call(self, layer: MoeLayer, trace: Trace, x: Tensor, indices: Tensor, weights: Tensor) -> None:
        """Keep what the experts were called with, and the scores behind it."""
        if trace.indices is not None:
            raise AdapterLies(f"{layer.name} ran twice in one pass: its tokens cannot be told apart")
        if len(indices) != self.total:
            raise AdapterLies(f"{layer.name} saw {len(indices)} tokens where the batch has {self.total}")
        scores = self.reader.ranked(indices)
        trace.scores = None if scores is None else self.scores(scores, layer)
        trace.indices, trace.weights = self.keep(indices), self.keep(weights)
        if self.extra.layers:
            trace.expert_input = self.keep(x)

    def keep(self, tensor: Tensor) -> Tensor:
        """A copy of the wanted rows, on the device where the layer computes."""
        flat = as_rows(tensor.detach())
        return flat.index_select(0, self.rows.to(flat.device))

    def scores(self, tensor: Any, layer: MoeLayer) -> Tensor | None:
        """Kept rows if this is one number for each token and expert, else None: the router hides its scores."""
        if not isinstance(tensor, Tensor) or tensor.numel() != self.total * layer.size()[0]:
            return None
        return self.keep(tensor)


def _fill(trace: Trace, layer: MoeLayer, call: Call, seen: Seen | None, extra: Extra) -> None:
    """Pre-activations and sizes of outputs, the second from the first where both are wanted."""
    gate_in, up_in = preactivations(layer, call, seen) if extra.gate else (None, None)
    trace.gate_in, trace.up_in = gate_in, up_in

    def activations(expert: Expert, token: Tensor, slot: Tensor) -> Tensor:
        if up_in is not None:
            return expert.phi(None if gate_in is None else gate_in[token, slot], up_in[token, slot])
        return expert.phi(*expert.preactivations(call.x[token])) if seen is None else seen.at(token, slot)

    if extra.norms:
        trace.output_norms, trace.output_extremes = output_sizes(layer, call, activations)
