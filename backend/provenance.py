"""Where an answer came from: which checkpoints, prompts, knobs and versions made it."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from backend.checkpoints import Checkpoint
from backend.question import Question, capture_key

VERSIONED = ("moe-geometry", "torch", "transformers")
SEED = 0
"""Nothing is drawn from a clock: nulls are seeded by content, samples by a hash with this seed."""


def provenance(question: Question, tokens: int, device: str, seconds: float) -> dict[str, Any]:
    """What stands beside the answer for good; `start` is there where the null read step 0 of the run."""
    prompts, measure = question.prompts, question.measure
    return {
        "key": question.key,
        "checkpoints": [_about(c) for c in question.checkpoints],
        **({"start": _about(question.start)} if question.start else {}),
        "prompts": {"name": prompts.name, "digest": prompts.digest, "count": len(prompts.prompts)} if prompts else None,
        "tokens": tokens,
        "knobs": dict(question.knobs),
        "capture": capture_key(question.capture) if prompts else {},
        "seed": question.knobs.get("seed", SEED),
        "device": device,
        "versions": {name: version(name) for name in VERSIONED},
        "seconds": round(seconds, 3),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "source": measure.source,
        "title": measure.title,
        "question": measure.question,
        "family": measure.family,
    }


def _about(checkpoint: Checkpoint) -> dict[str, Any]:
    names = ("id", "fingerprint", "revision", "dtype", "precision", "attention", "router")
    return {name: getattr(checkpoint, name) for name in names}
