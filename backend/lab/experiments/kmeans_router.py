"""Whether a router without learned parameters balances best, and what it costs."""

from collections.abc import Iterator
from itertools import pairwise

from backend.lab.experiment import Experiment, Found, Row, Setting, chance_of, mean_of, not_run, row

LAST, PROMPTS = "step-03000", "validation"
PUBLISHED = {"kmeans": 0.037, "free": 0.084, "aux": 0.526}
WORDS = {"kmeans": "K-Means", "free": "loss-free bias", "aux": "auxiliary loss"}


def run(setting: Setting) -> Iterator[Row]:
    """MaxVio of three rules with its floor, the differences that decide, and perplexity."""
    answers = {name: setting.ask("load_violation", f"{name}/{LAST}", prompts=PROMPTS) for name in PUBLISHED}
    found = {name: mean_of(answer) for name, answer in answers.items()}
    for name, published in PUBLISHED.items():
        floor = chance_of(answers[name], "high")
        note = f"mean over layers; blind routing stays under {floor:.3f} in 95 %"
        yield row(f"MaxVio, {WORDS[name]}", published, found[name], _in_its_place(name, found), note)
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
    yield not_run("MaxVio and perplexity over five seeds", None, "one seed of each is trained at this size")
    yield not_run("running mean's rate by bias step, three by three", None, "not trained")


def _in_its_place(name: str, found: dict[str, Found]) -> bool | None:
    """Whether a rule lies apart from those published next to it, on the published side."""
    order = sorted(PUBLISHED, key=PUBLISHED.__getitem__)
    beside = [(found[more] - found[less]).above(0) for less, more in pairwise(order) if name in (less, more)]
    return None if None in beside else all(beside)


EXPERIMENT = Experiment(
    title="A router without parameters",
    source="Ahrac, Hochwald & Geva 2026, arXiv 2605.12476 (1B parameters)",
    run=run,
)
