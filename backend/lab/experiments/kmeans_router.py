"""Whether a router without learned parameters balances best, and what it costs."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise

import numpy as np
import torch

from analysis.loads import violation
from analysis.nulls import DRAWS, uniform_loads
from backend.lab.experiment import (
    UNTRAINED,
    Experiment,
    Found,
    Row,
    Setting,
    chance_of,
    difference,
    mean_of,
    not_run,
    row,
)
from backend.lab.series import FULL, Series, last_batches, last_validation, over_seeds, paired
from backend.lab.settings import SIZES, tokens_a_step
from backend.lab.ship import LAST

PROMPTS = "validation"
PUBLISHED = {"kmeans": 0.037, "free": 0.084, "aux": 0.526}
PERPLEXITY = {"kmeans": 15.40, "free": 15.01, "aux": None}
RATES, BIAS_STEPS = (0.003, 0.01, 0.03), (0.001, 0.005, 0.02)
ORDER = "the verdict is on its place among the three, not on the number"
WORDS = {"kmeans": "K-Means", "free": "loss-free bias", "aux": "auxiliary loss"}
OVER = {"MaxVio": "all", "MaxVio of a sequence": "prompts"}
"""Of all tokens (global), of each sequence of 128. Global or of a batch: which was published is not known."""
ONE_SEED = "one seed of each, so no interval"
TRAINING = "published of training text"


def run(setting: Setting) -> Iterator[Row]:
    """MaxVio of three rules with its floor, the differences that decide, learned parameters and perplexity."""
    for words, over in OVER.items():
        yield from _violation(setting, words, over)
    yield from _batches(setting)
    for name in PUBLISHED:
        count = setting.stored.parameters(f"{name}/{LAST}")
        published, none_learned = (0, count == 0) if name == "kmeans" else (None, None)
        yield row(f"learned router parameters, {WORDS[name]}", published, Found(count), none_learned, "counted, exact")
    perplexity = {name: setting.stored.perplexity(f"{name}/{LAST}") for name in PUBLISHED}
    for name, published in PERPLEXITY.items():
        quantity = f"validation perplexity, {WORDS[name]}"
        yield row(quantity, published, Found(perplexity[name]), None, f"{TRAINING}; one seed, so no interval")
    ours = perplexity["kmeans"] / perplexity["free"] - 1
    yield row("perplexity, K-Means over loss-free, less 1", 0.026, Found(ours), None, ONE_SEED)
    yield from _over_seeds(setting.series)


def _violation(setting: Setting, words: str, over: str) -> Iterator[Row]:
    answers = {name: setting.ask("load_violation", f"{name}/{LAST}", prompts=PROMPTS, over=over) for name in PUBLISHED}
    found = {name: mean_of(answer) for name, answer in answers.items()}
    for name, published in PUBLISHED.items():
        floor = chance_of(answers[name], "high")
        note = f"mean over layers; blind routing stays under {floor:.3f} in 95 %; {_told(published, floor)}"
        place = _in_its_place(name, lambda more, less: found[more] - found[less])
        yield row(f"{words}, {WORDS[name]}", published, found[name], place if published > floor else None, note)
    reached = chance_of(answers["kmeans"], "high") < PUBLISHED["kmeans"]
    for name in ("free", "aux"):
        worse = found[name] - found["kmeans"]
        note = "published: our difference of the two numbers" if reached else _told(PUBLISHED["kmeans"], math.inf)
        shows = worse.above(0) if reached else None
        yield row(f"{words}, {WORDS[name]} less K-Means", _published_less(name), worse, shows, note)


def _told(published: float, floor: float) -> str:
    """What a verdict is on: nothing where blind routing of as many tokens would already miss the published number."""
    return ORDER if published > floor else f"blind routing of so few tokens exceeds the published {published}"


def _batches(setting: Setting) -> Iterator[Row]:
    """Of training batches, which hold as much of each domain and are the same for all runs of a seed."""
    each = {name: setting.stored.batches(f"{name}/{LAST}") for name in PUBLISHED}
    floor, words = blind(tokens_a_step()), floor_of(tokens_a_step())
    for name, published in PUBLISHED.items():
        place = _in_its_place(name, lambda more, less: paired(each[more], each[less]))
        note = f"last {len(each[name])} logged batches, t interval over them; {words}; {_told(published, floor)}"
        shows = place if published > floor else None
        yield row(f"batch MaxVio, {WORDS[name]}", published, over_seeds(each[name]), shows, note)


def _published_less(name: str) -> float:
    return round(PUBLISHED[name] - PUBLISHED["kmeans"], 3)


@dataclass(frozen=True)
class Said:
    """What the logs of a series' runs say of their last step, a number a seed, by rule or cell of the grid."""

    violation: Mapping[str, list[float]]
    batch: Mapping[str, list[float]]
    perplexity: Mapping[str, list[float]]
    note: str
    floor: str
    batch_note: str


Judge = Callable[[Said, str, float | None], Row]


