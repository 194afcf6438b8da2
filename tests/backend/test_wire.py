"""Answers travel and come back the same to the last bit."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from analysis.result import Axis, Null, Reason, Result
from backend import wire
from backend.errors import Refusal
from tests.backend import answers


@pytest.mark.parametrize("result", [answers.load(), answers.number(float("nan"))])
def test_arrow_gives_back_what_it_was_given(result: Result) -> None:
    back = wire.from_arrow(wire.to_arrow(result, answers.provenance()))
    assert answers.same(back.result, result)
    assert back.provenance == answers.provenance()


@pytest.mark.parametrize("p", [np.array([[0.01], [0.4]]), np.array([[0.01, np.nan, 1.0], [0.2, 0.3, 0.4]])])
def test_a_p_by_layer_or_by_cell_comes_back_in_its_own_shape_and_stands_last_in_a_table(p: np.ndarray) -> None:
    load = answers.load()
    assert isinstance(load.null, Null)
    result = replace(load, null=replace(load.null, p=p))
    for back in (
        wire.from_arrow(wire.to_arrow(result, {})).result,
        wire.from_json(json.loads(json.dumps(wire.to_json(result, {}), allow_nan=False))).result,
    ):
        assert isinstance(back.null, Null)
        np.testing.assert_array_equal(back.null.p, p)
    table = wire.long_table(result)
    assert table.column_names[-1] == "p"
    np.testing.assert_array_equal(table.column("p").to_numpy(), np.broadcast_to(p, (2, 3)).ravel())
    assert "p" not in wire.long_table(load).column_names


def test_an_answer_without_cells_comes_back_without_cells() -> None:
    back = wire.from_arrow(wire.to_arrow(answers.load(np.empty((0, 3))), {})).result
    assert back.values.shape == (0, 3) and [len(a.labels) for a in back.axes] == [0, 3]


@given(arrays(np.float64, array_shapes(max_dims=3, max_side=4), elements=st.floats(allow_nan=True)))
def test_arrow_gives_back_any_array(values: np.ndarray) -> None:
    axes = tuple(Axis(f"axis{d}", tuple(map(str, range(n)))) for d, n in enumerate(values.shape))
    result = Result("any", values, axes, "", Reason("none"), Reason("none"))
    assert answers.same(wire.from_arrow(wire.to_arrow(result, {})).result, result)


def test_json_gives_back_what_it_was_given_through_real_text() -> None:
    text = json.dumps(wire.to_json(answers.load(), answers.provenance()), allow_nan=False)
    back = wire.from_json(json.loads(text))
    assert answers.same(back.result, answers.load())
    assert back.provenance == answers.provenance()


def test_arrow_is_one_row_a_cell_with_the_answer_in_its_metadata() -> None:
    table = pa.ipc.open_stream(wire.to_arrow(answers.load(), answers.provenance())).read_all()
    header = json.loads(table.schema.metadata[b"answer"])
    expected = ["values", "interval_low", "interval_high", "null_mean", "null_low", "null_high"]
    assert table.column_names == expected
    assert table.num_rows == 6 and header["shape"] == [2, 3]
    assert header["measure"] == "expert_load" and header["provenance"]["device"] == "cpu"
    np.testing.assert_array_equal(table.column("values").to_numpy(), answers.LOAD.ravel())


def test_arrow_leaves_out_what_the_answer_has_not() -> None:
    table = pa.ipc.open_stream(wire.to_arrow(answers.number(2.0), {})).read_all()
    assert table.column_names == ["values"]


def test_csv_names_each_cell_and_writes_nan_as_a_word() -> None:
    lines = wire.to_file(answers.load(), {}, "csv").decode().splitlines()
    assert lines[0] == "layer,expert,value,low,high,null_mean,null_low,null_high"
    assert lines[2].startswith("0,1,NaN,")
    read = np.array([float(row["value"]) for row in csv.DictReader(lines)])
    np.testing.assert_array_equal(read, answers.LOAD.ravel())


def test_csv_leaves_the_cell_empty_where_nothing_was_asked() -> None:
    assert wire.to_file(answers.number(2.0), {}, "csv").decode().splitlines()[1] == "2.0,,,,,"


def test_parquet_holds_the_cells_and_the_provenance() -> None:
    table = pyarrow.parquet.read_table(io.BytesIO(wire.to_file(answers.load(), answers.provenance(), "parquet")))
    np.testing.assert_array_equal(table.column("value").to_numpy(), answers.LOAD.ravel())
    assert table.column("expert").to_pylist() == ["0", "1", "2"] * 2
    assert json.loads(table.schema.metadata[b"answer"])["provenance"] == answers.provenance()


def test_npy_is_the_bare_values() -> None:
    back = np.load(io.BytesIO(wire.to_file(answers.load(), {}, "npy")), allow_pickle=False)
    assert back.tobytes() == answers.LOAD.tobytes()


def test_axes_of_one_name_get_columns_of_their_own() -> None:
    labels = ("0", "1")
    axes = (Axis("expert", labels), Axis("expert", labels), Axis("value", labels))
    table = wire.long_table(Result("any", np.zeros((2, 2, 2)), axes, "", Reason(""), Reason("")))
    assert table.column_names[:3] == ["expert", "expert_2", "value_3"]


def test_an_unknown_format_is_refused_with_the_known_ones() -> None:
    with pytest.raises(Refusal, match="known: csv, npy, parquet, tex") as caught:
        wire.to_file(answers.number(1.0), {}, "xlsx")
    assert caught.value.known == ["csv", "npy", "parquet", "tex"]
