"""Whether an interval that says 95 % holds the value of endless prompts 95 % of the time: simulations, seeded.

120 simulations of 80 prompts, three independent layers each: 360 trials, in which a coverage of 95 % comes out with a
standard error of 1.1 %. What is counted must lie in the band itself, with no allowance for that error: the seeds are
fixed, so the same trials are counted everywhere. Balanced routing is no case: MaxVio cannot fall below 0, so there its
floor is to be asked and not its interval.
"""

import dataclasses
import re
from collections import Counter

import numpy as np
import pytest

from analysis.inference import evaluate
from analysis.measure import FAMILIES, get
from tests.analysis.coverage import Population, covered

DRAWS, TRIALS = 120, 360
SMOOTH = (0.92, 0.98)
ROUGH = (0.85, 0.98)
"""The band of extremes and medians alone, whose caveat gives the coverage."""

CASES = [
    ("load_entropy", {}, SMOOTH),
    ("probability_entropy", {}, SMOOTH),
    ("router_centroid_cosine", {}, SMOOTH),
    ("output_similarity", {}, SMOOTH),
    ("cross_layer_transition", {}, SMOOTH),
    ("expert_contrast", {}, SMOOTH),
    ("router_saturation", {}, SMOOTH),
    ("load_difference", {}, SMOOTH),
    ("routing_agreement", {"matching": "identity"}, SMOOTH),
    ("routing_distance", {"matching": "identity"}, SMOOTH),
    ("coactivation", {}, SMOOTH),
    ("centred_kernel_alignment", {}, SMOOTH),
    ("centroid_trajectory", {}, SMOOTH),
    ("router_gate_correlation", {}, SMOOTH),
    ("jacobian_alignment", {}, SMOOTH),
    ("grassmann_distance", {}, SMOOTH),
    ("signature_effect", {}, SMOOTH),
    ("effect_difference", {}, SMOOTH),
    ("load_violation", {}, ROUGH),
    ("routing_margin", {"show": "quantile"}, ROUGH),
]
FEW = 40
EFFECTS = ("signature_effect", "effect_difference")
DEAR = ("router_gate_correlation", "jacobian_alignment", "grassmann_distance", *EFFECTS)
"""Measures that take a tenth of a second each, asked of 40 simulations alone.

By hand, on 2026-11-30, of 333 others: 94.4, 95.3, 95.9 and 94.6 % of 999 trials; of the difference of effects, a day
later, 94.2 % of 600, and 95.7 % where categories are equal by design.
"""
COVERAGE = re.compile(r"\d+ (to \d+ )?% of the time")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def population(world):
    return Population(world)


@pytest.fixture(scope="module")
def draws(population):
    return [population.draw(seed) for seed in range(DRAWS)]


def test_the_effects_interval_holds_at_the_nominal_rate_where_categories_are_equal_by_design(population, draws):
    held = covered(population, "signature_effect", {}, draws[:FEW])
    assert SMOOTH[0] <= held.mean() <= SMOOTH[1], f"{held.mean():.3f} of {held.size} trials"


@pytest.mark.parametrize(("name", "knobs", "band"), CASES, ids=[name for name, _, _ in CASES])
def test_intervals_hold_the_value_of_endless_prompts_at_the_nominal_rate(name, knobs, band, population, draws):
    few = [population.draw(seed, mixed=True) for seed in range(FEW)] if name in EFFECTS else draws[:FEW]
    held = covered(population, name, knobs, few if name in DEAR else draws)
    # Cells of a layer share its tokens, so a layer counts as one trial, whatever number of them it has.
    assert held.size <= TRIALS
    assert band[0] <= held.mean() <= band[1], f"{held.mean():.3f} of {held.size} trials"


def test_categories_of_equal_size_are_taken_for_made_so_and_others_for_chance(population, draws):
    """One category is more alike in itself, so a block that takes more of it than of the other moves layer 0's d."""
    measure = dataclasses.replace(get("signature_effect"), null=None, null_reason="not asked")
    widths = {}
    for mixed in (False, True):
        found = [population.draw(seed, mixed=mixed) for seed in range(FEW // 4)]
        sizes = {tuple(sorted(Counter(d.routes[1].prompts.categories).values())) for d in found}
        assert (sizes == {(40, 40)}) != mixed
        bounds = [evaluate(measure, population.sides(measure, drawn), {}).interval for drawn in found]
        widths[mixed] = np.mean([each.high[0] - each.low[0] for each in bounds])
    assert widths[False] < 0.8 * widths[True]


def test_intervals_half_or_twice_as_wide_are_noticed(population, draws):
    # Taking the tokens of a prompt for independent makes intervals about half as wide.
    half, twice = (covered(population, "router_centroid_cosine", {}, draws, factor).mean() for factor in (0.5, 2.0))
    assert half < SMOOTH[0]
    assert twice > SMOOTH[1]


def test_prompts_of_this_population_are_alike_within_themselves(draws):
    """The variance between prompts is what a jackknife over tokens would miss."""
    routes = draws[0].routes[1]
    prompt = routes.keys.prompt.numpy()
    first = (routes.indices[0, :, 0] == 2).double().numpy()
    sizes = np.bincount(prompt)
    between = (np.bincount(prompt, first) / sizes).var()
    assert between > 1.5 * (first.var() / sizes).mean()


def test_a_caveat_says_how_often_the_interval_of_an_extreme_or_a_median_holds():
    rough = [name for name, _, band in CASES if band == ROUGH]
    assert [name for name in rough if not COVERAGE.search(get(name).caveat)] == []


def test_measures_of_many_families_are_asked():
    assert {get(name).family for name, _, _ in CASES} >= set(FAMILIES) - {"router"}
