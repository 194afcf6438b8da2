"""Laws of the lab's routers, on numbers small enough to check by hand."""

import pytest
import torch
from torch.testing import assert_close

from analysis.errors import BadKnob, GeometryError, UnknownName
from analysis.lab.balancing import balance_loss, bias_step, z_loss
from analysis.lab.config import LabMoeConfig
from analysis.lab.router import Router
from analysis.lab.routers import build_router, router_names, serves_all

pytestmark = pytest.mark.slow

EXPERTS, MODEL, TOP_K, TOKENS = 4, 6, 2, 50


def config(router: str, **options: object) -> LabMoeConfig:
    top_k = EXPERTS if serves_all(router) else TOP_K
    return LabMoeConfig(
        router=router, num_experts=EXPERTS, num_experts_per_tok=top_k, hidden_size=MODEL, pad_token_id=None, **options
    )


def router_with_weights(name: str, **options: object) -> Router:
    router = build_router(config(name, **options))
    with torch.no_grad():
        if "weight" in router.drawn:
            router.weight.copy_(torch.randn(EXPERTS, MODEL, generator=torch.Generator().manual_seed(3)))
    router.token_ids = torch.arange(TOKENS) % 7
    return router


def tokens(seed: int = 0, count: int = TOKENS) -> torch.Tensor:
    return torch.randn(count, MODEL, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", router_names())
def test_a_router_returns_logits_of_all_and_weights_and_indices_of_the_chosen(name: str) -> None:
    router = router_with_weights(name).eval()
    logits, weights, index = router(tokens())
    assert logits.shape == (TOKENS, EXPERTS)
    assert weights.shape == index.shape == (TOKENS, router.top_k)
    if name != "expert_choice":  # tokens that nobody took have no weight
        assert_close(weights.sum(-1), torch.ones(TOKENS))
    assert all(len(set(row)) == router.top_k for row in index.tolist())


@pytest.mark.parametrize("name", sorted(set(router_names()) - {"soft", "expert_choice", "hashed"}))
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


def test_each_expert_takes_its_best_tokens_of_each_sequence_and_equally_many() -> None:
    router = router_with_weights("expert_choice").eval()
    router.token_ids = torch.zeros(5, TOKENS // 5)
    logits, weights, index = router(tokens())
    assert index.tolist() == [list(range(EXPERTS))] * TOKENS
    scores, taken = logits.softmax(-1).unflatten(0, (5, -1)), (weights > 0).unflatten(0, (5, -1))
    assert (taken.sum(1) == 5).all()  # 10 tokens x 2 of 4 experts
    least = torch.where(taken, scores, torch.inf).amin(1)
    assert (least >= torch.where(taken, -torch.inf, scores).amax(1)).all()
    assert_close(weights, torch.where(taken, scores, torch.zeros(())).flatten(0, 1))
    assert (weights > 0).sum(-1).unique().numel() > 1  # tokens differ in how many experts they get


def test_expert_choice_needs_a_slot_for_every_expert() -> None:
    few = LabMoeConfig(router="expert_choice", num_experts=4, num_experts_per_tok=2, hidden_size=6, pad_token_id=None)
    with pytest.raises(BadKnob, match="a slot for every expert"):
        build_router(few)


def test_an_unknown_router_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownName, match=r"'softmax'.*kmeans, loss_free, .*, softmax_aux, unbalanced, dense"):
        build_router(config("softmax"))


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
    assert_close(bias_step(torch.tensor([7, 1, 4, 4]), 0.5, "sign"), torch.tensor([-0.5, 0.5, 0.0, 0.0]))


def test_the_centred_rule_keeps_the_mean_of_the_biases_and_the_sign_rule_does_not() -> None:
    counts = torch.tensor([9, 1, 1, 1])
    assert_close(bias_step(counts, 0.5, "sign"), torch.tensor([-0.5, 0.5, 0.5, 0.5]))
    assert_close(bias_step(counts, 0.5, "centred_sign"), torch.tensor([-0.75, 0.25, 0.25, 0.25]))


def test_the_proportional_rule_moves_by_the_share_that_is_lacking_whatever_the_size_of_the_batch() -> None:
    few, many = torch.tensor([7, 1, 4, 4]), torch.tensor([70, 10, 40, 40])
    assert_close(bias_step(few, 0.5, "proportional"), torch.tensor([-0.375, 0.375, 0.0, 0.0]))
    assert_close(bias_step(many, 0.5, "proportional"), bias_step(few, 0.5, "proportional"))


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


@pytest.mark.parametrize("name", router_names())
def test_evaluation_freezes_every_state(name: str) -> None:
    router = router_with_weights(name).eval()
    before = {key: value.clone() for key, value in router.state_dict().items()}
    router(tokens())
    router.update()
    assert all(torch.equal(value, before[key]) for key, value in router.state_dict().items())


def test_the_loss_of_each_sequence_sees_an_imbalance_that_the_batch_evens_out() -> None:
    first = torch.tensor([[9.0, 9.0, 0.0, 0.0]] * 3)
    logits, index = torch.cat([first, first.flip(1)]), torch.tensor([[0, 1]] * 3 + [[2, 3]] * 3)
    by = {
        scope: build_router(config("softmax_aux", router_aux_loss_coef=1.0, router_aux_scope=scope))
        for scope in ("sequence", "batch")
    }
    assert_close(by["batch"].auxiliary_loss(logits, index, 2), torch.tensor(1.0))
    # Half of the experts get everything, and nearly all of the probability: E/k.
    expected = 4 * 0.5 * first[0].softmax(-1)[:2].sum()
    assert_close(by["sequence"].auxiliary_loss(logits, index, 2), expected)


def test_the_global_loss_takes_the_loads_of_all_batches_since_the_last_update() -> None:
    router = router_with_weights("softmax_aux", router_aux_loss_coef=1.0, router_aux_scope="global").train()
    logits, index = [], []
    for seed in (0, 1):
        found = router(tokens(seed))
        logits.append(found[0])
        index.append(found[2])
    share = torch.bincount(torch.cat(index).flatten(), minlength=EXPERTS) / torch.cat(index).numel()
    assert_close(router.auxiliary_loss(logits[1], index[1]), 4 * (share * logits[1].softmax(-1).mean(0)).sum())
    router.update()
    router.eval()
    own = balance_loss(logits[1].softmax(-1), index[1], torch.zeros(EXPERTS, dtype=torch.long))
    assert_close(router.auxiliary_loss(logits[1], index[1]), own)


@pytest.mark.parametrize("name", ["softmax_aux", "loss_free", "unbalanced", "sigmoid_aux", "sigmoid_free"])
def test_the_z_loss_comes_on_top_of_any_balancing_and_only_if_asked_for(name: str) -> None:
    plain, with_z = (router_with_weights(name, router_z_loss_coef=c) for c in (0.0, 0.5))
    logits, _, index = plain(tokens())
    added = with_z.auxiliary_loss(logits, index) - plain.auxiliary_loss(logits, index)
    assert_close(added, 0.5 * torch.logsumexp(logits, -1).square().mean())


def test_the_z_loss_of_equal_logits_is_the_squared_logarithm_of_their_number() -> None:
    assert_close(z_loss(torch.zeros(5, EXPERTS)), torch.tensor(float(EXPERTS)).log() ** 2)


def test_the_gradient_of_sigmoid_balancing_moves_the_mean_row_as_that_of_softmax_cannot() -> None:
    moved = {}
    for name in ("softmax_aux", "sigmoid_aux"):
        router = router_with_weights(name, router_aux_loss_coef=1.0)
        logits, _, index = router(tokens())
        router.auxiliary_loss(logits, index).backward()
        gradient = router.weight.grad
        assert gradient is not None
        moved[name] = float(gradient.sum(0).norm() / gradient.norm(dim=1).sum())
    assert moved["softmax_aux"] < 1e-6 < 0.01 < moved["sigmoid_aux"]


@pytest.mark.parametrize("renormalise", [True, False])
def test_a_sigmoid_weight_is_that_of_its_own_logit(renormalise: bool) -> None:
    logits, weights, index = router_with_weights("sigmoid_free", norm_topk_prob=renormalise)(tokens())
    chosen = logits.gather(1, index).sigmoid()
    assert_close(weights, chosen / chosen.sum(-1, keepdim=True) if renormalise else chosen)


def test_frozen_rows_are_saved_and_seen_by_no_optimiser() -> None:
    router = build_router(config("frozen"))
    assert not list(router.parameters())
    assert "weight" in router.state_dict()


def test_a_hash_router_sends_an_id_to_the_same_distinct_experts_wherever_it_stands() -> None:
    router = router_with_weights("hashed").eval()
    _, weights, index = router(tokens())
    assert router.token_ids is not None
    of_id = {int(t): tuple(row) for t, row in zip(router.token_ids, index.tolist(), strict=True)}
    assert all(of_id[int(t)] == tuple(row) for t, row in zip(router.token_ids, index.tolist(), strict=True))
    assert len(set(of_id.values())) > 1
    assert_close(weights, torch.full_like(weights, 1 / TOP_K))


def test_a_hash_router_without_ids_says_what_it_needs() -> None:
    router = router_with_weights("hashed")
    router.token_ids = None
    with pytest.raises(GeometryError, match="input_ids, not with inputs_embeds"):
        router(tokens())
