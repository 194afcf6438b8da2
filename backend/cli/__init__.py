"""`moe-geometry`: the same questions from a terminal or a pipe.

Commands import what they need when they run: `--help` must not wait for torch.
"""

from __future__ import annotations

import sys

import typer

from backend.cli import ask, compare, doctor, edit, export, importing, lists, prune, services
from backend.cli.refusals import sentence

app = typer.Typer(
    name="moe-geometry",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="See and measure the geometry of the experts of Mixture-of-Experts language models.",
)
app.command("up")(services.up)
app.command("serve")(services.serve)
app.command("doctor")(doctor.doctor)
app.add_typer(lists.checkpoints, name="checkpoints")
app.add_typer(lists.prompts, name="prompts")
app.command("measures")(lists.measures)
app.command("ask")(ask.ask)
app.command("compare")(compare.compare)
app.command("edit")(edit.edit)
app.command("prune")(prune.prune)
app.command("sql")(lists.sql)
app.add_typer(export.export, name="export")
app.command("import")(importing.import_trace)


@app.command(
    "lab", context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
)
def lab(context: typer.Context) -> None:
    """Build the corpus and train the small models that ship (`lab --help`)."""
    from backend.cli.reproduce import reproduce
    from backend.lab.cli import app as lab_app

    lab_app.command("reproduce")(reproduce)
    # An app called so returns its exit code instead of leaving with it.
    if code := lab_app(args=context.args or ["--help"], prog_name="moe-geometry lab", standalone_mode=False):
        raise typer.Exit(code)


def main() -> None:
    """Entry point. A refusal is one sentence on stderr and exit code 2; a bug keeps its trace."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        told = sentence(error)
        if told is None:
            raise
        typer.echo(told, err=True)
        sys.exit(2)
