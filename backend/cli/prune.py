"""`moe-geometry prune`: what each criterion would drop, and what that costs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from backend.cli.ask import ProgressLine
from backend.cli.door import open_door
from backend.errors import Refusal
from backend.settings import Settings


def prune(
    checkpoint: Annotated[str, typer.Argument(help="A folder or an id.")],
    prompts: Annotated[str, typer.Option(help="A file (.jsonl, .csv, .txt) or the name of a set.")],
    ratio: Annotated[float, typer.Option(help="Share of each layer's experts to drop.")] = 0.25,
    randoms: Annotated[int, typer.Option(help="So many random keep-lists beside them.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    keep: Annotated[str | None, typer.Option(help="CRITERION=FILE.json: write its keep-list.")] = None,
) -> None:
    """Compare the keep-lists of all pruning criteria; `edit --keep FILE.json` tries or exports one."""
    criterion, equals, file = (keep or "").partition("=")
    if keep and not (equals and file):
        raise Refusal(f"--keep {keep!r} is not CRITERION=FILE.json.")
    line = ProgressLine()
    try:
        with open_door(Settings.from_environment()) as door:
            told = door.prune(checkpoint, prompts, ratio, randoms, line)
    finally:
        line.clear()
    if file:
        Path(file).write_text(json.dumps(_list(told, criterion), indent=1) + "\n", "utf-8")
    typer.echo(json.dumps(told, allow_nan=False) if as_json else _table(told))


def _list(told: dict[str, Any], criterion: str) -> dict[str, Any]:
    found = next((row for row in told["criteria"] if row["criterion"] == criterion), None)
    if found is None:
        known = [row["criterion"] for row in told["criteria"]]
        raise Refusal(f"There is no criterion {criterion!r}; known: {', '.join(known)}.", known=known)
    names = ("checkpoint", "fingerprint", "prompt_set", "prompts_digest", "ratio")
    return {**{name: told[name] for name in names}, "criterion": criterion, "layers": found["layers"]}


def _table(told: dict[str, Any]) -> str:
    rows = told["criteria"]
    names = [row["category"] for row in rows[0]["perplexity"]]
    lines = [
        f"{told['checkpoint']}: {told['kept']} of {told['experts']} experts kept; {told['prompt_set']}, "
        f"{told['tokens']:,} tokens",
        f"halves: overlap of the keep-lists of two halves of the prompts; random lists overlap by "
        f"{told['random_agreement']:.2f}",
        "",
        f"{'perplexity':<22}{'halves':>7}" + "".join(f"{name[:11]:>12}" for name in names),
        f"{'untouched':<22}{'':>7}" + "".join(_cell(row["before"]) for row in rows[0]["perplexity"]),
    ]
    for row in rows:
        cells = "".join(_cell(each["after"]) for each in row["perplexity"])
        lines.append(f"{row['criterion']:<22}{row['halves']:>7.2f}{cells}")
    chance = [each["random"] for each in rows[0]["perplexity"]]
    if all(chance):
        from math import exp

        means = [e["before"] * exp(sum(r) / len(r)) for e, r in zip(rows[0]["perplexity"], chance, strict=True)]
        lines.append(f"{f'random, mean of {len(chance[0])}':<22}{'':>7}" + "".join(map(_cell, means)))
    return "\n".join([*lines, *told["notes"]])


def _cell(value: float | None) -> str:
    return f"{'none' if value is None else format(value, '.2f'):>12}"