def _over_seeds(series: Series | None) -> Iterator[Row]:
    """The same over seeds at the series' size, from the logs on validation text; and the grid, one seed a cell."""
    said = _said(series) if series else None
    for quantity, published, judge in _wanted():
        yield judge(said, quantity, published) if said else not_run(quantity, published, UNTRAINED)


def _wanted() -> Iterator[tuple[str, float | None, Judge]]:
    for name, published in PUBLISHED.items():
        yield f"MaxVio, {WORDS[name]}, over seeds", published, partial(_place, name)
    for name in ("free", "aux"):
        yield f"MaxVio, {WORDS[name]} less K-Means, over seeds", _published_less(name), partial(_worse, name)
    for name in PUBLISHED:
        yield f"batch MaxVio, {WORDS[name]}, over seeds", None, partial(_batch, name)
    for name in PERPLEXITY:
        yield f"validation perplexity, {WORDS[name]}, over seeds", None, partial(_perplexity, name)
    for name, published in (("free", 0.026), ("aux", None)):
        yield f"perplexity, K-Means over {WORDS[name]}, less 1, over seeds", published, partial(_cost, name)
    for rate in RATES:
        for bias in BIAS_STEPS:
            quantity = f"MaxVio, K-Means, rate {rate}, bias step {bias}"
            yield quantity, None, partial(_of_cell, _cell(rate, bias))


def _place(name: str, said: Said, quantity: str, published: float | None) -> Row:
    place = _in_its_place(name, lambda more, less: paired(said.violation[more], said.violation[less]))
    return row(quantity, published, over_seeds(said.violation[name]), place, f"{said.note}; {said.floor}; {ORDER}")


def _worse(name: str, said: Said, quantity: str, published: float | None) -> Row:
    worse = paired(said.violation[name], said.violation["kmeans"])
    return row(quantity, published, worse, worse.above(0), said.note)


def _batch(name: str, said: Said, quantity: str, published: float | None) -> Row:
    return row(quantity, published, over_seeds(said.batch[name]), None, said.batch_note)


def _perplexity(name: str, said: Said, quantity: str, published: float | None) -> Row:
    return row(quantity, published, over_seeds(said.perplexity[name]), None, said.note)


def _cost(name: str, said: Said, quantity: str, published: float | None) -> Row:
    pairs = zip(said.perplexity["kmeans"], said.perplexity[name], strict=True)
    cost = over_seeds(ours / other - 1 for ours, other in pairs)
    if published is None:
        return difference(quantity, cost, said.note)
    return row(quantity, published, cost, cost.above(0), said.note)


def _of_cell(cell: str, said: Said, quantity: str, published: float | None) -> Row:
    note = f"perplexity {said.perplexity[cell][0]:.1f}; {said.floor}; one seed, so no interval"
    return row(quantity, published, Found(said.violation[cell][0]), None, note)


def _cell(rate: float, bias: float) -> str:
    return f"kmeans-rate{rate}-bias{bias}"


def _said(series: Series) -> Said:
    runs = {name: series.over_seeds(series.like(name)) for name in PUBLISHED}
    grid = {
        _cell(rate, bias): [series.like("kmeans", balancing=bias, options={"kmeans_ema": rate}, seed=0)]
        for rate in RATES
        for bias in BIAS_STEPS
    }
    trained = series.train(runs | grid)
    lines = {name: [last_validation(run) for run in folders] for name, folders in trained.items()}
    return Said(
        violation={name: [each["max_violation"]["mean"] for each in said] for name, said in lines.items()},
        batch={name: [float(np.mean(last_batches(run))) for run in trained[name]] for name in runs},
        perplexity={name: [each["perplexity"]["all"] for each in said] for name, said in lines.items()},
        note=series.note(),
        floor=floor_of(lines["kmeans"][0]["tokens"], series.base.size),
        batch_note=f"{series.note()}; mean of the last logged batches; "
        + floor_of(tokens_a_step(series.base.sequences), series.base.size),
    )


@cache
def blind(tokens: int, size: str = FULL.size) -> float:
    """MaxVio that blind routing of so many tokens stays under in 95 %."""
    shape, generator = SIZES[size], torch.Generator().manual_seed(0)
    drawn = violation(uniform_loads(torch.full((DRAWS,), tokens), shape.top_k, shape.experts, generator))
    return float(torch.quantile(drawn, 0.95))


def floor_of(tokens: int, size: str = FULL.size) -> str:
    """The same in words."""
    return f"blind routing of {tokens:,} tokens stays under {blind(tokens, size):.3f} in 95 %"


def _in_its_place(name: str, apart: Callable[[str, str], Found]) -> bool | None:
    """Whether a rule lies apart from those published next to it, on the published side."""
    order = sorted(PUBLISHED, key=PUBLISHED.__getitem__)
    beside = [apart(more, less).above(0) for less, more in pairwise(order) if name in (less, more)]
    return None if None in beside else all(beside)


EXPERIMENT = Experiment(
    title="A router without parameters",
    source="Ahrac, Hochwald & Geva 2026, arXiv 2605.12476 (1B parameters)",
    run=run,
)
