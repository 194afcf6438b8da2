"""How early in training a token's experts are those it ends with, by balancing rule."""

from collections.abc import Iterator

import numpy as np

from analysis.result import Result
from backend.lab.experiment import Experiment, Found, Row, Setting, chance_of, difference, mean_of, row
from backend.lab.ship import STEPS

PROMPTS, ASKED = "four-tasks", (80, 320, STEPS)
RULES = {"aux": "auxiliary loss", "free": "loss-free bias", "kmeans": "K-Means", "none": "no balancing"}
EARLY, TWENTIETH = 0, 1
PUBLISHED = "up to 0.60 after 1 %, chance 0.125"
"""Of OLMoE, which the auxiliary loss balances."""
EARLY_WORDS, LATER_WORDS = (f"after {step / STEPS:.1%} of training".replace("%", " %") for step in ASKED[:-1])


def run(setting: Setting) -> Iterator[Row]:
    """Share of the last step's experts after a hundredth and a twentieth of training, last layer against first."""
    answers = {name: _answer(setting, name) for name in RULES}
    for name, words in RULES.items():
        published = PUBLISHED if name == "aux" else None
        yield _share(answers[name], EARLY, f"experts of the last step, {words}, {EARLY_WORDS}", published)
        yield _share(answers[name], TWENTIETH, f"experts of the last step, {words}, {LATER_WORDS}")
        later = _at(answers[name], TWENTIETH, slice(-1, None)) - _at(answers[name], TWENTIETH, slice(0, 1))
        quantity = f"experts of the last step, last layer less first, {words}, {LATER_WORDS}"
        note = "bounds are those of the two layers at their worst"
        if name == "aux":
            yield row(quantity, "later layers earlier", later, later.above(0), note)
        else:
            yield difference(quantity, later, note)
    for name in ("aux", "free"):
        more = _at(answers["kmeans"], TWENTIETH) - _at(answers[name], TWENTIETH)
        note = "mean over layers; bounds are the means of the layers' own, both at their worst; one seed of each"
        yield difference(f"experts of the last step, K-Means less {RULES[name]}, {LATER_WORDS}", more, note)


def _answer(setting: Setting, name: str) -> Result:
    return setting.ask("router_saturation", *(f"{name}/step-{step:05d}" for step in ASKED), prompts=PROMPTS)


def _at(answer: Result, step: int, layers: slice = slice(None)) -> Found:
    return mean_of(answer, _cells(answer, step, layers))


def _cells(answer: Result, step: int, layers: slice) -> np.ndarray:
    cells = np.zeros(answer.values.shape, dtype=bool)
    cells[step, layers] = True
    return cells


def _share(answer: Result, step: int, quantity: str, published: str | None = None) -> Row:
    """Decided against blind choices: shares of other numbers of experts cannot be compared."""
    found = _at(answer, step)
    chance = chance_of(answer, "high", _cells(answer, step, slice(None)))
    note = f"mean over layers; {found.against(chance, f'{chance:.3f}')}, up to which two blind choices share"
    return row(quantity, published, found, found.above(chance), note)


EXPERIMENT = Experiment(
    title="How early routing settles",
    source="Muennighoff et al. 2024, arXiv 2409.02060 (OLMoE-1B-7B, 8 of 64 experts)",
    run=run,
)
