"""Laws of the lab's routers, on numbers small enough to check by hand."""

import pytest
import torch
from torch.testing import assert_close

from analysis.errors import BadKnob, UnknownName
from analysis.lab.model import LabMoeConfig
from analysis.lab.router import Router, sign_step
from analysis.lab.routers import build_router, router_names

pytestmark = pytest.mark.slow

EXPERTS, MODEL, TOP_K, TOKENS = 4, 6, 2, 50


def config(router: str, **options: object) -> LabMoeConfig:
    top_k = EXPERTS if router == "soft" else TOP_K
    return LabMoeConfig(
        router=router, num_experts=EXPERTS, num_experts_per_tok=top_k, hidden_size=MODEL, pad_token_id=None, **options
    )


def router_with_weights(name: str, **options: object) -> Router:
    router = build_router(config(name, **options))
    with torch.no_grad():
        router.weight.copy_(torch.randn(EXPERTS, MODEL, generator=torch.Generator().manual_seed(3)))
    return router


def tokens(seed: int = 0, count: int = TOKENS) -> torch.Tensor:
    return torch.randn(count, MODEL, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", router_names())
def test_a_router_returns_logits_of_all_and_weights_and_indices_of_the_chosen(name: str) -> None:
    router = router_with_weights(name).eval()
    logits, weights, index = router(tokens())
    assert logits.shape == (TOKENS, EXPERTS)
    assert weights.shape == index.shape == (TOKENS, router.top_k)
    assert_close(weights.sum(-1), torch.ones(TOKENS))
    assert all(len(set(row)) == router.top_k for row in index.tolist())


@pytest.mark.parametrize("name", sorted(set(router_names()) - {"soft"}))
def test_what_is_chosen_is_the_top_of_the_selection_scores(name: str) -> None:
    router = router_with_weights(name).eval()
    logits, _, index = router(tokens())
    assert_close(router.selection_scores(logits).topk(TOP_K).indices, index)


def test_a_soft_router_serves_every_expert_in_its_own_order() -> None:
    logits, weights, index = router_with_weights("soft")(tokens())
    assert index.tolist() == [[0, 1, 2, 3]] * TOKENS
    assert_close(weights, logits.softmax(-1))


def test_a_soft_router_with_fewer_slots_than_experts_is_refused_with_both_numbers() -> None:
    soft = LabMoeConfig(router="soft", num_experts=4, num_experts_per_tok=2, hidden_size=MODEL, pad_token_id=None)
    with pytest.raises(BadKnob, match=r"num_experts_per_tok=2, but num_experts=4"):
        build_router(soft)


def test_an_unknown_router_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownName, match=r"'hash'.*kmeans, loss_free, soft, softmax_aux, unbalanced, dense"):
        build_router(config("hash"))


@pytest.mark.parametrize("name", ["softmax_aux", "loss_free", "unbalanced", "soft"])
@pytest.mark.parametrize("renormalise", [True, False])
def test_softmax_row_gradients_sum_to_zero(name: str, renormalise: bool) -> None:
    router = router_with_weights(name, norm_topk_prob=renormalise, router_aux_loss_coef=1.0)
    logits, weights, index = router(tokens())
    task = torch.randn(weights.shape, generator=torch.Generator().manual_seed(5))
    (weights * task).sum().backward()
    assert_zero_sum(router.weight.grad)
    if name == "softmax_aux":
        router.weight.grad = None
        logits, _, index = router(tokens())
        router.auxiliary_loss(logits, index).backward()
        assert_zero_sum(router.weight.grad)


def assert_zero_sum(gradient: torch.Tensor | None) -> None:
    assert gradient is not None
    assert gradient.sum(0).norm() <= 1e-6 * gradient.norm(dim=1).sum()


def test_the_sign_rule_lifts_the_starved_and_lowers_the_crowded_and_leaves_the_mean() -> None:
    assert_close(sign_step(torch.tensor([7, 1, 4, 4]), 0.5), torch.tensor([-0.5, 0.5, 0.0, 0.0]))


