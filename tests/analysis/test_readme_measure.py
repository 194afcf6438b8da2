"""The measure that analysis/README.md shows is one: dropped into the folder as printed, it is found and answers."""

import dataclasses
import importlib
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import analysis.measure
import analysis.measures
from analysis.inference import evaluate
from analysis.result import Interval, Null, Reason
from backend.measures import catalogue
from frontend.pages.head import rest
from frontend.pages.routing import CURATED
from frontend.state import Material
from tests.house.test_docstrings import untold

README = Path(analysis.__path__[0]) / "README.md"


@pytest.fixture
def dropped(tmp_path):
    """The README's first block of code as a file of the folder of measures, taken out again afterwards."""
    block = re.search(r"^## Adding a measure.*?^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)
    assert block, "analysis/README.md shows no code under `Adding a measure`"
    known = set(analysis.measure.measures())
    (tmp_path / "shown_in_readme.py").write_text(block.group(1))
    analysis.measures.__path__.append(str(tmp_path))
    analysis.measure.measures.cache_clear()
    importlib.invalidate_caches()
    try:
        yield [m for name, m in analysis.measure.measures().items() if name not in known]
    finally:
        analysis.measures.__path__.remove(str(tmp_path))
        for name in set(analysis.measure._REGISTRY) - known:
            del analysis.measure._REGISTRY[name]
        sys.modules.pop("analysis.measures.shown_in_readme", None)
        analysis.measure.measures.cache_clear()


def test_the_measure_shown_in_the_readme_is_found_and_answers_with_null_and_interval(dropped, world):
    (shown,) = dropped
    result = evaluate(shown, world.inputs_for(shown), {})
    assert result.values.shape == (3,) and np.isfinite(result.values).all()
    assert isinstance(result.null, Null) and isinstance(result.interval, Interval)
    assert shown.caveat and shown.question.endswith("?")
    # Standard deviation of the counts over the mean count of 16 prompts of 12 tokens, 2 of 6 experts each.
    counts = world.inputs_for(shown)[0].prompt_counts["selected"].sum(0).double().numpy()
    np.testing.assert_allclose(result.values, counts.std(-1, ddof=1) / 64, rtol=1e-12)
    soft = evaluate(shown, world.inputs_for(shown, shape=dataclasses.replace(world.SHAPE, top_k=6)), {})
    assert np.isnan(soft.values).all() and isinstance(soft.interval, Reason)


def test_it_tells_what_every_measure_must_and_is_in_the_catalogue_and_on_its_page(dropped):
    (shown,) = dropped
    assert not untold(shown)
    listed = catalogue()
    assert shown.name in {told["name"] for told in listed}
    assert shown.name in {place.measure for place in rest(shown.family, CURATED, Material((), (), tuple(listed)))}


def test_it_leaves_no_trace():
    assert "shown_in_readme" not in str(sorted(sys.modules)) and "load_spread" not in analysis.measure.measures()
