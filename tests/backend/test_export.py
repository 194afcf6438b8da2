"""Routing leaves the tool as a file: every token, layer and chosen expert, in the order of the prompts."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from tests.backend import tiny_olmoe
from tests.backend.live import Live
from tests.backend.terminal import Terminal

pytestmark = pytest.mark.slow

COLUMNS = ["prompt", "position", "role", "token", "layer", "expert", "weight"]


def export(live: Live, terminal: Terminal, prompts: str, out: Path, *more: str) -> None:
    words = ("export", "routes", "--checkpoint", "tiny", "--prompts", prompts, "--out", str(out), *more)
    told = terminal(live.settings, *words)
    assert told.returncode == 0, told.stderr
    assert told.stdout.startswith(f"{out}: ")


def test_every_selection_is_a_row_and_both_kinds_of_file_say_the_same(
    live: Live, terminal: Terminal, tmp_path: Path
) -> None:
    asked = tiny_olmoe.prompts(20, "exported", start=7000, length=40)
    # Shorter and shorter, and a pass runs short ones first.
    asked = replace(asked, prompts=tuple(replace(p, text=p.text[: 40 - n]) for n, p in enumerate(asked.prompts)))
    words, parquet, lines = live.add(asked), tmp_path / "routes.parquet", tmp_path / "routes.jsonl"
    export(live, terminal, words, parquet)
    before = len(live.runner.log)
    export(live, terminal, words, lines)
    assert not live.passes(before)
    table = pyarrow.parquet.read_table(parquet)
    assert table.column_names == COLUMNS
    rows = table.to_pylist()
    assert [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()] == rows
    tokens = sum(len(p.text) for p in asked.prompts)
    assert len(rows) == tokens * 2 * 2  # two layers, two experts a token
    assert {row["role"] for row in rows} == {"prompt"} and {row["layer"] for row in rows} == {"0", "1"}
    places = Counter((row["prompt"], row["position"], row["layer"]) for row in rows)
    assert set(places.values()) == {2} and len(places) == tokens * 2
    order = {p.id: n for n, p in enumerate(asked.prompts)}
    assert list(dict.fromkeys(row["prompt"] for row in rows)) == list(order)
    along = [(order[row["prompt"]], row["position"], int(row["layer"])) for row in rows]
    assert along == sorted(along)
    assert all(one["weight"] >= two["weight"] for one, two in zip(rows[::2], rows[1::2], strict=True))
    counts = np.zeros((2, 4))
    for row in rows:
        counts[int(row["layer"]), row["expert"]] += 1
    load = live.answer("expert_load", words)["values"]
    np.testing.assert_allclose(counts / counts.mean(-1, keepdims=True), load, rtol=1e-12)
    assert set(tmp_path.iterdir()) == {parquet, lines}


def test_generated_tokens_are_told_from_given_ones(live: Live, terminal: Terminal, tmp_path: Path) -> None:
    words = live.add(tiny_olmoe.prompts(2, "continued", start=7100))
    export(live, terminal, words, tmp_path / "r.jsonl", "--generate", "3")
    rows = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    generated = {(row["prompt"], row["position"]) for row in rows if row["role"] == "generated"}
    assert 2 <= len(generated) <= 6
    for prompt in {row["prompt"] for row in rows}:
        given = max(row["position"] for row in rows if row["prompt"] == prompt and row["role"] == "prompt")
        assert all(position > given for name, position in generated if name == prompt)


def test_another_kind_of_file_is_refused_with_the_known_ones(live: Live, terminal: Terminal) -> None:
    told = terminal(live.settings, "export", "routes", "--checkpoint", "tiny", "--prompts", "x", "--out", "r.csv")
    assert told.returncode == 2 and told.stderr.startswith("--out r.csv ends in '.csv'; known: .parquet, .jsonl.")


def test_prompts_of_a_file_are_captured_first(live: Live, terminal: Terminal, tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    asked = tiny_olmoe.prompts(3, start=7200).prompts
    file.write_text("".join(json.dumps({"id": p.id, "text": p.text, "category": p.category}) + "\n" for p in asked))
    export(live, terminal, str(file), tmp_path / "r.parquet")
    table = pyarrow.parquet.read_table(tmp_path / "r.parquet")
    assert set(table["prompt"].to_pylist()) == {p.id for p in asked}
