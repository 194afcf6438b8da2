"""What an answer was made from is kept beside it: Grams of mean Jacobians, and subspaces."""

from __future__ import annotations

import io

import numpy as np
import pytest

from tests.backend import tiny_olmoe
from tests.backend.live import Live

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def words(live: Live) -> str:
    return live.add(tiny_olmoe.prompts(20, "made of", length=40))


def array(live: Live, answer: dict, name: str) -> np.ndarray:
    reply = live.http.get(f"/questions/{answer['provenance']['key']}/arrays/{name}")
    assert reply.status_code == 200, reply.text
    return np.load(io.BytesIO(reply.content), allow_pickle=False)


@pytest.mark.parametrize("knobs", [{}, {"method": "sketch"}, {"tokens": "served"}, {"tokens": "each"}])
def test_the_cosines_of_an_alignment_follow_from_its_gram(live: Live, words: str, knobs: dict) -> None:
    answer = live.answer("jacobian_alignment", words, knobs=knobs)
    gram = array(live, answer, "gram").astype(float)
    norms = np.sqrt(np.diagonal(gram, axis1=1, axis2=2))
    cosines = gram / norms[:, :, None] / norms[:, None, :]
    np.testing.assert_allclose(cosines, np.array(answer["values"]), atol=1e-6)
    assert norms.min() > 0 and np.ptp(norms) > 0


def test_a_sketched_gram_is_in_the_unit_of_the_exact_one(live: Live, words: str) -> None:
    """Probes as many as dimensions are exact, so the two differ by rounding only."""
    exact, sketched = (
        array(live, live.answer("jacobian_alignment", words, knobs={"method": method}), "gram")
        for method in ("exact", "sketch")
    )
    np.testing.assert_allclose(sketched, exact, atol=1e-5 * np.abs(exact).max())


def test_distances_follow_from_the_kept_subspaces(live: Live, words: str) -> None:
    answer = live.answer("grassmann_distance", words, knobs={"n": 2})
    bases = array(live, answer, "bases").astype(float)
    layers, experts, axes, model = bases.shape
    assert (layers, experts, axes) == (2, 4, 2) and model > axes
    cosines = np.linalg.svd(np.einsum("lend,lfmd->lefnm", bases, bases), compute_uv=False).clip(0, 1)
    distances = np.sqrt((np.arccos(cosines) ** 2).sum(-1))
    np.testing.assert_allclose(distances, np.array(answer["values"], dtype=float), atol=2e-3)
    listed = live.services.store.sql("select distinct name from arrays where measure = 'grassmann_distance'").rows
    assert listed == (("bases",),)


def test_measures_of_the_same_subspaces_keep_one_file(live: Live, words: str) -> None:
    for measure in ("grassmann_distance", "subspace_overlap", "principal_angles"):
        live.answer(measure, words, knobs={"n": 2})
    paths = live.services.store.sql(
        "select measure, path from arrays where name = 'bases' and prompts = 'made of'"
    ).rows
    assert len({measure for measure, _ in paths}) == 3 and len({path for _, path in paths}) == 1


def test_an_array_that_is_not_there_is_named_in_a_sentence(live: Live, words: str) -> None:
    key = live.answer("expert_load", words)["provenance"]["key"]
    reply = live.http.get(f"/questions/{key}/arrays/gram")
    assert reply.status_code == 404 and "has no array 'gram'" in reply.json()["detail"]
