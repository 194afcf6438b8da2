"""The small grid of balancing speeds: as many speeds for every rule, every result kept, the choice a stated rule."""

import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from backend.lab.batches import TokenisedCorpus, batches
from backend.lab.model_files import vocabulary
from backend.lab.settings import RunSettings
from backend.lab.train import moments
from backend.lab.validation import validate, validation_tokens
from backend.lab.workers import worker_pool

SPEEDS = {
    "softmax_aux": (0.003, 0.01, 0.03),
    "loss_free": (0.001, 0.005, 0.02),
    "kmeans": (0.001, 0.005, 0.02),
}
SHORT = RunSettings(router="softmax_aux", seed=2, size="s64", steps=400, warm_up=40)
EQUAL_PERPLEXITY = 1.02  # perplexities within 2 % of the rule's best count as equal: short runs differ by more


@dataclass(frozen=True)
class GridResult:
    """What one speed of one rule came to on the validation tokens."""

    router: str
    balancing: float
    size: str
    seed: int
    steps: int
    perplexity: float
    max_violation_mean: float
    max_violation_worst: float
    cpu_seconds: float


def grid(corpus: Path, out: Path, workers: int = 2) -> list[GridResult]:
    """Run every speed of every rule and keep every result in `out`, a line each."""
    runs = [replace(SHORT, router=router, balancing=speed) for router, speeds in SPEEDS.items() for speed in speeds]
    with worker_pool(workers) as pool:
        results = list(pool.map(partial(_result, corpus), runs))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("".join(json.dumps(asdict(result)) + "\n" for result in results), "utf-8")
    return results


def chosen(results: Iterable[GridResult]) -> dict[str, float]:
    """For each rule the speed with the lowest validation MaxVio among those of equal perplexity."""
    by_router: dict[str, list[GridResult]] = {}
    for result in results:
        by_router.setdefault(result.router, []).append(result)
    return {router: _best(rows).balancing for router, rows in by_router.items()}


def table(results: Iterable[GridResult]) -> str:
    """The results as a Markdown table."""
    head = "| rule | speed | validation perplexity | MaxVio, mean of layers | MaxVio, worst layer | CPU s |\n"
    rows = [
        f"| {r.router} | {r.balancing:g} | {r.perplexity:.1f} | {r.max_violation_mean:.3f} "
        f"| {r.max_violation_worst:.3f} | {r.cpu_seconds:.0f} |\n"
        for r in results
    ]
    return head + "|---|---|---|---|---|---|\n" + "".join(rows)


def _best(rows: list[GridResult]) -> GridResult:
    limit = EQUAL_PERPLEXITY * min(row.perplexity for row in rows)
    return min((row for row in rows if row.perplexity <= limit), key=lambda row: row.max_violation_mean)


def _result(corpus: Path, settings: RunSettings) -> GridResult:
    began = time.process_time()
    tokens = TokenisedCorpus(corpus)
    for moment in moments(settings, vocabulary(corpus), batches(tokens, settings.seed)):
        if moment.step == settings.steps:
            found = validate(moment.evaluate, validation_tokens(tokens))
    assert settings.balancing is not None
    return GridResult(
        router=settings.router,
        balancing=settings.balancing,
        size=settings.size,
        seed=settings.seed,
        steps=settings.steps,
        perplexity=found["perplexity"]["all"],
        max_violation_mean=found["max_violation"]["mean"],
        max_violation_worst=found["max_violation"]["worst"],
        cpu_seconds=round(time.process_time() - began, 1),
    )
