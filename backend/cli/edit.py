"""`moe-geometry edit`: what if an expert were off, on, merged; other routers; another k."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from backend.cli.ask import ProgressLine
from backend.cli.door import Door, open_door
from backend.errors import Refusal
from backend.settings import Settings


def edit(
    checkpoint: Annotated[str, typer.Argument(help="A folder or an id.")],
    prompts: Annotated[str, typer.Option(help="A file (.jsonl, .csv, .txt) or the name of a set.")],
    off: Annotated[str | None, typer.Option(help="LAYER:EXPERT, its logit at -inf.")] = None,
    on: Annotated[str | None, typer.Option(help="LAYER:EXPERT, in the place of the last-ranked.")] = None,
    merge: Annotated[str | None, typer.Option(help="LAYER:EXPERT+EXPERT, one mean for both.")] = None,
    routers: Annotated[str | None, typer.Option(help="A checkpoint whose routers to take.")] = None,
    keep: Annotated[Path | None, typer.Option(help="A keep-list that `prune --keep` wrote.")] = None,
    top_k: Annotated[int | None, typer.Option("--k", help="Experts a token gets.")] = None,
    randoms: Annotated[int, typer.Option(help="The same edit of so many random experts, beside it.")] = 5,
    chat_template: Annotated[bool, typer.Option("--chat-template", help="Wrap prompts in the model's own.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    export: Annotated[Path | None, typer.Option(help="Also write the edited checkpoint into this new folder.")] = None,
) -> None:
    """Try one edit of a model: perplexity by category, routing and tokens, against the untouched model and chance."""
    spec = _spec(off=off, on=on, merge=merge, routers=routers, topk=top_k, prune=keep)
    line = ProgressLine()
    try:
        with open_door(Settings.from_environment()) as door:
            told = door.edit(checkpoint, prompts, spec, {"randoms": randoms, "chat_template": chat_template}, line)
            if export:
                _export(door, told, export)
    finally:
        line.clear()
    typer.echo(json.dumps(told, allow_nan=False) if as_json else _table(told))


def _spec(**given: Any) -> dict[str, Any]:
    named = {kind: value for kind, value in given.items() if value is not None}
    if len(named) != 1:
        raise Refusal(
            f"One edit at a time: one of --off, --on, --merge, --routers, --k, --keep; {len(named)} were given."
        )
    [(kind, value)] = named.items()
    if kind == "prune":
        return {"kind": kind, "keep": _keep_list(value)}
    if kind == "topk":
        return {"kind": kind, "k": value}
    if kind == "routers":
        return {"kind": kind, "checkpoint": value}
    layer, colon, rest = value.partition(":")
    experts = rest.split("+") if kind == "merge" else [rest]
    if not colon or len(experts) != (2 if kind == "merge" else 1) or not all(e.isdecimal() for e in experts):
        form = "LAYER:EXPERT+EXPERT, such as 2:1+5" if kind == "merge" else "LAYER:EXPERT, such as 2:5"
        raise Refusal(f"--{kind} {value!r} is not {form}.")
    names = ("first", "second") if kind == "merge" else ("expert",)
    return {"kind": kind, "layer": layer, **dict(zip(names, map(int, experts), strict=True))}


def _keep_list(file: Path) -> list[list[int]]:
    try:
        return [layer["keep"] for layer in json.loads(file.read_text("utf-8"))["layers"].values()]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Refusal(
            f'{file} is no keep-list; it must read {{"layers": {{"0": {{"keep": [0, 2]}}, ...}}}} as `prune` writes it.'
        ) from error


def _export(door: Door, told: dict[str, Any], folder: Path) -> None:
    """Here and not in a backend: it writes where whoever sits at this terminal says."""
    from backend.checkpoints import Checkpoint
    from backend.checkpoints.digests import Digests
    from backend.checkpoints.source import read_folder
    from backend.edits import edit_from
    from backend.edits.exporting import export

    def found(name: str) -> Checkpoint:
        source = next(c["source"] for c in door.checkpoints() if name in (c["id"], c["source"]))
        if not Path(source).is_dir():
            raise Refusal(f"{name} lies in the cache of the hub's client; name its folder to export an edit of it.")
        return read_folder(Path(source), None, Digests(), hash_all=True)

    edit = edit_from(told["edit"])
    other = found(getattr(edit, edit.source)) if edit.source else None
    size = export(found(told["checkpoint"]), edit, told["usage"], folder, other)
    typer.echo(f"{folder}: {size:,} parameters", err=True)


def _table(told: dict[str, Any]) -> str:
    lines = [f"{told['checkpoint']}, {told['told']}; {told['prompt_set']}, {told['tokens']:,} tokens", ""]
    lines.append(f"{'perplexity':<14}{'before':>9}{'after':>9}{'ln ratio':>10}  95 % interval       random edits")
    for row in told["perplexity"]:
        change = row["change"]
        band = "none" if change["low"] is None else f"{change['low']:+.4f} to {change['high']:+.4f}"
        chance = f"{min(row['random']):+.4f} to {max(row['random']):+.4f}" if row["random"] else "none"
        numbers = "".join(f"{_short(row[side]):>9}" for side in ("before", "after"))
        lines.append(f"{row['category']:<14}{numbers}{change['value']:>+10.4f}  {band:<20}{chance}")
    lines += ["", "share of selections changed, by layer (random edits)"]
    for row in told["routing"]:
        known = [value for value in row["random"] if value is not None]
        chance = f"({min(known):.3f} to {max(known):.3f})" if known else ""
        lines.append(f"{row['layer']:<14}{_short(row['changed'], 3):>9}  {chance}")
    moved = told["tokens_changed"]
    lines += ["", f"{moved['count']:,} of {moved['of']:,} tokens are followed by another likeliest token"]
    if told["saved"]:
        lines.append(f"a layout made for it would save {told['saved']['parameters']:,} parameters")
    return "\n".join([*lines, *told["notes"]])


def _short(value: float | None, digits: int = 2) -> str:
    return "none" if value is None else f"{value:.{digits}f}"
