"""Checkpoints of other depth and width in one figure: each value stays with its own layer, nothing is invented."""

import numpy as np
import pytest

from frontend.answer import Axis
from frontend.views import Side
from frontend.views.aligned import aligned
from tests.frontend.schema import drawn


@pytest.fixture
def deep(make_answer, axis, band):
    """Layers 0 to 3 of eight experts, and layers 1, 2 and 4 of six."""

    def make(*shape, layers=None):
        values = np.arange(np.prod(shape), dtype=float).reshape(shape) + 1
        axes = [Axis("layer", layers or tuple(map(str, range(shape[0]))))]
        axes += [axis(name, n) for name, n in zip(("expert", "expert_b"), shape[1:], strict=False)]
        return make_answer(values, axes, null=band(0.5, 1.5), interval=band(values - 1, values + 1))

    return make


def beside(first, second):
    return [Side("a", "one", first), Side("b", "other", second)]


def test_layers_stand_beside_the_same_layers_and_those_that_one_lacks_are_blank(deep):
    one, other = aligned(beside(deep(4), deep(3, layers=("1", "2", "10"))))
    assert one.answer.axes == other.answer.axes and one.answer.axes[0].labels == ("0", "1", "2", "3", "10")
    np.testing.assert_array_equal(one.answer.values, [1, 2, 3, 4, np.nan])
    np.testing.assert_array_equal(other.answer.values, [np.nan, 1, 2, np.nan, 3])
    np.testing.assert_array_equal(other.answer.interval.low, other.answer.values - 1)
    assert other.answer.null.low == 0.5


def test_sides_of_one_depth_are_left_as_they_are(deep):
    sides = beside(deep(4), deep(4))
    assert aligned(sides) is sides


@pytest.mark.parametrize("shapes", [((4,), (3,)), ((4, 8), (3, 6)), ((4, 8, 8), (3, 6, 6)), ((3, 6, 8), (4, 8, 8))])
def test_every_view_draws_checkpoints_of_other_sizes_on_one_scale(deep, shapes):
    one, other = (deep(*shape) for shape in shapes)
    figure, scale = drawn(beside(one, other), layer=3)
    if scale is None:
        return
    told = np.concatenate([np.asarray(t["z"], dtype=float).ravel() for t in figure["data"]])
    whole = np.concatenate([a.values.ravel() for a in (one, other)])
    np.testing.assert_allclose(np.sort(told[np.isfinite(told)]), np.sort(scale.drawn(whole)), rtol=1e-6)


def test_the_shorter_line_ends_where_its_layers_end(deep):
    figure, _ = drawn(beside(deep(4), deep(3)), layer=0)
    ends = {t["name"]: np.flatnonzero(np.isfinite(t["y"]))[-1] for t in figure["data"] if "markers" in t["mode"]}
    assert ends == {"one": 3, "other": 2}
