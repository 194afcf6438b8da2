"""All checkpoints a client may name: those that lie under the roots and those registered in the store."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from backend.checkpoints.digests import Digests
from backend.checkpoints.identity import Checkpoint
from backend.checkpoints.remembered import Remembered
from backend.checkpoints.runs import fetch_run
from backend.checkpoints.scanning import scan, unique
from backend.checkpoints.source import HUB_ID, bring, fetch, lacking, read_folder
from backend.checkpoints.variants import split, variant
from backend.errors import Conflict, NotFound, Refusal
from backend.prompts.parse import check_name
from backend.settings import Settings

if TYPE_CHECKING:
    from backend.store import Store


class Checkpoints:
    """Lists, finds, registers. Reads headers, never weights (but to hash them)."""

    def __init__(self, settings: Settings, store: Store):
        self._settings = settings
        self._store = store
        self._digests = Digests(settings.store / "digests.json")
        self._remembered = Remembered(settings.store / "checkpoints.json")
        self._listed: dict[str, Checkpoint] = {}

    def list(self) -> list[Checkpoint]:
        """Scanned ones by run and step, then registered ones; broken ones carry their `error`.

        `verified` says that a first run was made and its adapter checked: no state is ever kept of one that failed.
        """
        scanned = scan(self._settings.checkpoint_roots, self._digests, self._remembered)
        taken = {c.id for c in scanned}
        every = scanned + [c for c in map(self._registered, self._store.checkpoints()) if c.id not in taken]
        every = self._told(every)
        self._listed = {c.source: c for c in reversed(every)} | {c.id: c for c in every}
        return every

    def find(self, name: str) -> Checkpoint:
        """The checkpoint of this id or source, its fingerprint known; `@bf16` and the like make it a variant.

        Raises:
            NotFound: Nothing is called so; the known ids are listed.
            Refusal: Its files cannot be used.
        """
        found = self._listed.get(name)
        if found and found.fingerprint and not found.error and self._remembered.still(found, self._roots(found)):
            return self._told([found])[0]  # a question of sixty steps need not look sixty times at all of them
        every = self.list()
        own, said = name, None
        found = self._named(own, every)
        if found is None:
            own, said = split(name)
            found = self._named(own, every)
        if found is None:
            known = [c.id for c in every]
            add = f" One of the hub is added with `moe-geometry checkpoints add {own}`." if _of_hub(own) else ""
            raise NotFound(f"There is no checkpoint {own!r}; known: {', '.join(known) or 'none'}.{add}", known=known)
        if found.error:
            raise Refusal(found.error)
        found = found if found.fingerprint else self._hashed(found)
        return variant(found, said) if said else found

    def start_of(self, checkpoint: Checkpoint) -> Checkpoint | None:
        """Step 0 of the same run, held in the same way; None where there is none, or for step 0 itself."""
        if checkpoint.run is None or not checkpoint.step:
            return None
        same = (c for c in self.list() if c.run == checkpoint.run and c.step == 0 and not c.error)
        found = next(same, None)
        if found is None:
            return None
        return self.find(f"{found.id}@{checkpoint.variant}" if checkpoint.variant else found.id)

    def _told(self, every: Sequence[Checkpoint]) -> list[Checkpoint]:
        run = self._store.fingerprints()
        return [replace(c, verified=c.trace is not None or c.fingerprint in run) for c in every]

    def register(self, source: str, revision: str | None = None, name: str | None = None) -> Checkpoint:
        """Keep a local folder or hub id under a name, by its headers; raises `Refusal`, `Unavailable` or `Conflict`."""
        found = fetch(source, self._settings, revision, self._digests)
        every = self.list()
        same = next((c for c in every if c.folder == found.folder and not c.error), None)
        if same and name in (None, same.id):
            return same
        if name is not None:
            check_name(name, "a checkpoint")
        taken = {c.id for c in every}
        if name in taken:
            raise Conflict(f"There is a checkpoint {name!r} already; choose another name.")
        found = replace(found, id=name or unique(found.id, taken), registered=True)
        self._store.add_checkpoint(asdict(found))
        return found

    def register_run(self, sources: Sequence[str], name: str | None = None) -> list[Checkpoint]:
        """Keep all steps of a run in the order of training, or none; raises `Refusal`, `Unavailable` or `Conflict`."""
        if name is not None:
            check_name(name, "a run")
        found = fetch_run(sources, self._settings, self._digests, name)
        run, every = found[0].run, self.list()
        same = {c.folder: c for c in every if c.run == run and not c.error}
        if all(c.folder in same for c in found):
            return [same[c.folder] for c in found]
        if any(c.run == run for c in every):
            raise Conflict(f"There is a run {run!r} already, with other steps; choose another name.")
        taken = {c.id for c in every}
        if clash := [c.id for c in found if c.id in taken]:
            raise Conflict(f"There is a checkpoint {clash[0]!r} already; choose another name for the run.")
        kept = [replace(c, registered=True) for c in found]
        for checkpoint in kept:
            self._store.add_checkpoint(asdict(checkpoint))
        return kept

    def bring(self, checkpoint: Checkpoint, tell: Callable[[str, float], None]) -> Checkpoint:
        """The same with its weights on this machine; told a stage and a fraction. Raises `Unavailable` or `Conflict`.

        What `tell` raises ends the download.
        """
        if checkpoint.fetched:
            return checkpoint
        whole, done = max(checkpoint.weight_bytes, 1), dict[str, int]()

        def told(file: str, here: int, total: int) -> None:
            done[file] = here
            came = sum(done.values())
            tell(f"fetching {checkpoint.id} · {came / 1e6:,.0f} of {whole / 1e6:,.0f} MB", min(came / whole, 1.0))

        return bring(checkpoint, self._settings, self._digests, told)

    def delete(self, name: str) -> None:
        """Forget a registered one; its files and answers stay.

        Raises:
            NotFound: Nothing is called so.
            Conflict: It lies under a root, so the next look would find it again.
        """
        if self._store.delete_checkpoint(name):
            self._listed.pop(name, None)
            return
        known = [c.id for c in self.list()]
        if name in known:
            raise Conflict(
                f"{name} lies in a folder that is always read, so it is not registered and cannot be deleted here."
            )
        raise NotFound(f"There is no checkpoint {name!r}; known: {', '.join(known) or 'none'}.", known=known)

    def _named(self, name: str, every: list[Checkpoint]) -> Checkpoint | None:
        found = next((c for c in every if name in (c.id, c.source)), None)
        if found:
            return found
        path = str(Path(name).expanduser().resolve())
        return next((c for c in every if c.folder == path), None)

    def _registered(self, kept: dict) -> Checkpoint:
        """A registered one as its folder is now."""
        was = Checkpoint.from_kept(kept)
        if was.trace:
            there = (self._settings.store / was.folder).is_file()
            return was if there else replace(was, error=f"The store has lost the trace of {was.id}; import it again.")
        if was.revision and was.fingerprint and self._on_the_hub(Path(was.folder)):
            return replace(was, fetched=False, registered=True, stamp="")
        try:
            folder, roots = Path(was.folder), self._roots(was)
            now = self._remembered.read(folder, roots, lambda: read_folder(folder, roots, self._digests))
        except (Refusal, OSError) as error:
            return replace(was, error=str(error))
        kept = {n: getattr(was, n) for n in ("id", "source", "revision", "run", "step", "stage", "tokens")}
        return replace(now, **kept, registered=True)

    def _on_the_hub(self, folder: Path) -> bool:
        """Whether the weights of a snapshot have not been fetched yet, or are gone from the hub's cache."""
        try:
            return not (folder / "config.json").is_file() or bool(lacking(folder))
        except (Refusal, OSError):
            return False  # what is wrong with it is told by reading it

    def _hashed(self, checkpoint: Checkpoint) -> Checkpoint:
        now = read_folder(Path(checkpoint.folder), self._roots(checkpoint), self._digests, hash_all=True)
        self._remembered.forget(checkpoint)
        return replace(checkpoint, fingerprint=now.fingerprint, stamp=now.stamp)

    def _roots(self, checkpoint: Checkpoint) -> tuple[Path, ...] | None:
        # Registering a folder named it as good to read (at the terminal it may lie anywhere); links out of it are
        # still refused.
        roots = self._settings.checkpoint_roots
        if not checkpoint.registered:
            return roots
        return None if checkpoint.revision else (*roots, Path(checkpoint.folder))


def _of_hub(name: str) -> bool:
    return re.fullmatch(rf"{HUB_ID}(?:@[\w./-]+)?", name) is not None
