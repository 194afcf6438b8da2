"""The block law: what an adapter says of a model must reproduce what the model did.

From the captured input, choices, weights and expert weights follow the routed output, the tally of selections and the
mean Jacobian. A checkpoint passes this on a few tokens in every MoE layer before any figure is drawn from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.functional import jvp

from backend.adapters.anatomy import AdapterLies, Anatomy, MoeLayer
from backend.adapters.block import relative_error, routed_output, tolerance
from backend.adapters.watch import Extra, Trace, watch

TOKENS = 8
FARTHEST = 8  # tokens in turn at 1 to 2^7 times their size
# Two backward passes round more than one forward pass; in float64, some models cast to float32 inside the expert.
JACOBIAN_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}
HALF_JACOBIAN_TOLERANCE = 5e-2


@dataclass(frozen=True)
class Verified:
    """How well each layer's recomputation agreed, relative in Frobenius norm to what the model returned.

    `shared_error` is that of the whole block, shared expert included; empty where none is known. It refuses no model:
    one whose block does more with it (a norm, a scale, a clamp) is read without it, `keeps_shared` false.
    """

    tokens: int
    output_error: tuple[float, ...]
    jacobian_error: tuple[float, ...]
    shared_error: tuple[float, ...] = ()
    keeps_shared: bool = True


@torch.no_grad()
def verify(model: nn.Module, anatomy: Anatomy, tokens: Tensor) -> Verified:
    """Hold the adapter to the block law on these token ids ([sequence], about `TOKENS` of them).

    Raises:
        AdapterLies: If a layer did not run, its selections do not add up, or output or Jacobian differ.
    """
    tokens = tokens.reshape(1, -1)
    rows = torch.arange(tokens.numel(), device=tokens.device)
    with watch(anatomy, rows, tokens.numel(), Extra(outputs=True)) as traces:
        model(input_ids=tokens, use_cache=False)
    pairs = zip(anatomy.layers, traces, strict=True)
    return verdict(tokens.numel(), [check(layer, trace, bool(anatomy.shape.shared)) for layer, trace in pairs])


@dataclass(frozen=True)
class Checked:
    """One layer's errors; of the shared expert beside what is allowed, None where none is read."""

    output: float
    jacobian: float
    shared: tuple[float, float] | None

    @property
    def keeps_shared(self) -> bool:
        """False where the block does more with its shared expert than is read."""
        return self.shared is None or self.shared[0] <= self.shared[1]  # false of NaN


@torch.no_grad()
def check(layer: MoeLayer, trace: Trace, shared: bool) -> Checked:
    """Hold one layer to the block law, on what was watched with `Extra(outputs=True)`; raises `AdapterLies`."""
    output, jacobian = _check_output(layer, trace), _check_jacobian(layer, trace)
    return Checked(output, jacobian, _shared_error(layer, trace) if shared else None)


def verdict(tokens: int, checks: Sequence[Checked]) -> Verified:
    """All layers' together."""
    shared = tuple(each.shared[0] for each in checks if each.shared is not None)
    kept = all(each.keeps_shared for each in checks)
    return Verified(tokens, tuple(c.output for c in checks), tuple(c.jacobian for c in checks), shared, kept)


def _check_output(layer: MoeLayer, trace: Trace) -> float:
    if trace.expert_input is None or trace.indices is None or trace.weights is None or trace.output is None:
        raise AdapterLies(f"{layer.name} did not run in a forward pass of text: nothing was routed there")
    exact = torch.promote_types(trace.expert_input.dtype, torch.float32)
    found = routed_output(layer, trace.expert_input.to(exact), trace.indices, trace.weights)
    error, allowed = relative_error(found, trace.output.to(exact)), tolerance(trace.output.dtype, layer.top_k)
    if not error <= allowed:  # also true of NaN
        raise AdapterLies(
            f"{layer.name}: the routed output recomputed from router choices and expert weights differs from the "
            f"model's own by {error:.1e} of its norm ({allowed:.0e} allowed in {trace.output.dtype})"
        )
    return error


def _shared_error(layer: MoeLayer, trace: Trace) -> tuple[float, float]:
    """How far a multiple of the routed output and weight x shared are from what the block returned, and may be.

    A multiple, since some blocks scale what their experts module returns before they add the shared expert. The shared
    expert alone is held to its module on larger inputs too, where a clamp would show that few tokens ever reach.
    """
    shared = layer.shared()
    if shared is None or trace.block_output is None or trace.expert_input is None or trace.output is None:
        return float("nan"), 0.0
    exact = torch.promote_types(trace.output.dtype, torch.float32)
    x, routed, whole = (each.to(exact) for each in (trace.expert_input, trace.output, trace.block_output))
    added = layer.shared_weight(x)[:, None] * shared.to(exact)(x)
    scale = ((whole - added) * routed).sum() / routed.square().sum()
    found = added if not scale.isfinite() else added + scale * routed
    far = (x * 2.0 ** (torch.arange(len(x), device=x.device)[:, None] % FARTHEST)).to(trace.expert_input.dtype)
    alone = layer.shared_alone(far).to(exact)
    there = alone.isfinite().all(-1)
    off = relative_error(shared.to(exact)(far.to(exact))[there], alone[there])
    return max(relative_error(found, whole), off), tolerance(trace.output.dtype, layer.top_k)


def _check_jacobian(layer: MoeLayer, trace: Trace) -> float:
    """Closed form against two forward-mode products of the module itself, for the expert that most tokens chose."""
    assert trace.indices is not None and trace.expert_input is not None
    served = trace.indices[(trace.indices >= 0) & (trace.indices < layer.size()[0])]
    if not served.numel():
        return 0.0
    index = int(served.mode().values)
    x = trace.expert_input[(trace.indices == index).any(-1)]
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(x.shape[-1], 2, generator=generator).to(x)
    closed = layer.expert(index).along(x, directions)
    products = torch.stack([_product(layer, index, x, direction) for direction in directions.T], -1)
    error = relative_error(closed.double(), products.double())
    allowed = JACOBIAN_TOLERANCE.get(x.dtype, HALF_JACOBIAN_TOLERANCE)
    if not error <= allowed:
        raise AdapterLies(
            f"{layer.name}: the closed-form Jacobian of expert {index} differs from the model's own products by "
            f"{error:.1e} ({allowed:.0e} allowed in {x.dtype}): its activation is not elementwise, or it is misread"
        )
    return error


def _product(layer: MoeLayer, index: int, x: Tensor, direction: Tensor) -> Tensor:
    """Mean over the rows of x of J times the direction, by two backward passes.

    `torch.func.jvp` would do it in one, but its first call compiles decompositions for seconds and warns of it.
    """
    _, product = jvp(lambda rows: layer.alone(index, rows), x, direction.expand_as(x).contiguous())
    assert isinstance(product, Tensor)
    return product.float().mean(0) if product.dtype.itemsize < 4 else product.mean(0)
