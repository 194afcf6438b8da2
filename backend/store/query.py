"""One read-only SELECT of a user's own, under caps of rows and time."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
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
GRACE = 1.0
"""Seconds an interrupted query has to end in, before it is left behind."""

TABLE_FUNCTIONS = frozenset({"range", "generate_series", "unnest", "json_each", "json_tree"})
"""Functions a FROM may name. The others read files, settings or the catalogue of the machine, or run text as SQL."""

GROWING = frozenset(
    {"repeat", "range", "generate_series", "list_resize", "array_resize", "lpad", "rpad", "format", "printf", "bar"}
)
"""One value of them may fill the machine: DuckDB counts it in no memory limit, and interrupts only between values."""

OF_THE_MACHINE = frozenset({"current_setting", "getenv"})
"""They tell where this machine keeps its secrets and temporary files."""

_left: list[threading.Thread] = []
"""Queries answered as stopped that are still inside one value; another is not begun beside them."""


Rows = tuple[tuple[str, ...], list[tuple[Any, ...]]]


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
    _left[:] = [thread for thread in _left if thread.is_alive()]
    if _left:
        raise Refusal("A query that was stopped is still inside one long function; ask again when it has ended.")
    start = time.monotonic()
    cursor = database.cursor()
    try:
        _check(cursor, text)
        columns, rows = _stopped_at(cursor, text, start + seconds)
    except (duckdb.InterruptException, TimeoutError) as error:
        raise Refusal(_stopped(seconds)) from error
    except duckdb.Error as error:
        raise Refusal(_sentence(error)) from error
    finally:
        # One left behind is its thread's: closing it here would wait for the value that it is in.
        if not _left:
            cursor.close()
    return Table(columns, tuple(rows[:ROWS]), len(rows) > ROWS, time.monotonic() - start)


def _stopped_at(cursor: duckdb.DuckDBPyConnection, text: str, deadline: float) -> Rows:
    """Columns and rows, from a thread that can be left behind: no interrupt reaches the inside of one value."""
    found: Future[Rows] = Future()

    def work() -> None:
        try:
            found.set_result(_rows(cursor, text, deadline))
        except BaseException as error:
            found.set_exception(error)

    thread = threading.Thread(target=work, name="sql", daemon=True)
    thread.start()
    try:
        return found.result(max(0.0, deadline - time.monotonic()))
    except TimeoutError:
        cursor.interrupt()
        thread.join(GRACE)
        if thread.is_alive():
            _left.append(thread)
        raise


def _rows(cursor: duckdb.DuckDBPyConnection, text: str, deadline: float) -> Rows:
    # A SELECT may hide an INSERT in its WITH; the read-only transaction refuses that one. Closing rolls it back.
    cursor.execute("BEGIN TRANSACTION READ ONLY")
    cursor.execute(text)
    return tuple(column[0] for column in cursor.description or ()), _fetch(cursor, deadline)


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
    used = set(_functions(json.loads(tree)))
    for function in sorted(name for kind, name in used if kind == "TABLE_FUNCTION" and name not in TABLE_FUNCTIONS):
        raise Refusal(
            f"FROM {function}(...) is not served: functions that read files, settings or text as SQL are off; "
            f"known: {', '.join(sorted(TABLE_FUNCTIONS))}.",
            known=sorted(TABLE_FUNCTIONS),
        )
    for function in sorted(name for kind, name in used if kind == "FUNCTION" and name in GROWING):
        raise Refusal(
            f"{function}(...) as a value is not served: one such value may fill the memory. "
            "For numbers in a row write FROM range(...)."
        )
    for function in sorted(name for kind, name in used if kind == "FUNCTION" and name in OF_THE_MACHINE):
        raise Refusal(f"{function}(...) is not served: functions that read settings of this machine are off.")


def _functions(node: Any) -> Iterator[tuple[str, str]]:
    """Where each function stands, as a value or behind FROM, and its name."""
    if isinstance(node, dict):
        if node.get("type") == "TABLE_FUNCTION":
            yield "TABLE_FUNCTION", node["function"]["function_name"].lower()
            yield from _functions(node["function"]["arguments"])
        else:
            if "function_name" in node:
                yield "FUNCTION", node["function_name"].lower()
            for child in node.values():
                yield from _functions(child)
    elif isinstance(node, list):
        for child in node:
            yield from _functions(child)


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
