"""From a file to a checkpoint that can be asked: its trace kept as one file, its prompts as a set."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from backend.checkpoints import Checkpoint, Checkpoints
from backend.errors import Conflict
from backend.prompts import Prompt, Prompts, PromptSet
from backend.prompts.parse import check_name
from backend.settings import Settings
from backend.traces.draft import Draft
from backend.traces.formats import read
from backend.traces.options import Options
from backend.traces.trace import Trace, bound

if TYPE_CHECKING:
    from backend.store import Store

ARCHITECTURE = "imported trace"
KIND = "trace"


class Traces:
    """Imports traces into a store."""

    def __init__(self, settings: Settings, store: Store, checkpoints: Checkpoints, prompts: Prompts):
        self._settings = settings
        self._store = store
        self._checkpoints = checkpoints
        self._prompts = prompts

    def add(
        self, path: Path, name: str, options: Options | None = None, prompts: PromptSet | None = None
    ) -> Checkpoint:
        """Keep the trace of a file under a name.

        Args:
            path: The file; a folder for formats of several files.
            name: What the checkpoint is called, and its prompt set where it has none yet.
            options: What has to be said beside the file.
            prompts: The set that the file's prompts are of, matched by id; without it they have ids and no texts.

        Raises:
            Refusal: The file cannot be used, or leaves a question open; the text says which option answers it.
            Conflict: The name is taken.
        """
        check_name(name)
        options = replace(options or Options(), budget=self._settings.memory_budget // 2)
        kind, draft = read(path, options)
        own = prompts or self._own(draft, name)
        trace = bound(draft, own, path.name)
        artifact = self._store.arrays.put_bytes(trace.to_bytes(), KIND, ".safetensors")
        checkpoint = _checkpoint(trace, name, path.name, kind, own.name, artifact.digest, artifact.path)
        taken = next((c for c in self._checkpoints.list() if c.id == name), None)
        if taken:
            if (taken.fingerprint, taken.prompts) != (checkpoint.fingerprint, checkpoint.prompts):
                raise Conflict(f"There is a checkpoint {name!r} already; choose another name.")
        if prompts is None:
            self._keep(own)
        if taken:
            return taken
        self._store.add_checkpoint(asdict(checkpoint), artifact)
        return checkpoint

    def _own(self, draft: Draft, name: str) -> PromptSet:
        """Prompts of which the file tells ids and categories; their texts are not known, and stay empty."""
        pairs = zip(draft.ids, draft.categories, strict=True)
        return PromptSet(name, tuple(Prompt(each, "", category) for each, category in pairs), shipped=False)

    def _keep(self, own: PromptSet) -> None:
        same = next((s for s in self._prompts.list() if s["name"] == own.name), None)
        if same and same["digest"] == own.digest:
            return  # of an import that was forgotten since
        if same:
            raise Conflict(
                f"There is a prompt set {own.name!r} already; choose another name, or name the set whose prompts these "
                "are with --prompts."
            )
        self._store.add_prompt_set(own)


def _checkpoint(trace: Trace, name: str, source: str, kind: str, prompts: str, digest: str, path: str) -> Checkpoint:
    return Checkpoint(
        id=name,
        source=source,
        folder=path,
        architecture=ARCHITECTURE,
        layers=len(trace.shape.layers),
        moe_layers=len(trace.shape.layers),
        experts=trace.shape.experts,
        top_k=trace.shape.top_k,
        soft=trace.shape.soft,
        model=trace.shape.model,
        fingerprint=digest,
        verified=True,
        registered=True,
        trace=kind,
        prompts=prompts,
        statistics=trace.statistics,
        notes=trace.notes,
    )
