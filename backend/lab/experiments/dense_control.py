"""Whether what is routed to an expert varies in fewer directions than what a dense layer sees and makes of it."""

from collections.abc import Iterator
from dataclasses import dataclass

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
from backend.lab.ship import LAST, START

PROMPTS = "four-tasks"
RULES = {"aux": "auxiliary loss", "free": "loss-free bias", "kmeans": "K-Means", "soft": "fully soft"}
GIVEN = "this checkpoint"
BOUNDS = "mean over experts and layers; bounds are the means of the experts' own"
WORST = "means over experts and layers; bounds are the means of the experts' own, both at their worst"


@dataclass(frozen=True)
class Reading:
    """One way to read "decays faster than the dense FFN": which rows, which number, in which direction.

    The claim is published in words alone; rows, numbers and directions are our readings of it.
    """

    words: str
    knobs: dict[str, str]
    steeper: int

    def shows(self, found: Found, bound: float = 0) -> bool | None:
        """Whether a number lies beyond a bound in this reading's direction."""
        return found.above(bound) if self.steeper > 0 else found.below(bound)

    def ask(self, setting: Setting, checkpoint: str) -> Result:
        """What it comes to for each expert of a checkpoint."""
        return setting.ask("routed_spectrum", checkpoint, prompts=PROMPTS, **self.knobs)


PUBLISHED = "decays faster than dense"
SHARE, RANK = {"quantity": "explained"}, {"quantity": "participation"}
READINGS = (
    Reading("variance in the first 10 axes of inputs g x", SHARE, 1),
    Reading("variance in the first 10 axes of inputs x", {**SHARE, "weighting": "plain"}, 1),
    Reading("participation ratio of inputs g x", RANK, -1),
    Reading("participation ratio of inputs x", {**RANK, "weighting": "plain"}, -1),
    Reading("variance in the first 10 axes of outputs", {**SHARE, "of": "outputs"}, 1),
    Reading("participation ratio of outputs", {**RANK, "of": "outputs"}, -1),
)


def run(setting: Setting) -> Iterator[Row]:
    """Spectra of experts against the dense FFN's at as many tokens, by rule; against blind tokens; and untrained."""
    given = setting.checkpoint
    if given:
        for reading in READINGS:
            yield measured(f"{reading.words}, {GIVEN}", mean_of(reading.ask(setting, given)), BOUNDS)
            yield not_run(f"{reading.words}, {GIVEN} less dense", PUBLISHED, "needs a dense model trained alike")
    else:
        dense = setting.stored.as_experts(f"dense/{LAST}")
        for reading in READINGS:
            yield from _against_dense(setting, reading, dense)
    yield from _against_blind(setting, given or f"free/{LAST}", GIVEN if given else RULES["free"])
    quantity = f"{READINGS[0].words}, trained less untrained"
    if given:
        yield not_run(quantity, None, "needs the checkpoint's own step 0")
        return
    ends = (mean_of(READINGS[0].ask(setting, f"free/{step}")) for step in (LAST, START))
    yield difference(quantity, next(ends) - next(ends), f"loss-free bias; {WORST}")


def _against_dense(setting: Setting, reading: Reading, dense: str) -> Iterator[Row]:
    """A dense block is one expert that serves all tokens, sampled by the same hash to as many rows as an expert's."""
    control = reading.ask(setting, dense)
    theirs = mean_of(control)
    rows = control.facts["rows per expert"]
    note = f"mean over layers; {rows} tokens of each; one SwiGLU of the width of two experts"
    yield measured(f"{reading.words}, dense", theirs, note)
    for name, words in RULES.items():
        quantity = f"{reading.words}, {words} less dense"
        if setting.leaves_out(name, tuple(RULES)):
            yield not_run(quantity, PUBLISHED, LEFT_OUT)
            continue
        answer = reading.ask(setting, f"{name}/{LAST}")
        if answer.facts["rows per expert"] != rows:
            yield not_run(quantity, PUBLISHED, f"{answer.facts['rows per expert']} rows against {rows}")
            continue
        ours = mean_of(answer)
        more = ours - theirs
        note = f"{ours.value:.3f} against {theirs.value:.3f} at {rows} tokens of each; {WORST}"
        if name == "soft":
            yield difference(quantity, more, f"{note}; published of top-k experts alone")
        else:
            yield row(quantity, PUBLISHED, more, reading.shows(more), note)


def _against_blind(setting: Setting, checkpoint: str, words: str) -> Iterator[Row]:
    """The other null: as many tokens of the same layer, drawn blindly. Outputs are all of the same tokens."""
    for reading in (READINGS[0], READINGS[2]):
        answer = reading.ask(setting, checkpoint)
        found, bound = mean_of(answer), chance_of(answer, "high" if reading.steeper > 0 else "low")
        note = (
            f"{BOUNDS}; the band of as many blind tokens of the layer, which a dense one would see, ends at {bound:.3f}"
        )
        quantity = f"{reading.words}, {words}, against blind tokens"
        yield row(quantity, PUBLISHED, found, reading.shows(found, bound), note)


EXPERIMENT = Experiment(
    title="Spectra of routed experts against a dense layer",
    source="Liu 2026, arXiv 2605.16349",
    run=run,
    takes_checkpoint=True,
)
