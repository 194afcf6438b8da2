"""Whether routers learn the geometry of their experts, and what makes router rows alike."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from backend.lab.experiment import (
    UNTRAINED,
    Experiment,
    Found,
    NotAnswered,
    Row,
    Setting,
    chance_of,
    difference,
    mean_of,
    measured,
    not_run,
    row,
)
from backend.lab.series import FULL, Series, last_step, over_seeds, paired
from backend.lab.settings import RunSettings
from backend.lab.ship import LAST
from backend.lab.train import ROWS_BY_SGD

PROMPTS = "four-tasks"
WORDS = {"aux": "auxiliary loss", "free": "loss-free bias", "none": "no balancing", "kmeans": "K-Means"}
GIVEN = "this checkpoint"
WIDE = "mean over layers; bounds are the means of the layers' own"
MOST_SEEDS = 3
OURS_ONLY = "asked of the lab's own models, whose loss is known"
LONGER = 3
BASE = WORDS["aux"]
ROWS = {"auxiliary loss": 0.63, "loss-free bias": "0.13 to 0.32"}
"""Published mean cosines of raw rows."""


@dataclass(frozen=True)
class Reading:
    """Which score and which activation are correlated; the paper's own choice is not known."""

    words: str
    activity: str


READINGS = (
    Reading("router logit, mean SiLU gate activation", "mean"),
    Reading("router logit, norm of the SiLU gate activations", "norm"),
)
POOLED = "Spearman over the token and selected-expert pairs of a layer"


def run(setting: Setting) -> Iterator[Row]:
    """Score against gate activation by router and depth; rows by rule, raw and centred; what moves the mean row."""
    given = setting.checkpoint
    for checkpoint, words in ({given: GIVEN} if given else {f"{name}/{LAST}": WORDS[name] for name in WORDS}).items():
        for reading in READINGS:
            yield from _coupled(setting, checkpoint, words, reading)
    for name in (GIVEN,) if given else ("aux", "free", "none"):
        yield from _rows_of(setting, given or f"{name}/{LAST}", WORDS.get(name, GIVEN))
    yield _pull(setting, given or f"aux/{LAST}")
    yield from _identities(setting)
    if given:
        yield not_run("what moves the mean row, one factor at a time", None, UNTRAINED)
    else:
        yield from _mean_row(setting)


def _pull(setting: Setting, checkpoint: str) -> Row:
    """A checkpoint larger than memory, or without a head, has no gradients to give: the rest is told all the same."""
    quantity = "pull of the auxiliary loss on router rows over the task's"
    try:
        pull = setting.ask("gradient_interference", checkpoint, prompts=PROMPTS)
    except NotAnswered as error:
        return not_run(quantity, None, str(error))
    agree = float(pull.facts["cosine between the two gradients"])
    note = f"{WIDE}; cosine between the two pulls {agree:.3f}; on sampled tokens, at OLMoE's coefficient"
    return measured(quantity, mean_of(pull), note)


def _coupled(setting: Setting, checkpoint: str, words: str, reading: Reading) -> Iterator[Row]:
    """Judged against the paper's number where the rule is the paper's or not known; else what we measured."""
    knobs = {"activity": reading.activity}
    answer = setting.ask("router_gate_correlation", checkpoint, prompts=PROMPTS, **knobs)
    found, chance = mean_of(answer), chance_of(answer, "high")
    quantity = f"score against gate ({reading.words}), {words}"
    note = f"{POOLED}; {WIDE}; {found.against(chance, f'{chance:.3f}')}, under which shuffled pairs stay"
    published = 0.43 if words in (GIVEN, WORDS["aux"]) else None
    yield row(quantity, published, found, found.above(chance), note)
    own = setting.ask("router_gate_correlation", checkpoint, prompts=PROMPTS, control="mismatched", **knobs)
    yield difference(f"{quantity}, less mismatched experts", mean_of(own), WIDE)
    deeper = mean_of(answer, np.s_[-1:]) - mean_of(answer, np.s_[:1])
    yield difference(f"{quantity}, last layer less first", deeper, "bounds are those of the two layers at their worst")


def _identities(setting: Setting) -> Iterator[Row]:
    """Routers and experts learn along the same inputs: an identity, so a step of ours is held to it."""
    for name in ("aux", "free"):
        wrong = f"gradient identities on a training step, {WORDS[name]}: largest relative error"
        still = f"share of the mean row in the gradient of router rows, {WORDS[name]}"
        if setting.checkpoint:
            yield not_run(wrong, None, OURS_ONLY)
            yield not_run(still, None, OURS_ONLY)
            continue
        found = setting.stored.identities(f"{name}/{LAST}")
        errors = {part: found[part] for part in ("router", "gate", "up")}
        note = ", ".join(f"{part} rows {error:.1e}" for part, error in errors.items())
        yield measured(wrong, Found(max(errors.values())), f"float64, the layer where it is largest: {note}")
        text = f"{found['mean_row']:.1e}: 0 but for rounding, for softmax ignores a common row"
        yield measured(still, Found(found["mean_row"]), text)


