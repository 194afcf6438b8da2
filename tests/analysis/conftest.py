"""Tiny random slots: routing without preference, so that every null is true of it."""

import dataclasses

import pytest
import torch
from torch.nn import functional as F

from analysis.expert import Expert
from analysis.measure import STEPS, Inputs
from analysis.slots import LayerBatch, Prompts, RouteBatch, Shape, TokenKeys, text_digest
from analysis.statistic import get

# Tensors this small only lose time to threads that wait for each other.
torch.set_num_threads(1)

SHAPE = Shape(("1", "2", "3"), experts=6, top_k=2, model=5, hidden=4)


def prompts(count=16, tag=""):
    names = [f"{tag}p{i:02d}" for i in range(count)]
    digests = tuple(text_digest(name) for name in names)
    return Prompts(tuple(names), digests, tuple("ab"[i % 2] for i in range(count)))


def token_keys(lengths, generator):
    prompt = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    position = torch.cat([torch.arange(n) for n in lengths])
    size = (len(prompt),)
    token = torch.randint(0, 12, size, generator=generator)
    kind = torch.randint(0, 6, size, generator=generator)
    span = torch.stack([position, position + 1], -1)
    classes = torch.stack([kind, kind.roll(-1), kind.roll(-2)], -1)
    return TokenKeys(prompt, position, torch.zeros(size).long(), token, token, token, classes, span)


def routes(seed=0, shape=SHAPE, lengths=(40,) * 16, tag=""):
    """Uniform routing: k distinct experts per token, blindly."""
    generator = torch.Generator().manual_seed(seed)
    keys = token_keys(lengths, generator)
    size = (len(shape.layers), len(keys))
    scores = torch.rand(*size, shape.experts, generator=generator)
    top = scores.topk(shape.top_k, -1)
    served = torch.rand(*size, shape.top_k, generator=generator) < 0.9
    margins = torch.rand(*size, generator=generator)
    margins[:, ::7] = torch.nan
    return RouteBatch(shape, prompts(len(lengths), tag), keys, top.indices, top.values / 3, served, margins)


def silu_gated(gate, up):
    return F.silu(gate) * up


def experts(seed=0, shape=SHAPE):
    """Per layer, random gated experts, their entries of size 1 over the root of what they sum over."""
    generator = torch.Generator().manual_seed(seed + 10_000)
    found = []
    for _ in shape.layers:
        gate, up = torch.randn(2, shape.experts, shape.hidden, shape.model, generator=generator) / shape.model**0.5
        down = torch.randn(shape.experts, shape.model, shape.hidden, generator=generator) / shape.hidden**0.5
        found.append([Expert(*parts, silu_gated) for parts in zip(gate, up, down, strict=True)])
    return found


