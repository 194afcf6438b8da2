"""How many tokens a run had seen at a step: by its name, by the trainer's own state, or by the run's settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from backend.checkpoints.labels import read

_MOST = 100_000_000


def tokens_at(folder: Path, step: int | None) -> int | None:
    """Tokens seen when this step was stored, or None where nothing says it; never guessed from another run."""
    label = read(folder.name)
    if label is not None and label.tokens is not None:
        return label.tokens
    return _of_trainer(folder) or _of_lab(folder.resolve().parent, step)


def _of_trainer(folder: Path) -> int | None:
    """The Trainer of transformers counts them if told to (`include_num_input_tokens_seen`); 0: it was not."""
    seen = _json(folder / "trainer_state.json").get("num_input_tokens_seen")
    return int(seen) if isinstance(seen, int | float) and seen > 0 else None


def _of_lab(run: Path, step: int | None) -> int | None:
    """The lab's run.json holds the settings that decide how many tokens a batch has."""
    settings = _json(run / "run.json").get("settings")
    if step is None or not isinstance(settings, dict) or "router" not in settings:
        return None
    from backend.lab.settings import SEQUENCES_PER_DOMAIN, tokens_a_step

    sequences = settings.get("sequences", SEQUENCES_PER_DOMAIN)
    return step * tokens_a_step(sequences) if isinstance(sequences, int) else None


def _json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MOST:
            return {}
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
