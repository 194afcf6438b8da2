"""The lab's model is an OLMoE in all but its router: names, loading, generation, and a start that routers share."""

import warnings
from pathlib import Path

import pytest
import torch
from huggingface_hub.errors import StrictDataclassFieldValidationError
from torch.testing import assert_close
from transformers import AutoModel, AutoModelForCausalLM
from transformers.models.olmoe.configuration_olmoe import OlmoeConfig
from transformers.models.olmoe.modeling_olmoe import OlmoeForCausalLM

from analysis.errors import BadKnob
from analysis.lab.balancing import max_violation
from analysis.lab.config import LabMoeConfig
from analysis.lab.model import LabMoeForCausalLM, LabMoeModel, initialise, register, routers, seed_routers
from analysis.lab.routers import DENSE, router_names, serves_all
from analysis.lab.step import evaluation_step, training_step, update_routers

pytestmark = pytest.mark.slow

EVERY = (*router_names(), DENSE)


def config(router: str) -> LabMoeConfig:
    experts = (0, 0) if router == DENSE else (4, 4) if serves_all(router) else (4, 2)
    return LabMoeConfig(
        router=router,
        vocab_size=40,
        hidden_size=16,
        intermediate_size=24 if router == DENSE else 12,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_experts=experts[0],
        num_experts_per_tok=experts[1],
        max_position_embeddings=64,
        pad_token_id=0,
        eos_token_id=None,
    )


def model_of(router: str, seed: int = 0) -> LabMoeForCausalLM:
    model = LabMoeForCausalLM(config(router))
    initialise(model, seed)
    seed_routers(model, ids()[:, :-1], seed)
    return model.eval()


def ids(sequences: int = 4, length: int = 10) -> torch.Tensor:
    return torch.randint(1, 40, (sequences, length), generator=torch.Generator().manual_seed(7))


def parts(model: LabMoeForCausalLM) -> dict[str, torch.Tensor]:
    return {name: value for name, value in model.state_dict().items() if ".mlp." not in name}


def test_tensor_names_and_shapes_are_those_of_olmoe() -> None:
    ours = {name: value.shape for name, value in model_of("softmax_aux").state_dict().items()}
    keys = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    keys += ("num_experts", "num_experts_per_tok", "pad_token_id", "eos_token_id")
    olmoe = OlmoeForCausalLM(OlmoeConfig(**{key: getattr(config("softmax_aux"), key) for key in keys}))
    assert ours == {name: value.shape for name, value in olmoe.state_dict().items()}


def test_with_olmoes_weights_the_softmax_router_gives_olmoes_logits() -> None:
    model = model_of("unbalanced")
    olmoe = OlmoeForCausalLM(OlmoeConfig(**{**model.config.to_dict(), "model_type": "olmoe"})).eval()
    olmoe.load_state_dict(model.state_dict())
    assert_close(model(ids()).logits, olmoe(ids()).logits)


@pytest.mark.parametrize("router", EVERY)
def test_the_parts_that_all_routers_share_start_equal(router: str) -> None:
    ours, reference = parts(model_of(router)), parts(model_of("softmax_aux"))
    assert ours.keys() == reference.keys()
    assert all(torch.equal(ours[name], reference[name]) for name in ours)


def test_experts_start_equal_whatever_the_router() -> None:
    name = "model.layers.1.mlp.experts.gate_up_proj"
    kmeans, free = model_of("kmeans").state_dict(), model_of("loss_free").state_dict()
    assert torch.equal(kmeans[name], free[name])


def test_another_seed_starts_elsewhere() -> None:
    ours, other = parts(model_of("soft", 0)), parts(model_of("soft", 1))
    assert not torch.equal(ours["model.embed_tokens.weight"], other["model.embed_tokens.weight"])


