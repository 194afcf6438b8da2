"""Prompts drawn from a population whose values are known, to count how often an interval holds them.

Tokens of a prompt are alike: each prompt has a centre of its own, in every layer, beside its category's. So the
tokens are no sample of independent ones, and an interval that took them for one would be too narrow.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from scipy.linalg import subspace_angles
from scipy.stats import spearmanr

from analysis.inference import evaluate
from analysis.measure import Inputs, Measure, get
from analysis.result import Interval
from analysis.slots import LayerBatch, RouteBatch
from analysis.statistic import State
from analysis.statistic import get as get_statistic

PROMPTS, ENDLESS = 80, 4000
"""Prompts of a simulation, and those that stand for endlessly many: their own error is a seventh of the interval's."""


@dataclass
class Drawn:
    """Routes and layers of both checkpoints, and the states of what was asked of them so far."""

    routes: list[RouteBatch]
    layers: list[list[LayerBatch]]
    states: dict[tuple[str, int], State] = field(default_factory=dict)


class Population:
    """Two routers over the same tokens (an earlier checkpoint and a later one), and the later one's experts."""

    def __init__(self, world: SimpleNamespace) -> None:
        self.world, self.shape = world, world.SHAPE
        generator = torch.Generator().manual_seed(1)
        size = (len(self.shape.layers), self.shape.experts, self.shape.model)
        later = torch.randn(size, generator=generator)
        self.routers = (later + 0.7 * torch.randn(size, generator=generator), later)
        self.of_category = 0.5 * torch.randn(2, len(self.shape.layers), self.shape.model, generator=generator)
        self.experts = world.experts(1)

    def draw(self, seed: int, prompts: int = PROMPTS, mixed: bool = False) -> Drawn:
        """Routes and layers of both checkpoints; half the prompts of each category, or, `mixed`, as chance has it."""
        world, layers, model = self.world, len(self.shape.layers), self.shape.model
        generator = torch.Generator().manual_seed(seed)
        lengths = torch.randint(4, 25, (prompts,), generator=generator).tolist()
        keys, who = world.token_keys(lengths, generator), world.prompts(prompts, f"s{seed}-")
        centres = 0.6 * torch.randn(prompts, layers, model, generator=generator)
        kinds = torch.randint(2, (prompts,), generator=generator) if mixed else torch.arange(prompts) % 2
        who = dataclasses.replace(who, categories=tuple("ab"[kind] for kind in kinds.tolist()))
        centres += self.of_category[kinds]
        x = centres[keys.prompt] + 0.8 * torch.randn(len(keys), layers, model, generator=generator)
        x = (x + 0.4).transpose(0, 1).contiguous()
        routes = []
        for router in self.routers:
            logits = x @ router.mT
            top = logits.softmax(-1).topk(self.shape.top_k, -1)
            ranked = logits.sort(-1, descending=True).values
            margins = ranked[..., self.shape.top_k - 1] - ranked[..., self.shape.top_k]
            served = torch.ones_like(top.indices, dtype=torch.bool)
            routes.append(RouteBatch(self.shape, who, keys, top.indices, top.values, served, margins))
        return Drawn(routes, [self._layers(x, router, own) for router, own in zip(self.routers, routes, strict=True)])

    def _layers(self, x: torch.Tensor, router: torch.Tensor, routes: RouteBatch) -> list[LayerBatch]:
        world, found = self.world, []
        for layer, (own, s) in enumerate(zip(self.experts, x @ router.mT, strict=True)):
            chosen = (routes.indices[layer], routes.weights[layer], routes.served[layer], routes.margins[layer])
            norms = torch.stack([expert(x[layer]).norm(dim=-1) for expert in own], 1).gather(1, chosen[0])
            gate_in, up_in = world.preactivations(own, x[layer], chosen[0], chosen[2])
            scores = (x[layer], x[layer], s, s.softmax(-1))
            more = {"experts": own, "gate_in": gate_in, "up_in": up_in}
            more["output_extremes"] = world.output_extremes(own, x[layer], chosen[0])
            found.append(LayerBatch(self.shape, routes.prompts, routes.keys, layer, *scores, *chosen, norms, **more))
        return found

    def sides(self, measure: Measure, drawn: Drawn) -> tuple[Inputs, ...]:
        """What a measure reads: both checkpoints if it compares or follows, else the later one."""
        found = []
        for step in range(2) if measure.sides else (1,):
            for name in measure.statistics:
                if (name, step) not in drawn.states:
                    batches = drawn.layers[step] if get_statistic(name).reads_layers else [drawn.routes[step]]
                    drawn.states[name, step] = self.world.state_of(name, batches)
            states = {name: drawn.states[name, step] for name in measure.statistics}
            weights = {"router_weight": self.routers[step]} | {
                f"{part}_weight": torch.stack([torch.stack([getattr(e, part) for e in own]) for own in self.experts])
                for part in ("gate", "up", "down")
            }
            kept = {name: weights[name] for name in weights if name in measure.reads}
            found.append(Inputs(self.shape, states, kept, str(step)))
        return tuple(found)

    @cached_property
    def endless(self) -> Drawn:
        """So many prompts that what they say is the value itself."""
        return self.draw(10**6, ENDLESS)

    def truth(self, name: str, knobs: dict[str, Any]) -> np.ndarray:
        """The value for endless prompts; by its own formula where the measure keeps a sample of tokens only."""
        if name in BY_FORMULA:
            return np.stack([BY_FORMULA[name](batch) for batch in self.endless.layers[1]])
        measure = dataclasses.replace(get(name), null=None, interval_reason="not asked")
        sides = self.sides(measure, self.endless)
        if name in OF_PAIRS:
            kept = [{n: state.take(list(range(OF_PAIRS[name]))) for n, state in side.states.items()} for side in sides]
            sides = tuple(dataclasses.replace(side, states=own) for side, own in zip(sides, kept, strict=True))
        return evaluate(measure, sides, knobs).values


