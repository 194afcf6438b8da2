"""The block law: what an adapter says of a model must reproduce what the model did.

From the captured input, choices, weights and expert weights follow the routed output, the tally of selections and the
mean Jacobian. A checkpoint passes this on a few tokens in every MoE layer before any figure is drawn from it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.autograd.functional import jvp

from backend.adapters.anatomy import AdapterLies, Anatomy, MoeLayer
from backend.adapters.watch import Trace, watch

TOKENS = 8
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
HALF_TOLERANCE = 1e-2
# Two backward passes round more than one forward pass; in float64, some models cast to float32 inside the expert.
JACOBIAN_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-4}
HALF_JACOBIAN_TOLERANCE = 5e-2


@dataclass(frozen=True)
class Verified:
    """How well each layer's recomputation agreed, relative in Frobenius norm to what the model returned."""

    tokens: int
    output_error: tuple[float, ...]
    jacobian_error: tuple[float, ...]


@dataclass(frozen=True)
class Tally:
    """What became of each selection; each (token, slot) is in exactly one of the four."""

    served: Tensor
    dropped: Tensor
    skipped: Tensor
    identity: Tensor


def tally(layer: MoeLayer, indices: Tensor, weights: Tensor) -> Tally:
    """Served, dropped, skipped, identity, as masks [token, k] that together hold every selection once.

    Raises:
        AdapterLies: If they do not, or if a token has another number of selections than the adapter said.
    """
    experts, _, _ = layer.size()
    if indices.shape[-1] != layer.top_k:
        raise AdapterLies(
            f"{layer.name}: top {layer.top_k} was expected, each token has {indices.shape[-1]} selections"
        )
    identity, skipped = layer.identity(indices), layer.skipped(indices, weights)
    dropped = layer.dropped(indices, weights)
    served = (indices >= 0) & (indices < experts) & ~identity & ~skipped & ~dropped
    parts = [int(mask.sum()) for mask in (served, dropped, skipped, identity)]
    if sum(parts) != indices.numel():
        seen = dict(zip(("served", "dropped", "skipped", "identity"), parts, strict=True))
        raise AdapterLies(
            f"{layer.name}: {indices.numel()} selections (tokens x k) are not the sum of {seen}; indices run from "
            f"{int(indices.min())} to {int(indices.max())} for {experts} experts"
        )
    return Tally(served, dropped, skipped, identity)


def routed_output(layer: MoeLayer, x: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
    """The routed output [token, model] from the slots alone, in the precision of x."""
    counted = tally(layer, indices, weights)
    out = torch.where(counted.identity, weights, 0).sum(-1, keepdim=True).to(x.dtype) * x
    for index in indices[counted.served].unique().tolist():
        token, slot = torch.where((indices == index) & counted.served)
        expert = layer.expert(index).to(x.dtype)
        out.index_add_(0, token, expert(x[token]) * weights[token, slot, None].to(x.dtype))
    return out


@torch.no_grad()
def verify(model: nn.Module, anatomy: Anatomy, tokens: Tensor) -> Verified:
    """Hold the adapter to the block law on these token ids ([sequence], about `TOKENS` of them).

    Raises:
        AdapterLies: If a layer did not run, its selections do not add up, or output or Jacobian differ.
    """
    tokens = tokens.reshape(1, -1)
    rows = torch.arange(tokens.numel(), device=tokens.device)
    with watch(anatomy, rows, tokens.numel(), outputs=True) as traces:
        model(input_ids=tokens, use_cache=False)
    pairs = list(zip(anatomy.layers, traces, strict=True))
    outputs = tuple(_check_output(layer, trace) for layer, trace in pairs)
    return Verified(tokens.numel(), outputs, tuple(_check_jacobian(layer, trace) for layer, trace in pairs))


def _check_output(layer: MoeLayer, trace: Trace) -> float:
    if trace.expert_input is None or trace.indices is None or trace.weights is None or trace.output is None:
        raise AdapterLies(f"{layer.name} did not run in a forward pass of text: nothing was routed there")
    exact = torch.promote_types(trace.expert_input.dtype, torch.float32)
    found = routed_output(layer, trace.expert_input.to(exact), trace.indices, trace.weights)
    error, allowed = _error(found, trace.output.to(exact)), TOLERANCE.get(trace.output.dtype, HALF_TOLERANCE)
    if not error <= allowed:  # also true of NaN
        raise AdapterLies(
            f"{layer.name}: the routed output recomputed from router choices and expert weights differs from the "
            f"model's own by {error:.1e} of its norm ({allowed:.0e} allowed in {trace.output.dtype})"
        )
    return error


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
    error, allowed = (
        _error(closed.double(), products.double()),
        JACOBIAN_TOLERANCE.get(x.dtype, HALF_JACOBIAN_TOLERANCE),
    )
    if not error <= allowed:
        raise AdapterLies(
            f"{layer.name}: the closed-form Jacobian of expert {index} differs from the model's forward-mode products by "
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


def _error(found: Tensor, truth: Tensor) -> float:
    """Frobenius norm of the difference relative to that of the truth: one rounded entry does not decide it."""
    return float((found - truth).norm() / truth.norm().clamp(min=torch.finfo(truth.dtype).tiny))
