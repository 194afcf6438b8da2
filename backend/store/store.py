"""What the backend remembers: states, answers, arrays, jobs, prompt sets, checkpoints.

A file is on disk before its row is, so whatever the catalogue names exists; a crash leaves at most a nameless file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from analysis.result import Result
from analysis.statistic import State
from backend import wire
from backend.prompts.sets import PromptSet
from backend.store import address, prompt_rows, query
from backend.store.arrays import Arrays, Artifact
from backend.store.database import Database, Writer
from backend.store.rows import answer_names, answer_rows, checkpoint_rows, signature_rows
from backend.store.schema import SCHEMA


class Answered(Protocol):
    """What `put_answer` takes: anything with a result and its provenance."""

    @property
    def result(self) -> Result:
        """What a measure answered."""
        ...

    @property
    def provenance(self) -> Mapping[str, Any]:
        """Where it came from."""
        ...


class Store:
    """An opened store. Safe to use from many threads; one process at a time."""

    schema = SCHEMA

    def __init__(self, folder: Path):
        self.folder = folder
        self.arrays = Arrays(folder)
        self._database = Database(folder)

    @classmethod
    def open(cls, folder: Path) -> Store:
        """Open or create; raises `StoreBusy` naming the process that holds it, `StoreNewer` for a later version's."""
        return cls(folder)

    def close(self) -> None:
        """Give the file back, and the address with it."""
        address.withdraw(self.folder)
        self._database.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def announce(self, url: str) -> None:
        """Write this process's address beside the store."""
        address.announce(self.folder, url)

    # States

    def put_state(self, key: str, statistic: str, meta: Mapping[str, Any], state: State) -> str:
        """Keep a state; `meta` says of what (checkpoint, fingerprint, prompts). Returns its file's digest."""
        return self.put_state_file(key, statistic, meta, self.arrays.put_state(state))

    def put_state_file(self, key: str, statistic: str, meta: Mapping[str, Any], artifact: Artifact) -> str:
        """Keep a state that a worker has written already (`Arrays.put_state`)."""
        self.put_shard(meta, {key: (statistic, artifact)})
        return artifact.digest

    def put_shard(
        self,
        meta: Mapping[str, Any],
        states: Mapping[str, tuple[str, Artifact]],
        routes: tuple[str, Artifact] | None = None,
    ) -> None:
        """Keep what a worker wrote of some prompts, all or nothing: states by key, the chunk of their routing."""
        counts = [(key, artifact) for key, (statistic, artifact) in states.items() if statistic == "prompt_counts"]
        found = {key: self.arrays.get_state(artifact) for key, artifact in counts}
        rows = {key: signature_rows(key, state, meta) for key, state in found.items() if state}
        about = json.dumps(dict(meta))
        with self._database.writing() as write:
            for key, (statistic, artifact) in states.items():
                _keep(write, artifact)
                row = [key, statistic, about, artifact.digest, _now()]
                write.run("INSERT OR REPLACE INTO states VALUES (?, ?, ?, ?, ?)", row)
            for key, table in rows.items():
                write.run("DELETE FROM signatures WHERE key = ?", [key])
                if table is not None:
                    write.append("signatures", table)
            if routes:
                _keep(write, routes[1])
                write.run("INSERT OR REPLACE INTO chunks VALUES (?, 0, ?, ?)", [routes[0], routes[1].digest, about])

    def has_state(self, key: str) -> bool:
        """Whether a state is kept under this key, without reading it."""
        artifact = self._artifact("states", key)
        return artifact is not None and (self.folder / artifact.path).is_file()

    def state_files(self, keys: list[str]) -> dict[str, Artifact]:
        """Where the states of these keys lie, those that are kept; one query, nothing read."""
        query = (
            "SELECT s.key, a.digest, a.kind, a.dtype, a.shape, a.bytes, a.path "
            "FROM states s JOIN artifacts a ON a.digest = s.artifact "
            "WHERE s.key IN (SELECT unnest(?))"
        )
        found = {key: _artifact(row) for key, *row in self._database.rows(query, [keys])}
        return {key: artifact for key, artifact in found.items() if (self.folder / artifact.path).is_file()}

    def fingerprints(self) -> set[str]:
        """The checkpoints that have been run."""
        return {row[0] for row in self._database.rows("SELECT DISTINCT meta->>'fingerprint' FROM states") if row[0]}

    def notes(self, keys: list[str]) -> list[str]:
        """What was said of the passes behind these states (prompts cut, prompts without a token), each once."""
        query = "SELECT meta FROM states WHERE key IN (SELECT unnest(?)) ORDER BY created, key"
        said = [note for (meta,) in self._database.rows(query, [keys]) for note in json.loads(meta).get("notes", ())]
        return list(dict.fromkeys(said))

    def tokens(self, keys: list[str]) -> int:
        """How many tokens were run for these states, one key a shard."""
        query = "SELECT sum(CAST(meta->>'tokens' AS BIGINT)) FROM states WHERE key IN (SELECT unnest(?))"
        return int(self._database.rows(query, [keys])[0][0] or 0)

    def paces(self, device: str) -> list[tuple[str, int, float, float]]:
        """Fingerprint, tokens, seconds and active parameters of the passes that ran on this device, by checkpoint."""
        query = (  # a pass makes the counts of every shard it runs
            "SELECT meta->>'fingerprint', sum(CAST(meta->>'tokens' AS BIGINT)), "
            "sum(CAST(meta->>'seconds' AS DOUBLE)), max(CAST(meta->>'active' AS DOUBLE)) FROM states "
            "WHERE statistic = 'prompt_counts' AND meta->>'device' = ? GROUP BY 1"
        )
        return [(str(mark), int(t), float(s), float(a or 0)) for mark, t, s, a in self._database.rows(query, [device])]

    def get_state(self, key: str) -> State | None:
        """The state, or None: never kept, or its file is gone or damaged."""
        artifact = self._artifact("states", key)
        return self.arrays.get_state(artifact) if artifact else None

    # Answers

    def put_answer(self, key: str, answer: Answered, arrays: Mapping[str, Artifact] = MappingProxyType({})) -> str:
        """Keep an answer, whole as a file and in long form as rows, and what it was made from. Returns its digest."""
        result, about = answer.result, answer.provenance
        artifact = self.arrays.put_bytes(wire.to_arrow(result, about), "answer", ".arrow")
        row = answer_names(key, result, about) | {"knobs": json.dumps(about.get("knobs", {})), "unit": result.unit}
        row |= {"tokens": result.tokens, "provenance": json.dumps(dict(about)), "artifact": artifact.digest}
        row |= {
            "created": about.get("created") or _now(),
            "device": about.get("device"),
            "seconds": about.get("seconds"),
        }
        rows = answer_rows(key, result, about)
        with self._database.writing() as write:
            for file in (artifact, *arrays.values()):
                _keep(write, file)
            marks = ", ".join("?" for _ in row)
            write.run(f"INSERT OR REPLACE INTO answers ({', '.join(row)}) VALUES ({marks})", list(row.values()))
            for table in ("answer_checkpoints", "answer_arrays", "answer_values"):
                write.run(f"DELETE FROM {table} WHERE key = ?", [key])
            for name, file in arrays.items():
                write.run("INSERT INTO answer_arrays VALUES (?, ?, ?)", [key, name, file.digest])
            write.append("answer_checkpoints", checkpoint_rows(key, about))
            if rows is not None:
                write.append("answer_values", rows)
        return artifact.digest

    def get_answer(self, key: str) -> wire.Told | None:
        """The result with its provenance, or None."""
        data = self.get_answer_bytes(key)
        return None if data is None else wire.from_arrow(data)

    def get_answer_bytes(self, key: str) -> bytes | None:
        """The answer as the Arrow stream that clients get, or None."""
        artifact = self._artifact("answers", key)
        return self.arrays.get_bytes(artifact) if artifact else None

    def answers(self) -> list[dict[str, Any]]:
        """What has been asked, newest first: key, measure, checkpoints, prompts, created."""
        query = (
            "SELECT key, measure, coalesce(list(c.checkpoint ORDER BY c.position) FILTER (c.key IS NOT NULL), []), "
            "prompts, created FROM answers LEFT JOIN answer_checkpoints c USING (key) "
            "GROUP BY key, measure, prompts, created ORDER BY created DESC, key"
        )
        names = ("key", "measure", "checkpoints", "prompts", "created")
        return [dict(zip(names, row, strict=True)) for row in self._database.rows(query)]

    # Arrays

    def answer_array(self, key: str, name: str) -> np.ndarray | None:
        """An array that the answer was made from, memory-mapped and read-only, or None."""
        query = "SELECT artifact FROM answer_arrays WHERE key = ? AND name = ?"
        rows = self._database.rows(query, [key, name])
        artifact = self._by_digest(rows[0][0]) if rows else None
        return self.arrays.get_array(artifact) if artifact else None

    def chunk_keys(self, keys: list[str]) -> set[str]:
        """Those of these keys under which a chunk is kept."""
        return {
            row[0]
            for row in self._database.rows("SELECT DISTINCT key FROM chunks WHERE key IN (SELECT unnest(?))", [keys])
        }

    # Jobs

    def save_job(self, job: Mapping[str, Any]) -> None:
        """Keep a job as it stands now."""
        columns = ["id", "key", "measure", "state", "created", "started", "finished"]
        with self._database.writing() as write:
            row = [job.get(name) for name in columns]
            write.run("INSERT OR REPLACE INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?, ?)", [*row, json.dumps(dict(job))])

    def job(self, job_id: str) -> dict[str, Any] | None:
        """A job by its id."""
        rows = self._database.rows("SELECT about FROM jobs WHERE id = ?", [job_id])
        return json.loads(rows[0][0]) if rows else None

    def jobs(self, most: int = 200) -> list[dict[str, Any]]:
        """The newest jobs first."""
        return [
            json.loads(row[0])
            for row in self._database.rows("SELECT about FROM jobs ORDER BY created DESC, id LIMIT ?", [most])
        ]

    # Prompt sets

    def add_prompt_set(self, prompts: PromptSet) -> None:
        """Keep an uploaded set; raises `Conflict` if the name is taken."""
        with self._database.writing() as write:
            prompt_rows.add(write, prompts, _now())

    def prompt_set(self, name: str) -> PromptSet | None:
        """An uploaded set by its name."""
        return prompt_rows.read(self._database, name)

    def prompt_sets(self) -> list[dict[str, Any]]:
        """Uploaded sets by name: digest, counts, categories; no texts."""
        return prompt_rows.summaries(self._database)

    def delete_prompt_set(self, name: str) -> bool:
        """Forget a set (its answers stay); False if there is none."""
        with self._database.writing() as write:
            return prompt_rows.delete(write, name)

    # Checkpoints

    def add_checkpoint(self, about: Mapping[str, Any], file: Artifact | None = None) -> None:
        """Register a checkpoint under its `id`, with the file that is kept of an imported trace."""
        row = [about["id"], about["source"], about.get("fingerprint"), json.dumps(dict(about)), _now()]
        with self._database.writing() as write:
            if file:
                _keep(write, file)
            write.run("INSERT OR REPLACE INTO checkpoints VALUES (?, ?, ?, ?, ?)", row)

    def checkpoints(self) -> list[dict[str, Any]]:
        """Registered checkpoints in the order they came."""
        return [json.loads(row[0]) for row in self._database.rows("SELECT about FROM checkpoints ORDER BY created, id")]

    def delete_checkpoint(self, checkpoint: str) -> bool:
        """Forget a registered checkpoint (its answers stay); False if there is none."""
        with self._database.writing() as write:
            return bool(write.rows("DELETE FROM checkpoints WHERE id = ? RETURNING id", [checkpoint]))

    def sql(self, text: str, seconds: float = query.SECONDS) -> query.Table:
        """The rows of one read-only SELECT; raises `Refusal` for anything else."""
        return query.select(self._database, text, seconds)

    def _artifact(self, table: str, key: str) -> Artifact | None:
        rows = self._database.rows(f"SELECT artifact FROM {table} WHERE key = ?", [key])
        return self._by_digest(rows[0][0]) if rows else None

    def _by_digest(self, digest: str) -> Artifact | None:
        query = "SELECT digest, kind, dtype, shape, bytes, path FROM artifacts WHERE digest = ?"
        rows = self._database.rows(query, [digest])
        return _artifact(rows[0]) if rows else None


def _artifact(row: Any) -> Artifact:
    digest, kind, dtype, shape, size, path = row
    return Artifact(digest, kind, dtype, tuple(shape), size, path)


def _keep(write: Writer, artifact: Artifact) -> None:
    row = [artifact.digest, artifact.kind, artifact.dtype, list(artifact.shape), artifact.bytes, artifact.path]
    write.run("INSERT OR REPLACE INTO artifacts VALUES (?, ?, ?, ?, ?, ?)", row)


def _now() -> str:
    return datetime.now(UTC).isoformat()
