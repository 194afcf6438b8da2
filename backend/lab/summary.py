"""What the logs of trained runs come to, as one table."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from backend.lab.settings import DOMAINS

HEAD = (
    f"| run | validation perplexity: {' / '.join(DOMAINS)} | all | MaxVio at step 0 | at the end, by layer | mean "
    "| CPU min |\n|---|---|---|---|---|---|---|\n"
)


def summary(runs: Iterable[Path]) -> str:
    """A Markdown table with a row for each run that has come to its end."""
    return HEAD + "".join(_row(run) for run in runs if (run / "log.jsonl").is_file())


def _row(run: Path) -> str:
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text("utf-8").splitlines()]
    if lines[-1]["kind"] != "end":
        return ""
    first, *_, last = [line for line in lines if line["kind"] == "validation"]
    perplexity = [f"{last['perplexity'][domain]:.1f}" for domain in DOMAINS]
    minutes = lines[-1]["cpu_seconds"] / 60
    return (
        f"| {run.name} | {' / '.join(perplexity)} | {last['perplexity']['all']:.1f} "
        f"| {_mean(first['max_violation'])} | {_layers(last['max_violation'])} | {_mean(last['max_violation'])} "
        f"| {minutes:.1f} |\n"
    )


def _mean(violation: dict[str, Any]) -> str:
    return f"{violation['mean']:.3f}" if "mean" in violation else "none"


def _layers(violation: dict[str, Any]) -> str:
    return " / ".join(f"{layer:.3f}" for layer in violation["layers"]) if "layers" in violation else "none"
