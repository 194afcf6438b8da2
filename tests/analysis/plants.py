"""Worlds in which something was planted, of the fixture's shapes: three layers, six experts, two of them a token.

Unplanted, everything hangs together: scores are `rows x`, the two best are chosen, weights are their probabilities.
The router's rows are plus and minus three axes, so that cosines and shares are whole numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from analysis.expert import Expert
from analysis.measure import STEPS, Inputs, Measure
from analysis.slots import LayerBatch, RouteBatch
from analysis.statistic import get as get_statistic

LENGTHS = (12,) * 16
TWIN, DEAD = (2, 5), 4
COMMON = 2.0
TURN = torch.eye(5).double()
"""Turns the first axis into the fourth by arccos 0.6: whole multiples of 5 stay whole, which bfloat16 keeps."""
TURN[0, 0], TURN[3, 0], TURN[0, 3], TURN[3, 3] = 0.6, 0.8, -0.8, 0.6


@dataclass(frozen=True)
class Drawing:
    """What a world is drawn from: inputs, router, experts' matrices, and choices where they are not the best two."""

    x: Tensor
    rows: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor
    indices: Tensor | None = None
    weights: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Planted:
    """A world as statistics and measures see it."""

    drawing: Drawing
    routes: RouteBatch
    layers: list[LayerBatch]
    slots: dict[str, Tensor]

    @property
    def loads(self) -> Tensor:
        """Load over uniform, counted plainly."""
        counts = torch.stack([torch.bincount(i.flatten(), minlength=6) for i in self.routes.indices])
        return counts.double() / counts.double().mean(-1, keepdim=True)


def unplanted(world: SimpleNamespace) -> Drawing:
    """Random inputs (numbers that bfloat16 keeps) and experts; rows e0, -e0, e1, -e1, e2, -e2 in every layer."""
    shape, generator = world.SHAPE, torch.Generator().manual_seed(0)
    x = (torch.randn(3, sum(LENGTHS), shape.model, generator=generator) + 0.5).bfloat16().double()
    axes = torch.eye(shape.model).double()[:3]
    rows = torch.stack([axes, -axes], 1).flatten(0, 1).expand(3, -1, -1).clone()
    parts = (
        torch.stack([torch.stack([getattr(e, part) for e in layer]) for layer in world.experts(0)])
        for part in ("gate", "up", "down")
    )
    return Drawing(x, rows, *(part.double() for part in parts))


def _pairs_in_turn(*pairs: tuple[int, int]) -> dict[str, Tensor]:
    """Choices: the pairs in turn, token by token, in every layer, at equal weights."""
    indices = torch.tensor(pairs).repeat(sum(LENGTHS) // len(pairs), 1).expand(3, -1, -1)
    return {"indices": indices, "weights": torch.full(indices.shape, 0.5).double()}


def _like_first(array: Tensor, expert: int, other: int) -> Tensor:
    array = array.clone()
    array[:, other] = array[:, expert]
    return array


def common(at: Drawing) -> Drawing:
    """One vector, at right angles to all rows, is added to each of them."""
    rows = at.rows.clone()
    rows[..., 4] += COMMON
    return replace(at, rows=rows)


def turned(at: Drawing) -> Drawing:
    """The whole space is turned: inputs, rows and experts alike; axes become axes, some with another sign."""
    order, sign = torch.tensor([3, 0, 4, 1, 2]), torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0]).double()
    read = (at.x, at.rows, at.gate, at.up)
    x, rows, gate, up = (array[..., order] * sign for array in read)
    return replace(at, x=x, rows=rows, gate=gate, up=up, down=at.down[..., order, :] * sign[:, None])


def identical(at: Drawing) -> Drawing:
    """All six experts and router rows are the first; tokens are dealt out evenly."""
    copied = {n: getattr(at, n)[:, :1].expand_as(getattr(at, n)).clone() for n in ("rows", "gate", "up", "down")}
    return replace(at, **copied, **_pairs_in_turn((0, 1), (2, 3), (4, 5)))


def duplicated(at: Drawing) -> Drawing:
    """Expert 5 is expert 2: the same row, the same matrices, the same tokens at the same weights."""
    copied = {n: _like_first(getattr(at, n), *TWIN) for n in ("rows", "gate", "up", "down")}
    return replace(at, **copied, **_pairs_in_turn((2, 5), (0, 1), (3, 4), (1, 3)))


