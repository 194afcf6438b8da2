"""One checkpoint held in another precision or run with another attention: `free/step-03000@bf16`, `...@bf16+eager`.

A variant has the same files and a fingerprint of its own, so whatever compares two checkpoints compares two ways of
running one.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

from backend.checkpoints.facts import WIDTH
from backend.checkpoints.identity import Checkpoint
from backend.errors import Refusal

PRECISIONS = {"float32": "float32", "bf16": "bfloat16", "fp16": "float16"}
ATTENTIONS = ("eager", "sdpa")
KNOWN = (*PRECISIONS, *ATTENTIONS)


def split(name: str) -> tuple[str, str | None]:
    """The checkpoint's own name and what is said of how it is held; a revision behind an @ is none of these words."""
    base, _, said = name.rpartition("@")
    return (base, said) if base and all(word in KNOWN for word in said.split("+")) else (name, None)


def variant(checkpoint: Checkpoint, said: str) -> Checkpoint:
    """The checkpoint held as these words say; raises `Refusal`."""
    words = said.split("+")
    precisions = [word for word in PRECISIONS if word in words]
    attentions = [word for word in ATTENTIONS if word in words]
    if len(precisions) > 1 or len(attentions) > 1 or len(words) > len(set(words)):
        raise Refusal(f"{checkpoint.id}@{said} says one thing twice; give one precision and one attention at most.")
    if checkpoint.trace:
        raise Refusal(f"{checkpoint.id} is an imported trace: it was run once, elsewhere, and is held in no precision.")
    precision = PRECISIONS[precisions[0]] if precisions else checkpoint.precision
    attention = attentions[0] if attentions else None
    if (precision, attention) == (checkpoint.precision, None):
        return replace(checkpoint, id=f"{checkpoint.id}@{said}")  # what it is already: the same numbers, run once
    canonical = "+".join([*precisions, *attentions])
    return replace(
        checkpoint,
        id=f"{checkpoint.id}@{canonical}",
        precision=precision,
        attention=attention,
        memory_bytes=checkpoint.parameters * WIDTH[precision or "float32"],
        fingerprint=fingerprint(checkpoint.fingerprint, precision, attention),
        variant=canonical,
    )


def fingerprint(own: str | None, precision: str | None, attention: str | None) -> str | None:
    """That of a checkpoint with this fingerprint, held so."""
    return hashlib.sha256(f"{own} {precision} {attention}".encode()).hexdigest() if own else None
