"""One checkpoint held in two ways: what is the same, what is not, and in which layer routing first differs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from analysis.result import Result
from analysis.statistic import statistics
from backend.adapters import adapt
from backend.answer import Answering
from backend.capture import CaptureOptions, capture
from backend.checkpoints import load, load_tokenizer
from backend.checkpoints.variants import variant
from backend.errors import NotFound, Refusal, TooLarge
from backend.question import ask
from backend.services import Services, open_services
from backend.settings import Settings
from tests.backend import tiny_olmoe
from tests.backend.inline import InlineRunner

pytestmark = pytest.mark.slow

WORDS = tiny_olmoe.prompts(12)
WEIGHTS = "model.safetensors"


@pytest.fixture
def services(tmp_path: Path, tiny_models: Path, one_thread: None) -> Iterator[Services]:
    root = tmp_path / "root"
    settings = Settings(data=tmp_path / "data", store=tmp_path / "store", device="cpu", extra_roots=(tiny_models, root))
    with open_services(settings, InlineRunner(settings.store)) as found:
        yield found


def agreement(services: Services, a: str, b: str, what: str = "jaccard") -> Result:
    sides = [services.checkpoints.find(name) for name in (a, b)]
    question = ask("routing_agreement", sides, WORDS, {"what": what, "matching": "identity"})
    return services.answering.answer(question).result


def test_a_variant_is_the_same_files_held_otherwise(services: Services) -> None:
    tiny, half = (services.checkpoints.find(name) for name in ("tiny", "tiny@bf16"))
    assert (tiny.precision, half.precision, half.dtype, half.id) == ("float32", "bfloat16", "float32", "tiny@bf16")
    assert half.memory_bytes * 2 == tiny.memory_bytes and half.fingerprint != tiny.fingerprint
    model = load(half, "cpu")
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    stored = load_file(Path(tiny.folder) / WEIGHTS)["model.norm.weight"]
    assert torch.equal(model.state_dict()["model.norm.weight"], stored.bfloat16())
    whole = services.checkpoints.find("tiny@float32")
    assert whole.fingerprint == tiny.fingerprint, "what it is already is run once"
    eager = services.checkpoints.find("tiny@fp16+eager")
    assert load(eager, "cpu").config._attn_implementation == "eager" and eager.precision == "float16"
    assert services.checkpoints.find("tiny@eager+fp16") == eager


@pytest.mark.parametrize(
    ("name", "error", "reason"),
    [
        ("tiny@bf16+fp16", Refusal, "says one thing twice"),
        ("tiny@bf16+bf16", Refusal, "says one thing twice"),
        ("tiny@fp4", NotFound, "There is no checkpoint 'tiny@fp4'"),
        ("nobody@bf16", NotFound, "There is no checkpoint 'nobody'; known: other, tiny"),
    ],
)
def test_what_is_no_variant_is_told(services: Services, name: str, error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason):
        services.checkpoints.find(name)


def test_a_trace_is_held_in_no_precision(services: Services) -> None:
    with pytest.raises(Refusal, match="tiny is an imported trace"):
        variant(replace(services.checkpoints.find("tiny"), trace="counts"), "bf16")


def test_two_precisions_and_two_attentions_of_one_checkpoint_are_compared_token_by_token(services: Services) -> None:
    same = agreement(services, "tiny", "tiny@float32")
    assert same.values.tolist() == [1.0, 1.0] and same.facts["first layer of divergence (median token)"] == "none"
    halved = agreement(services, "tiny", "tiny@bf16")
    assert ((halved.values > 0.5) & (halved.values <= 1)).all()
    for answer in (agreement(services, "tiny@eager", "tiny@sdpa"), agreement(services, "tiny", "tiny@eager")):
        assert (answer.values > 0.99).all(), "attention differs by rounding alone"
    loaded = [task.checkpoint.id for task in services.runner.log if hasattr(task, "shards")]  # type: ignore[attr-defined]
    assert loaded == ["tiny", "tiny@bf16", "tiny@eager", "tiny@sdpa"], "each way is run once"


def test_the_layer_in_which_half_precision_loses_the_choice_is_named(services: Services, tmp_path: Path) -> None:
    """The router rows of layer 1 differ by less than bf16 can tell: its choice is a tie, whatever the token."""
    folder = tiny_olmoe.save(tmp_path / "root" / "planted", hidden_size=32)
    tensors = load_file(folder / WEIGHTS)
    first, second = (f"model.layers.{layer}.mlp.gate.weight" for layer in (0, 1))
    tensors[first] = tensors[first] * 50  # far apart, so that rounding changes few choices
    draw = torch.Generator().manual_seed(1)
    signs = torch.randn(1, 32, generator=draw).sign()
    tensors[second] = signs + torch.randn(4, 32, generator=draw).clamp(-3, 3) * 2**-12
    assert (tensors[second].bfloat16() == signs.bfloat16()).all()
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    found = agreement(services, "planted", "planted@bf16")
    assert found.values[0] > 0.95 and found.values[1] < 0.6
    assert found.facts["first layer of divergence (median token)"] == "1"
    assert agreement(services, "planted", "planted@float32").values.tolist() == [1.0, 1.0]


def test_what_a_half_precision_model_gives_is_summed_in_float64(services: Services) -> None:
    """One by one in another order, and all at once: the same to 1e-12, where bf16 sums would differ by 1e-3."""
    half = services.checkpoints.find("tiny@bf16")
    model = load(half, "cpu")
    names = ("router_sums", "contribution_sums", "centroid_sums", "prompt_counts")
    wanted = [statistics()[name] for name in names]
    needs = frozenset().union(*(s.needs for s in wanted)) | {"routes"}
    anatomy, tokenizer = adapt(model), load_tokenizer(half)
    prompts = WORDS.prompts

    def states(pieces: list[Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for piece in pieces:
            for batch in capture(model, anatomy, tokenizer, piece, CaptureOptions(), needs):
                for s in wanted:
                    for part in batch.layers if s.reads_layers else (batch.route,):
                        found[s.name] = s.grow(found.get(s.name) or s.empty(batch.route.shape), part)
        return found

    forwards, backwards = states([[p] for p in prompts]), states([[p] for p in reversed(prompts)])
    for name in names:
        for array, one in forwards[name].arrays.items():
            other = backwards[name].arrays[array]
            spec = statistics()[name].arrays[array]
            assert one.dtype in (torch.float64, torch.int64, torch.int32, torch.float32), (name, array, one.dtype)
            if spec.axes[0] not in ("prompt", "token") and one.dtype == torch.float64:
                np.testing.assert_allclose(
                    one.numpy(), other.numpy(), rtol=1e-12, atol=1e-12, err_msg=f"{name}.{array}"
                )


def test_half_precision_is_what_is_offered_to_a_machine_too_small(services: Services) -> None:
    tiny = replace(services.checkpoints.find("tiny"), memory_bytes=10**9, parameters=250_000_000)
    bring = services.checkpoints.bring
    need = services.answering.plan(ask("expert_load", [tiny], WORDS)).price.need
    small = Answering(services.store, services.runner, need.total - 10**8, bring)
    with pytest.raises(TooLarge, match=r"What would fit: tiny@bf16 \(0\.[56] GB\)"):
        small.plan(ask("expert_load", [tiny], WORDS))


def test_an_answer_says_how_its_checkpoints_were_held(services: Services) -> None:
    held = services.checkpoints.find("tiny@bf16+eager")
    about = services.answering.answer(ask("expert_load", [held], WORDS)).provenance["checkpoints"][0]
    assert SimpleNamespace(**about).precision == "bfloat16" and about["attention"] == "eager"
