"""`moe-geometry checkpoints | prompts | measures | sql`: what there is."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

from backend.checkpoints.architectures import architectures
from backend.cli.door import open_door
from backend.cli.table import columned
from backend.settings import Settings

Source = Annotated[str, typer.Argument(help="A folder, or a hub id as OWNER/NAME or OWNER/NAME@REVISION.")]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON.")]

checkpoints = typer.Typer(help="List, inspect and register checkpoints.")
prompts = typer.Typer(help="List, show, add and delete prompt sets.")


@checkpoints.callback(invoke_without_command=True)
def checkpoints_default(context: typer.Context) -> None:
    """List, inspect and register checkpoints."""
    if context.invoked_subcommand is None:
        checkpoints_list(as_json=False)


@checkpoints.command("list")
def checkpoints_list(as_json: AsJson = False) -> None:
    """All checkpoints that can be asked about."""
    with open_door(Settings.from_environment()) as door:
        found = door.checkpoints()
    names = ("id", "architecture", "router", "moe_layers", "experts", "top_k", "dtype", "parameters", "error")
    _show(found, names, as_json)


@checkpoints.command("add")
def checkpoints_add(source: Source) -> None:
    """Register a checkpoint by its headers; weights of the hub are fetched by the first question that reads them."""
    with open_door(Settings.from_environment()) as door:
        typer.echo(json.dumps(door.register(source), indent=2))


@checkpoints.command("add-run")
def checkpoints_add_run(
    sources: Annotated[list[str], typer.Argument(help="A folder of steps, or OWNER/NAME@REVISION once for each step.")],
    name: Annotated[
        str | None, typer.Option(help="What the run is called; else its folder's or repository's name.")
    ] = None,
) -> None:
    """Register the steps of a run in the order of training, read from their names."""
    with open_door(Settings.from_environment()) as door:
        found = door.register_run(sources, name)
    _show(found["checkpoints"], ("id", "step", "tokens", "stage", "revision", "source"), as_json=False)


@checkpoints.command("inspect")
def checkpoints_inspect(source: Source) -> None:
    """Say what a checkpoint is, without keeping or loading it."""
    with open_door(Settings.from_environment()) as door:
        typer.echo(json.dumps(door.inspect(source), indent=2))


@checkpoints.command("architectures")
def checkpoints_architectures(as_json: AsJson = False) -> None:
    """Which model types are read, by which adapter, and how exactly."""
    names = ("type", "adapter", "supported", "block_error", "jacobian_error", "remarks")
    _show([asdict(each) for each in architectures()], names, as_json)


@prompts.callback(invoke_without_command=True)
def prompts_default(context: typer.Context) -> None:
    """List, show, add and delete prompt sets."""
    if context.invoked_subcommand is None:
        prompts_list(as_json=False)


@prompts.command("list")
def prompts_list(as_json: AsJson = False) -> None:
    """All prompt sets."""
    with open_door(Settings.from_environment()) as door:
        found = door.prompts()
    _show(found, ("name", "prompts", "characters", "shipped", "digest"), as_json)


@prompts.command("show")
def prompts_show(name: str) -> None:
    """One set with its prompts, as JSON."""
    with open_door(Settings.from_environment()) as door:
        typer.echo(json.dumps(door.prompt_set(name), indent=2, ensure_ascii=False))


@prompts.command("add")
def prompts_add(file: Annotated[str, typer.Argument(help="A .jsonl, .csv or .txt file.")]) -> None:
    """Keep the rows of a file that pass, and say which did not."""
    with open_door(Settings.from_environment()) as door:
        report = door.add_prompts(file)
    for problem in report["problems"]:
        typer.echo(f"row {problem['row']} {problem['severity']}: {problem['message']}", err=True)
    typer.echo(f"{report['name']}: {report['good'] + report['mended']} prompts kept, {report['refused']} refused")


@prompts.command("delete")
def prompts_delete(name: str) -> None:
    """Forget a set; its answers stay."""
    with open_door(Settings.from_environment()) as door:
        door.delete_prompts(name)


def measures(as_json: AsJson = False) -> None:
    """What can be asked."""
    from backend.measures import catalogue

    found = catalogue()
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    rows = [[m["name"], m["family"], " x ".join(m["axes"]), ", ".join(_knob(k) for k in m["knobs"])] for m in found]
    typer.echo(columned(("name", "family", "axes", "knobs"), rows))


def sql(
    query: Annotated[str, typer.Argument(help="One SELECT.")],
    as_json: AsJson = False,
) -> None:
    """One read-only SELECT over what is stored: answers, answer_values, signatures, states, prompts, jobs."""
    with open_door(Settings.from_environment()) as door:
        table = door.sql(query)
    if as_json:
        typer.echo(json.dumps(table))
        return
    typer.echo(columned(table["columns"], table["rows"]))
    if table["truncated"]:
        typer.echo(f"only the first {len(table['rows']):,} rows", err=True)


def _show(found: list[dict[str, Any]], names: tuple[str, ...], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    else:
        typer.echo(columned(names, [[one.get(name) for name in names] for one in found]))


def _knob(knob: dict[str, Any]) -> str:
    choices = "|".join(map(str, knob["choices"])) or " ".join(filter(None, (knob["kind"], knob["range"])))
    return f"{knob['name']}={choices} ({knob['default']})"
