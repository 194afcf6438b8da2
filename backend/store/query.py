"""One read-only SELECT of a user's own, under caps of rows and time."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import duckdb

from backend.errors import Refusal
from backend.store.database import Database

ROWS = 10_000
SECONDS = 10.0
CHARACTERS = 64_000_000
BATCH = 50

TABLE_FUNCTIONS = frozenset({"range", "generate_series", "unnest", "json_each", "json_tree"})
"""Functions a FROM may name. The others read files, settings or the catalogue of the machine, or run text as SQL."""


@dataclass(frozen=True)
class Table:
    """Rows of a query; `truncated` says that there were more."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    truncated: bool
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """As clients see it: plain values, numbers without end as strings."""
        rows = [[_plain(value) for value in row] for row in self.rows]
        return {"columns": list(self.columns), "rows": rows, "truncated": self.truncated, "seconds": self.seconds}


def select(database: Database, text: str, seconds: float = SECONDS) -> Table:
    """The rows of one SELECT; raises `Refusal` with the reason for anything else."""
    start = time.monotonic()
    with database.cursor() as cursor:
        _check(cursor, text)
        # A SELECT may hide an INSERT in its WITH; the read-only transaction refuses that one.
        cursor.execute("BEGIN TRANSACTION READ ONLY")
        alarm = threading.Timer(seconds, cursor.interrupt)
        alarm.daemon = True
        alarm.start()
        try:
            cursor.execute(text)
            columns = tuple(column[0] for column in cursor.description or ())
            rows = _fetch(cursor, start + seconds)
        except duckdb.InterruptException as error:
            raise Refusal(_stopped(seconds)) from error
        except duckdb.Error as error:
            raise Refusal(_sentence(error)) from error
        finally:
            alarm.cancel()
            alarm.join()
            cursor.execute("ROLLBACK")
    return Table(columns, tuple(rows[:ROWS]), len(rows) > ROWS, time.monotonic() - start)


def _fetch(cursor: duckdb.DuckDBPyConnection, deadline: float) -> list[tuple[Any, ...]]:
    """Rows up to one more than the cap, a few at a time: an interrupt does not reach the making of Python values."""
    rows: list[tuple[Any, ...]] = []
    size = 0
    while len(rows) <= ROWS and (some := cursor.fetchmany(min(BATCH, ROWS + 1 - len(rows)))):
        rows += some
        size += sum(_size(value) for row in some for value in row)
        if size > CHARACTERS:
            raise Refusal(f"The rows hold more than {CHARACTERS:,} characters; ask for fewer or shorter ones.")
        if time.monotonic() > deadline:
            raise duckdb.InterruptException("late")
    return rows


def _size(value: Any) -> int:
    return len(value) if isinstance(value, str | bytes) else len(str(value)) if isinstance(value, list | dict) else 8


def _stopped(seconds: float) -> str:
    return f"The query was stopped after {seconds:g} seconds; ask for less (LIMIT, WHERE, fewer joins)."


def _check(cursor: duckdb.DuckDBPyConnection, text: str) -> None:
    try:
        statements = duckdb.extract_statements(text)
    except duckdb.Error as error:
        raise Refusal(_sentence(error)) from error
    if len(statements) != 1:
        raise Refusal(f"Exactly one SELECT is served at a time; this text holds {len(statements)} statements.")
    kind = statements[0].type.name
    if kind != "SELECT":
        raise Refusal(f"Only SELECT (or WITH ... SELECT) is served; this is {kind}.")
    [[tree]] = cursor.execute("SELECT json_serialize_sql(?)", [text]).fetchall()
    for function in sorted(set(_table_functions(json.loads(tree)))):
        if function not in TABLE_FUNCTIONS:
            raise Refusal(
                f"FROM {function}(...) is not served: functions that read files, settings or text as SQL are off; "
                f"known: {', '.join(sorted(TABLE_FUNCTIONS))}.",
                known=sorted(TABLE_FUNCTIONS),
            )


def _table_functions(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if node.get("type") == "TABLE_FUNCTION":
            yield node["function"]["function_name"].lower()
        for child in node.values():
            yield from _table_functions(child)
    elif isinstance(node, list):
        for child in node:
            yield from _table_functions(child)


def _sentence(error: duckdb.Error) -> str:
    return f"The database refused the query: {str(error).splitlines()[0]}"


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Decimal):
        return _plain(float(value))
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    return value.hex() if isinstance(value, bytes) else str(value)
