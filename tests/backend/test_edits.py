"""Experts switched off and forced on, and k changed: an edited model is the model that a hand would have edited."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from backend.adapters import Unsupported, adapt
from backend.edits import applied, edit_from
from backend.edits.changes import Changes
from backend.edits.rerouting import Rerouting
from backend.errors import Refusal
from tests.backend import tiny_moe
from tests.backend.edited import TEXTS, edited, run, same, state, subject, traits

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
FAMILIES = ("olmoe", "mixtral", "qwen3_moe", "deepseek_v3", "gpt_oss", "lab_loss_free", "lab_kmeans")
SOFT = ("lab_soft", "lab_expert_choice")
ROUNDING = 2e-5  # float32 losses of a few nats, summed in another order


def spec(kind: str, model, expert: int = 3) -> dict:
    label = adapt(model).shape.layers[-1]
    return {"kind": kind, "layer": label, "expert": expert}


def silenced(model, expert: int):
    """The last router of a softmax model with its row's logit masked, written out."""
    twin = copy.deepcopy(model)
    layer = adapt(twin).layers[-1]

    def forward(x: torch.Tensor):
        logits = F.linear(x.reshape(-1, x.shape[-1]), layer.router.weight)
        logits[:, expert] = -torch.inf
        p = logits.softmax(-1, dtype=torch.float)
        values, indices = p.topk(layer.top_k)
        return logits, values / values.sum(-1, keepdim=True), indices

    layer.router.forward = forward
    return twin


@pytest.mark.parametrize("family", ("mixtral", "qwen3_moe", "lab_softmax_aux"))
def test_off_is_the_model_whose_logit_was_masked_by_hand(family: str) -> None:
    model = tiny_moe.build(tiny_moe.FAMILIES[family])
    found = edited(model, edit_from(spec("off", model)))
    by_hand = run(silenced(model, 3))
    assert_close(found.loss, by_hand.loss, atol=ROUNDING, rtol=0, equal_nan=True)
    assert torch.equal(found.chosen.sort(-1).values, by_hand.chosen.sort(-1).values)
    assert not same(found, run(model))


@pytest.mark.parametrize("family", FAMILIES)
def test_off_takes_an_expert_from_every_token_and_on_gives_it_to_each(family: str) -> None:
    model = tiny_moe.build(tiny_moe.FAMILIES[family])
    plain = run(model)
    expert = int(plain.usage[-1].argmax())
    off, on = (edited(model, edit_from(spec(kind, model, expert))) for kind in ("off", "on"))
    assert plain.usage[-1, expert] > 0 == off.usage[-1, expert]
    assert on.usage[-1, expert] == len(plain.loss)
    assert (off.usage.sum(1) == plain.usage.sum(1)).all() and (on.usage.sum(1) == plain.usage.sum(1)).all()
    had = (plain.chosen[-1] == expert).any(-1)
    assert torch.equal(on.chosen[-1][had], plain.chosen[-1][had])  # who had it keeps what it had
    kept = (on.chosen[-1][~had][..., None, :] == plain.chosen[-1][~had][..., None]).any(-1).sum(-1)
    assert (kept == plain.shape.top_k - 1).all()  # one choice of the others' gave way
    assert torch.equal(off.chosen[:-1], plain.chosen[:-1])


@pytest.mark.parametrize("family", ("mixtral", "lab_kmeans"))
def test_a_forced_expert_replaces_the_last_ranked_with_its_own_weight(family: str) -> None:
    model = tiny_moe.build(tiny_moe.FAMILIES[family])
    layer = adapt(model).layers[-1]
    x = torch.randn(20, tiny_moe.MODEL, generator=torch.Generator().manual_seed(1))
    logits, _, plain = layer.router(x)
    with applied(Changes(reroutings=(Rerouting(layer, on=3),))), torch.no_grad():
        seen = []
        hook = layer.experts.register_forward_pre_hook(lambda module, args: seen.append(args))
        layer.block(x[None])
        hook.remove()
    _, indices, weights = seen[0]
    lacking = (plain != 3).all(-1)
    assert lacking.any() and not lacking.all()
    assert torch.equal(indices[lacking], torch.stack([plain[lacking, 0], torch.full((int(lacking.sum()),), 3)], -1))
    assert_close(weights, logits.gather(-1, indices).softmax(-1).to(weights.dtype), atol=1e-6, rtol=1e-6)


FEW = "abc"  # three tokens choose six experts at most, so each layer has unused ones