def test_a_loss_free_bias_moves_once_per_update_by_the_sum_of_all_batches() -> None:
    router = router_with_weights("loss_free", router_bias_update_speed=0.25).train()
    counts = torch.zeros(EXPERTS, dtype=torch.long)
    for seed in (0, 1):
        counts += torch.bincount(router(tokens(seed))[2].flatten(), minlength=EXPERTS)
    assert_close(router.e_score_correction_bias, torch.zeros(EXPERTS))
    router.update()
    assert_close(router.e_score_correction_bias, 0.25 * (counts.float().mean() - counts).sign())
    router.update()
    assert_close(router.e_score_correction_bias, 0.25 * (counts.float().mean() - counts).sign())


@pytest.mark.parametrize("name", ["loss_free", "kmeans"])
def test_a_bias_changes_who_is_chosen_but_no_weight_of_those_chosen(name: str) -> None:
    router = router_with_weights(name).eval()
    plain = router(tokens())
    router.e_score_correction_bias[2] = 10.0
    logits, weights, index = router(tokens())
    assert (index == 2).any(1).all()
    assert_close(logits, plain[0])
    assert_close(weights, logits.gather(1, index).softmax(-1))


def test_the_auxiliary_loss_is_the_coefficient_when_load_and_probability_are_even() -> None:
    router = build_router(config("softmax_aux", router_aux_loss_coef=0.03))
    even = torch.tensor([[0, 1], [2, 3]])
    assert_close(router.auxiliary_loss(torch.zeros(2, EXPERTS), even), torch.tensor(0.03))


def test_the_auxiliary_loss_by_hand() -> None:
    router = build_router(config("softmax_aux", router_aux_loss_coef=1.0))
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.1, 0.1], [0.7, 0.1, 0.1, 0.1]]))
    # f = (2, 1, 1, 0) / 4 and P = (0.6, 0.2, 0.1, 0.1): 4 * (0.3 + 0.05 + 0.025)
    assert_close(router.auxiliary_loss(logits, torch.tensor([[0, 1], [0, 2]])), torch.tensor(1.5))


@pytest.mark.parametrize("members", ["all", "first"])
@pytest.mark.parametrize("unit", [True, False])
def test_kmeans_centroids_equal_a_loop_over_tokens(members: str, unit: bool) -> None:
    router = router_with_weights("kmeans", kmeans_ema=0.1, kmeans_members=members, kmeans_unit_hidden=unit).train()
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
    router = router_with_weights("kmeans").train()
    router.e_score_correction_bias[1] = -10.0
    before = router.weight.clone()
    router(tokens())
    router.update()
    assert_close(router.weight[1], before[1])
    assert not torch.equal(router.weight[0], before[0])


def test_kmeans_has_nothing_that_an_optimiser_could_move() -> None:
    assert not list(build_router(config("kmeans")).parameters())


@pytest.mark.parametrize("kept", [True, False])
def test_a_kmeans_hidden_state_learns_through_the_cosine_only_if_told_so(kept: bool) -> None:
    hidden = tokens().requires_grad_()
    _, weights, _ = router_with_weights("kmeans", kmeans_hidden_gradient=kept)(hidden)
    assert weights.requires_grad is kept


def test_kmeans_logits_are_cosines_over_the_temperature() -> None:
    router = router_with_weights("kmeans", kmeans_temperature=0.5).eval()
    logits, _, _ = router(tokens())
    assert_close(logits[3, 1], torch.cosine_similarity(tokens()[3], router.weight[1], dim=0) / 0.5)


def test_kmeans_starts_on_distinct_tokens_of_the_batch() -> None:
    router = build_router(config("kmeans"))
    batch = tokens(count=5).repeat(10, 1)
    router.seed(batch, torch.Generator().manual_seed(1))
    unit = torch.nn.functional.normalize(batch, dim=-1)
    assert_close((router.weight @ unit.T).amax(1), torch.ones(EXPERTS))
    assert (router.weight @ router.weight.T - torch.eye(EXPERTS)).max() < 0.99


@pytest.mark.parametrize("name", router_names())
def test_evaluation_freezes_every_state(name: str) -> None:
    router = router_with_weights(name).eval()
    before = {key: value.clone() for key, value in router.state_dict().items()}
    router(tokens())
    router.update()
    assert all(torch.equal(value, before[key]) for key, value in router.state_dict().items())