def _rows_of(setting: Setting, checkpoint: str, words: str) -> Iterator[Row]:
    facts = setting.ask("router_cosine", checkpoint, prompts=None).facts
    raw, share = float(facts["mean over pairs"]), float(facts["common-mode share"])
    note = (
        f"of the rows' squared length {share:.3f} is the mean row; zero-mean rows have -1/(E-1); one seed, no interval"
    )
    yield row(f"mean cosine of router rows, {words}", ROWS.get(words), Found(raw), None, note)
    centred = setting.ask("router_cosine", checkpoint, prompts=None, form="centred")
    rms = Found(float(centred.facts["rms over pairs"]))
    yield measured(f"rms cosine of centred rows, {words}", rms, "one seed, no interval")


def factors(base: RunSettings) -> dict[str, dict]:
    """What is changed beside the base run, one thing at a time."""
    return {
        BASE: {},
        "no balancing": {"router": "unbalanced", "balancing": None},
        "loss-free bias": {"router": "loss_free", "balancing": 0.001},
        "auxiliary loss ten times as strong": {"balancing": 0.3},
        "z-loss 0.01": {"options": {"router_z_loss_coef": 0.01}},
        f"rows by {ROWS_BY_SGD}": {"row_optimiser": "sgd"},
        "no weight decay": {"weight_decay": 0.0},
        "combine weights not normalised": {"options": {"norm_topk_prob": False}},
        "sigmoid scores": {"router": "sigmoid_aux"},
        f"{LONGER} times as long": {"steps": LONGER * base.steps, "stored": (0, LONGER * base.steps)},
    }


FORMS = {
    "mean cosine of router rows": ("raw", "mean over pairs"),
    "rms cosine of centred rows": ("centred", "rms over pairs"),
    "share of the mean row in the rows' squared length": ("raw", "common-mode share"),
}
RAW, CENTRED, _ = FORMS


def _mean_row(setting: Setting) -> Iterator[Row]:
    """Router rows by factor, over seeds that start alike: each form by itself, and less the base run's."""
    series = setting.series
    found = _by_factor(setting, series) if series else {}
    for factor, changed in factors(FULL).items():
        for form in FORMS:
            value, more = f"{form}: {factor}", f"{form}: {factor}, less {BASE}"
            published = ROWS.get(factor) if form == RAW else None
            if not series:
                yield not_run(value, published, UNTRAINED)
                if factor != BASE:
                    yield not_run(more, _less_published(form, factor), UNTRAINED)
                continue
            seeds = len(found[form, BASE])
            note = series.note(seeds, LONGER * series.base.steps if "steps" in changed else None)
            alike = over_seeds(found[form, factor])
            yield row(value, published, alike, alike.above(0), note)
            if factor != BASE:
                yield _less_base(more, form, factor, paired(found[form, factor], found[form, BASE]), note)


def _less_base(quantity: str, form: str, factor: str, more: Found, note: str) -> Row:
    if published := _less_published(form, factor):
        return row(quantity, published, more, more.below(0), note)
    return difference(quantity, more, note)


def _less_published(form: str, factor: str) -> str | None:
    """Of the factors only loss-free balancing was compared with the auxiliary loss, by raw rows."""
    if factor != WORDS["free"] or form not in (RAW, CENTRED):
        return None
    return "negative" if form == RAW else "negative (of raw rows)"


def _by_factor(setting: Setting, series: Series) -> dict[tuple[str, str], list[float]]:
    """Of each form and factor, one number a seed."""
    named = {
        f"rows {factor}".replace(" ", "-"): series.over_seeds(series.like("aux", **changed), MOST_SEEDS)
        for factor, changed in factors(series.base).items()
    }
    found: dict[tuple[str, str], list[float]] = {}
    for factor, runs in zip(factors(series.base), series.train(named).values(), strict=True):
        for run in runs:
            facts = {form: _facts(setting, last_step(run), form) for form in ("raw", "centred")}
            for words, (form, fact) in FORMS.items():
                found.setdefault((words, factor), []).append(float(facts[form][fact]))
    return found


def _facts(setting: Setting, step: str, form: str) -> Mapping[str, Any]:
    return setting.ask("router_cosine", step, prompts=None, form=form).facts


EXPERIMENT = Experiment(
    title="Routers learn the geometry of their experts",
    source="Ahrac, Hochwald & Geva 2026, arXiv 2605.12476",
    run=run,
    takes_checkpoint=True,
)
