"""`moe-geometry compare`: two checkpoints on one prompt set, experts matched, every difference with its uncertainty."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from backend.cli.ask import ProgressLine
from backend.cli.door import Door, Wanted, open_door
from backend.errors import Refusal
from backend.settings import Settings

MATCHING = "expert_matching"


def compare(
    a: Annotated[str, typer.Argument(help="A folder or an id: the baseline.")],
    b: Annotated[str, typer.Argument(help="The other.")],
    prompts: Annotated[str, typer.Option(help="A file (.jsonl, .csv, .txt) or the name of a set.")],
    evidence: Annotated[str, typer.Option(help="What experts are matched by.")] = "co-selection",
    report: Annotated[Path | None, typer.Option(help="Also write one HTML file that opens offline.")] = None,
    latex: Annotated[Path | None, typer.Option(help="Also write a .tex file: a table for each difference.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Matching by layer, and every difference.")] = False,
) -> None:
    """Ask every measure of two sides of two checkpoints."""
    if report and report.suffix != ".html":
        raise Refusal(f"--report {report} ends in {report.suffix!r}; it is one HTML file, so .html.")
    if latex and latex.suffix != ".tex":
        raise Refusal(f"--latex {latex} ends in {latex.suffix!r}; it is LaTeX, so .tex.")
    line = ProgressLine()
    try:
        with open_door(Settings.from_environment()) as door:
            told = _told(door, (a, b), prompts, evidence, line)
    finally:
        line.clear()
    if report:
        _report(told, report)
    if latex:
        latex.write_text(_latex(told), "utf-8")
    typer.echo(json.dumps(told, allow_nan=False) if as_json else _table(told))


def _told(door: Door, ends: tuple[str, str], prompts: str, evidence: str, line: ProgressLine) -> dict[str, Any]:
    from backend.measures import catalogue

    matching = door.ask(Wanted(MATCHING, ends, prompts, {"evidence": evidence, "show": "matched"}), line)
    found: list[dict[str, Any]] = []
    for measure in catalogue():
        if tuple(measure["sides"]) != ("a", "b") or measure["name"] == MATCHING:
            continue
        described = {name: measure[name] for name in ("title", "question", "source", "caveat")}
        knobs = {k["name"]: evidence for k in measure["knobs"] if k["name"] == "matching" and evidence in k["choices"]}
        read = prompts if measure["prompts"] else None
        try:
            found.append(described | door.ask(Wanted(measure["name"], ends, read, knobs), line))
        except Exception as error:  # what cannot be compared says why; the rest is still asked
            sentence = _sentence(error)
            found.append(described | {"measure": measure["name"], "refused": sentence})
    return {
        "a": ends[0],
        "b": ends[1],
        "prompts": prompts,
        "command": shlex.join(["moe-geometry", "compare", *ends, "--prompts", prompts, "--evidence", evidence]),
        "matching": matching,
        "layers": _layers(matching),
        "differences": found,
    }


def _sentence(error: Exception) -> str:
    from backend.cli.refusals import sentence

    told = sentence(error)
    if told is None:
        raise error
    return told


def _layers(matching: dict[str, Any]) -> list[dict[str, Any]]:
    """Partner of each expert of a and how alike they are; None where an expert has none."""
    null, told = matching["null"], []
    for at, label in enumerate(matching["axes"][0]["labels"]):
        pairs = {}
        for expert, row in enumerate(matching["values"][at]):
            partner = next((f for f, value in enumerate(row) if isinstance(value, int | float)), None)
            pairs[expert] = (partner, None if partner is None else row[partner])
        known = [quality for _, quality in pairs.values() if quality is not None]
        told.append(
            {
                "layer": label,
                "matching": {f"E{e}": None if f is None else f"E{f}" for e, (f, _) in pairs.items()},
                "match_quality": sum(known) / len(known) if known else None,
                "null": null
                if "reason" in null
                else {name: _most(null[name][at]) for name in ("low", "high")} | {"how": null["how"]},
            }
        )
    return told


def _most(bounds: Any) -> Any:
    """The bound furthest from 0 of a layer's pairs."""
    flat = [x for row in bounds for x in row if isinstance(x, int | float)] if isinstance(bounds, list) else [bounds]
    return max(flat, key=abs) if flat else None


def _report(told: dict[str, Any], file: Path) -> None:
    # The pages' own figures, and so in their own process: this room imports no plotly.
    command = [sys.executable, "-m", "frontend.report", str(file)]
    done = subprocess.run(command, input=json.dumps(told, allow_nan=False), text=True, capture_output=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        raise Refusal(f"The report was not written: {last}. It needs the pages: pip install '.[frontend]'.")


def _latex(told: dict[str, Any]) -> str:
    """A table for each difference; what was refused, or is too long for one, says so in its place."""
    from backend.latex import heading, to_latex
    from backend.wire import from_json

    parts = [f"% {' '.join(told['command'].split())} --latex FILE.tex", ""]
    for each in told["differences"]:
        refused = each.get("refused")
        if refused is None:
            answer = from_json(each)
            try:
                parts += [heading(each["title"]), to_latex(answer.result, answer.provenance)]
            except Refusal as error:
                refused = str(error)
        if refused is not None:
            parts.append(heading(each["title"], [f"Not in this file: {refused}"]))
    return "\n".join(parts)


def _table(told: dict[str, Any]) -> str:
    """Markdown: how experts were matched, and what each difference says of itself."""
    lines = [
        f"{told['a']} (a) and {told['b']} (b) on {told['prompts']}",
        "",
        "| layer | matched | quality |",
        "|---|---|---|",
    ]
    for layer in told["layers"]:
        partners = layer["matching"].values()
        quality = "no data" if layer["match_quality"] is None else f"{layer['match_quality']:.3f}"
        lines.append(f"| {layer['layer']} | {sum(p is not None for p in partners)} of {len(partners)} | {quality} |")
    lines += ["", "| measure | what it says |", "|---|---|"]
    for each in told["differences"]:
        facts = "; ".join(f"{name} {_short(value)}" for name, value in each.get("facts", {}).items())
        lines.append(f"| {each['measure']} | {each.get('refused') or facts or 'see --json'} |")
    return "\n".join(lines)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
