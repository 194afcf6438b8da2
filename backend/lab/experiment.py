"""A published experiment, asked again: questions to checkpoints, and a row for each quantity that was published.

The way to the answers is given (`Ask`): an experiment knows no store and no service.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import reduce
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from analysis.beside import LABEL
from analysis.result import Interval, Null, Result
from backend.errors import Refusal

if TYPE_CHECKING:
    from backend.lab.series import Series

UNTRAINED = "trains runs of its own: ask with --seeds"
"""Why what needs runs of an experiment's own was not run."""
LEFT_OUT = "--quick asks the first and the last of them"

Cells = np.ndarray | slice | tuple[slice | int, ...] | EllipsisType


class Verdict(StrEnum):
    """What our numbers say of a published effect; never by the value alone.

    Only what was published is judged: `shows` where our interval, a permutation p or an exact count bears its direction
    out, `does not show` where it does not, `cannot be tested at this size` where there is none of them. `measured` is
    what nobody published, and every number of random weights: the note says what ours is compared with.
    """

    SHOWS = "shows"
    DOES_NOT_SHOW = "does not show"
    CANNOT_TELL = "cannot be tested at this size"
    MEASURED = "measured"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Row:
    """A quantity: as published (a number, or the words for a range), ours with its interval, and what that says.

    `random_weights` marks numbers of a model that was never trained: they show that all works, not an effect.
    """

    quantity: str
    published: float | str | None
    ours: float | None
    low: float | None
    high: float | None
    verdict: Verdict
    note: str = ""
    random_weights: bool = False

    def of_random_weights(self) -> "Row":
        """The same row of a model that was never trained, which bears nothing out that is published of trained ones."""
        ran = self.verdict is not Verdict.NOT_RUN
        return replace(self, random_weights=True, verdict=Verdict.MEASURED if ran else self.verdict)

    def to_json(self) -> dict[str, Any]:
        """Plain values for `json.dumps`."""
        return asdict(self) | {"verdict": str(self.verdict)}


class NotAnswered(Refusal):
    """Raised by `Ask` for a question that the checkpoint, as it is held here, cannot be asked; the text says why."""


class Ask(Protocol):
    """A question to the store, by names."""

    def __call__(self, measure: str, *checkpoints: str, prompts: str | None, **knobs: Any) -> Result:
        """The answer, computed if it has to be; raises `NotAnswered`."""
        ...


class Steps(Protocol):
    """What an experiment needs of stored steps beside answers; a step is `RUN/step-NNNNN`."""

    def perplexity(self, run: str) -> float:
        """On held-out tokens, as the log of its training says."""
        ...

    def batches(self, run: str) -> list[float]:
        """MaxVio of the run's last batches in training."""
        ...

    def parameters(self, run: str) -> int:
        """How many numbers the routers of a step learn by gradient."""
        ...

    def identities(self, run: str) -> dict[str, float]:
        """The largest relative errors over layers of the gradients' closed forms, and the share of the mean row."""
        ...

    def softened(self, run: str) -> str:
        """The name of a copy whose routing is fully soft."""
        ...

    def as_experts(self, run: str) -> str:
        """The name of a copy of a dense step as experts."""
        ...

    def part(self, prompts: str, category: str) -> str:
        """The name of the prompts of one category of a set that ships."""
        ...


@dataclass(frozen=True)
class Setting:
    """How an experiment is run: the way to answers, the stored steps, somebody's checkpoint instead of ours.

    `series` trains runs of the experiment's own; without it, what needs them is not run. `quick` asks the first and the
    last of what stands in a row: steps, categories, rules.
    """

    ask: Ask
    stored: Steps
    checkpoint: str | None = None
    series: "Series | None" = None
    quick: bool = False

    def leaves_out(self, one: int | str, of: Sequence[int] | Sequence[str]) -> bool:
        """Whether this one is not asked."""
        return self.quick and one not in (of[0], of[-1])


@dataclass(frozen=True)
class Experiment:
    """A file in `experiments/`: what it repeats, and its rows."""

    title: str
    source: str
    run: Callable[[Setting], Iterator[Row]]
    takes_checkpoint: bool = False


