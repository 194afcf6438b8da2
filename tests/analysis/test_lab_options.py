"""What a router declares as its options is what it reads, and what they take is said."""

import pytest
import torch

from analysis.errors import BadKnob, UnknownName
from analysis.lab.options import checked, router_options
from analysis.lab.routers import DENSE, build_router, router_names
from tests.analysis.test_lab_routers import EXPERTS, TOKENS, config, tokens

pytestmark = pytest.mark.slow

OTHER = {
    "router_aux_loss_coef": 0.5,
    "router_aux_scope": "sequence",
    "router_z_loss_coef": 0.5,
    "router_bias_update_speed": 0.5,
    "router_bias_rule": "proportional",
    "norm_topk_prob": False,
    "kmeans_ema": 0.5,
    "kmeans_temperature": 1.0,
    "kmeans_unit_hidden": False,
    "kmeans_members": "first",
    "kmeans_hidden_gradient": False,
    "kmeans_mixing": "sigmoid",
    "kmeans_rate": "token",
    "kmeans_weighted": True,
    "kmeans_centred": True,
    "expert_choice_per_token": 1,
}


def lived(name, **options):
    """All that two training passes, a gradient and an update show of a router."""
    router = build_router(config(name, vocab_size=7, **options)).train()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for part in router.drawn:
            getattr(router, part).copy_(torch.randn(EXPERTS, 6, generator=generator))
    router.token_ids = torch.arange(TOKENS) % 7
    router.seed(tokens(9), torch.Generator().manual_seed(4))
    router(tokens(1))
    hidden = tokens(2).requires_grad_()
    logits, weights, index = router(hidden)
    mixed = (weights * torch.arange(weights.shape[1])).sum()
    (router.auxiliary_loss(logits, index, 2) + mixed + 0 * hidden.sum()).backward()  # 0: some give no gradient
    router.update()
    after = router(tokens(5))
    gradients = [hidden.grad, *(p.grad for p in router.parameters())]
    return [weights, index, *after[1:], *gradients, *router.state_dict().values()]


@pytest.mark.parametrize("name", router_names())
def test_a_router_reads_the_options_that_it_declares_and_no_other(name):
    plain = lived(name)
    for option, value in OTHER.items():
        if option == "expert_choice_per_token" and name != "expert_choice":
            continue  # no other router has a place for it to act
        other = lived(name, **{option: value})
        same = len(plain) == len(other) and all(torch.equal(a, b) for a, b in zip(plain, other, strict=True))
        assert same != (option in router_options(name)), option


def test_every_option_is_some_routers_and_the_dense_control_has_none():
    assert set(OTHER) == {option for name in router_names() for option in router_options(name)}
    assert not router_options(DENSE)


def test_values_come_back_in_the_options_own_type():
    given = {"kmeans_ema": 1, "kmeans_members": "first", "kmeans_centred": True}
    found = checked("kmeans", given)
    assert found == given and isinstance(found["kmeans_ema"], float)


@pytest.mark.parametrize(
    ("router", "options", "sentence"),
    [
        (
            "kmeans",
            {"kmeans_emma": 0.1},
            "router 'kmeans' has no option 'kmeans_emma'; it has kmeans_centred, kmeans_ema",
        ),
        ("hashed", {"router_z_loss_coef": 1}, "router 'hashed' has no option 'router_z_loss_coef'; it has none"),
        ("dense", {"norm_topk_prob": True}, "router 'dense' has no option 'norm_topk_prob'; it has none"),
    ],
)
def test_an_option_that_a_router_does_not_read_is_refused_with_those_it_reads(router, options, sentence):
    with pytest.raises(UnknownName, match=sentence):
        checked(router, options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"kmeans_ema": 2}, "router 'kmeans': knob 'kmeans_ema' is 2; it takes a number, 0 to 1"),
        ({"kmeans_temperature": 0.0}, "it takes a number, above 0 and below"),
        ({"kmeans_members": "some"}, r"'kmeans_members' is 'some'; it takes one of \['all', 'first'\]"),
        ({"kmeans_centred": 1}, "it takes a value of type bool"),
        ({"router_bias_update_speed": float("nan")}, "it takes a number, 0 to"),
    ],
)
def test_a_value_that_an_option_does_not_take_is_refused_with_what_it_takes(options, sentence):
    with pytest.raises(BadKnob, match=sentence):
        checked("kmeans", options)
