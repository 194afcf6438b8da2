"""How each size is trained unless told otherwise.

Rates and warm-up of `s32` and `s64` are the shipped runs'. Nobody has run `100m` and `1b`. Theirs come from the
published configuration of OLMoE-1B-7B where nothing else is said (peak 4e-4, a cosine to a tenth of it, 8.4 of 130
billion tokens to warm up, initial spread 0.02: github.com/allenai/OLMoE,
configs/olmoe-8x1b-newhp-newds-cx5-fine1-normreorder.yml):

- peak of `1b`: OLMoE's. A guess, since its batch has 4.2 million tokens and this one 131,072.
- peak of `100m`: 1e-3, a guess between that and the 6e-3 of `s64`.
- warm-up: the same share of the steps, 6.5 %, in round numbers.
- steps: 20 tokens a parameter, of all and not of the active ones: a guess.
- stored steps: about three times the one before, so that the early ones are close: a guess.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from backend.lab.settings import SEQUENCES_PER_DOMAIN, RunSettings


@dataclass(frozen=True)
class Recipe:
    """Steps, those stored, sequences of each domain in a batch, rates, warm-up, steps between two validations."""

    steps: int = 4000
    stored: tuple[int, ...] = (0, 20, 80, 320, 1000, 2000)
    sequences: int = SEQUENCES_PER_DOMAIN
    peak_learning_rate: float = 6e-3
    final_learning_rate: float = 6e-4
    warm_up: int = 100
    evaluate_every: int = 200

    def settings(self, steps: int | None, sequences: int | None, **run: Any) -> RunSettings:
        """A run by this recipe, of other steps or another batch where given; the last step is always stored."""
        steps = steps or self.steps
        return RunSettings(
            steps=steps,
            stored=(*(step for step in self.stored if step < steps), steps),
            sequences=sequences or self.sequences,
            peak_learning_rate=self.peak_learning_rate,
            final_learning_rate=self.final_learning_rate,
            warm_up=self.warm_up,
            evaluate_every=self.evaluate_every,
            **run,
        )


RECIPES: Mapping[str, Recipe] = {
    "s32": Recipe(),
    "s64": Recipe(),
    "100m": Recipe(
        steps=61_000,
        stored=(0, 20, 80, 320, 1000, 3000, 10_000, 30_000),
        sequences=64,
        peak_learning_rate=1e-3,
        final_learning_rate=1e-4,
        warm_up=4000,
        evaluate_every=1000,
    ),
    "1b": Recipe(
        steps=153_000,
        stored=(0, 20, 80, 320, 1000, 3000, 10_000, 30_000, 90_000),
        sequences=256,
        peak_learning_rate=4e-4,
        final_learning_rate=4e-5,
        warm_up=10_000,
        evaluate_every=1000,
    ),
}
