"""Planted answers to an experiment's questions: no store, no model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from analysis.result import Axis, Interval, Null, Reason, Result
from backend.lab import experiments
from backend.lab.experiment import Setting
from backend.lab.series import Series
from backend.lab.settings import RunSettings

PERPLEXITY = {"kmeans": 22.0, "free": 20.0, "aux": 21.0}
BATCHES = {"kmeans": [0.1, 0.12, 0.11], "free": [0.2, 0.21, 0.22], "aux": [0.3, 0.33, 0.34]}
IDENTITIES = {"router": 1e-15, "gate": 3e-15, "up": 2e-15, "mean_row": 4e-16}
PARAMETERS = {"kmeans": 0, "free": 2048, "aux": 2048}


def result(values, low=None, high=None, null=None, axes=None, **facts) -> Result:
    values = np.asarray(values, dtype=float)
    axes = axes or tuple(Axis(f"axis{n}", tuple(map(str, range(size)))) for n, size in enumerate(values.shape))
    interval = Reason("none") if low is None else Interval(np.asarray(low, float), np.asarray(high, float), 0.95, "")
    mean, least, most = (np.asarray(part, float) for part in null or (0, 0, 0))
    band = Reason("none") if null is None else Null(mean, least, most, "")
    return Result("m", values, axes, "", band, interval, facts=facts)


def wide(values, width: float, **more: Any) -> Result:
    """An answer whose interval reaches as far to both sides."""
    values = np.asarray(values, dtype=float)
    return result(values, values - width, values + width, **more)


class PlantedSteps:
    """What stored steps say, by their run."""

    def perplexity(self, run: str) -> float:
        return PERPLEXITY[run.split("/")[0]]

    def batches(self, run: str) -> list[float]:
        return BATCHES[run.split("/")[0]]

    def parameters(self, run: str) -> int:
        return PARAMETERS[run.split("/")[0]]

    def identities(self, run: str) -> dict[str, float]:
        return IDENTITIES

    def softened(self, run: str) -> str:
        return f"softened/{run}"

    def as_experts(self, run: str) -> str:
        return run

    def part(self, prompts: str, category: str) -> str:
        return f"{prompts}-{category}"


def rows_of(name: str, ask: Callable[..., Result], **more: Any) -> dict[str, dict[str, Any]]:
    """The rows of an experiment to these answers, by quantity."""

    setting = Setting(ask, PlantedSteps(), **more)
    rows = [each.to_json() for each in experiments.get(name).run(setting)]
    assert len({each["quantity"] for each in rows}) == len(rows)
    return {each["quantity"]: each for each in rows}


@dataclass(frozen=True)
class Planted(Series):
    """A series whose runs are there at once: `told` gives the log of a run by its name and seed."""

    told_of: Callable[[str, int], dict[str, float]] = lambda name, seed: {"violation": 0.1, "perplexity": 20.0}

    def train(self, named: Mapping[str, Sequence[RunSettings]]) -> dict[str, list[Path]]:
        """Folders with a settings file and a log."""
        return {name: [self._written(name, run) for run in runs] for name, runs in named.items()}

    def _written(self, name: str, run: RunSettings) -> Path:
        folder, said = self.out / f"{name}-s{run.seed}", self.told_of(name, run.seed)
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps({"settings": {"steps": run.steps}}))
        perplexity, violation = {"all": said["perplexity"]}, {"mean": said["violation"]}
        lines = (
            {"kind": "train", "batch_max_violation": [said["violation"]] * 2},
            {"kind": "validation", "tokens": 51200, "perplexity": perplexity, "max_violation": violation},
        )
        (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return folder


def planted(folder: Path, seeds: int = 3, **told: Any) -> Planted:
    """A series of so many seeds in an empty folder."""
    return Planted(folder / "corpus", folder / "runs", seeds, **told)
