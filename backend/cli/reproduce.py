"""`moe-geometry lab reproduce`: a published experiment on trained checkpoints, as one table."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from analysis.errors import GeometryError
from backend.cli.ask import ProgressLine
from backend.cli.door import Door, Wanted, open_door
from backend.errors import Refusal
from backend.settings import Settings

QUICK_SEEDS, QUICK_PROMPTS = 2, 5


def reproduce(
    name: Annotated[str | None, typer.Argument(help="The experiment; all are listed if left out.")] = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="A folder or an id to ask instead of ours, where no training is needed.")
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=0, help="Also train small runs for so many seeds, where the experiment has any.")
    ] = 0,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="Few prompts, and runs of seconds on the batches that ship: shows that all works."
        ),
    ] = False,
    kept: Annotated[bool, typer.Option("--kept", help="Show the results that ship, without a model.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Also write them to data/experiments/.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="A list of rows.")] = False,
) -> None:
    """Repeat a published experiment: what was published, what we find with its interval, what that says."""
    from backend.lab import experiments
    from backend.lab import kept as shipped

    if name is None:
        for each in experiments.names():
            typer.echo(f"{each}: {experiments.get(each).title}. {experiments.get(each).source}")
        return
    settings = Settings.from_environment()
    file = settings.data / "experiments" / f"{name}.json"
    experiments.get(name)
    if kept and checkpoint:
        raise Refusal("--kept shows what ships, which no --checkpoint changes; leave one of them out.")
    if keep and (kept or checkpoint or quick):
        raise Refusal(
            "--keep replaces the results that ship, which are of our own whole runs: leave --kept, --checkpoint and "
            "--quick out."
        )
    count = seeds or (QUICK_SEEDS if quick and not checkpoint else 0)
    rows = shipped.rows(file) if kept else _run(name, checkpoint, settings, count, quick)
    if keep:
        shipped.keep(file, name, f" --seeds {seeds}" if seeds else "", rows)
    typer.echo(json.dumps(rows, allow_nan=False) if as_json else _table(rows))


def _run(name: str, checkpoint: str | None, settings: Settings, seeds: int, quick: bool) -> list[dict[str, Any]]:
    from backend.lab import experiments
    from backend.lab.experiment import Setting
    from backend.lab.stored import Stored

    experiment = experiments.get(name)
    if checkpoint and not experiment.takes_checkpoint:
        raise Refusal(f"{name} compares trained runs; it takes no --checkpoint.")
    line = ProgressLine()
    try:
        with open_door(settings) as door, _series(settings, seeds, quick, line) as series:
            stored = Stored(settings.data, settings.own_runs, QUICK_PROMPTS if quick else None)
            setting = Setting(_asking(door, line, stored.asked), stored, checkpoint, series, quick)
            untrained = bool(checkpoint) and _random(door, str(checkpoint))
            found = experiment.run(setting)
            return [(each.of_random_weights() if untrained else each).to_json() for each in found]
    finally:
        line.clear()


@contextmanager
def _series(settings: Settings, seeds: int, quick: bool, line: ProgressLine) -> Iterator[Any]:
    """Where an experiment trains runs of its own; quick ones leave nothing behind."""
    from backend.lab.series import QUICK, Series, quick_corpus

    def told(stage: str, fraction: float) -> None:
        line(stage, fraction, None)

    if not seeds:
        yield None
    elif quick:
        with TemporaryDirectory(prefix="quick-", dir=_made(settings.own_runs)) as folder:
            corpus = quick_corpus(settings.data, Path(folder) / "corpus")
            yield Series(corpus, Path(folder), seeds, base=QUICK, workers=1, told=told)
    else:
        yield Series(settings.data / "corpus", settings.own_runs / "series", seeds, told=told)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _asking(door: Door, line: ProgressLine, asked: Callable[[str | None], str | None]) -> Any:
    from backend.lab.experiment import NotAnswered
    from backend.runners.failures import TaskFailed
    from backend.wire import from_json

    def ask(measure: str, *checkpoints: str, prompts: str | None, **knobs: Any) -> Any:
        try:
            told = door.ask(Wanted(measure, checkpoints, asked(prompts), knobs), line)
        except (GeometryError, Refusal, TaskFailed) as error:
            if isinstance(error, TaskFailed) and not error.refusal:
                raise
            raise NotAnswered(str(error)) from error
        return from_json(told).result

    return ask


def _random(door: Door, checkpoint: str) -> bool:
    """Whether a checkpoint says of itself that it was never trained."""
    known = next((c for c in door.checkpoints() if checkpoint in (c["id"], c["source"])), None)
    return (known or door.inspect(checkpoint))["random_weights"]


def _table(rows: list[dict[str, Any]]) -> str:
    """A Markdown table, so that it can be pasted where results are discussed."""
    head = "| quantity | published | ours | interval | verdict | note |\n|---|---|---|---|---|---|"
    return "\n".join([head, *(_line(row) for row in rows)])


def _line(row: dict[str, Any]) -> str:
    interval = "" if row["low"] is None else f"{row['low']:.3f} to {row['high']:.3f}"
    mark = " (random weights)" if row.get("random_weights") else ""
    ours = [cell and cell + mark for cell in (_number(row["ours"]), interval, row["verdict"])]
    return "| " + " | ".join((row["quantity"], _number(row["published"]), *ours, row["note"])) + " |"


def _number(value: float | str | None) -> str:
    return "" if value is None else value if isinstance(value, str) else f"{value:.3f}"