def covered(
    population: Population, name: str, knobs: dict[str, Any], draws: list[Drawn], factor: float = 1.0
) -> np.ndarray:
    """Per simulation and layer the share of cells whose interval, `factor` times as wide, holds the truth."""
    measure, truth = dataclasses.replace(get(name), null=None, null_reason="not asked"), population.truth(name, knobs)
    found = []
    for drawn in draws:
        interval = evaluate(measure, population.sides(measure, drawn), knobs).interval
        assert isinstance(interval, Interval)
        middle, half = (interval.low + interval.high) / 2, factor * (interval.high - interval.low) / 2
        held = np.abs(truth - middle) <= half
        found.append(_asked(measure, held))
    return np.array(found)


def _asked(measure: Measure, held: np.ndarray) -> np.ndarray:
    """Leaves out what is the same whatever the prompts: an expert beside itself, the last step beside itself."""
    if measure.axes[0] == "step":
        return held[:-1].mean(0)
    if measure.axes[-1] == "expert_b" and measure.name not in ("router_centroid_cosine", "cross_layer_transition"):
        return held[:, ~np.eye(held.shape[-1], dtype=bool)].mean(-1)
    return held.reshape(len(held), -1).mean(-1)


def _alignment(batch: LayerBatch) -> np.ndarray:
    outputs = [expert(batch.expert_input).double() for expert in batch.experts or ()]
    centred = [y - y.mean(0) for y in outputs]
    inner = torch.tensor([[(a.mT @ b).square().sum() for b in centred] for a in centred])
    return (inner / (inner.diagonal()[:, None] * inner.diagonal()).sqrt()).numpy()


def _correlation(batch: LayerBatch) -> np.ndarray:
    """Spearman's, over all pairs of a token and an expert it chose, of logit and mean gate activation."""
    assert batch.experts is not None and batch.gate_in is not None
    scores = batch.logits.gather(1, batch.indices).flatten()
    answers = batch.experts[0].phi(batch.gate_in, torch.ones_like(batch.gate_in)).mean(-1).flatten()
    return np.array(spearmanr(scores, answers).statistic)


def _distances(batch: LayerBatch) -> np.ndarray:
    """Between the spans of the two first principal axes of each expert's inputs times their weights."""
    spans = []
    for expert in range(batch.shape.experts):
        token, slot = (batch.indices == expert).nonzero().unbind(1)
        x = (batch.expert_input[token] * batch.weights[token, slot, None]).double()
        spans.append(np.linalg.svd(x - x.mean(0), full_matrices=False)[2][:2].T)
    return np.array([[np.linalg.norm(subspace_angles(one, other)) for other in spans] for one in spans])


def _functions(batch: LayerBatch) -> np.ndarray:
    """Cosines of mean Jacobians over all tokens: those of the common ones are a sample of them."""
    flat = [expert.mean_jacobian(batch.expert_input).double().flatten() for expert in batch.experts or ()]
    unit = torch.stack([each / each.norm() for each in flat])
    return (unit @ unit.mT).numpy()


BY_FORMULA = {
    "jacobian_alignment": _functions,
    "centred_kernel_alignment": _alignment,
    "router_gate_correlation": _correlation,
    "grassmann_distance": _distances,
}
"""Values of measures that keep a sample of tokens only, by their own formulas."""

OF_PAIRS = {"signature_effect": 2000, "effect_difference": 2000}
"""Measures of all pairs of prompts, and how many of the endless ones they are asked of: their cost is its square."""
