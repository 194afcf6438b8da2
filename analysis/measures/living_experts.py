"""Which experts come into use while the model learns, and which fall out of it."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from jaxtyping import Float
from scipy.stats import binom
from torch import Tensor

from analysis.errors import NotComparable, TooFew
from analysis.knob import Range
from analysis.loads import NO_TOKENS, layer_counts, relative
from analysis.measure import Chance, Inputs, Values, measure
from analysis.result import Reason

NAMED = 6
"""So many places of births and of deaths are told."""


@measure(
    title="Births and deaths of experts",
    question="When does an expert come into use, and when does it fall out of it?",
    unit="in use (1 or 0)",
    family="trajectories",
    source="Ours; loads: Wang et al. 2024, arXiv 2408.15664. No source states from which load an expert lives: a knob",
    axes=("step", "layer", "expert"),
    reads=("prompt_counts",),
    interval="an expert is above the bar or not: leaving prompts out says nothing of its spread",
    needs_selection=True,
)
def living_experts(
    steps: tuple[Inputs, ...],
    *,
    count: Literal["served", "selected"] = "served",
    share: Annotated[float, Range(0)] = 0.1,
) -> Values:
    """Whether an expert's load is above `share` of an equal share, step by step; 0 asks for one token.

    From one checkpoint to the next an expert that was not in use and now is was born, the reverse is a death.

    Formula:
        A_se = 1 if n_se / mean_j n_sj > share, else 0;  born at s: A_(s-1)e = 0, A_se = 1;  died at s: the reverse
        n_se: tokens that expert e served at step s on these prompts (`selected`: those that chose it).

    Returns:
        Step by layer by expert, 0 to 1: 1 in use, 0 not, nothing between. NaN where no token was routed in the layer.
        Facts: births and deaths, all layers and steps together, and where the first of them were.

    Raises:
        TooFew: With fewer than two checkpoints.
        NotComparable: If they differ in layers or experts.
        BadKnob: If `share` is negative.

    Source:
        Ours; a tenth of an equal share, the default, is a choice.

    Caveat:
        Unused on these prompts is not unused: read births and deaths against what blind routing of as many tokens
        would show, and ask with more prompts. Between two stored steps an expert may have died and come back.
    """
    if len(steps) < 2:
        raise TooFew(f"{len(steps)} checkpoint: a birth is a change from one to the next, so it needs two")
    sizes = {(side.shape.layers, side.shape.experts) for side in steps}
    if len(sizes) > 1:
        raise NotComparable(f"checkpoints of different layers or experts have no experts in common: {sorted(sizes)}")
    loads = torch.stack([relative(layer_counts(side.prompt_counts, count)) for side in steps])
    alive = (loads > share).double() + 0 * loads
    facts = {"in use at the first step": int(alive[0].nansum()), "in use at the last step": int(alive[-1].nansum())}
    told = _told(alive, steps)
    return Values(alive, caveats=(NO_TOKENS,) if bool(alive.isnan().any()) else (), facts=facts | told)


@living_experts.chance
def null(steps: tuple[Inputs, ...], *, count: str, share: float, generator: torch.Generator) -> Chance | Reason:
    """Uniform routing of k distinct experts by each token: an expert's count is binomial.

    Returns:
        The probability of being above the bar at each step, and as a band what at least 95 % of such experts are.
        Facts: births and deaths expected of blind routing, all layers and steps together.

    Source:
        Ours: the count of one expert over T independent tokens is Binomial(T, k/E), exactly.
    """
    shape = steps[0].shape
    tokens = [int(side.prompt_counts["tokens"].sum()) for side in steps]
    if not min(tokens):
        return Reason("no token was routed at one of the steps")
    part = shape.top_k / shape.experts
    chance = [float(binom.sf(share * part * many, many, part)) for many in tokens]
    mean = torch.tensor(chance, dtype=torch.float64)[:, None, None]
    low, high = (mean >= 0.975).double(), (mean > 0.025).double()
    cells = len(shape.layers) * shape.experts
    before, after = mean[:-1], mean[1:]
    facts = {
        "births expected of blind routing": float(((1 - before) * after).sum() * cells),
        "deaths expected of blind routing": float((before * (1 - after)).sum() * cells),
    }
    how = f"uniform routing of {min(tokens):,} independent tokens, binomial per expert"
    return Chance(mean, low, high, how, facts)


def _told(alive: Float[Tensor, "step layer expert"], steps: tuple[Inputs, ...]) -> dict[str, int | float | str]:
    facts: dict[str, int | float | str] = {}
    for name, sign in (("births", 1), ("deaths", -1)):
        places = (alive.diff(dim=0) == sign).nonzero().tolist()
        facts[name] = len(places)
        # By layer: which expert it was would change with the numbering.
        layers = sorted({(step, layer) for step, layer, _ in places})[:NAMED]
        if layers:
            when = (f"layer {steps[0].shape.layers[layer]} at step {_label(steps, step + 1)}" for step, layer in layers)
            facts[f"first {name}"] = ", ".join(when)
    return facts


def _label(steps: tuple[Inputs, ...], step: int) -> str:
    return steps[step].label or str(step)
