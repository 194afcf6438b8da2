"""The store opened by this very process, with the same runner a backend has; released at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from backend.answer import Answering, Ticket
from backend.capture import CaptureOptions
from backend.checkpoints import Checkpoint, Checkpoints, inspect
from backend.checkpoints.variants import split, variant
from backend.cli.door import Progress, Wanted
from backend.edits.asking import Asked, Means, pruned, tried
from backend.prompts import Prompts, PromptSet, parse, read_file
from backend.question import Question, ask
from backend.runners.local import LocalRunner
from backend.settings import Settings
from backend.store import Store
from backend.traces import Options, Traces
from backend.wire import to_json


class LocalDoor:
    """Implements `Door`. Workers start with the first question that the store cannot answer."""

    def __init__(self, settings: Settings):
        self._settings = settings
        self._store = Store.open(settings.store)
        self._catalogue = Checkpoints(settings, self._store)
        self._prompts = Prompts(settings, self._store)
        self._runner = LocalRunner(settings.store, settings.device, settings.memory_budget, paging=settings.paging)

    def __enter__(self) -> LocalDoor:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.close()
        self._store.close()

    def ask(self, wanted: Wanted, progress: Progress) -> dict[str, Any]:
        """Answer here."""
        ticket = Ticket(progress=lambda p: progress(p.stage, p.fraction, p.eta_seconds))
        answer = self._answering().answer(self._question(wanted), ticket)
        return to_json(answer.result, answer.provenance)

    def plan(self, wanted: Wanted) -> dict[str, Any]:
        """Plan here; no worker starts."""
        question, answering = self._question(wanted), self._answering()
        answered = answering.stored(question) is not None
        return {"key": question.key, "answered": answered} | answering.told(question)

    def edit(
        self, checkpoint: str, prompts: str, spec: Mapping[str, Any], options: Mapping[str, Any], progress: Progress
    ) -> dict[str, Any]:
        """Try it here."""
        asked, found = Asked(checkpoint, spec, **options), self._prompt_set(prompts)
        return tried(asked, found, self._means(), lambda p: progress(p.stage, p.fraction, p.eta_seconds))

    def prune(self, checkpoint: str, prompts: str, ratio: float, randoms: int, progress: Progress) -> dict[str, Any]:
        """Compare keep-lists here."""
        told = lambda p: progress(p.stage, p.fraction, p.eta_seconds)  # noqa: E731
        return pruned(checkpoint, ratio, randoms, self._prompt_set(prompts), self._means(), told)

    def checkpoints(self) -> list[dict[str, Any]]:
        """All checkpoints."""
        return [c.to_json() for c in self._catalogue.list()]

    def inspect(self, source: str) -> dict[str, Any]:
        """Headers only."""
        return inspect(source, _trusting(self._settings, source)).to_json()

    def register(self, source: str) -> dict[str, Any]:
        """Keep it; at one's own terminal any folder may be named."""
        return self._trusting(source).register(source).to_json()

    def import_trace(self, path: str, name: str, said: Mapping[str, Any], prompts: str | None) -> dict[str, Any]:
        """Read the file here."""
        of = self._prompts.find(prompts) if prompts else None
        traces = Traces(self._settings, self._store, self._catalogue, self._prompts)
        return traces.add(Path(path), name, Options.said(said), of).to_json()

    def register_run(self, sources: Sequence[str], name: str | None) -> dict[str, Any]:
        """Keep its steps; at one's own terminal they may lie anywhere."""
        settings = self._settings
        for source in sources:
            settings = _trusting(settings, source)
        kept = Checkpoints(settings, self._store).register_run(sources, name)
        return {"run": kept[0].run, "checkpoints": [c.to_json() for c in kept]}

    def prompts(self) -> list[dict[str, Any]]:
        """All sets."""
        return self._prompts.list()

    def prompt_set(self, name: str) -> dict[str, Any]:
        """One set with all its rows."""
        found = self._prompts.find(name)
        rows = [{"id": p.id, "text": p.text, "category": p.category} for p in found.prompts]
        return found.summary() | {"rows": rows}

    def add_prompts(self, path: str) -> dict[str, Any]:
        """Keep the rows that pass."""
        with Path(path).open("rb") as file:
            report = parse(file, Path(path).name, self._settings.upload_cap)
        return report.to_json() | self._prompts.add(report).summary()

    def delete_prompts(self, name: str) -> None:
        """Forget a set."""
        self._prompts.delete(name)

    def sql(self, query: str) -> dict[str, Any]:
        """One SELECT."""
        return self._store.sql(query).to_json()

    def _answering(self) -> Answering:
        settings, bring = self._settings, self._catalogue.bring
        return Answering(self._store, self._runner, settings.memory_budget, bring, settings.paging)

    def _means(self) -> Means:
        return Means(self._checkpoint, self._catalogue.bring, self._runner, self._settings.memory_budget)

    def _question(self, wanted: Wanted) -> Question:
        checkpoints = [self._checkpoint(name) for name in wanted.checkpoints]
        prompts = self._prompt_set(wanted.prompts) if wanted.prompts else None
        capture, start_of = CaptureOptions(**wanted.capture), self._catalogue.start_of
        return ask(wanted.measure, checkpoints, prompts, wanted.knobs, capture, start_of)

    def _checkpoint(self, name: str) -> Checkpoint:
        own, said = split(name)
        if Path(own).is_dir():
            found = self._trusting(own).register(own)
            return variant(found, said) if said else found
        return self._catalogue.find(name)

    def _trusting(self, source: str) -> Checkpoints:
        """The catalogue that may read this folder; that of the session, which remembers, where it may already."""
        settings = _trusting(self._settings, source)
        return self._catalogue if settings is self._settings else Checkpoints(settings, self._store)

    def _prompt_set(self, name: str) -> PromptSet:
        return read_file(Path(name)) if Path(name).is_file() else self._prompts.find(name)


def _trusting(settings: Settings, source: str) -> Settings:
    """The roots with the folder that was named: whoever sits at the terminal can read it anyway."""
    folder = Path(source).expanduser().resolve()
    if not folder.is_dir() or any(folder.is_relative_to(root.resolve()) for root in settings.checkpoint_roots):
        return settings  # one more root would make every remembered folder another's
    return replace(settings, extra_roots=(*settings.extra_roots, folder.parent))
