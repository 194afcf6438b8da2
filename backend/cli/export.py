"""`moe-geometry export routes`: which experts served which token, for tools of one's own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from backend.cli.ask import ProgressLine
from backend.cli.door import Door, Wanted, open_door
from backend.errors import Refusal
from backend.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa

    from backend.prompts import PromptSet

ENDINGS = (".parquet", ".jsonl")
COLUMNS = ("prompt", "position", "role", "token", "layer", "expert", "weight")
ROLES = ("prompt", "generated")
ASKED = "expert_load"
"""Any measure of routing: its pass writes the chunks that are exported."""

export = typer.Typer(help="Write what a pass kept, in files for other tools.")


@export.callback()
def which() -> None:
    """Write what a pass kept, in files for other tools."""


@export.command("routes")
def routes(
    checkpoint: Annotated[str, typer.Option(help="A folder or an id.")],
    prompts: Annotated[str, typer.Option(help="A file (.jsonl, .csv, .txt) or the name of a set.")],
    out: Annotated[Path, typer.Option(help="A .parquet or .jsonl file.")],
    generate: Annotated[int, typer.Option(help="Tokens to generate after each prompt, captured too.")] = 0,
    chat_template: Annotated[bool, typer.Option("--chat-template", help="Wrap prompts in the model's own.")] = False,
    first_token: Annotated[bool, typer.Option(help="Count the first token of each prompt (BOS, as a rule).")] = True,
) -> None:
    """One row for each token, layer and chosen expert: prompt, position, role, token id, layer, expert, weight."""
    if out.suffix not in ENDINGS:
        raise Refusal(f"--out {out} ends in {out.suffix!r}; known: {', '.join(ENDINGS)}.", known=list(ENDINGS))
    settings = Settings.from_environment()
    capture = {"generate": generate, "chat_template": chat_template, "first_token": first_token}
    line = ProgressLine()
    try:
        with open_door(settings) as door:
            answer = door.ask(Wanted(ASKED, [checkpoint], prompts, {}, capture), line)
            asked = answer["provenance"]["checkpoints"][0]
            chunks = _chunks(door, asked, _prompt_set(door, prompts), capture)
    finally:
        line.clear()
    experts = next(len(axis["labels"]) for axis in answer["axes"] if axis["name"] == "expert")
    rows = _write(out, experts, (_table(settings.store / path, prompts) for path, prompts in chunks))
    typer.echo(f"{out}: {rows:,} rows of {len(chunks)} chunks")


def _prompt_set(door: Door, name: str) -> PromptSet:
    from backend.prompts import Prompt, PromptSet, read_file

    if Path(name).is_file():
        return read_file(Path(name))
    rows = door.prompt_set(name)["rows"]
    return PromptSet(name, tuple(Prompt(row["id"], row["text"], row["category"]) for row in rows), shipped=False)


def _chunks(
    door: Door, asked: dict[str, Any], prompts: PromptSet, capture: dict[str, Any]
) -> list[tuple[str, list[str]]]:
    """Paths of the routing chunks, each with the ids of its prompts, in the order of the set."""
    from backend import planner
    from backend.capture import CaptureOptions
    from backend.checkpoints import Checkpoint

    known = next((c for c in door.checkpoints() if c["id"] == asked["id"]), {})
    trace, options = known.get("trace"), CaptureOptions(**capture)
    if trace and "token_routes" not in known["statistics"]:
        raise Refusal(f"{asked['id']} is an imported trace of counts ({trace}); it holds no routes to export.")
    named = Checkpoint("", "", "", fingerprint=asked["fingerprint"], trace=trace)
    shards = planner.shards(prompts)
    keys = [planner.routes_key(named, options, shard) for shard in shards]
    wanted = ", ".join(f"'{key}'" for key in keys)
    found = door.sql(
        f"SELECT c.key, a.path FROM chunks c JOIN artifacts a ON a.digest = c.artifact WHERE c.key IN ({wanted})"
    )
    paths = {key: path for key, path in found["rows"]}
    if missing := [key for key in keys if key not in paths]:
        raise Refusal(
            f"The routing of {len(missing)} of {len(keys)} pieces of {prompts.name} is not kept, though counts of it "
            "are; start with an empty store (MOE_GEOMETRY_STORE) to capture it again."
        )
    return [(paths[key], [prompt.id for prompt in shard]) for key, shard in zip(keys, shards, strict=True)]


def _write(out: Path, experts: int, tables: Iterator[pa.Table]) -> int:
    """Piece by piece, beside its place and moved there at the end: a file of this name is whole."""
    draft, rows = out.with_name(f".{out.name}.draft"), 0
    try:
        with _Writer(draft, out.suffix, experts) as writer:
            for table in tables:
                writer.write(table)
                rows += table.num_rows
        draft.replace(out)
    finally:
        draft.unlink(missing_ok=True)
    return rows


def _table(file: Path, prompts: list[str]) -> pa.Table:
    """A chunk's rows by prompt, position, layer and slot: a pass runs short prompts first, and layer by layer."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet

    table: Any = pyarrow.parquet.read_table(file)
    compute: Any = pc
    plain = {name: table[name].cast(pa.string()) for name in ("prompt", "layer")}
    # The layers of a chunk come in the order of the model, and that of their first rows is theirs.
    places = {
        "prompt": compute.index_in(plain["prompt"], value_set=pa.array(prompts)),
        "position": table["position"],
        "layer": compute.index_in(plain["layer"], value_set=compute.unique(plain["layer"])),
        "slot": table["slot"],
    }
    order = compute.sort_indices(pa.table(places), sort_keys=[(name, "ascending") for name in places])
    plain |= {"role": compute.take(pa.array(ROLES), table["role"]), "expert": table["expert"].cast(pa.int32())}
    return pa.table({name: plain.get(name, table[name]) for name in COLUMNS}).take(order)


class _Writer:
    """Parquet, or one JSON object a line."""

    def __init__(self, path: Path, ending: str, experts: int):
        self._path, self._ending, self._experts = path, ending, experts
        self._file: Any = None

    def __enter__(self) -> _Writer:
        import pyarrow as pa
        import pyarrow.parquet

        from backend.traces.formats.routes import EXPERTS

        kinds = (pa.string(), pa.int32(), pa.string(), pa.int32(), pa.string(), pa.int32(), pa.float32())
        if self._ending == ".jsonl":
            self._file = self._path.open("w", encoding="utf-8")
        else:
            # The highest id of a trace says little: the last experts may never have been chosen.
            schema = pa.schema(list(zip(COLUMNS, kinds, strict=True)), {EXPERTS: str(self._experts).encode()})
            self._file = pyarrow.parquet.ParquetWriter(self._path, schema, compression="zstd")
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, table: pa.Table) -> None:
        if self._ending == ".jsonl":
            self._file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in table.to_pylist())
        else:
            self._file.write_table(table)
