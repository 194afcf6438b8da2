"""Keep-lists: planted scores give planted lists, and the overlap of random ones is what drawing them gives."""

from __future__ import annotations

import math
import random

import pytest
import torch

from analysis.errors import BadKnob
from analysis.pruning import agreement, keep_list, kept_number, overlap, random_overlap


def test_the_best_stay_an_expert_without_tokens_goes_first_and_ties_go_to_the_lower_number() -> None:
    scores = torch.tensor([[3.0, 1.0, torch.nan, 2.0], [1.0, 1.0, 1.0, 1.0]])
    assert keep_list(scores, 2) == ((0, 3), (0, 1))
    assert keep_list(scores, 3) == ((0, 1, 3), (0, 1, 2))
    assert keep_list(scores, 4) == ((0, 1, 2, 3), (0, 1, 2, 3))


def test_a_ratio_that_leaves_fewer_than_a_token_gets_is_refused_with_the_largest_that_does_not() -> None:
    assert [kept_number(8, 2, ratio) for ratio in (0.0, 0.25, 0.5, 0.75)] == [8, 6, 4, 2]
    for ratio in (0.9, -0.1, 1.0, math.nan, math.inf, -math.inf):
        with pytest.raises(BadKnob, match=r"0 to 0\.75"):
            kept_number(8, 2, ratio)


def test_overlap_is_shared_over_all_and_random_lists_overlap_as_drawn() -> None:
    assert overlap(((0, 1),), ((0, 1),)) == 1 and overlap(((0, 1), (2, 3)), ((0, 2), (0, 1))) == pytest.approx(1 / 6)
    assert agreement([((0, 1),), ((1, 2),)]) == [[1, pytest.approx(1 / 3)], [pytest.approx(1 / 3), 1]]
    drawn = random.Random(0)
    pairs = [(drawn.sample(range(16), 6), drawn.sample(range(16), 6)) for _ in range(4000)]
    mean = sum(len({*a} & {*b}) / len({*a} | {*b}) for a, b in pairs) / len(pairs)
    assert random_overlap(16, 6) == pytest.approx(mean, abs=0.006)  # three standard errors of 4,000 draws
    assert random_overlap(5, 5) == pytest.approx(1)
