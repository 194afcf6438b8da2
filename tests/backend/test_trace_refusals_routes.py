"""Routes that are wrong, cut short, mislabelled or NaN-filled: file, prompt, position and layer are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from backend.errors import Refusal, TooLarge
from backend.traces import Options, read
from tests.backend.trace_files import CHOSEN, Bad, cut, parquet, refused, rows, written

VLLM, ROUTED = {"format": "vllm", "experts": 4}, {"experts": 4}


def changed(row: int, **cells: Any) -> list[dict[str, Any]]:
    found = rows({"p": CHOSEN}, weight=0.5)
    found[row] |= cells
    return [{name: value for name, value in each.items() if value is not None} for each in found]


def ids(*places: tuple[int, int, int, int]) -> np.ndarray:
    found = np.array(CHOSEN)
    for token, layer, slot, value in places:
        found[token, layer, slot] = value
    return found


BAD: Bad = {
    # of any kind
    "experts of routes left open": (
        "a.npy",
        ids(),
        {"format": "vllm"},
        "the highest id seen is 3, and the last experts may never",
    ),
    "ids from 1": (
        "a.npy",
        ids() + 1,
        VLLM,
        "a.npy: expert 4 at prompt 'all', position 1, layer 0; ids are 0 to 3 (numbered from 1,",
    ),
    "an expert twice": (
        "a.npy",
        np.concatenate([ids(), [[[1, 1], [0, 2]]]]),
        VLLM,
        "a.npy: expert 1 is chosen twice at prompt 'all', position 4, layer 0",
    ),
    "a hole": ("a.npy", ids((2, 1, 0, -1)), VLLM, "a.npy: expert -1 at prompt 'all', position 2, layer 1"),
    "a NaN among ids": ("a.npy", np.where(ids() == 3, np.nan, ids()), VLLM, "a.npy: the array[1, 0, 0] is nan"),
    "nothing but padding": ("a.npy", ids() * 0, VLLM, "every token names one expert 2 times in every layer"),
    "another k": ("a.npy", ids(), {**VLLM, "k": 3}, "a.npy lists 2 experts a token, and --k says 3."),
    "one expert a token and a layer of 0": (
        "a.npy",
        np.array([[[0], [1]], [[0], [2]]]),
        VLLM,
        "every token names expert 0 in layer 0",
    ),
    "all experts and no weights": (
        "a.npy",
        np.array([[[0, 1]], [[1, 0]]]),
        {"format": "vllm", "experts": 2},
        "every token uses all 2 experts, and no combine weights",
    ),
    # ours
    "a column less": (
        "a.parquet",
        parquet(prompt=["p"], position=[0], layer=["0"]),
        {"format": "routes"},
        "a.parquet has no column expert",
    ),
    "a hole in a column": (
        "a.parquet",
        parquet(prompt=["p"], position=[None], layer=["0"], expert=[1]),
        ROUTED,
        "a.parquet: column position has 1 holes",
    ),
    "Parquet cut short": (
        "a.parquet",
        cut(parquet(prompt=["p"], position=[0], layer=["0"], expert=[1])),
        ROUTED,
        "a.parquet is no whole Parquet file",
    ),
    "experts said wrongly": (
        "a.parquet",
        parquet(prompt=["p"], position=[0], layer=["0"], expert=[1], metadata={"moe_geometry.experts": "many"}),
        {},
        "a.parquet: its moe_geometry.experts is b'many'",
    ),
    "experts said twice": (
        "a.parquet",
        parquet(prompt=["p"], position=[0], layer=["0"], expert=[1], metadata={"moe_geometry.experts": "8"}),
        ROUTED,
        "a.parquet says there are 8 experts a layer, and --experts says 4.",
    ),
    "a row less": (
        "a.jsonl",
        changed(0)[:-1],
        ROUTED,
        "a.jsonl has 1 experts at prompt 'p', position 3, layer 1, and 2 elsewhere",
    ),
    "a layer less": ("a.jsonl", changed(0)[:-2], ROUTED, "a.jsonl lacks layers at or before prompt 'p', position 3"),
    "a weight of NaN": (
        "a.jsonl",
        changed(5, weight=float("nan")),
        ROUTED,
        "a.jsonl: the weight at prompt 'p', position 1, layer 0 is nan",
    ),
    "a weight less": (
        "a.jsonl",
        changed(5, weight=None),
        ROUTED,
        "a.jsonl, row 6: weight is None; it must be a number.",
    ),
    "a role that is none": (
        "a.jsonl",
        [row | {"role": "user"} for row in changed(0)],
        ROUTED,
        "a.jsonl, row 1: role is 'user'; known: prompt, generated.",
    ),
    "half an expert": ("a.jsonl", changed(2, expert=0.5), ROUTED, "a.jsonl, row 3: expert is 0.5"),
    "a line that is no JSON": ("a.jsonl", '{"prompt": "p"}\n{"prom', ROUTED, "a.jsonl, line 2 is no JSON"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_of_routes_is_refused_with_what_is_wrong(tmp_path: Path, case: str) -> None:
    refused(tmp_path, BAD[case])


def test_more_routes_than_memory_allows_are_refused_with_the_figure(tmp_path: Path) -> None:
    with pytest.raises(TooLarge, match=r"a\.npy holds 16 selections, which need about 0\.0 GB"):
        read(written(tmp_path / "a.npy", ids()), Options(format="vllm", experts=4, budget=100))


def test_flame_layers_of_different_rows_are_named(tmp_path: Path) -> None:
    for layer, count in ((2, 3), (3, 2)):
        table = pa.table({"indices": pa.array([[0, 1]] * count, pa.list_(pa.int16()))})
        pyarrow.parquet.write_table(table, tmp_path / f"layer_{layer:02d}.parquet")
    with pytest.raises(Refusal, match="layer 3 has 2 rows of 2 experts and layer 2 3 of 2"):
        read(tmp_path, Options(experts=4))
    ragged = pa.table({"indices": pa.array([[0, 1], [2]], pa.list_(pa.int16()))})
    pyarrow.parquet.write_table(ragged, tmp_path / "layer_03.parquet")
    with pytest.raises(Refusal, match=r"layer_03\.parquet: the lists of column indices have different lengths"):
        read(tmp_path, Options(experts=4))
