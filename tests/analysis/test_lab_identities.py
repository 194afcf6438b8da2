"""Gradients of a whole training step are the closed forms of one block, in every layer and under every gate rule."""

import pytest
import torch

from analysis.errors import GeometryError
from analysis.lab import identities
from analysis.lab.config import LabMoeConfig
from analysis.lab.identities import gradient_identities
from analysis.lab.model import LabMoeForCausalLM, initialise
from analysis.lab.routers import DENSE, router_names, serves_all

pytestmark = pytest.mark.slow

UNLEARNED = ("kmeans", "hashed", "frozen")
LEARNED = sorted({*router_names()} - {*UNLEARNED})
SOFTMAX = ("softmax_aux", "loss_free", "unbalanced", "soft")
CASES = [(name, {}) for name in LEARNED]
CASES += [(name, {"norm_topk_prob": False}) for name in ("softmax_aux", "sigmoid_free")]
CASES += [("softmax_aux", {"router_z_loss_coef": 0.1}), ("softmax_aux", {"router_aux_scope": "sequence"})]
ROUNDING = 1e-12


def step(router, dtype=torch.float64, **options):
    k = 4 if serves_all(router) else 2
    sizes = {"hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= (
        {"num_experts": 4, "num_experts_per_tok": k}
        if router != DENSE
        else {"num_experts": 0, "num_experts_per_tok": 0}
    )
    config = LabMoeConfig(
        router=router,
        vocab_size=40,
        num_key_value_heads=2,
        pad_token_id=None,
        initializer_range=0.3,
        **sizes,
        **options,
    )
    model = LabMoeForCausalLM(config)
    initialise(model, 0)
    model.set_experts_implementation("eager")
    tokens = torch.randint(0, 40, (3, 9), generator=torch.Generator().manual_seed(1))
    return model.to(dtype).train(), tokens


@pytest.mark.parametrize(("router", "options"), CASES)
def test_a_training_step_moves_routers_and_experts_as_the_closed_forms_say(router, options):
    found = gradient_identities(*step(router, **({"router_aux_loss_coef": 0.5} | options)))
    for error in (found.router, found.gate, found.up):
        assert error.shape == (2,) and error.max() < ROUNDING


@pytest.mark.parametrize(("router", "options"), CASES)
def test_no_loss_but_the_z_loss_moves_the_mean_row_of_a_softmax_router(router, options):
    found = gradient_identities(*step(router, **({"router_aux_loss_coef": 0.5} | options))).mean_row
    if router in SOFTMAX and "router_z_loss_coef" not in options:
        assert found.max() < ROUNDING
    elif router != "expert_choice":
        assert found.min() > 1e-3 and found.max() <= 1


def test_a_wrong_gate_rule_is_seen(monkeypatch):
    monkeypatch.setattr(identities, "_rule", lambda router: "softmax")
    assert gradient_identities(*step("softmax_aux")).router.min() > 1e-3


def test_in_float32_the_errors_are_those_of_float32():
    found = gradient_identities(*step("softmax_aux", torch.float32))
    assert 1e-9 < found.router.max() < 1e-5 and found.mean_row.max() < 1e-5


@pytest.mark.parametrize("router", [*UNLEARNED, DENSE])
def test_a_router_that_no_gradient_moves_is_refused(router):
    with pytest.raises(GeometryError, match=f"router '{router}' has no learned rows"):
        gradient_identities(*step(router))
