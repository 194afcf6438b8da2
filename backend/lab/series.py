"""Runs that an experiment trains itself: small, alike but for what is compared, one seed after the other.

A run that is there to its end is not trained again, one that was cut short goes on: a series is stopped and started
at will. `quick` runs are trained on the batches that ship, in seconds: they show that all works, not an effect.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import stdtrit

from backend.lab.batches import TokenisedCorpus
from backend.lab.experiment import Found
from backend.lab.model_files import TOKENIZER_FILES, step_folder
from backend.lab.settings import DOMAINS, SEQUENCES_PER_DOMAIN, RunSettings
from backend.lab.ship import SHIPPED
from backend.lab.train import finished, train
from backend.lab.workers import worker_pool

FULL = RunSettings(router="unbalanced", seed=0, size="s32", steps=1000, warm_up=50, stored=(0, 1000))
QUICK = replace(FULL, steps=4, warm_up=2, stored=(0, 4), evaluate_every=4, sequences=1)
QUICK_HELD_OUT = 4
"""Sequences of each domain of the shipped batches that a quick run is judged on."""

Told = Callable[[str, float], None]


@dataclass(frozen=True)
class Series:
    """Where such runs are made, from what text, for how many seeds."""

    corpus: Path
    out: Path
    seeds: int
    base: RunSettings = FULL
    workers: int = 2
    told: Told = lambda stage, fraction: None

    def like(self, shipped: str, **changed: Any) -> RunSettings:
        """The rule of a shipped run at this series' size; `changed` fields beside it."""
        rule = SHIPPED[shipped]
        return replace(self.base, **({"router": rule.router, "balancing": rule.balancing} | changed))

    def over_seeds(self, settings: RunSettings, most: int | None = None) -> list[RunSettings]:
        """The same run for each seed, or for the first `most`."""
        seeds = self.seeds if most is None else min(self.seeds, most)
        return [replace(settings, seed=seed) for seed in range(seeds)]

    def note(self, seeds: int | None = None, steps: int | None = None) -> str:
        """What a row over seeds says of where its interval comes from."""
        return (
            f"{seeds or self.seeds} seeds of {self.base.size}, {steps or self.base.steps} steps; t interval over seeds"
        )

    def train(self, named: Mapping[str, Sequence[RunSettings]]) -> dict[str, list[Path]]:
        """The folders of these runs, trained as far as they are not there; `named` gives a run's seeds by its name."""
        TokenisedCorpus(self.corpus).sequences("train", DOMAINS[0])  # says what to do where there is no text
        every = {self.out / f"{name}-s{run.seed}": run for name, runs in named.items() for run in runs}
        missing = {out: run for out, run in every.items() if not finished(run, out)}
        with worker_pool(self.workers) as pool:
            running = [pool.submit(train, run, self.corpus, out) for out, run in missing.items()]
            for count, done in enumerate(as_completed(running), 1):
                done.result()
                self.told(f"trained {count} of {len(running)} runs", count / len(running))
        return {name: [self.out / f"{name}-s{run.seed}" for run in runs] for name, runs in named.items()}


def last_step(run: Path) -> str:
    """The folder of a run's last step, as a question names it."""
    steps = json.loads((run / "run.json").read_text("utf-8"))["settings"]["steps"]
    return str(step_folder(run, steps))


def last_batches(run: Path, most: int = 10) -> list[float]:
    """MaxVio, mean over layers, of the last training batches that a run's log tells of."""
    lines = map(json.loads, (run / "log.jsonl").read_text("utf-8").splitlines())
    told = [line["batch_max_violation"] for line in lines if line["kind"] == "train"]
    return [float(np.mean(layers)) for layers in told[-most:]]


def last_validation(run: Path) -> dict[str, Any]:
    """What a run's log says of its last step."""
    lines = map(json.loads, (run / "log.jsonl").read_text("utf-8").splitlines())
    return [line for line in lines if line["kind"] == "validation"][-1]


def over_seeds(values: Iterable[float]) -> Found:
    """Mean over seeds, or over batches, with its 95 % t interval; no bounds for one.

    Seeds differ in initial weights and order of data; the text is the same.
    """
    each = np.array(list(values), dtype=float)
    if len(each) < 2:
        return Found(float(each.mean()) if len(each) else math.nan)
    half = float(stdtrit(len(each) - 1, 0.975) * each.std(ddof=1) / math.sqrt(len(each)))
    return Found(float(each.mean()), float(each.mean()) - half, float(each.mean()) + half)


def paired(more: Iterable[float], less: Iterable[float]) -> Found:
    """Mean difference over seeds that start alike, with its interval."""
    return over_seeds(a - b for a, b in zip(more, less, strict=True))


def quick_corpus(data: Path, out: Path) -> Path:
    """A corpus of the batches that ship with the run `aux`: 76 sequences of each domain to learn, 4 held out."""
    stored = np.load(data / "checkpoints" / "aux" / "first-batches.npy")
    out.mkdir(parents=True, exist_ok=True)
    for place, domain in enumerate(DOMAINS):
        own = slice(place * SEQUENCES_PER_DOMAIN, (place + 1) * SEQUENCES_PER_DOMAIN)
        sequences = stored[:, own].reshape(-1, stored.shape[-1])
        np.save(out / f"train-{domain}.npy", sequences[:-QUICK_HELD_OUT])
        np.save(out / f"validation-{domain}.npy", sequences[-QUICK_HELD_OUT:])
    for name in TOKENIZER_FILES:
        shutil.copyfile(data / "tokenizer" / name, out / name)
    return out
