"""`moe-geometry compare`: two to four checkpoints on one prompt set, each of the others against the first.

Experts are matched pair by pair, and every difference comes with its uncertainty.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from backend.cli.ask import ProgressLine
from backend.cli.door import Door, Wanted, open_door
from backend.errors import NotFound, Refusal
from backend.settings import Settings

MATCHING = "expert_matching"


def compare(
    a: Annotated[str, typer.Argument(help="A folder or an id: the baseline.")],
    b: Annotated[str, typer.Argument(help="The other.")],
    c: Annotated[str | None, typer.Argument(help="A third, against the baseline too.")] = None,
    d: Annotated[str | None, typer.Argument(help="A fourth.")] = None,
    *,
    prompts: Annotated[str, typer.Option(help="A file (.jsonl, .csv, .txt) or the name of a set.")],
    evidence: Annotated[
        str, typer.Option(help="What experts are matched by; each difference says its order.")
    ] = "co-selection",
    report: Annotated[Path | None, typer.Option(help="Also write one HTML file that opens offline.")] = None,
    latex: Annotated[Path | None, typer.Option(help="Also write a .tex file: a table for each difference.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Matching by layer, and every difference.")] = False,
) -> None:
    """Ask every measure of two sides of the baseline and each of the others."""
    if report and report.suffix != ".html":
        raise Refusal(f"--report {report} ends in {report.suffix!r}; it is one HTML file, so .html.")
    if latex and latex.suffix != ".tex":
        raise Refusal(f"--latex {latex} ends in {latex.suffix!r}; it is LaTeX, so .tex.")
    line = ProgressLine()
    try:
        with open_door(Settings.from_environment()) as door:
            told = _told(door, [each for each in (a, b, c, d) if each is not None], prompts, evidence, line)
    finally:
        line.clear()
    if report:
        _report(told, report)
    if latex:
        latex.write_text(_latex(told), "utf-8")
    typer.echo(json.dumps(told, allow_nan=False) if as_json else _table(told))


def _told(door: Door, names: list[str], prompts: str, evidence: str, line: ProgressLine) -> dict[str, Any]:
    pairs = [_pair(door, (names[0], other), prompts, evidence, line) for other in names[1:]]
    if all("refused" in each for pair in pairs for each in (pair["matching"], *pair["differences"])):
        raise Refusal(pairs[0]["matching"]["refused"])
    return {
        "checkpoints": names,
        "prompts": prompts,
        "command": shlex.join(["moe-geometry", "compare", *names, "--prompts", prompts, "--evidence", evidence]),
        "pairs": pairs,
    }


def _pair(door: Door, ends: tuple[str, str], prompts: str, evidence: str, line: ProgressLine) -> dict[str, Any]:
    from backend.measures import catalogue

    every = {measure["name"]: measure for measure in catalogue() if tuple(measure["sides"]) == ("a", "b")}
    shown = {"evidence": evidence, "show": "matched"}
    matching = _asked(door, every.pop(MATCHING), Wanted(MATCHING, ends, prompts, shown), line)
    found = []
    for name, measure in every.items():
        knobs = {k["name"]: evidence for k in measure["knobs"] if k["name"] == "matching" and evidence in k["choices"]}
        read = prompts if measure["prompts"] else None
        found.append(_asked(door, measure, Wanted(name, ends, read, knobs), line))
    layers = [] if "refused" in matching else _layers(matching)
    return {"a": ends[0], "b": ends[1], "matching": matching, "layers": layers, "differences": found}


def _asked(door: Door, measure: Mapping[str, Any], wanted: Wanted, line: ProgressLine) -> dict[str, Any]:
    """What cannot be compared says why; the rest is still asked. A name that nobody knows ends it all."""
    described = {name: measure[name] for name in ("title", "question", "source", "caveat")}
    try:
        return described | door.ask(wanted, line)
    except NotFound:
        raise
    except Exception as error:
        return described | {"measure": wanted.measure, "refused": _sentence(error)}


def _sentence(error: Exception) -> str:
    from backend.cli.refusals import sentence

    told = sentence(error)
    if told is None:
        raise error
    return told


def _layers(matching: dict[str, Any]) -> list[dict[str, Any]]:
    """Partner of each expert of a and how alike they are, None where an expert has none; p corrected for all layers."""
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
                "p": null["p"][at][0][0] if "p" in null else matching["facts"].get("permutation p"),
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
    parts = [f"% {' '.join(told['command'].split())} --latex FILE.tex", ""]
    several = len(told["pairs"]) > 1
    for pair in told["pairs"]:
        of = f": {pair['b']} against {pair['a']}" if several else ""
        for each in pair["differences"]:
            parts += _latex_of(each, f"{each['title']}{of}")
    return "\n".join(parts)


def _latex_of(each: dict[str, Any], title: str) -> list[str]:
    from backend.latex import heading, to_latex
    from backend.wire import from_json

    refused = each.get("refused")
    if refused is None:
        answer = from_json(each)
        try:
            return [heading(title), to_latex(answer.result, answer.provenance)]
        except Refusal as error:
            refused = str(error)
    return [heading(title, [f"Not in this file: {refused}"])]


def _table(told: dict[str, Any]) -> str:
    return "\n\n".join(_table_of(pair, told["prompts"]) for pair in told["pairs"])


def _table_of(pair: dict[str, Any], prompts: str) -> str:
    """Markdown: how experts were matched, and what each difference says of itself."""
    lines = [f"{pair['a']} (a) and {pair['b']} (b) on {prompts}", ""]
    if "refused" in pair["matching"]:
        lines.append(f"Experts are not matched: {pair['matching']['refused']}")
    else:
        lines += ["| layer | matched | quality | p |", "|---|---|---|---|"]
    for layer in pair["layers"]:
        partners = layer["matching"].values()
        quality = "no data" if layer["match_quality"] is None else f"{layer['match_quality']:.3f}"
        matched = f"{sum(p is not None for p in partners)} of {len(partners)}"
        lines.append(f"| {layer['layer']} | {matched} | {quality} | {_short(layer['p'])} |")
    lines += ["", "| measure | what it says |", "|---|---|"]
    for each in pair["differences"]:
        facts = "; ".join(f"{name} {_short(value)}" for name, value in each.get("facts", {}).items())
        lines.append(f"| {each['measure']} | {each.get('refused') or facts or 'see --json'} |")
    return "\n".join(lines)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
