"""The DuckDB file: opened by one process, closed to the outside world, brought to the current schema.

With `store/query.py` the only file that imports duckdb.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from backend.errors import Unavailable
from backend.store.schema import SCHEMA, STEPS

FILE = "moe-geometry.duckdb"

_CLOSED = (
    "SET memory_limit='1GB'",
    # No statement may read or write a file, load an extension or see a Python variable, whoever wrote it.
    "SET python_enable_replacements=false",
    "SET enable_external_access=false",
    "SET lock_configuration=true",
)


class StoreBusy(Unavailable):
    """Raised when another process holds the store."""

    title = "Store in use"


class StoreNewer(Unavailable):
    """Raised when the store was written by a later version."""

    title = "Store is newer"


class Database:
    """One connection; every use takes a cursor of its own, since a second statement on one ends the first's results."""

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self._connection = _connect(folder / FILE)
        self._writing = threading.Lock()
        try:
            self._migrate(folder / FILE)
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        """Give the file back."""
        self._connection.close()

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """A cursor for one request."""
        return self._connection.cursor()

    def rows(self, query: str, parameters: list[Any] | None = None) -> list[tuple[Any, ...]]:
        """All rows of a query of ours."""
        with self._connection.cursor() as cursor:
            return cursor.execute(query, parameters or []).fetchall()

    @contextmanager
    def writing(self) -> Iterator[Writer]:
        """One transaction, kept whole or not at all; one at a time."""
        with self._writing, self._connection.cursor() as cursor:
            cursor.execute("BEGIN")
            try:
                yield Writer(cursor)
            except BaseException:
                cursor.execute("ROLLBACK")
                raise
            cursor.execute("COMMIT")

    def _migrate(self, path: Path) -> None:
        with self.writing() as write:
            write.run("CREATE TABLE IF NOT EXISTS store (schema INTEGER)")
            found = self._schema(write)
            if found > SCHEMA:
                raise StoreNewer(
                    f"The store {path} has schema {found}, written by a later version of moe-geometry; this one "
                    f"knows schemas up to {SCHEMA}. Use the later version, or name another folder in "
                    "MOE_GEOMETRY_STORE."
                )
            for step in STEPS[found:]:
                write.run(step)
            write.run("DELETE FROM store")
            write.run("INSERT INTO store VALUES (?)", [SCHEMA])

    @staticmethod
    def _schema(write: Writer) -> int:
        rows = write.rows("SELECT schema FROM store")
        return rows[0][0] if rows else 0


class Writer:
    """What may be done inside a transaction."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection):
        self._cursor = cursor

    def run(self, statement: str, parameters: list[Any] | None = None) -> None:
        """Run a statement for its effect."""
        self._cursor.execute(statement, parameters or [])

    def rows(self, query: str, parameters: list[Any] | None = None) -> list[tuple[Any, ...]]:
        """All rows of a query, as this transaction sees them."""
        return self._cursor.execute(query, parameters or []).fetchall()

    def append(self, table: str, rows: pa.Table) -> None:
        """Insert many rows at once, matched by column name (row by row DuckDB takes a hundred times as long)."""
        self._cursor.register("incoming", rows)
        try:
            self._cursor.execute(f"INSERT INTO {table} BY NAME SELECT * FROM incoming")
        finally:
            self._cursor.unregister("incoming")


def _connect(path: Path) -> duckdb.DuckDBPyConnection:
    try:
        connection = duckdb.connect(
            str(path), config={"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
        )
    except duckdb.IOException as error:
        holder = re.search(r"held in (.+?) \(PID (\d+)\)", str(error))
        if not holder:
            raise Unavailable(f"The store {path} cannot be opened: {error}") from error
        raise StoreBusy(
            f"The store {path} is in use by process {holder[2]} ({holder[1]}); ask that process, stop it, or name "
            "another folder in MOE_GEOMETRY_STORE."
        ) from error
    for statement in _CLOSED:
        connection.execute(statement)
    return connection
