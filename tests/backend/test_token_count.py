"""Under every figure stands how many tokens it was made of, whatever its statistics keep."""

from __future__ import annotations

import pytest

from analysis.measure import measures
from tests.backend import tiny_olmoe
from tests.backend.live import Live

pytestmark = pytest.mark.slow

BY_STATISTIC = {measure.statistics: name for name, measure in sorted(measures().items()) if not measure.sides}
"""One measure for each set of statistics that any reads."""


@pytest.mark.parametrize("name", sorted(BY_STATISTIC.values()))
def test_an_answer_counts_the_tokens_it_was_made_of(name: str, live: Live) -> None:
    asked = tiny_olmoe.prompts(40, start=9500)
    if not any(s["name"] == "counted" for s in live.http.get("/prompts").json()["prompts"]):
        live.add(tiny_olmoe.prompts(40, "counted", start=9500))
    tokens = sum(len(prompt.text) for prompt in asked.prompts)
    answer = live.answer(name, "counted" if measures()[name].statistics else None)
    assert answer["tokens"] == answer["provenance"]["tokens"] == (tokens if measures()[name].statistics else 0)
