"""A store of an earlier schema is brought up with what it holds; one of a later schema is refused and left alone."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from backend.store import SCHEMA, Store, StoreNewer
from backend.store.database import FILE
from tests.backend import answers

# As version 1 wrote it: answers without `device` and `seconds`, no signatures, no chunks, no views.
FIRST = """
CREATE TABLE store (schema INTEGER);
INSERT INTO store VALUES (1);
CREATE TABLE checkpoints (id VARCHAR PRIMARY KEY, source VARCHAR, fingerprint VARCHAR, about JSON, created VARCHAR);
CREATE TABLE prompt_sets (name VARCHAR PRIMARY KEY, digest VARCHAR, count INTEGER, characters BIGINT, created VARCHAR);
CREATE TABLE prompts (prompt_set VARCHAR, position INTEGER, id VARCHAR, text VARCHAR, category VARCHAR);
CREATE TABLE artifacts (
  digest VARCHAR PRIMARY KEY, kind VARCHAR, dtype VARCHAR, shape BIGINT[], bytes BIGINT, path VARCHAR);
CREATE TABLE states (key VARCHAR PRIMARY KEY, statistic VARCHAR, meta JSON, artifact VARCHAR, created VARCHAR);
CREATE TABLE answers (
  key VARCHAR PRIMARY KEY, measure VARCHAR, checkpoint VARCHAR, checkpoint_b VARCHAR, prompts VARCHAR, knobs JSON,
  unit VARCHAR, tokens BIGINT, provenance JSON, artifact VARCHAR, created VARCHAR);
CREATE TABLE answer_values (
  key VARCHAR, measure VARCHAR, checkpoint VARCHAR, checkpoint_b VARCHAR, prompts VARCHAR,
  axis1 VARCHAR, label1 VARCHAR, axis2 VARCHAR, label2 VARCHAR, axis3 VARCHAR, label3 VARCHAR,
  value DOUBLE, low DOUBLE, high DOUBLE, null_mean DOUBLE, null_low DOUBLE, null_high DOUBLE);
CREATE TABLE jobs (
  id VARCHAR PRIMARY KEY, key VARCHAR, measure VARCHAR, state VARCHAR,
  created VARCHAR, started VARCHAR, finished VARCHAR, about JSON);
INSERT INTO prompt_sets VALUES ('mine', 'd', 1, 5, '2026-01-01');
INSERT INTO prompts VALUES ('mine', 0, 'p', 'hello', 'story');
INSERT INTO answers VALUES (
  'k', 'load_entropy', 'free/step-00020', NULL, 'mine', '{}', 'nats', 12,
  '{"device": "cuda:1", "seconds": 2.5}', 'gone', '2026-01-01');
INSERT INTO answer_values VALUES (
  'k', 'load_entropy', 'free/step-00020', NULL, 'mine', 'layer', '3', NULL, NULL, NULL, NULL, 1.5, 1, 2, 0, 0, 0);
"""


def write(folder: Path, script: str) -> None:
    with duckdb.connect(str(folder / FILE)) as connection:
        connection.execute(script)


def test_a_store_of_schema_1_is_brought_up_with_all_it_holds(tmp_path: Path) -> None:
    write(tmp_path, FIRST)
    with Store.open(tmp_path) as store:
        assert store.sql("SELECT schema FROM store").rows == ((SCHEMA,),)
        assert store.sql("SELECT device, seconds FROM answers").rows == (("cuda:1", 2.5),)
        assert store.sql("SELECT layer, value FROM layer_scalars").rows == (("3", 1.5),)
        assert store.sql("FROM answer_checkpoints").rows == (("k", 0, "free/step-00020"),)
        assert store.sql("FROM arrays").rows == (), "an old answer's arrays were never kept"
        mine = store.prompt_set("mine")
        assert mine is not None and mine.prompts[0].text == "hello"
        assert store.get_answer("k") is None, "its file was never there, so it is asked again"
    with Store.open(tmp_path) as store:
        assert store.sql("SELECT count(*) FROM answers").rows == ((1,),)


def test_a_store_of_schema_2_gains_the_checkpoints_of_its_answers(tmp_path: Path) -> None:
    steps = [{"id": f"a/step-{n}", "fingerprint": str(n)} for n in range(3)]
    with Store.open(tmp_path) as store:
        store.put_answer("path", answers.told(checkpoints=steps))
        store.put_answer("pair", answers.told(checkpoints=steps[:2]))
        store.put_answer("none", answers.told(checkpoints=[]))
        new = store.sql("FROM answer_checkpoints ORDER BY ALL").rows
    assert len(new) == 5
    # A pair of which the old columns alone tell.
    untold = "UPDATE answers SET provenance = '{}' WHERE key = 'pair'"
    later = "DROP VIEW trajectories; ALTER TABLE answer_values DROP axis4; ALTER TABLE answer_values DROP label4"
    later += "; DROP VIEW arrays; DROP TABLE answer_arrays; DROP TABLE answer_checkpoints"
    write(tmp_path, f"{later}; UPDATE store SET schema = 2; {untold}")
    with Store.open(tmp_path) as store:
        assert store.sql("FROM answer_checkpoints ORDER BY ALL").rows == new


def test_an_upgraded_store_has_the_tables_of_a_new_one(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    write(old, FIRST)
    columns = "SELECT table_name, column_name, data_type FROM information_schema.columns ORDER BY ALL"
    found = []
    for folder in (old, new):
        with Store.open(folder) as store:
            found.append(store.sql(columns).rows)
    assert found[0] == found[1]


def test_a_newer_store_is_refused_with_a_sentence_and_left_as_it_was(tmp_path: Path) -> None:
    write(tmp_path, f"CREATE TABLE store (schema INTEGER); INSERT INTO store VALUES ({SCHEMA + 1})")
    with pytest.raises(StoreNewer, match=rf"schema {SCHEMA + 1}, written by a later version .* MOE_GEOMETRY_STORE"):
        Store.open(tmp_path)
    with duckdb.connect(str(tmp_path / FILE)) as connection:
        assert connection.execute("FROM store").fetchall() == [(SCHEMA + 1,)]
        assert connection.execute("SHOW TABLES").fetchall() == [("store",)]


def test_a_step_that_fails_leaves_the_store_at_the_last_schema(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, FIRST)
    from backend.store import database

    monkeypatch.setattr(database, "STEPS", (*database.STEPS, "CREATE TABLE half (a INTEGER); SELECT nonsense"))
    with pytest.raises(duckdb.Error):
        Store.open(tmp_path)
    with duckdb.connect(str(tmp_path / FILE)) as connection:
        assert connection.execute("SELECT schema FROM store").fetchall() == [(1,)]
        assert ("half",) not in connection.execute("SHOW TABLES").fetchall()


def test_what_is_no_database_is_refused_with_a_sentence(tmp_path: Path) -> None:
    from backend.errors import Unavailable

    (tmp_path / FILE).write_bytes(b"not a database" * 1000)
    with pytest.raises(Unavailable, match="cannot be opened"):
        Store.open(tmp_path)
