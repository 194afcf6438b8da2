"""Laws of the K-Means router: each of its readings against a loop over tokens."""

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from analysis.lab.config import LabMoeConfig
from analysis.lab.router import Router
from analysis.lab.routers import build_router

pytestmark = pytest.mark.slow

EXPERTS, MODEL, TOP_K, TOKENS = 4, 6, 2, 50


def bare(**options: object) -> Router:
    size = {"num_experts": EXPERTS, "num_experts_per_tok": TOP_K, "hidden_size": MODEL}
    return build_router(LabMoeConfig(router="kmeans", pad_token_id=None, **size, **options))


def kmeans(**options: object) -> Router:
    router = bare(**options)
    router.weight.copy_(torch.randn(EXPERTS, MODEL, generator=torch.Generator().manual_seed(3)))
    return router


def tokens(seed: int = 0, count: int = TOKENS) -> torch.Tensor:
    return torch.randn(count, MODEL, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("members", ["all", "first"])
@pytest.mark.parametrize("unit", [True, False])
def test_kmeans_centroids_equal_a_loop_over_tokens(members: str, unit: bool) -> None:
    router = kmeans(kmeans_ema=0.1, kmeans_members=members, kmeans_unit_hidden=unit).train()
    expected = router.weight.clone()
    hidden, index = torch.cat([tokens(0), tokens(1)]), torch.cat([router(tokens(0))[2], router(tokens(1))[2]])
    for expert in range(EXPERTS):
        slots = index if members == "all" else index[:, :1]
        served = [h / h.norm() if unit else h for h, row in zip(hidden, slots, strict=True) if expert in row]
        if served:
            expected[expert] = 0.9 * expected[expert] + 0.1 * torch.stack(served).mean(0)
    router.update()
    assert_close(router.weight, expected)


def test_a_kmeans_centroid_that_served_no_token_stays() -> None:
    router = kmeans().train()
    router.e_score_correction_bias[1] = -10.0
    before = router.weight.clone()
    router(tokens())
    router.update()
    assert_close(router.weight[1], before[1])
    assert not torch.equal(router.weight[0], before[0])


def test_kmeans_has_nothing_that_an_optimiser_could_move() -> None:
    assert not list(bare().parameters())


@pytest.mark.parametrize("kept", [True, False])
def test_a_kmeans_hidden_state_learns_through_the_cosine_only_if_told_so(kept: bool) -> None:
    hidden = tokens().requires_grad_()
    _, weights, _ = kmeans(kmeans_hidden_gradient=kept)(hidden)
    assert weights.requires_grad is kept


def test_kmeans_logits_are_cosines_over_the_temperature() -> None:
    router = kmeans(kmeans_temperature=0.5).eval()
    logits, _, _ = router(tokens())
    assert_close(logits[3, 1], torch.cosine_similarity(tokens()[3], router.weight[1], dim=0) / 0.5)


def test_kmeans_starts_on_distinct_tokens_of_the_batch() -> None:
    router = bare()
    batch = tokens(count=5).repeat(10, 1)
    router.seed(batch, torch.Generator().manual_seed(1))
    unit = torch.nn.functional.normalize(batch, dim=-1)
    assert_close((router.weight @ unit.T).amax(1), torch.ones(EXPERTS))
    assert (router.weight @ router.weight.T - torch.eye(EXPERTS)).max() < 0.99


@pytest.mark.parametrize(
    ("mixing", "expected"),
    [
        ("chosen", lambda logits, index: logits.gather(1, index).softmax(-1)),
        ("all", lambda logits, index: logits.softmax(-1).gather(1, index)),
        ("sigmoid", lambda logits, index: logits.gather(1, index).sigmoid()),
        ("share", lambda logits, index: _shares(logits.gather(1, index))),
    ],
)
def test_kmeans_mixes_by_the_reading_that_is_asked_for(mixing: str, expected: Any) -> None:
    logits, weights, index = kmeans(kmeans_mixing=mixing)(tokens())
    assert_close(weights, expected(logits, index))


def _shares(chosen: torch.Tensor) -> torch.Tensor:
    kept = chosen.clamp(min=1e-8)
    return kept / kept.sum(-1, keepdim=True)


def test_a_kmeans_rate_by_token_is_that_of_moving_once_for_each_token() -> None:
    router = kmeans(kmeans_ema=0.1, kmeans_rate="token").train()
    before, (_, _, index) = router.weight.clone(), router(tokens())
    router.update()
    unit = torch.nn.functional.normalize(tokens(), dim=-1)
    for expert in range(EXPERTS):
        mine = unit[(index == expert).any(1)]
        moved = before[expert]
        for _ in range(len(mine)):
            moved = 0.9 * moved + 0.1 * mine.mean(0)
        assert_close(router.weight[expert], moved)


def test_a_weighted_kmeans_centroid_follows_the_mean_by_mixing_weight() -> None:
    router = kmeans(kmeans_ema=1.0, kmeans_weighted=True).train()
    _, weights, index = router(tokens())
    router.update()
    unit = torch.nn.functional.normalize(tokens(), dim=-1)
    for expert in range(EXPERTS):
        g = (weights * (index == expert)).sum(1)
        assert_close(router.weight[expert], (g[:, None] * unit).sum(0) / g.sum())


def test_centred_kmeans_sees_tokens_from_their_running_mean() -> None:
    router = kmeans(kmeans_ema=0.1, kmeans_centred=True).train()
    shifted = tokens() + 100.0
    router.seed(shifted, torch.Generator().manual_seed(0))
    assert_close(router.state_dict()["centre"], shifted.mean(0))
    logits = router(shifted)[0]
    plain = torch.nn.functional.normalize(shifted - shifted.mean(0), dim=-1)
    assert_close(logits * 0.1, plain @ torch.nn.functional.normalize(router.weight, dim=-1).T)
    # Uncentred, tokens that share a large mean are alike to every centroid.
    assert float(logits.std(1).mean()) > 1.0
    moved = shifted + 10.0
    router.update()
    router(moved)
    router.update()
    assert_close(router.state_dict()["centre"], 0.9 * shifted.mean(0) + 0.1 * moved.mean(0))
