"""All prompt sets a client may name: those that ship and those uploaded."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend.errors import Conflict, NotFound, Refusal
from backend.prompts.parse import check_name, parse
from backend.prompts.report import Report
from backend.prompts.sets import PromptSet
from backend.settings import Settings

if TYPE_CHECKING:
    from backend.store import Store


class Prompts:
    """Lists, finds, keeps and forgets prompt sets."""

    def __init__(self, settings: Settings, store: Store):
        self._settings = settings
        self._store = store

    def list(self) -> list[dict[str, Any]]:
        """What each set is, shipped ones first; no texts."""
        return [s.summary() for s in self._shipped().values()] + self._store.prompt_sets()

    def find(self, name: str) -> PromptSet:
        """The set of this name; raises `NotFound` with the known names."""
        found = self._shipped().get(name) or self._store.prompt_set(name)
        if found is None:
            known = [s["name"] for s in self.list()]
            raise NotFound(f"There is no prompt set {name!r}; known: {', '.join(known) or 'none'}.", known=known)
        return found

    def add(self, report: Report, name: str | None = None) -> PromptSet:
        """Keep the rows that passed, under this name or the file's; raises `Conflict` if it is taken."""
        prompts = report.prompt_set(check_name(name) if name else None)
        if prompts.name in self._shipped():
            raise Conflict(f"There is a shipped prompt set {prompts.name!r}; choose another name.")
        self._store.add_prompt_set(prompts)
        return prompts

    def delete(self, name: str) -> None:
        """Forget an uploaded set; its answers stay. Raises `NotFound`, or `Conflict` for a shipped one."""
        if name in self._shipped():
            raise Conflict(f"{name} ships with the program and cannot be deleted.")
        if not self._store.delete_prompt_set(name):
            self.find(name)

    def _shipped(self) -> dict[str, PromptSet]:
        return {s.name: s for s in load_shipped(self._settings.shipped_prompts)}


def load_shipped(folder: Path) -> tuple[PromptSet, ...]:
    """The prompt sets in a folder, one a .jsonl file, by name; read again only when a file has changed."""
    found = []
    for path in sorted(folder.glob("*.jsonl")):
        stat = path.stat()
        found.append(_read(path, stat.st_size, stat.st_mtime_ns))
    return tuple(found)


def read_file(path: Path) -> PromptSet:
    """The prompts of a file on this machine.

    Raises:
        Refusal: The first row that cannot be used; here nobody looks at a preview, so none is left out silently.
    """
    with path.open("rb") as file:
        report = parse(file, path.name)
    if refused := next((p for p in report.problems if p.severity == "refused"), None):
        raise Refusal(f"{path}, row {refused.row}: {refused.message} Nothing of the file was used.")
    return report.prompt_set()


@lru_cache(maxsize=64)
def _read(path: Path, size: int, changed: int) -> PromptSet:
    found = read_file(path)
    return PromptSet(found.name, found.prompts, shipped=True)
