"""`moe-geometry ask`: one question, one JSON object."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from backend.cli.door import Wanted, open_door
from backend.cli.table import answer_table, plan_table
from backend.errors import Refusal
from backend.named import named_value
from backend.settings import Settings

ENDINGS = {".parquet": "parquet", ".csv": "csv", ".npy": "npy", ".tex": "tex"}


class Format(StrEnum):
    """How an answer is printed."""

    json = "json"
    table = "table"


def ask(
    measure: Annotated[str, typer.Option(help="A name that `measures` lists.")],
    checkpoint: Annotated[list[str], typer.Option(help="A folder or an id; twice for a comparison, a first.")],
    prompts: Annotated[str | None, typer.Option(help="A file (.jsonl, .csv, .txt) or the name of a set.")] = None,
    knob: Annotated[list[str] | None, typer.Option(help="NAME=VALUE, as `measures` lists them.")] = None,
    generate: Annotated[int, typer.Option(help="Tokens to generate after each prompt, captured too.")] = 0,
    chat_template: Annotated[bool, typer.Option("--chat-template", help="Wrap prompts in the model's own.")] = False,
    first_token: Annotated[bool, typer.Option(help="Count the first token of each prompt (BOS, as a rule).")] = True,
    form: Annotated[Format, typer.Option("--format", help="What to print.")] = Format.json,
    out: Annotated[Path | None, typer.Option(help="Also write a .parquet, .csv, .npy or .tex file.")] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Say what it would take, and ask nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The plan as JSON.")] = False,
) -> None:
    """Ask one measure of one checkpoint, or of two."""
    if out and out.suffix not in ENDINGS:
        raise Refusal(f"--out {out} ends in {out.suffix!r}; known: {', '.join(ENDINGS)}.", known=list(ENDINGS))
    knobs = dict(named_value(text, "--knob") for text in knob or ())
    capture = {"generate": generate, "chat_template": chat_template, "first_token": first_token}
    wanted = Wanted(measure, checkpoint, prompts, knobs, capture)
    if plan:
        with open_door(Settings.from_environment()) as door:
            planned = door.plan(wanted)
        typer.echo(json.dumps(planned, allow_nan=False) if as_json else plan_table(planned))
        return
    line = ProgressLine()
    try:
        with open_door(Settings.from_environment()) as door:
            answer = door.ask(wanted, line)
    finally:
        line.clear()
    if out:
        from backend.wire import from_json, to_file

        told = from_json(answer)
        out.write_bytes(to_file(told.result, told.provenance, ENDINGS[out.suffix]))
    typer.echo(answer_table(answer) if form is Format.table else json.dumps(answer, allow_nan=False))


class ProgressLine:
    """One line on a terminal, rewritten in place; silent in a pipe."""

    def __init__(self) -> None:
        self._shown = False

    def __call__(self, stage: str, fraction: float, eta: float | None) -> None:
        """Show it."""
        if sys.stderr.isatty():
            left = f" · {eta:.0f} s left" if eta else ""
            sys.stderr.write(f"\r\033[K{fraction:4.0%} {stage}{left}")
            sys.stderr.flush()
            self._shown = True

    def clear(self) -> None:
        """Leave the line empty."""
        if self._shown:
            sys.stderr.write("\r\033[K")
            sys.stderr.flush()
