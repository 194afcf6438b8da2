"""`moe-geometry import`: routes and counts that were made elsewhere, as a checkpoint that can be asked."""

from __future__ import annotations

from typing import Annotated

import typer

from backend.cli.door import open_door
from backend.settings import Settings


def import_trace(
    file: Annotated[str, typer.Argument(help="Routes or counts; a folder for FLAME-MoE's.")],
    name: Annotated[str, typer.Option("--as", help="What it is called from now on.")],
    k: Annotated[int | None, typer.Option(help="Experts that a token chooses, where the file does not say.")] = None,
    experts: Annotated[int | None, typer.Option(help="Routed experts a layer, where the file does not say.")] = None,
    layers: Annotated[
        str | None, typer.Option(help="Which of the file's layers have experts, from 0: 3-60, or 1,3,5.")
    ] = None,
    window: Annotated[
        int | None, typer.Option(help="Cut a stream that tells no prompts apart into pieces of so many tokens.")
    ] = None,
    form: Annotated[str | None, typer.Option("--format", help="What the file is, where it may be two things.")] = None,
    prompts: Annotated[
        str | None, typer.Option(help="The set that its prompts are of, matched by id: texts, categories, intervals.")
    ] = None,
) -> None:
    """Keep a trace that was made elsewhere; every measure that needs no weights can then be asked of it."""
    said = {"format": form, "k": k, "experts": experts, "layers": layers, "window": window}
    with open_door(Settings.from_environment()) as door:
        kept = door.import_trace(file, name, said, prompts)
    shape = f"{kept['moe_layers']} layers of {kept['experts']} experts, {kept['top_k']} a token"
    typer.echo(f"{kept['id']}: {kept['trace']}, {shape}; ask it on the prompts {kept['prompts']}")
    typer.echo(f"it decides {', '.join(kept['statistics'])}")
    for note in kept.get("notes", ()):
        typer.echo(note)
