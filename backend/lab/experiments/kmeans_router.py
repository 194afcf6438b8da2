"""Whether a router without learned parameters balances best, and what it costs."""

from collections.abc import Callable, Iterator
from itertools import pairwise

from backend.lab.experiment import UNTRAINED, Experiment, Found, Row, Setting, chance_of, mean_of, not_run, row
from backend.lab.series import Series, last_validation, over_seeds, paired

LAST, PROMPTS = "step-03000", "validation"
PUBLISHED = {"kmeans": 0.037, "free": 0.084, "aux": 0.526}
RATES, BIAS_STEPS = (0.003, 0.01, 0.03), (0.001, 0.005, 0.02)
ORDER = "the verdict is on its place among the three, not on the number"
WORDS = {"kmeans": "K-Means", "free": "loss-free bias", "aux": "auxiliary loss"}


def run(setting: Setting) -> Iterator[Row]:
    """MaxVio of three rules with its floor, the differences that decide, and perplexity."""
    answers = {name: setting.ask("load_violation", f"{name}/{LAST}", prompts=PROMPTS) for name in PUBLISHED}
    found = {name: mean_of(answer) for name, answer in answers.items()}
    for name, published in PUBLISHED.items():
        floor = chance_of(answers[name], "high")
        note = f"mean over layers; blind routing stays under {floor:.3f} in 95 %; {ORDER}"
        place = _in_its_place(name, lambda more, less: found[more] - found[less])
        yield row(f"MaxVio, {WORDS[name]}", published, found[name], place, note)
    for name in ("free", "aux"):
        worse = found[name] - found["kmeans"]
        published, note = (
            round(PUBLISHED[name] - PUBLISHED["kmeans"], 3),
            "published: our difference of the two numbers",
        )
        yield row(f"MaxVio, {WORDS[name]} less K-Means", published, worse, worse.above(0), note)
    ours = setting.perplexity(f"kmeans/{LAST}") / setting.perplexity(f"free/{LAST}") - 1
    note = "one seed of each, so no interval"
    yield row("perplexity, K-Means over loss-free, less 1", 0.026, Found(ours), None, note)
    if setting.series:
        yield from _trained(setting.series)
    else:
        yield not_run("MaxVio and perplexity over seeds", None, UNTRAINED)
        yield not_run("running mean's rate by bias step, three by three", None, UNTRAINED)


def _trained(series: Series) -> Iterator[Row]:
    """The same over seeds at the series' size, from the logs on validation text; and the grid, one seed a cell."""
    runs = {name: series.over_seeds(series.like(name)) for name in PUBLISHED}
    grid = {
        f"kmeans-rate{rate}-bias{bias}": [series.like("kmeans", balancing=bias, options={"kmeans_ema": rate}, seed=0)]
        for rate in RATES
        for bias in BIAS_STEPS
    }
    said = {name: [last_validation(run) for run in folders] for name, folders in series.train(runs | grid).items()}
    violation = {name: [each["max_violation"]["mean"] for each in lines] for name, lines in said.items()}
    perplexity = {name: [each["perplexity"]["all"] for each in lines] for name, lines in said.items()}
    note = f"{series.seeds} seeds of {series.base.size}, {series.base.steps} steps; t interval over seeds"
    for name, published in PUBLISHED.items():
        place = _in_its_place(name, lambda more, less: paired(violation[more], violation[less]))
        found = over_seeds(violation[name])
        yield row(f"MaxVio, {WORDS[name]}, over seeds", published, found, place, f"{note}; {ORDER}")
    for name in ("free", "aux"):
        worse = paired(violation[name], violation["kmeans"])
        published = round(PUBLISHED[name] - PUBLISHED["kmeans"], 3)
        yield row(f"MaxVio, {WORDS[name]} less K-Means, over seeds", published, worse, worse.above(0), note)
    for name, published in (("free", 0.026), ("aux", None)):
        cost = over_seeds(ours / other - 1 for ours, other in zip(perplexity["kmeans"], perplexity[name], strict=True))
        quantity = f"perplexity, K-Means over {WORDS[name]}, less 1, over seeds"
        yield row(quantity, published, cost, cost.above(0), note)
    for rate in RATES:
        for bias in BIAS_STEPS:
            name = f"kmeans-rate{rate}-bias{bias}"
            note = f"perplexity {perplexity[name][0]:.1f}; one seed, so no interval"
            yield row(f"MaxVio, K-Means, rate {rate}, bias step {bias}", None, Found(violation[name][0]), None, note)


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