def rotated(at: Drawing) -> Drawing:
    """Expert 5 is expert 2 turned by arccos 0.6, and so are its tokens, which lie in a plane; all serve 64 tokens."""
    generator = torch.Generator().manual_seed(1)
    whole = 5.0 * torch.randint(-9, 10, (3, sum(LENGTHS) // 3, 5), generator=generator).double()
    whole[..., 2:] = 0
    x = torch.stack([whole, whole @ TURN.mT, whole.flip(1)], 2).flatten(1, 2)
    plane = torch.zeros(5).double()
    plane[[0, 3]] = 1
    gate, up, rows = at.gate.clone(), at.up.clone(), at.rows.clone()
    for matrix in (gate, up):
        matrix[:, 2] *= plane / 20
        matrix[:, 5] = matrix[:, 2] @ TURN.mT
    rows[:, 2] = torch.eye(5)[0]
    rows[:, 5] = TURN[:, 0]
    down = _like_first(at.down, *TWIN)
    return Drawing(x, rows, gate, up, down, **_pairs_in_turn((2, 0), (5, 1), (3, 4)))


def disjoint(at: Drawing) -> Drawing:
    """Experts 0 to 2 read, write and serve the first two axes and prompts of kind a, 3 to 5 the next two and kind b."""
    kind = torch.arange(len(LENGTHS)).repeat_interleave(torch.tensor(LENGTHS)) % 2
    mask = torch.zeros(2, 5).double()
    mask[0, :2], mask[1, 2:4] = 1, 1
    group = mask[torch.arange(6) // 3]
    x = at.x * mask[kind]
    indices = (torch.arange(sum(LENGTHS))[:, None] + torch.arange(2)) % 3 + 3 * kind[:, None]
    rows = torch.eye(5).double()[torch.tensor([0, 1, 0, 2, 3, 2])].expand(3, -1, -1)
    gate, up = (matrix * group[:, None, :] for matrix in (at.gate, at.up))
    indices = indices.expand(3, -1, -1)
    weights = torch.full(indices.shape, 0.5).double()
    return Drawing(x, rows, gate, up, at.down * group[:, :, None], indices, weights)


def nested(at: Drawing) -> Drawing:
    """Inputs along 1 axis (experts 0, 1), 2 axes (2, 3) and 4 axes (4, 5), of sizes 8, 4, 2, 1, signs in turn."""
    x = torch.zeros(3, sum(LENGTHS), 5).double()
    sizes = torch.tensor([8.0, 4.0, 2.0, 1.0]).double()
    for which, axes in enumerate((1, 2, 4)):
        for n in range(64):
            axis = n // 2 % axes
            x[:, 3 * n + which, axis] = sizes[axis] * (-1) ** n
    return replace(at, x=x, **_pairs_in_turn((0, 1), (2, 3), (4, 5)))


def subset(at: Drawing) -> Drawing:
    """Tokens of expert 1 are a third of those of expert 0."""
    return replace(at, **_pairs_in_turn((0, 1), (0, 2), (0, 3), (4, 5)))


def collapsed(at: Drawing) -> Drawing:
    """All tokens go to experts 0 and 1, always 0 first."""
    indices = torch.tensor([0, 1]).expand(3, sum(LENGTHS), 2)
    return replace(at, indices=indices, weights=torch.tensor([0.75, 0.25]).double().expand(indices.shape))


def dead(at: Drawing) -> Drawing:
    """Expert 4 gets no token; the others do as before, blindly where it was chosen."""
    scores = torch.rand(3, sum(LENGTHS), 6, generator=torch.Generator().manual_seed(2)).double()
    scores[..., DEAD] = -1
    top = scores.topk(2, -1)
    return replace(at, indices=top.indices, weights=top.values / 2)


PLANTS: dict[str, Callable[[Drawing], Drawing]] = {
    plant.__name__: plant
    for plant in (common, turned, identical, duplicated, rotated, disjoint, nested, subset, collapsed, dead)
}


def grown(world: SimpleNamespace, at: Drawing) -> Planted:
    """Batches and slots from a drawing."""
    shape, seeds = world.SHAPE, torch.Generator().manual_seed(3)
    who, keys = world.prompts(len(LENGTHS)), world.token_keys(list(LENGTHS), seeds)
    logits = at.x @ at.rows.mT
    p = logits.softmax(-1)
    indices = logits.topk(2, -1).indices if at.indices is None else at.indices
    weights = p.gather(-1, indices) if at.weights is None else at.weights
    ranked = logits.sort(-1, descending=True).values
    served = torch.ones_like(indices, dtype=torch.bool)
    routes = RouteBatch(shape, who, keys, indices, weights, served, ranked[..., 1] - ranked[..., 2])
    layers = []
    for layer, x in enumerate(at.x):
        own = [
            Expert(*parts, world.silu_gated) for parts in zip(at.gate[layer], at.up[layer], at.down[layer], strict=True)
        ]
        chosen = (indices[layer], weights[layer], served[layer], routes.margins[layer])
        norms = torch.stack([expert(x).norm(dim=-1) for expert in own], 1).gather(1, indices[layer])
        gate_in, up_in = world.preactivations(own, x, indices[layer], served[layer])
        task = torch.randn(len(x), 6, generator=seeds).double()
        more: dict[str, Any] = {"experts": own, "gate_in": gate_in, "up_in": up_in, "task_gradient": task}
        more["output_extremes"] = world.output_extremes(own, x, indices[layer])
        scores = (x, x, logits[layer], p[layer])
        layers.append(LayerBatch(shape, who, keys, layer, *scores, *chosen, norms, **more))
    slots = {"router_weight": at.rows, "router_bias": torch.zeros(3, 6).double()}
    slots |= {f"{part}_weight": getattr(at, part) for part in ("gate", "up", "down")}
    return Planted(at, routes, layers, slots)


def sides(world: SimpleNamespace, measure: Measure, planted: Planted, base: Planted) -> tuple[Inputs, ...]:
    """What the measure reads of a planted world; one of two or more checkpoints sees the unplanted one first."""
    found = []
    for step, seen in enumerate((base, planted) if measure.sides else (planted,)):
        states = {}
        for name in measure.statistics:
            batches = seen.layers if get_statistic(name).reads_layers else [seen.routes]
            states[name] = world.state_of(name, batches)
        weights = {name: slot for name, slot in seen.slots.items() if name in measure.reads}
        found.append(Inputs(world.SHAPE, states, weights, str(10 * step)))
    assert len(found) == 1 or measure.sides in (STEPS, ("a", "b"))
    return tuple(found)
