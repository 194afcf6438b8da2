"""A sentence task: the resident model reads one text at once."""

from __future__ import annotations

from collections.abc import Generator

from backend.runners.messages import Loaded, Message, Progress, SentenceReady, SentenceTask
from backend.runners.residents import Residents, whole
from backend.sentence import read


def run(task: SentenceTask, residents: Residents) -> Generator[Message, None, None]:
    """Loads the model where it has to, then answers in one step: a text somebody typed is short."""
    if not residents.holds(task.checkpoint):
        yield Progress(task.id, f"loading {task.checkpoint.id}", 0.0, None)
        residents.get(task.checkpoint)
        yield Loaded(task.id, task.checkpoint.id)
    own = whole(residents.get(task.checkpoint), task.checkpoint.id, "a typed text")
    yield SentenceReady(task.id, read(own.model, own.anatomy, own.tokenizer, task.text, task.capture))
