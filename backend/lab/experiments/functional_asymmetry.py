"""Whether experts do different things to inputs that overlap, and what fully soft routing changes."""

from collections.abc import Iterator

import numpy as np

from analysis.result import Result
from backend.lab.experiment import (
    LEFT_OUT,
    UNTRAINED,
    Experiment,
    Found,
    Row,
    Setting,
    chance_of,
    difference,
    mean_of,
    measured,
    not_run,
    pairs_of,
    row,
)
from backend.lab.series import Series, last_step, paired
from backend.lab.settings import DOMAINS
from backend.lab.ship import LAST, STORED

TOP_K, SOFT, PROMPTS = f"free/{LAST}", f"soft/{LAST}", "four-tasks"
NEAR_ZERO = 0.1
"""Ours: the published means end at 0.068."""
MEASURES = {
    "Jacobian alignment": ("jacobian_alignment", {}),
    "Grassmann distance over its maximum": ("grassmann_distance", {"form": "normalised"}),
}
DIFFERENCE = {
    "jacobian_alignment": "Jacobian alignment, soft less top-k",
    "grassmann_distance": "Grassmann distance, top-k less soft",
}
BOUNDS = "mean over pairs and layers; bounds are the means of the pairs' own"
WORST = f"{BOUNDS}, both at their worst"
TOP_K_RUN, RULES = "aux", ("auxiliary loss", "trained soft", "switched to soft")
"""The run whose stored steps are asked, beside the soft run and itself with soft routing."""
NO_STEPS = "needs the checkpoint's own training steps and a soft run"
COURSE = {measure: (words, knobs) for words, (measure, knobs) in MEASURES.items()}


def run(setting: Setting) -> Iterator[Row]:
    """Alignment of mean Jacobians and distances of routed subspaces, top-k beside fully soft."""
    checkpoint = setting.checkpoint or TOP_K
    alignment = setting.ask("jacobian_alignment", checkpoint, prompts=PROMPTS)
    alike = mean_of(alignment, pairs_of(alignment))
    note = f"{BOUNDS}; near zero is taken as within {NEAR_ZERO} of it"
    near = None if alike.below(0) is None else alike.low > -NEAR_ZERO and alike.high < NEAR_ZERO
    yield row("Jacobian alignment, top-k", "0.000 to 0.068", alike, near, note)
    distance = setting.ask("grassmann_distance", checkpoint, prompts=PROMPTS, form="normalised")
    apart = mean_of(distance, pairs_of(distance))
    yield row("Grassmann distance over its maximum, top-k", "under the maximum", apart, apart.below(1), BOUNDS)
    bound = chance_of(distance, "low", pairs_of(distance))
    note = f"{BOUNDS}; {apart.against(bound, f'{bound:.3f}')}, from where unrelated subspaces lie"
    yield measured("Grassmann distance over its maximum, top-k, against what unrelated subspaces have", apart, note)
    score = setting.ask("grassmann_distance", checkpoint, prompts=PROMPTS, form="score")
    beyond = mean_of(score, pairs_of(score))
    note = f"{BOUNDS}; 0 is as far apart as two halves of one expert's tokens, 1 is unrelated"
    yield row("Grassmann score between floor and random, top-k", "substantial", beyond, beyond.above(0), note)
    yield from _against_soft(setting, alike, apart)


def _against_soft(setting: Setting, alike: Found, apart: Found) -> Iterator[Row]:
    """Both readings of "top-k against fully soft": trained so, and switched when it is asked."""
    readings = {
        "each trained so": ("needs the same model trained with fully soft routing", lambda: SOFT),
        "switched at evaluation": ("only a lab run can be switched here", lambda: setting.stored.softened(TOP_K)),
    }
    for reading, (why, checkpoint) in readings.items():
        closer, farther = (f"{words}, {reading}" for words in DIFFERENCE.values())
        if setting.checkpoint:
            yield not_run(closer, "positive", why)
            yield not_run(farther, "positive", why)
            continue
        soft = checkpoint()
        answer = setting.ask("jacobian_alignment", soft, prompts=PROMPTS)
        more = mean_of(answer, pairs_of(answer)) - alike
        yield row(closer, "positive", more, more.above(0), WORST)
        answer = setting.ask("grassmann_distance", soft, prompts=PROMPTS, form="normalised")
        less = apart - mean_of(answer, pairs_of(answer))
        yield row(farther, "positive", less, less.above(0), WORST)
    yield from _over_seeds(setting)
    yield from _over_training(setting)
    yield from _by_layer(setting)
    yield from _by_domain(setting)


def _by_layer(setting: Setting) -> Iterator[Row]:
    """What the means over layers hide, of the checkpoints that were trained so."""
    names = {"top-k": setting.checkpoint or TOP_K} | ({} if setting.checkpoint else {"soft": SOFT})
    for words, (measure, knobs) in MEASURES.items():
        answers = {name: setting.ask(measure, each, prompts=PROMPTS, **knobs) for name, each in names.items()}
        for at, label in enumerate(answers["top-k"].axes[0].labels):
            layers = {name: mean_of(answer, _pairs_in(answer, at)) for name, answer in answers.items()}
            for name, found in layers.items():
                yield measured(f"{words}, {name}, layer {label}", found, "mean over pairs")
            if "soft" in layers:
                more = _difference(measure, layers["top-k"], layers["soft"])
                yield row(f"{DIFFERENCE[measure]}, layer {label}", "positive", more, more.above(0), WORST)