@pytest.mark.parametrize("router", EVERY)
def test_a_saved_model_loads_from_its_folder_with_every_buffer(router: str, tmp_path: Path) -> None:
    register()
    register()
    model = model_of(router).train()
    training_step(model, ids())
    update_routers(model)
    model.eval().save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is LabMoeForCausalLM
    assert loaded.config.router == router
    assert loaded.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in loaded.state_dict().items())
    assert torch.equal(loaded(ids()).logits, model(ids()).logits)
    assert type(AutoModel.from_pretrained(tmp_path)) is LabMoeModel


@pytest.mark.parametrize("router", sorted({*EVERY} - {"expert_choice"}))  # whose later tokens decide for earlier ones
def test_generation_appends_the_most_likely_tokens(router: str) -> None:
    model = model_of(router)
    prompt = ids(1, 5)
    grown = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=4, do_sample=False)
    for place in range(5, 9):
        assert grown[0, place] == model(grown[:, :place]).logits[0, -1].argmax()


@pytest.mark.parametrize("router", EVERY)
def test_padding_on_the_left_changes_no_logit_of_a_real_token(router: str) -> None:
    model = model_of(router)
    padded = torch.cat([torch.zeros(4, 3, dtype=torch.long), ids()], 1)
    mask = (padded > 0).long()
    position = (mask.cumsum(1) - 1).clamp(min=0)
    assert_close(model(padded, attention_mask=mask, position_ids=position).logits[:, 3:], model(ids()).logits)


@pytest.mark.parametrize("implementation", ["eager", "batched_mm", "grouped_mm"])
def test_the_experts_obey_each_implementation_of_transformers(implementation: str) -> None:
    model = model_of("kmeans")
    expected = model(ids()).logits
    model.set_experts_implementation(implementation)
    assert_close(model(ids()).logits, expected)


def test_the_dense_control_has_no_experts_and_the_same_active_width() -> None:
    dense, sparse = model_of(DENSE), model_of("softmax_aux")
    assert not routers(dense)
    assert not [name for name, _ in dense.named_modules() if "experts" in name]
    active = sparse.config.num_experts_per_tok * sparse.config.intermediate_size
    assert dense.state_dict()["model.layers.0.mlp.down_proj.weight"].shape == (16, active)


def test_a_dense_model_that_claims_experts_is_refused() -> None:
    with pytest.raises(BadKnob, match="no experts, but num_experts=4"):
        LabMoeConfig(router=DENSE, num_experts=4, num_experts_per_tok=0)


@pytest.mark.parametrize("router", EVERY)
def test_a_step_says_its_losses_and_loads_and_reaches_every_parameter(router: str) -> None:
    model = model_of(router).train()
    losses = training_step(model, ids())
    losses.loss.backward()
    assert_close(losses.loss.detach(), losses.cross_entropy + losses.auxiliary)
    assert (losses.auxiliary > 0) == router.endswith("_aux")
    assert all(parameter.grad is not None for parameter in model.parameters())
    if router == DENSE or serves_all(router):
        assert losses.load is None
    else:
        assert losses.load is not None
        assert losses.load.sum(1).tolist() == [ids()[:, 1:].numel() * 2] * 2


@pytest.mark.parametrize("router", EVERY)
def test_evaluation_agrees_with_the_training_loss_and_moves_nothing(router: str) -> None:
    model = model_of(router).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    losses, load = evaluation_step(model, ids())
    update_routers(model)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    step = training_step(model, ids())
    assert_close(losses.mean(), step.cross_entropy)
    assert (load is None and step.load is None) or torch.equal(load, step.load)


def test_an_option_outside_its_choices_is_refused() -> None:
    with pytest.raises(StrictDataclassFieldValidationError, match="kmeans_members"):
        LabMoeConfig(router="kmeans", kmeans_members="most")


def test_max_violation_by_hand() -> None:
    load = torch.tensor([[4, 4, 4, 4], [8, 8, 0, 0], [7, 3, 3, 3]])
    assert_close(max_violation(load), torch.tensor([0.0, 1.0, 0.75], dtype=torch.float64))


def test_asking_for_router_logits_gives_one_table_a_layer() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = model_of("kmeans")(ids(), output_router_logits=True).router_logits
    assert [tuple(table.shape) for table in found] == [(40, 4), (40, 4)]
