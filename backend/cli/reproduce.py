"""`moe-geometry lab reproduce`: a published experiment on trained checkpoints, as one table."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from backend.cli.ask import ProgressLine
from backend.cli.door import Door, Wanted, open_door
from backend.errors import NotFound, Refusal
from backend.settings import Settings

QUICK_SEEDS = 2


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
            "--quick",
            help="Train them on the batches that ship, ask every fourth prompt: shows in minutes that all works.",
        ),
    ] = False,
    kept: Annotated[bool, typer.Option("--kept", help="Show the results that ship, without a model.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Also write them to data/experiments/.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="A list of rows.")] = False,
) -> None:
    """Repeat a published experiment: what was published, what we find with its interval, what that says."""
    from backend.lab import experiments

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
    seeds = seeds or (QUICK_SEEDS if quick and not checkpoint else 0)
    rows = _kept(file) if kept else _run(name, checkpoint, settings, seeds, quick)
    if keep:
        _keep(file, f"{name} --seeds {seeds}" if seeds else name, rows)
    typer.echo(json.dumps(rows, allow_nan=False) if as_json else _table(rows))


def _run(name: str, checkpoint: str | None, settings: Settings, seeds: int, quick: bool) -> list[dict[str, Any]]:
    from backend.lab import experiments
    from backend.lab.experiment import Setting

    experiment = experiments.get(name)
    if checkpoint and not experiment.takes_checkpoint:
        raise Refusal(f"{name} compares trained runs; it takes no --checkpoint.")
    line = ProgressLine()
    try:
        with open_door(settings) as door, _series(settings, seeds, quick, line) as series:
            runs = settings.data / "checkpoints"
            setting = Setting(
                ask=_asking(door, line, _few(settings.data) if quick else str),
                perplexity=lambda run: _perplexity(runs, run),
                softened=lambda run: _softened(runs, settings.own_runs, run),
                part=lambda prompts, category: _part(settings.data, prompts, category),
                checkpoint=checkpoint,
                series=series,
            )
            untrained = bool(checkpoint) and _random(door, str(checkpoint))
            return [replace(row, random_weights=untrained).to_json() for row in experiment.run(setting)]
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
            yield Series(corpus, Path(folder), seeds, base=QUICK, told=told)
    else:
        yield Series(settings.data / "corpus", settings.own_runs / "series", seeds, told=told)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _asking(door: Door, line: ProgressLine, named: Callable[[str], str]) -> Any:
    from backend.wire import from_json

    def ask(measure: str, *checkpoints: str, prompts: str | None, **knobs: Any) -> Any:
        wanted = Wanted(measure, checkpoints, prompts and named(prompts), knobs)
        return from_json(door.ask(wanted, line)).result

    return ask


def _perplexity(checkpoints: Path, run: str) -> float:
    """Of a stored step `RUN/step-NNNNN`, from the log of its training."""
    folder, step = run.split("/step-")
    lines = (checkpoints / folder / "log.jsonl").read_text("utf-8").splitlines()
    said = [line for line in map(json.loads, lines) if line["kind"] == "validation" and line["step"] == int(step)]
    return said[-1]["perplexity"]["all"]


def _softened(checkpoints: Path, runs: Path, run: str) -> str:
    from backend.lab.soften import soften

    folder, step = run.split("/")
    target = runs / f"{folder}-softened" / step
    soften(checkpoints / folder / step, target)
    return str(target)


def _part(data: Path, prompts: str, category: str) -> str:
    """A file with the rows of one category."""
    rows = (data / "prompts" / f"{prompts}.jsonl").read_text("utf-8").splitlines()
    own = [row for row in rows if json.loads(row)["category"] == category]
    file = _made(data / "runs" / "prompts") / f"{prompts}-{category}.jsonl"
    file.write_text("\n".join(own) + "\n", "utf-8")
    return str(file)


def _few(data: Path) -> Callable[[str], str]:
    """Every fourth prompt of a set that ships, in a file of its own; any other set as it is."""

    def named(prompts: str) -> str:
        shipped = data / "prompts" / f"{prompts}.jsonl"
        if not shipped.is_file():
            return prompts
        file = _made(data / "runs" / "prompts") / f"{prompts}-few.jsonl"
        file.write_bytes(b"".join(shipped.read_bytes().splitlines(keepends=True)[::4]))
        return str(file)

    return named


def _random(door: Door, checkpoint: str) -> bool:
    """Whether a checkpoint says of itself that it was never trained."""
    known = next((c for c in door.checkpoints() if checkpoint in (c["id"], c["source"])), None)
    return (known or door.inspect(checkpoint))["random_weights"]


def _kept(file: Path) -> list[dict[str, Any]]:
    if not file.is_file():
        raise NotFound(f"{file} is not there: no result of this experiment ships; leave --kept out to run it.")
    return json.loads(file.read_text("utf-8"))["rows"]


def _keep(file: Path, name: str, rows: list[dict[str, Any]]) -> None:
    from backend.lab import experiments

    experiment = experiments.get(name.split()[0])
    about = {
        "title": experiment.title,
        "source": experiment.source,
        "command": f"moe-geometry lab reproduce {name} --keep",
        "made": datetime.now(UTC).date().isoformat(),
        "rows": rows,
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(about, indent=2, allow_nan=False) + "\n", "utf-8")


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
