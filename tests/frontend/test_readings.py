from dataclasses import replace

import numpy as np

from frontend.readings import sentence, sentence_of_runs
from frontend.views import Side


def test_where_nothing_is_defined_the_sentence_gives_the_reason_and_not_some_other_caveat(make_answer, axis):
    values = np.full((2, 3), np.nan)
    caveats = ["NaN: every token uses every expert.", "How not to misread it."]
    answer = make_answer(values, [axis("layer", 2), axis("expert", 3)], caveats=caveats)
    assert sentence([Side("a", "soft 3,000", answer)]) == "Undefined everywhere: every token uses every expert."


def test_a_side_without_numbers_does_not_silence_the_other(make_answer, axis):
    axes = [axis("layer", 2)]
    told = make_answer(np.array([1.0, 2.0]), axes)
    nothing = make_answer(np.full(2, np.nan), axes, caveats=["NaN: every token uses every expert."])
    text = sentence([Side("a", "aux", told), Side("b", "soft", nothing)])
    assert text.startswith("A: mean 1.5")
    assert "B: undefined everywhere: every token uses every expert." in text


def test_the_interval_of_a_mean_over_layers_stands_behind_the_mean(make_answer, axis, band):
    axes, values = [axis("layer", 2)], np.array([0.25, 0.75])
    bare = make_answer(values, axes, interval=band(values - 0.2, values + 0.2))
    told = replace(bare, interval=replace(bare.interval, over_layers=(0.375, 0.625)))
    assert sentence([Side("a", "free", bare)]).startswith("Mean 0.500, highest")
    assert sentence([Side("a", "free", told)]).startswith("Mean 0.500 (95% 0.375 to 0.625), highest")
    both = [Side("a", "free", told), Side("context", "aux", bare), Side("control", "free", bare)]
    assert sentence_of_runs(both) == "Mean over layers: free 0.500 (95% 0.375 to 0.625; step 0: 0.500), aux 0.500."
