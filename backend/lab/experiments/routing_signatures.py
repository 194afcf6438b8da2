"""Whether the experts that a prompt uses tell what the prompt is about."""

from collections.abc import Iterator

import numpy as np

from analysis.result import Result
from backend.lab.experiment import (
    LEFT_OUT,
    Experiment,
    Found,
    Row,
    Setting,
    chance_of,
    difference,
    mean_of,
    measured,
    not_run,
    row,
)
from backend.lab.ship import STORED

RUN, PROMPTS = "aux", "four-tasks"
WIDE = "mean over layers; bounds are the means of the layers' own"
WORST = f"{WIDE}, both at their worst"
NO_STEPS = "needs the checkpoint's own training steps"
D = "Cohen's d"


def run(setting: Setting) -> Iterator[Row]:
    """Similarity, its baselines and lengths; effect by depth and over training; a classifier with its controls."""
    checkpoint = setting.checkpoint or _step(STORED[-1])
    within, across = (
        mean_of(setting.ask("signature_effect", checkpoint, prompts=PROMPTS, quantity=quantity))
        for quantity in ("within", "across")
    )
    apart = (within - across).above(0)
    yield row("similarity within categories", 0.8435, within, apart, WIDE)
    yield row("similarity across categories", 0.6225, across, apart, WIDE)
    yield from _baselines(setting, checkpoint)
    effect = setting.ask("signature_effect", checkpoint, prompts=PROMPTS)
    size, p = mean_of(effect), float(effect.facts["permutation p"])
    note = f"of the cosines' mean over layers, as published; no interval: permutation p {p:.4f}"
    yield row(D, 1.44, Found(float(effect.facts[D])), p < 0.05, note)
    yield measured(f"{D}, mean over layers", size, _beside_shuffled(effect, size))
    yield from _of_equal_length(setting, checkpoint)
    yield from _by_depth(effect)
    yield from _over_training(setting, size)
    yield from _classifier(setting, checkpoint)


def _by_depth(effect: Result) -> Iterator[Row]:
    for at, label in enumerate(effect.axes[0].labels):
        yield measured(f"{D}, layer {label}", mean_of(effect, slice(at, at + 1)))
    last, first = (mean_of(effect, slice(at, at + 1 or None)) for at in (-1, 0))
    note = "bounds are those of the two layers, both at their worst"
    yield row(f"{D}, last layer less first", "grows with depth", last - first, (last - first).above(0), note)


def _step(step: int) -> str:
    return f"{RUN}/step-{step:05d}"


def _beside_shuffled(effect: Result, size: Found) -> str:
    bound = chance_of(effect, "high")
    return f"{WIDE}; {size.against(bound, f'{bound:.3f}')}, where shuffled categories end in 95 %"


def _baselines(setting: Setting, checkpoint: str) -> Iterator[Row]:
    """Experts without names, and blind routing of as many tokens: the published order is within, balanced, across."""
    answer = setting.ask("signature_baselines", checkpoint, prompts=PROMPTS)
    found = {label: mean_of(answer, np.s_[:, at]) for at, label in enumerate(answer.axes[1].labels)}
    forms = {
        "permuted": "permutation baseline: each prompt's experts under new names at random",
        "balanced": "load-balance baseline: blind routing of each prompt's tokens",
    }
    for name, words in forms.items():
        yield measured(f"similarity, {words}", found[name], f"{WIDE}; no value is published")
    more = found["within"] - found["balanced"]
    note = f"{WORST}; few experts and many tokens bring blind routing near 1"
    yield row("similarity, within less load-balance baseline", "positive", more, more.above(0), note)
    more = found["balanced"] - found["across"]
    yield row("similarity, load-balance baseline less across", "positive", more, more.above(0), WORST)
    more = found["within"] - found["permuted"]
    yield difference("similarity, within less permutation baseline", more, WORST)


def _of_equal_length(setting: Setting, checkpoint: str) -> Iterator[Row]:
    """The same without what counting few tokens adds: prompts as if all were as long as the shortest."""
    for quantity in ("within", "across"):
        found = mean_of(
            setting.ask("signature_effect", checkpoint, prompts=PROMPTS, form="length_matched", quantity=quantity)
        )
        yield measured(f"similarity {quantity} categories, length-matched", found, WIDE)
    effect = setting.ask("signature_effect", checkpoint, prompts=PROMPTS, form="length_matched")
    note = f"{_beside_shuffled(effect, mean_of(effect))}; permutation p {float(effect.facts['permutation p']):.4f}"
    yield measured(f"{D}, mean over layers, length-matched", mean_of(effect), note)


def _over_training(setting: Setting, last: Found) -> Iterator[Row]:
    """The effect at every stored step of one run; a checkpoint alone has none."""
    growth = f"{D}, trained less untrained"
    sizes = {}
    for step in STORED[:-1]:
        quantity = f"{D}, mean over layers, step {step}"
        if setting.checkpoint or setting.leaves_out(step, STORED):
            yield not_run(quantity, None, NO_STEPS if setting.checkpoint else LEFT_OUT)
            continue
        effect = setting.ask("signature_effect", _step(step), prompts=PROMPTS)
        sizes[step] = mean_of(effect)
        yield measured(quantity, sizes[step], _beside_shuffled(effect, sizes[step]))
    if setting.checkpoint:
        yield not_run(growth, None, NO_STEPS)
    else:
        yield difference(growth, last - sizes[STORED[0]], WORST)


def _classifier(setting: Setting, checkpoint: str) -> Iterator[Row]:
    found = setting.ask("signature_classifier", checkpoint, prompts=PROMPTS)
    accuracy = float(found.values)
    yield row("classifier's accuracy", 0.925, Found(accuracy), accuracy > chance_of(found, "high"), _spread(found))
    controls = {
        "always the most frequent category": "always the most frequent category",
        "the prompt's length alone": "from the prompt's length alone",
        "its token ids alone (bag of tokens)": "from its token ids alone",
        "a random router of its token ids": "from a random router of its token ids",
    }
    for words, fact in controls.items():
        if fact not in found.facts:
            yield not_run(
                f"classifier's accuracy, control: {words}", None, "neither for soft routing nor without token ids"
            )
            continue
        control = float(found.facts[fact])
        note = f"same folds; the signature's accuracy is {accuracy - control:+.3f} beside it; no interval"
        yield measured(f"classifier's accuracy, control: {words}", Found(control), note)
    quantity = "classifier's accuracy, control: the untrained router"
    if setting.checkpoint:
        yield not_run(quantity, None, NO_STEPS)
        return
    start = setting.ask("signature_classifier", _step(STORED[0]), prompts=PROMPTS)
    yield measured(quantity, Found(float(start.values)), f"step 0 of the same run; {_spread(start)}")


def _spread(found: Result) -> str:
    spread, chance = float(found.facts["sd over folds"]), chance_of(found, "high")
    return f"no interval: sd over folds {spread:.3f}, chance up to {chance:.3f}"


EXPERIMENT = Experiment(
    title="Task-conditioned routing signatures",
    source="Avinash 2026, arXiv 2603.11114 (OLMoE-1B-7B-0125-Instruct, 80 prompts)",
    run=run,
    takes_checkpoint=True,
)
