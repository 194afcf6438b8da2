"""Uploaded prompt sets as rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from backend.errors import Conflict
from backend.prompts.sets import Prompt, PromptSet
from backend.store.database import Database, Writer


def add(write: Writer, prompts: PromptSet, now: str) -> None:
    """Insert a set; raises `Conflict` if the name is taken."""
    if write.rows("SELECT name FROM prompt_sets WHERE name = ?", [prompts.name]):
        raise Conflict(f"There is a prompt set {prompts.name!r} already; choose another name, or delete it first.")
    row = [prompts.name, prompts.digest, len(prompts.prompts), prompts.characters, now]
    write.run("INSERT INTO prompt_sets VALUES (?, ?, ?, ?, ?)", row)
    columns = {name: [getattr(p, name) for p in prompts.prompts] for name in ("id", "text", "category")}
    count = len(prompts.prompts)
    names = pa.repeat(pa.scalar(prompts.name, pa.string()), count)
    write.append("prompts", pa.table({"prompt_set": names, "position": pa.array(range(count), pa.int32()), **columns}))


def read(database: Database, name: str) -> PromptSet | None:
    """The set with its texts, in the order they came."""
    if not database.rows("SELECT name FROM prompt_sets WHERE name = ?", [name]):
        return None
    rows = database.rows("SELECT id, text, category FROM prompts WHERE prompt_set = ? ORDER BY position", [name])
    return PromptSet(name, tuple(Prompt(*row) for row in rows), shipped=False)


def summaries(database: Database) -> list[dict[str, Any]]:
    """What each set is, without its texts."""
    sets = database.rows("SELECT name, digest, count, characters FROM prompt_sets ORDER BY name")
    query = "SELECT prompt_set, category, count(*) FROM prompts GROUP BY prompt_set, category ORDER BY min(position)"
    categories: dict[str, dict[str, int]] = {}
    for name, category, count in database.rows(query):
        categories.setdefault(name, {})[category] = count
    return [
        {
            "name": name,
            "digest": digest,
            "prompts": count,
            "categories": categories.get(name, {}),
            "shipped": False,
            "characters": characters,
        }
        for name, digest, count, characters in sets
    ]


def delete(write: Writer, name: str) -> bool:
    """Remove a set; False if there is none."""
    write.run("DELETE FROM prompts WHERE prompt_set = ?", [name])
    return bool(write.rows("DELETE FROM prompt_sets WHERE name = ? RETURNING name", [name]))
