"""Two experts made one: their neurons matched, then their weights averaged by how much each was used."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn import functional as F

from analysis.expert import Expert

NEURONS = ("gate", "up", "gate_bias", "up_bias")
"""Parts of an expert with a row for each hidden neuron; `down` has a column for each."""


def neuron_similarity(first: Expert, second: Expert) -> Float[Tensor, "hidden hidden"]:
    """Cosine of every neuron of one expert with every neuron of the other: of gate, up and down, added.

    Returns:
        -3 to 3; -2 to 2 for experts without a gate.

    Source:
        Ours, after the weight matching of MC-SMoE (Li et al. 2023, arXiv 2310.01334).
    """
    pairs = [(first.up, second.up), (first.down.T, second.down.T)]
    if first.gate is not None and second.gate is not None:
        pairs.append((first.gate, second.gate))
    cosines = [F.normalize(a.double(), dim=-1) @ F.normalize(b.double(), dim=-1).T for a, b in pairs]
    return torch.stack(cosines).sum(0)


def matched_neurons(first: Expert, second: Expert) -> Int[Tensor, " hidden"]:
    """Which neuron of the second expert answers each neuron of the first, so that the similarity is largest in all.

    Returns:
        A permutation of 0 to hidden - 1.

    Source:
        Linear assignment: Kuhn 1955, as scipy solves it.
    """
    _, columns = linear_sum_assignment(neuron_similarity(first, second).cpu().numpy(), maximize=True)
    return torch.from_numpy(columns).to(first.up.device)


def merged(first: Expert, second: Expert, share: float) -> Expert:
    """The weights of both, neurons matched, the second's with this share.

    An expert whose neurons are those of the other in another order gives the other back, to the last bit.

    Returns:
        An expert of the same sizes; between first (share 0) and second (share 1).

    Source:
        Usage-weighted averaging: MC-SMoE (Li et al. 2023, arXiv 2310.01334).
    """
    order = matched_neurons(first, second)
    parts = {name: _lerp(getattr(first, name), getattr(second, name), share, order) for name in NEURONS}
    down = torch.lerp(first.down, second.down[:, order], share)
    return replace(first, **parts, down=down, down_bias=_lerp(first.down_bias, second.down_bias, share, None))


def _lerp(first: Tensor | None, second: Tensor | None, share: float, order: Tensor | None) -> Tensor | None:
    if first is None or second is None:
        return first
    return torch.lerp(first, second if order is None else second[order], share)
