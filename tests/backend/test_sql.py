"""A user's SELECT reads the store and nothing else, for a while and not for ever."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.errors import Refusal
from backend.store import Store
from tests.backend import answers


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with Store.open(tmp_path_factory.mktemp("sql")) as opened:
        opened.put_answer("k", answers.told())
        yield opened


@pytest.mark.parametrize(
    "query",
    [
        "SELECT 1 AS a",
        "WITH x AS (SELECT 1 AS a) SELECT a FROM x",
        "FROM (VALUES (1)) t(a)",
        "SELECT range AS a FROM range(1, 2);",
        "SELECT unnest([1]) AS a",
        "-- a comment\nSELECT 1 AS a",
    ],
)
def test_one_select_is_served(store: Store, query: str) -> None:
    found = store.sql(query)
    assert (found.columns, found.rows, found.truncated) == (("a",), ((1,),), False)


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("", "0 statements"),
        ("SELECT 1; SELECT 2", "2 statements"),
        ("SELECT 1; DROP TABLE answers", "2 statements"),
        ("ATTACH 'other.duckdb'", "this is ATTACH"),
        ("COPY answers TO 'out.csv'", "this is COPY"),
        ("COPY (SELECT 1) TO 'out.csv'", "this is COPY"),
        ("PRAGMA database_list", "this is PRAGMA"),
        ("SET threads = 1", "this is SET"),
        ("INSTALL httpfs", "Only SELECT"),
        ("LOAD httpfs", "Only SELECT"),
        ("DROP TABLE answers", "this is DROP"),
        ("DELETE FROM answers", "this is DELETE"),
        ("CREATE TABLE t (a INTEGER)", "this is CREATE"),
        ("CALL pragma_version()", "this is CALL"),
        ("EXPORT DATABASE 'out'", "this is EXPORT"),
        ("BEGIN", "this is TRANSACTION"),
        ("SELECT * FROM read_csv('secret.csv')", r"FROM read_csv\(...\) is not served"),
        ("SELECT * FROM read_parquet('secret.parquet')", r"FROM read_parquet"),
        ("SELECT * FROM read_text('secret.csv')", r"FROM read_text"),
        ("SELECT (SELECT count(*) FROM glob('*'))", r"FROM glob"),
        ("WITH x AS (FROM READ_BLOB('secret.csv')) FROM x", r"FROM read_blob"),
        ("SELECT * FROM query('SELECT 1')", r"FROM query"),
        ("SELECT * FROM query_table('answers')", r"FROM query_table"),
        ("SELECT repeat('x', 2000000000)", r"^repeat\(...\) as a value is not served"),
        ("SELECT * FROM range((SELECT length(REPEAT('x', 2000000000))))", r"^repeat\(...\) as a value"),
        ("SELECT length(lpad('x', 1000000000, 'y'))", r"^lpad\(...\) as a value is not served"),
        ("SELECT length(format('{:>1000000000}', 'x'))", r"^format\(...\) as a value is not served"),
        ("SELECT current_setting('secret_directory')", r"^current_setting\(...\) is not served"),
        ("SELECT list_sum(range(2000000000))", r"^range\(...\) as a value .* write FROM range"),
        ("SELECT * FROM duckdb_settings()", r"FROM duckdb_settings"),
        ("SELECT * FROM 'secret.csv'", "refused the query"),
        ("SELECT * FROM store_of_python", "refused the query"),
        ("WITH x AS (DELETE FROM answers RETURNING *) SELECT * FROM x", "read-only"),
        ("SELECT nothing FROM answers", 'Referenced column "nothing" not found'),
        ("SELEC 1", "syntax error"),
        ("SELECT 1/0 +", "syntax error"),
    ],
)
def test_anything_else_is_refused_with_its_reason(
    store: Store, query: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.csv").write_text("a\n1\n")
    store_of_python = {"a": [1]}
    with pytest.raises(Refusal, match=reason):
        store.sql(query)
    assert store_of_python and [p.name for p in tmp_path.iterdir()] == ["secret.csv"]
    assert store.sql("SELECT count(*) FROM answers").rows == ((1,),)


def test_a_query_without_end_is_stopped_and_the_store_lives(store: Store) -> None:
    start = time.monotonic()
    with pytest.raises(Refusal, match=r"stopped after 0\.3 seconds"):
        store.sql("SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range * b.range % 7 = 3", 0.3)
    assert time.monotonic() - start < 10
    assert store.sql("SELECT count(*) FROM answers").rows == ((1,),)


def test_one_long_value_is_left_behind_in_time_and_nothing_starts_beside_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB reads an interrupt between values only; how long one takes differs by machine, so here it is a wait."""
    ended = threading.Event()
    with monkeypatch.context() as patched:
        patched.setattr("backend.store.query._rows", lambda *_: (ended.wait(60), ((), []))[1])
        start = time.monotonic()
        with pytest.raises(Refusal, match=r"stopped after 0\.2 seconds"):
            store.sql("SELECT 1", 0.2)
        assert time.monotonic() - start < 3
    with pytest.raises(Refusal, match="still inside one long function"):
        store.sql("SELECT 1")
    store.put_answer("later", answers.told())
    ended.set()
    deadline = time.monotonic() + 60
    while any(thread.name == "sql" for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert store.sql("SELECT count(*) FROM answers").rows == ((2,),)


def test_rows_end_at_ten_thousand_and_say_so(store: Store) -> None:
    found = store.sql("SELECT range FROM range(10001)")
    assert len(found.rows) == 10_000 and found.truncated
    assert not store.sql("SELECT range FROM range(10000)").truncated


def test_rows_too_long_to_send_are_refused_before_they_fill_the_memory(store: Store) -> None:
    with pytest.raises(Refusal, match="more than 64,000,000 characters"):
        store.sql("SELECT (SELECT string_agg('0123456789', '') FROM range(2000)) FROM range(10000)", seconds=60)


def test_every_kind_of_value_becomes_json(store: Store) -> None:
    query = (
        "SELECT 'NaN'::DOUBLE, '-Infinity'::DOUBLE, 1.50::DECIMAL(5, 2), DATE '2026-01-02', [1.0, 'NaN'::DOUBLE], "
        "{'a': 1}, 'x'::BLOB, NULL, TRUE, 170141183460469231731687303715884105727"
    )
    table = store.sql(query).to_json()
    text = json.dumps(table, allow_nan=False)
    expected = ["NaN", "-Infinity", 1.5, "2026-01-02", [1.0, "NaN"], {"a": 1}, "78", None, True, 2**127 - 1]
    assert json.loads(text)["rows"] == [expected]


def test_what_the_tables_hold_can_be_found_out(store: Store) -> None:
    names = {row[0] for row in store.sql("SHOW TABLES").rows}
    assert {"answers", "answer_values", "signatures", "embeddings", "layer_scalars", "jobs", "prompts"} <= names
    assert ("label1", "VARCHAR") in {row[:2] for row in store.sql("DESCRIBE answer_values").rows}
