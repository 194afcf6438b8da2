"""The results of an experiment that ship: rows, each with the command that made it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from backend.errors import NotFound
from backend.lab import experiments
from backend.lab.experiment import Verdict

MADE = ("command", "made")


def rows(file: Path) -> list[dict[str, Any]]:
    """The rows that ship.

    Raises:
        NotFound: None do.
    """
    if not file.is_file():
        raise NotFound(f"{file} is not there: no result of this experiment ships; leave --kept out to run it.")
    return json.loads(file.read_text("utf-8"))["rows"]


def keep(file: Path, name: str, options: str, found: Sequence[dict[str, Any]]) -> None:
    """Write these rows. A row that was not run now and was before stays, with the command and the day of then."""
    experiment = experiments.get(name)
    by = {"command": f"moe-geometry lab reproduce {name}{options} --keep", "made": datetime.now(UTC).date().isoformat()}
    before = _before(file)
    merged = [before.get(row["quantity"], row) if row["verdict"] == Verdict.NOT_RUN else row for row in found]
    about = {"title": experiment.title, "source": experiment.source, **by, "rows": merged}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(about, indent=2, allow_nan=False) + "\n", "utf-8")


def _before(file: Path) -> dict[str, dict[str, Any]]:
    """What was run before, each row with the command that made it."""
    if not file.is_file():
        return {}
    told = json.loads(file.read_text("utf-8"))
    by = {key: told[key] for key in MADE}
    return {row["quantity"]: by | row for row in told["rows"] if row["verdict"] != Verdict.NOT_RUN}
