"""Worlds with an expert that serves every token beside the routed ones, and what measures say of them."""

import dataclasses

import torch
from torch.nn import functional as F

from analysis.expert import Expert
from analysis.inference import evaluate
from analysis.measure import Inputs, get

EXPERTS, WIDE = 6, 7
MEASURES = ("jacobian_alignment", "output_similarity", "grassmann_distance")
PARTS = ("gate", "up", "down")


def wide_expert(model=5, hidden=WIDE, phi=None, seed=5):
    """One that is wider than the routed ones, as they come."""
    draws = torch.randn(3, hidden, model, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    gate, up, down = draws / model**0.5
    return Expert(gate, up, down.mT.contiguous(), phi or (lambda z, u: F.silu(z) * u))


def with_shared(world, make, lengths=(20,) * 16, seed=0):
    """Batches in float64 in which `make(routed experts of the layer)` serves every token, at a weight of its own."""
    found = []
    for batch in world.layers(seed, lengths=lengths):
        own = [expert.to(torch.float64) for expert in batch.experts]
        shared, x = make(own), batch.expert_input.double()
        gate_in, up_in = world.preactivations(own, x, batch.indices, batch.served)
        more = {"experts": own, "expert_input": x, "router_input": x, "gate_in": gate_in, "up_in": up_in}
        shape = dataclasses.replace(batch.shape, shared=shared.up.shape[0])
        weight = (x[:, 0] - x[:, 1]).sigmoid()
        more |= {"shared_weight": weight, "shared_norms": shared(x).norm(dim=-1)}
        found.append(dataclasses.replace(batch, shape=shape, shared=shared, **more))
    return found


def weights_of(batches):
    """All weight slots of these batches' experts."""
    slots = {
        f"{p}_weight": torch.stack([torch.stack([getattr(e, p) for e in b.experts]) for b in batches]) for p in PARTS
    }
    beside = [b.shared for b in batches]
    if beside[0] is not None:
        slots |= {
            f"shared_{p}_weight": torch.stack([getattr(s, p) for s in beside])
            for p in PARTS
            if getattr(beside[0], p) is not None
        }
    return slots


def side_of(world, batches, *names):
    needed = {each for name in names or MEASURES for each in get(name).statistics}
    states = {name: world.state_of(name, batches) for name in needed}
    return Inputs(batches[0].shape, states, weights_of(batches))


def ask(name, side, **knobs):
    read = {each: side.states[each] for each in get(name).statistics}
    return evaluate(get(name), (dataclasses.replace(side, states=read),), knobs)