@dataclass(frozen=True)
class Found:
    """A number with its bounds, NaN where there are none."""

    value: float
    low: float = math.nan
    high: float = math.nan

    def __sub__(self, other: "Found") -> "Found":
        """The difference; its bounds take both at their worst, which is wider than independent ones would be."""
        return Found(self.value - other.value, self.low - other.high, self.high - other.low)

    def above(self, bound: float) -> bool | None:
        """Whether all of the interval lies above; None where there is no interval."""
        return None if math.isnan(self.low) else self.low > bound

    def below(self, bound: float) -> bool | None:
        """Whether all of the interval lies below; None where there is no interval."""
        return None if math.isnan(self.high) else self.high < bound

    def against(self, bound: float, words: str = "0") -> str:
        """On which side of a bound the interval lies, in words."""
        if math.isnan(self.low):
            return f"no interval to compare with {words}"
        side = "above" if self.low > bound else "below" if self.high < bound else "not apart from"
        return f"{side} {words}"


def mean_of(result: Result, cells: Cells | None = None) -> Found:
    """The mean over cells; its bounds are the means of theirs, which is at least as wide as the mean's own.

    Over all cells of routed experts if none are named. No bounds if one of the cells has none.
    """
    cells = routed_of(result) if cells is None else cells
    values = result.values[cells]
    there = ~np.isnan(values)
    if not isinstance(result.interval, Interval) or not there.any():
        return Found(_mean(values))
    low, high = (
        np.broadcast_to(bound, result.values.shape)[cells][there]
        for bound in (result.interval.low, result.interval.high)
    )
    found = Found(_mean(values), float(low.mean()), float(high.mean()))
    return Found(found.value) if math.isnan(found.low + found.high) else found


def routed_of(result: Result) -> np.ndarray:
    """Which cells are of routed experts alone: a shared expert has a row of its own and is in no mean over experts."""
    masks = [
        np.array([label != LABEL or not axis.name.startswith("expert") for label in axis.labels])
        for axis in result.axes
    ]
    return np.broadcast_to(reduce(np.logical_and.outer, masks, np.True_), result.values.shape)


def pairs_of(result: Result) -> np.ndarray:
    """Which cells of a table over layers, experts and experts are pairs of different routed experts."""
    return routed_of(result) & ~np.eye(result.values.shape[-1], dtype=bool)


def chance_of(result: Result, bound: str, cells: Cells | None = None) -> float:
    """The mean over cells, as `mean_of` takes them, of the null's `mean`, `low` or `high`; NaN without a null."""
    if not isinstance(result.null, Null):
        return math.nan
    cells = routed_of(result) if cells is None else cells
    return _mean(np.broadcast_to(getattr(result.null, bound), result.values.shape)[cells])


def row(quantity: str, published: float | str | None, found: Found, shows: bool | None, note: str = "") -> Row:
    """A row of what was run; `shows`, of what is published, is None where our numbers decide nothing."""
    judged = Verdict.CANNOT_TELL if shows is None else Verdict.SHOWS if shows else Verdict.DOES_NOT_SHOW
    verdict = Verdict.MEASURED if published is None else judged
    ours, low, high = (x if math.isfinite(x) else None for x in (found.value, found.low, found.high))
    return Row(quantity, published, ours, low, high, verdict, note)


def measured(quantity: str, found: Found, note: str = "") -> Row:
    """A row of what nobody published."""
    return row(quantity, None, found, None, note)


def difference(quantity: str, found: Found, note: str) -> Row:
    """A row of a difference that nobody published: the note says whether it is apart from 0."""
    return measured(quantity, found, f"{note}; {found.against(0)}")


def not_run(quantity: str, published: float | str | None, why: str) -> Row:
    """A row of what was not run, and why."""
    return Row(quantity, published, None, None, None, Verdict.NOT_RUN, why)


def _mean(values: np.ndarray) -> float:
    there = values[~np.isnan(values)]
    return float(there.mean()) if there.size else math.nan