def _by_domain(setting: Setting) -> Iterator[Row]:
    """The same on the prompts of one category at a time: fewer tokens, wider bounds."""
    for domain in DOMAINS:
        if setting.leaves_out(domain, DOMAINS):
            yield from _domain_left_out(domain)
            continue
        prompts = setting.stored.part(PROMPTS, domain)
        for words, (measure, knobs) in MEASURES.items():
            answer = setting.ask(measure, setting.checkpoint or TOP_K, prompts=prompts, **knobs)
            found = mean_of(answer, pairs_of(answer))
            yield measured(f"{words}, top-k, {domain} prompts", found, f"{BOUNDS}; {answer.tokens:,} tokens")
            if not setting.checkpoint:
                soft = setting.ask(measure, SOFT, prompts=prompts, **knobs)
                more = _difference(measure, found, mean_of(soft, pairs_of(soft)))
                yield row(f"{DIFFERENCE[measure]}, {domain} prompts", "positive", more, more.above(0), WORST)


def _domain_left_out(domain: str) -> Iterator[Row]:
    for words, (measure, _) in MEASURES.items():
        yield not_run(f"{words}, top-k, {domain} prompts", None, LEFT_OUT)
        yield not_run(f"{DIFFERENCE[measure]}, {domain} prompts", "positive", LEFT_OUT)


def _difference(measure: str, top_k: Found, soft: Found) -> Found:
    """In the direction that was published: soft routing makes Jacobians more alike and subspaces nearer."""
    return soft - top_k if measure == "jacobian_alignment" else top_k - soft


def _pairs_in(answer: Result, layer: int) -> np.ndarray:
    cells = np.zeros(answer.values.shape, dtype=bool)
    cells[layer] = pairs_of(answer)[layer]
    return cells


def _over_training(setting: Setting) -> Iterator[Row]:
    """Top-k beside soft at every stored step, in both readings; before the last nothing is published of them."""
    for step in STORED:
        why = NO_STEPS if setting.checkpoint else LEFT_OUT if setting.leaves_out(step, STORED) else None
        yield from _left_out(step, why) if why else _at_step(setting, step)


def _left_out(step: int, why: str) -> Iterator[Row]:
    for measure, (words, _) in COURSE.items():
        for rule in RULES:
            yield not_run(f"{words}, {rule}, step {step}", None, why)
        for rule in RULES[1:]:
            yield not_run(f"{DIFFERENCE[measure]}, {rule}, step {step}", None, why)


def _at_step(setting: Setting, step: int) -> Iterator[Row]:
    name = f"{TOP_K_RUN}/step-{step:05d}"
    checkpoints = (name, f"soft/step-{step:05d}", setting.stored.softened(name))
    for measure, (words, knobs) in COURSE.items():
        found = {}
        for rule, checkpoint in zip(RULES, checkpoints, strict=True):
            answer = setting.ask(measure, checkpoint, prompts=PROMPTS, **knobs)
            found[rule] = mean_of(answer, pairs_of(answer))
            yield measured(f"{words}, {rule}, step {step}", found[rule], BOUNDS)
        for rule in RULES[1:]:
            more = _difference(measure, found[RULES[0]], found[rule])
            quantity, note = f"{DIFFERENCE[measure]}, {rule}, step {step}", f"{RULES[0]} and {rule}; {WORST}"
            if step == STORED[-1]:
                yield row(quantity, "positive", more, more.above(0), note)
            else:
                yield difference(quantity, more, note)


def _over_seeds(setting: Setting) -> Iterator[Row]:
    """Loss-free top-k beside fully soft, over seeds at the series' size; at the last step."""
    means = _means_of(setting, setting.series) if setting.series else {}
    for measure, words in DIFFERENCE.items():
        quantity = f"{words}, over seeds"
        if not setting.series:
            yield not_run(quantity, "positive", UNTRAINED)
            continue
        ends = (means[measure, "soft"], means[measure, "free"])
        more = paired(*(ends if measure == "jacobian_alignment" else reversed(ends)))
        yield row(quantity, "positive", more, more.above(0), setting.series.note())


def _means_of(setting: Setting, series: Series) -> dict[tuple[str, str], list[float]]:
    folders = series.train({name: series.over_seeds(series.like(name)) for name in ("free", "soft")})
    means = {}
    for measure, knobs in MEASURES.values():
        for name, runs in folders.items():
            answers = [setting.ask(measure, last_step(run), prompts=PROMPTS, **knobs) for run in runs]
            means[measure, name] = [mean_of(answer, pairs_of(answer)).value for answer in answers]
    return means


EXPERIMENT = Experiment(
    title="Geometric asymmetry in MoE specialisation",
    source="Liu 2026, arXiv 2605.16349 (Mixtral-8x7B, Qwen1.5-MoE-A2.7B, a controlled three-layer model)",
    run=run,
    takes_checkpoint=True,
)