# Not those whose weights (olmoe) or rankings (lab_loss_free, by its bias) are made of a softmax over all experts: there
# the share of one that never served goes to the others.
@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in ("olmoe", "lab_loss_free")])
def test_off_an_unused_expert_changes_nothing(family: str) -> None:
    model = tiny_moe.build(tiny_moe.FAMILIES[family])
    plain = run(model, texts=(FEW,))
    unused = int(plain.usage[-1].argmin())
    assert not plain.usage[-1, unused]
    off = edited(model, edit_from(spec("off", model, unused)), texts=(FEW,))
    assert torch.equal(off.chosen, plain.chosen)
    assert_close(off.loss, plain.loss, atol=ROUNDING, rtol=0, equal_nan=True)


def test_a_share_that_an_unused_expert_held_goes_to_the_others_as_by_hand() -> None:
    model = tiny_moe.build(tiny_moe.olmoe)
    layer = adapt(model).layers[-1]
    x = torch.randn(9, tiny_moe.MODEL, generator=torch.Generator().manual_seed(1))
    logits, before, chosen = layer.router(x)
    p = logits.softmax(-1)
    for expert in range(tiny_moe.EXPERTS):
        free = (chosen != expert).all(-1)
        with applied(Changes(reroutings=(Rerouting(layer, off=(expert,)),))):
            seen = []
            hook = layer.experts.register_forward_pre_hook(lambda module, args, seen=seen: seen.append(args))
            layer.block(x[None])
            hook.remove()
        assert torch.equal(seen[0][1][free], chosen[free])
        assert_close(seen[0][2][free], (before / (1 - p[:, expert : expert + 1]))[free])


@pytest.mark.parametrize("family", SOFT)
def test_off_gives_weight_0_where_every_token_has_every_expert(family: str) -> None:
    model = tiny_moe.build(tiny_moe.FAMILIES[family])
    plain, off = run(model), edited(model, edit_from(spec("off", model)))
    assert (plain.chosen[-1] == 3).any() and not (off.chosen[-1] == 3).any()
    with pytest.raises(Refusal, match="k = E"):
        edited(model, edit_from(spec("on", model)))
    with pytest.raises(Refusal, match="no k to change"):
        edited(model, edit_from({"kind": "topk", "k": 1}))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("k", (1, 3))
def test_another_k_is_the_model_with_another_config(family: str, k: int) -> None:
    model = tiny_moe.build(tiny_moe.FAMILIES[family])
    config = copy.deepcopy(model.config)
    config.num_experts_per_tok = k
    twin = type(model)(config).eval()
    twin.load_state_dict(model.state_dict())
    found = edited(model, edit_from({"kind": "topk", "k": k}))
    assert found.shape.top_k == k and same(found, run(twin))
    assert same(edited(model, edit_from({"kind": "topk", "k": 2})), run(model))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kind", ("off", "on", "topk"))
def test_the_model_is_put_back_bit_for_bit(family: str, kind: str) -> None:
    model = tiny_moe.build(tiny_moe.FAMILIES[family])
    plain = run(model)  # first: a lab model keeps the ids of its last pass
    before, about = state(model), traits(model)
    edit = edit_from({"kind": "topk", "k": 1} if kind == "topk" else spec(kind, model))
    changes = edit.changes(subject(model))
    run(model, changes)
    with pytest.raises(RuntimeError, match="half way"), applied(changes):
        raise RuntimeError("half way")
    after = state(model)
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    assert traits(model) == about and same(run(model), plain)


def test_a_router_that_cannot_be_edited_in_flight_is_a_refusal_and_no_result() -> None:
    model = tiny_moe.build(tiny_moe.mixtral)
    layer = adapt(model).layers[-1]
    frozen = layer.router(torch.zeros(sum(map(len, TEXTS)) * 4, tiny_moe.MODEL))
    layer.router.forward = lambda x: tuple(part[: x.numel() // tiny_moe.MODEL] for part in frozen)
    for kind in ("off", "on"):
        with pytest.raises(Unsupported, match="no expert can be"):
            edited(model, edit_from(spec(kind, model)))


def test_specs_are_json_and_wrong_ones_say_what_would_be_right() -> None:
    model = tiny_moe.build(tiny_moe.mixtral)
    for given in ({"kind": "off", "layer": "2", "expert": 1}, {"kind": "topk", "k": 1}):
        assert edit_from(json.loads(json.dumps(edit_from(given).to_json()))) == edit_from(given)
    for wrong, said in (
        ({"kind": "burn"}, "known: .*off"),
        ({"kind": "off", "layer": "2"}, "takes layer, expert"),
        ({"kind": "off", "layer": "2", "expert": "one"}, "a whole number"),
        ({"kind": "off", "layer": "9", "expert": 1}, "the layers are 0, 1, 2"),
        ({"kind": "on", "layer": "2", "expert": 8}, "experts 0 to 7"),
        ({"kind": "topk", "k": 9}, "1 to 8"),
    ):
        with pytest.raises(Refusal, match=said):
            edited(model, edit_from(wrong))