def weight_slots(seed=0, shape=SHAPE):
    """Every weight slot, stacked; gate, up and down are those of the experts of this seed."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(len(shape.layers), shape.experts, shape.model, generator=generator)
    bias = torch.randn(len(shape.layers), shape.experts, generator=generator) / 10
    stacked = {
        f"{part}_weight": torch.stack(
            [torch.stack([getattr(e, part) for e in layer]) for layer in experts(seed, shape)]
        )
        for part in ("gate", "up", "down")
    }
    return {"router_weight": rows, "router_bias": bias, **stacked}


def preactivations(own, x, indices, served):
    """What goes into phi at each (token, slot), NaN where not served."""
    gate, up = (torch.stack(both, 1) for both in zip(*(expert.preactivations(x) for expert in own), strict=True))
    found = []
    for every in (gate, up):
        chosen = every.gather(1, indices[..., None].expand(-1, -1, every.shape[-1]))
        found.append(chosen.masked_fill(~served[..., None], torch.nan))
    return found


def output_extremes(own, x, indices):
    """Least and largest component of what each chosen expert makes of each token."""
    every = torch.stack([expert(x) for expert in own], 1)
    both = torch.stack([every.amin(-1), every.amax(-1)], -1)
    return both.gather(1, indices[..., None].expand(-1, -1, 2))


def layers(seed=0, shape=SHAPE, lengths=(12,) * 16, tag=""):
    """The same blind routing, one batch per layer, with made-up inputs, output norms and gradients."""
    generator, gradients = (torch.Generator().manual_seed(seed + n) for n in (1, 20_000))
    batch, found = routes(seed, shape, lengths, tag), []
    for layer in range(len(shape.layers)):
        tokens = len(batch.keys)
        x = torch.randn(tokens, shape.model, generator=generator) + 0.5  # hidden states share a mean
        logits = torch.randn(tokens, shape.experts, generator=generator)
        norms = torch.rand(tokens, shape.top_k, generator=generator)
        norms[~batch.served[layer]] = torch.nan
        chosen = (batch.indices[layer], batch.weights[layer], batch.served[layer], batch.margins[layer])
        own = experts(seed, shape)[layer]
        gate_in, up_in = preactivations(own, x, batch.indices[layer], batch.served[layer])
        scores = (x, x, logits, logits.softmax(-1))
        gradient = torch.randn(tokens, shape.experts, generator=gradients)
        gradient += torch.randn(shape.experts, generator=gradients)  # the task has something left to change
        extremes = output_extremes(own, x, batch.indices[layer]).masked_fill(~batch.served[layer][..., None], torch.nan)
        more = {
            "output_extremes": extremes,
            "experts": own,
            "gate_in": gate_in,
            "up_in": up_in,
            "task_gradient": gradient,
        }
        found.append(LayerBatch(shape, batch.prompts, batch.keys, layer, *scores, *chosen, norms, **more))
    return found


def per_token(batch, change):
    """The batch with `change` applied along the token axis of every tensor that has one."""
    fields = {}
    for field in dataclasses.fields(batch):
        value = getattr(batch, field.name)
        if field.name == "keys":
            value = TokenKeys(**{f.name: change(getattr(value, f.name), 0) for f in dataclasses.fields(value)})
        elif isinstance(value, torch.Tensor):  # experts belong to no token
            value = change(value, 1 if isinstance(batch, RouteBatch) else 0)
        fields[field.name] = value
    return type(batch)(**fields)


def take(batch, rows):
    rows = torch.as_tensor(rows, dtype=torch.long)
    return per_token(batch, lambda tensor, axis: tensor.index_select(axis, rows))


def permute_experts(batch, order):
    """The batch with expert e renamed to order[e]."""
    changes = {"indices": order[batch.indices]}
    if isinstance(batch, LayerBatch):
        back = order.argsort()
        names = ("logits", "probabilities", "task_gradient")
        changes |= {name: getattr(batch, name)[:, back] for name in names}
        changes["experts"] = [batch.experts[e] for e in back.tolist()]
    return dataclasses.replace(batch, **changes)


def batches_for(statistic, seed=0, shape=SHAPE, lengths=(12,) * 16, tag=""):
    return layers(seed, shape, lengths, tag) if statistic.reads_layers else [routes(seed, shape, lengths, tag)]


def state_of(name, batches):
    statistic = get(name)
    state = statistic.empty(batches[0].shape)
    for batch in batches:
        state = statistic.merge(state, statistic.add(batch))
    return state


def inputs_for(measure, seed=0, shape=SHAPE, lengths=(12,) * 16, change=lambda batch: batch):
    """One `Inputs` per side, of independent random slots (three steps); `change` is applied to every batch."""
    sides = []
    for side in range(3 if measure.sides == STEPS else len(measure.sides) or 1):
        states = {}
        for name in measure.statistics:
            batches = batches_for(get(name), seed * 2 + side, shape, lengths)
            if measure.sides:  # all sides read the same tokens
                batches = [dataclasses.replace(b, keys=routes(seed * 2, shape, lengths).keys) for b in batches]
            states[name] = state_of(name, [change(batch) for batch in batches])
        slots = weight_slots(seed * 2 + side, shape)
        sides.append(Inputs(shape, states, {k: slots[k] for k in slots if k in measure.reads}, str(10 * side)))
    return tuple(sides)


@pytest.fixture(scope="session")
def world():
    """The functions of this file, for tests that cannot import it."""
    import types

    return types.SimpleNamespace(**{k: v for k, v in globals().items() if callable(v) or k == "SHAPE"})
