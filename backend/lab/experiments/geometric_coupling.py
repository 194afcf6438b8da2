"""Whether routers learn the geometry of their experts, and what makes router rows alike."""

from collections.abc import Iterator

import numpy as np

from backend.lab.experiment import UNTRAINED, Experiment, Found, Row, Setting, chance_of, mean_of, not_run, row
from backend.lab.series import Series, last_step, over_seeds, paired

LAST, PROMPTS = "step-03000", "four-tasks"
WORDS = {"aux": "auxiliary loss", "free": "loss-free bias", "none": "no balancing", "kmeans": "K-Means"}
GIVEN = "this checkpoint"
ROWS = {"aux": 0.63, "free": "0.13 to 0.32", "none": None}
WIDE = "mean over layers; bounds are the means of the layers' own"
MOST_SEEDS = 3
LONGER = 3
BASE = "auxiliary loss"


def run(setting: Setting) -> Iterator[Row]:
    """Score against gate activation by router and depth; rows by rule, raw and centred; what moves the mean row."""
    given = setting.checkpoint
    for checkpoint, words in ({given: GIVEN} if given else {f"{name}/{LAST}": WORDS[name] for name in WORDS}).items():
        yield from _coupled(setting, checkpoint, words)
    for name, published in ({GIVEN: None} if given else ROWS).items():
        yield from _rows_of(setting, given or f"{name}/{LAST}", WORDS.get(name, GIVEN), published)
    pull = setting.ask("gradient_interference", given or f"aux/{LAST}", prompts=PROMPTS)
    agree = float(pull.facts["cosine between the two gradients"])
    note = f"{WIDE}; cosine between the two pulls {agree:.3f}; on sampled tokens, at OLMoE's coefficient"
    yield row("pull of the auxiliary loss on router rows over the task's", None, mean_of(pull), None, note)
    if setting.series and not given:
        yield from _mean_row(setting, setting.series)
    else:
        yield not_run("what moves the mean row, one factor at a time", None, UNTRAINED)


def _coupled(setting: Setting, checkpoint: str, words: str) -> Iterator[Row]:
    answer = setting.ask("router_gate_correlation", checkpoint, prompts=PROMPTS)
    found, chance = mean_of(answer), chance_of(answer, "high")
    note = f"{WIDE}; shuffled pairs stay under {chance:.3f}"
    published = 0.43 if words in (GIVEN, WORDS["aux"]) else None
    yield row(f"score against gate, {words}", published, found, found.above(chance), note)
    own = setting.ask("router_gate_correlation", checkpoint, prompts=PROMPTS, control="mismatched")
    yield row(f"the same less mismatched experts, {words}", None, mean_of(own), mean_of(own).above(0), WIDE)
    deeper = mean_of(answer, np.s_[-1:]) - mean_of(answer, np.s_[:1])
    yield row(f"the same, last layer less first, {words}", None, deeper, deeper.above(0))


def _rows_of(setting: Setting, checkpoint: str, words: str, published: float | str | None) -> Iterator[Row]:
    facts = setting.ask("router_cosine", checkpoint, prompts=None).facts
    raw, share = float(facts["mean over pairs"]), float(facts["common-mode share"])
    note = (
        f"of the rows' squared length {share:.3f} is the mean row; zero-mean rows have -1/(E-1); one seed, no interval"
    )
    yield row(f"mean cosine of router rows, {words}", published, Found(raw), None, note)
    centred = setting.ask("router_cosine", checkpoint, prompts=None, form="centred")
    rms = Found(float(centred.facts["rms over pairs"]))
    yield row(f"rms cosine of centred rows, {words}", None, rms, None, "one seed, no interval")


def factors(series: Series) -> dict[str, dict]:
    """What is changed beside the base run, one thing at a time."""
    return {
        BASE: {},
        "no balancing": {"router": "unbalanced", "balancing": None},
        "loss-free bias": {"router": "loss_free", "balancing": 0.001},
        "auxiliary loss ten times as strong": {"balancing": 0.3},
        "z-loss 0.01": {"options": {"router_z_loss_coef": 0.01}},
        "rows by plain SGD": {"row_optimiser": "sgd"},
        "no weight decay": {"weight_decay": 0.0},
        "combine weights not normalised": {"options": {"norm_topk_prob": False}},
        "sigmoid scores": {"router": "sigmoid_aux"},
        f"{LONGER} times as long": {"steps": LONGER * series.base.steps, "stored": (0, LONGER * series.base.steps)},
    }


def _mean_row(setting: Setting, series: Series) -> Iterator[Row]:
    """Raw cosine and centred geometry of router rows by factor, over seeds that start alike."""
    named = {
        f"rows {factor}".replace(" ", "-"): series.over_seeds(series.like("aux", **changed), MOST_SEEDS)
        for factor, changed in factors(series).items()
    }
    folders = dict(zip(factors(series), series.train(named).values(), strict=True))
    raw, rms = {}, {}
    for factor, runs in folders.items():
        last = [last_step(each) for each in runs]
        raw[factor] = [_fact(setting, step, "raw", "mean over pairs") for step in last]
        rms[factor] = [_fact(setting, step, "centred", "rms over pairs") for step in last]
    for factor, changed in factors(series).items():
        steps = changed.get("steps", series.base.steps)
        note = f"{len(raw[BASE])} seeds of {series.base.size}, {steps} steps; t interval over seeds"
        alike, centred = over_seeds(raw[factor]), over_seeds(rms[factor])
        yield row(f"mean cosine of router rows: {factor}", None, alike, alike.above(0), note)
        yield row(f"rms cosine of centred rows: {factor}", None, centred, None, note)
        if factor != BASE:
            more = paired(raw[factor], raw[BASE])
            yield row(f"mean cosine of router rows: {factor}, less {BASE}", None, more, more.above(0), note)


def _fact(setting: Setting, step: str, form: str, fact: str) -> float:
    return float(setting.ask("router_cosine", step, prompts=None, form=form).facts[fact])


EXPERIMENT = Experiment(
    title="Routers learn the geometry of their experts",
    source="Ahrac, Hochwald & Geva 2026, arXiv 2605.12476",
    run=run,
    takes_checkpoint=True,
)
