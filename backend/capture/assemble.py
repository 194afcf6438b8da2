"""From the traces of one pass to the batches that statistics read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from analysis.slots import LayerBatch, Prompts, RouteBatch, Shape, TokenKeys
from backend.adapters.anatomy import AdapterLies, Anatomy, MoeLayer
from backend.adapters.block import tally
from backend.adapters.watch import Trace

PROPORTIONAL = {torch.float32: 1e-4, torch.float64: 1e-4}
ROUNDED = 2e-2  # weights that went through bf16 or fp16


@dataclass(frozen=True)
class Routed:
    """One layer's routing: what was chosen, with what weight, served or not, by what margin."""

    indices: Tensor
    weights: Tensor
    served: Tensor
    margins: Tensor


def route_batch(shape: Shape, prompts: Prompts, keys: TokenKeys, routed: Sequence[Routed]) -> RouteBatch:
    """All layers' routing, stacked on the device of the tokens' keys."""
    device = keys.prompt.device
    stack = lambda name: torch.stack([getattr(each, name).to(device) for each in routed])  # noqa: E731
    return RouteBatch(shape, prompts, keys, stack("indices"), stack("weights"), stack("served"), stack("margins"))


def routed_of(layer: MoeLayer, trace: Trace) -> Routed:
    """Routing of one layer, its tally checked.

    Raises:
        AdapterLies: If the layer did not run or its selections do not add up.
    """
    if trace.indices is None or trace.weights is None:
        raise AdapterLies(f"{layer.name} did not run in a forward pass of text: nothing was routed there")
    indices = trace.indices.long()
    served = tally(layer, indices, trace.weights).served
    return Routed(indices, trace.weights.float(), served, margins(trace.scores, layer, len(indices), indices.device))


def margins(scores: Tensor | None, layer: MoeLayer, tokens: int, device: torch.device) -> Tensor:
    """Gap between the k-th and the next of the scores that were ranked, any selection bias in them.

    NaN where k = E, where the router shows no ranking, and where the next is masked out (its group was not picked).
    """
    if scores is None or layer.top_k >= layer.size()[0]:
        return torch.full((tokens,), torch.nan, device=device)
    best = scores.float().topk(layer.top_k + 1, dim=-1).values
    gap = best[:, -2] - best[:, -1]
    return torch.where(gap.isfinite(), gap, torch.nan)


def layer_batch(
    anatomy: Anatomy, index: int, tokens: tuple[Prompts, TokenKeys], trace: Trace, routed: Routed
) -> LayerBatch:
    """What one layer's router and experts saw and gave, on their own device; output norms only if asked for."""
    layer, (prompts, keys) = anatomy.layers[index], tokens
    seen, x = trace.router_input, trace.expert_input
    if seen is None or x is None or seen.shape != x.shape:
        shapes = [None if t is None else tuple(t.shape) for t in (seen, x)]
        raise AdapterLies(
            f"{layer.name}: router and experts were expected to read rows of one width, they read {shapes}"
        )
    keys = TokenKeys(**{each.name: getattr(keys, each.name).to(x.device) for each in fields(keys)})
    hidden = torch.full((len(x), anatomy.shape.experts), torch.nan, device=x.device)
    logits = hidden if trace.logits is None else trace.logits.float()
    norms = torch.full_like(routed.weights, torch.nan) if trace.output_norms is None else trace.output_norms
    return LayerBatch(
        shape=anatomy.shape,
        prompts=prompts,
        keys=keys,
        layer=index,
        router_input=seen,
        expert_input=x,
        logits=logits,
        probabilities=probabilities(logits, trace),
        indices=routed.indices,
        weights=routed.weights,
        served=routed.served,
        margins=routed.margins,
        output_norms=norms,
        output_extremes=trace.output_extremes,
        gate_in=trace.gate_in,
        up_in=trace.up_in,
        task_gradient=trace.task_gradient,
        shared_weight=layer.shared_weight(x) if anatomy.shape.shared else None,
    )


def with_experts(layer: MoeLayer, batch: LayerBatch) -> LayerBatch:
    """The same batch with the layer's experts, and the one that every token uses; all of them views."""
    experts = tuple(layer.expert(index) for index in range(layer.size()[0]))
    return replace(batch, experts=experts, shared=layer.shared() if batch.shape.shared else None)


def with_shared_norms(layer: MoeLayer, batch: LayerBatch) -> LayerBatch:
    """The same batch with the length of what the shared expert makes of each token, in float32, where there is one.

    Asked anew: what a block does with that output differs by family, and it is one expert.
    """
    shared = layer.shared() if batch.shape.shared else None
    if shared is None:
        return batch
    with torch.no_grad():
        return replace(batch, shared_norms=shared(batch.expert_input).float().norm(dim=-1))


def probabilities(logits: Tensor, trace: Trace) -> Tensor:
    """Softmax or normalised sigmoid of the logits, whichever the model's own combine weights are proportional to.

    Read off the weights (for k = 1, off the scores ranked), so no list of router classes decides it; NaN if neither
    fits.
    """
    unknown = torch.full_like(logits, torch.nan)
    if not len(logits) or logits.isnan().any() or trace.indices is None or trace.weights is None:
        return unknown
    if (logits >= 0).all() and torch.allclose(logits.sum(-1), torch.ones_like(logits[:, 0]), atol=1e-3):
        return logits / logits.sum(-1, keepdim=True)  # this router returns probabilities already
    tolerance = PROPORTIONAL.get(trace.weights.dtype, ROUNDED)
    fits = {}
    for name, scores in {"softmax": logits.softmax(-1), "sigmoid": logits.sigmoid()}.items():
        worst, mean = _misfit(scores, trace)
        if worst <= tolerance:
            fits[mean, name] = scores / scores.sum(-1, keepdim=True)
    return fits[min(fits)] if fits else unknown


def _misfit(scores: Tensor, trace: Trace) -> tuple[float, float]:
    """Worst and mean difference between the weights' shares and those of the chosen experts' scores."""
    assert trace.indices is not None and trace.weights is not None
    if trace.indices.shape[-1] == 1 and trace.scores is not None:
        found, wanted = scores, trace.scores.float()
    else:
        found, wanted = scores.gather(-1, trace.indices.long()), trace.weights.float()
        if trace.indices.shape[-1] > 1:
            found, wanted = F.normalize(found, p=1, dim=-1), F.normalize(wanted, p=1, dim=-1)
    difference = (found - wanted).abs()
    return float(difference.max()), float(difference.mean())
