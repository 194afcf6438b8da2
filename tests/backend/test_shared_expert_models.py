"""The shared expert through adapter, capture, store and measure: what the model's own modules compute."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from scipy.linalg import subspace_angles
from torch import Tensor
from torch.autograd.functional import jacobian
from torch.nn import functional as F

from analysis.common_tokens import common_tokens
from analysis.errors import GeometryError
from analysis.measure import get as get_measure
from analysis.result import Result
from analysis.sampling import token_hash
from analysis.slots import LayerBatch, Shape, text_digest
from analysis.statistic import get as get_statistic
from backend.adapters import adapt
from backend.adapters.law import verify
from backend.capture import NO_SHARED, CaptureOptions, verified
from backend.runners import evaluation, passes
from backend.runners.messages import CaptureTask, EvaluateTask, ResultReady, ShardReady, ShardWork, SideFiles
from backend.runners.residents import Resident
from backend.store.arrays import Arrays, read_state
from tests.backend import tiny_moe

pytestmark = pytest.mark.slow

WITH = {"qwen2_moe": 16, "deepseek_v3": tiny_moe.HIDDEN}
"""Families with a shared expert, and its hidden width; the first puts a gate on its output."""
TEXTS = tuple(
    f"{n}: {word} {word[::-1]} of {n * n + 7} and {word.upper()}" for n, word in enumerate("axes beam cups".split())
)
TEXTS += tuple(f"def f{n}(x):\n    return x * {n} + {n**5}" for n in range(9))
EVERY = tiny_moe.EXPERTS + 1


@pytest.fixture(params=sorted(WITH))
def family(request: pytest.FixtureRequest) -> str:
    return request.param


def built(family: str, implementation: str = "eager") -> Any:
    return tiny_moe.build(tiny_moe.FAMILIES[family], implementation)


def shared_module(block: Any) -> Any:
    return getattr(block, "shared_expert", None) or block.shared_experts


def gate_of(block: Any, x: Tensor) -> Tensor:
    gate = getattr(block, "shared_expert_gate", None)
    return x.new_ones(len(x)) if gate is None else gate(x).sigmoid()[:, 0]


def layers_of(model: Any, *needs: str) -> tuple[LayerBatch, ...]:
    (found,) = tiny_moe.run(model, adapt(model), tiny_moe.prompts(*TEXTS), needs)
    return found.layers


@torch.no_grad()
def test_a_block_returns_its_routed_outputs_by_weight_and_the_shared_one_by_its_own(family: str) -> None:
    model = built(family).double()
    returned: list[Tensor] = []
    for block in (layer.block for layer in adapt(model).layers):
        block.register_forward_hook(lambda module, args, out: returned.append(out.reshape(-1, tiny_moe.MODEL)))
    anatomy = adapt(model)
    (captured,) = tiny_moe.run(model, anatomy, tiny_moe.prompts(TEXTS[0]), ("layers", "experts"))
    for batch, whole in zip(captured.layers, returned[-2:], strict=True):
        assert batch.experts is not None and batch.shared is not None and batch.shared_weight is not None
        x = batch.expert_input
        total = batch.shared_weight[:, None] * batch.shared(x)
        for slot in range(tiny_moe.TOP_K):
            each = [batch.experts[int(e)](row[None])[0] for e, row in zip(batch.indices[:, slot], x, strict=True)]
            total = total + captured_weight(batch, anatomy, slot)[:, None] * torch.stack(each)
        assert float((total - whole).norm() / whole.norm()) < 1e-10


def captured_weight(batch: LayerBatch, anatomy: Any, slot: int) -> Tensor:
    """Weights as the router gave them: a batch keeps them in float32."""
    router = anatomy.layers[batch.layer].router
    given, indices = router(batch.router_input)[1:3]
    order = given if given.is_floating_point() else indices
    chosen = indices if given.is_floating_point() else given
    place = (chosen == batch.indices[:, slot : slot + 1]).nonzero()[:, 1:]
    return order.gather(1, place)[:, 0]


@pytest.mark.parametrize("implementation", ["eager", "grouped_mm", "batched_mm"])
def test_the_law_holds_the_shared_expert_to_what_the_block_returns(family: str, implementation: str) -> None:
    model = built(family, implementation)
    for dtype, allowed in ((torch.float32, 1e-5), (torch.bfloat16, 1e-2)):
        found = verify(model.to(dtype), adapt(model), torch.arange(40, 72))
        assert len(found.shared_error) == 2 and max(found.shared_error) < allowed and found.keeps_shared


def test_a_model_without_a_shared_expert_has_none_to_hold() -> None:
    model = built("olmoe")
    found = verify(model, adapt(model), torch.arange(40, 48))
    assert found.shared_error == () and found.keeps_shared and adapt(model).shape.shared == 0
    assert all(batch.shared is None and batch.shared_weight is None for batch in layers_of(model, "experts"))
    with pytest.raises(GeometryError, match="has no shared expert: there is no shared_up_weight to read"):
        adapt(model).slot("shared_up_weight")[0]


def test_its_width_and_weights_are_the_modules(family: str) -> None:
    model = built(family)
    anatomy = adapt(model)
    assert anatomy.shape.shared == WITH[family]
    for part in ("gate", "up", "down"):
        slot = anatomy.slot(f"shared_{part}_weight")
        for layer, each in enumerate(anatomy.layers):
            assert torch.equal(slot[layer], getattr(shared_module(each.block), f"{part}_proj").weight)
    bare = anatomy.without_shared()
    assert bare.shape.shared == 0 and bare.layers == anatomy.layers


def test_shared_experts_of_different_widths_are_none() -> None:
    model = built("qwen2_moe")
    shared_module(model.model.layers[1].mlp).up_proj = torch.nn.Linear(tiny_moe.MODEL, 17, bias=False)
    assert adapt(model).shape.shared == 0


def halved(model: Any) -> None:
    """The block averages what it adds up."""
    block = model.model.layers[1].mlp
    forward = block.forward
    block.forward = lambda x: forward(x) / 2


def clamped(model: Any) -> None:
    """The shared expert clamps what no token of the check reaches."""
    module = shared_module(model.model.layers[1].mlp)
    forward = module.forward
    module.forward = lambda x: forward(x.clamp(-30, 30))


@pytest.mark.parametrize("spoil", [halved, clamped])
def test_a_shared_expert_that_the_block_does_more_with_is_left_out_and_the_rest_is_read(
    spoil: Any, family: str, tmp_path: Path
) -> None:
    model = built(family)
    spoil(model)
    told = asked(model, tmp_path, "jacobian_alignment", {})
    assert told.result.values.shape == (2, tiny_moe.EXPERTS, tiny_moe.EXPERTS)
    assert NO_SHARED in told.notes and verified(told.anatomy) is not None
    anatomy = adapt(model)
    (captured,) = tiny_moe.run(model, anatomy, tiny_moe.prompts(*TEXTS), ("routes", "experts"))
    assert captured.notes == (NO_SHARED,) and captured.route is not None and captured.route.shape.shared == 0
    assert all(batch.shared is None and batch.shared_weight is None for batch in captured.layers)


class _Kept:
    """One model in memory, whatever is asked for."""

    def __init__(self, resident: Resident):
        self.resident = resident

    def holds(self, checkpoint: Any) -> bool:
        return True

    def get(self, checkpoint: Any) -> Resident:
        return self.resident


def asked(model: Any, folder: Path, measure: str, knobs: dict[str, Any]) -> SimpleNamespace:
    """A question as a worker answers it: captured in two shards, stored, read back, merged and measured."""
    anatomy = adapt(model)
    residents: Any = _Kept(Resident(model, anatomy, tiny_moe.tokenizer(), 0))
    arrays, prompts, checkpoint = Arrays(folder), tiny_moe.prompts(*TEXTS), SimpleNamespace(id="tiny")
    names = get_measure(measure).statistics
    shards = tuple(ShardWork(tuple(part), {n: n for n in names}, None) for part in (prompts[:5], prompts[5:]))
    task: Any = CaptureTask("capture", checkpoint, CaptureOptions(), shards)  # type: ignore[arg-type]
    ready = [m for m in passes.run(task, residents, arrays) if isinstance(m, ShardReady)]
    files = {name: tuple(shard.states[name][1] for shard in ready) for name in names}
    side: Any = SideFiles(files, {p.key: p.category for p in digested(prompts)}, checkpoint)  # type: ignore[arg-type]
    messages = evaluation.run(EvaluateTask("ask", measure, knobs, (side,)), residents, evaluation.Merged(arrays))
    (result,) = [m.result for m in messages if isinstance(m, ResultReady)]
    return SimpleNamespace(result=result, notes=[n for shard in ready for n in shard.notes], anatomy=anatomy)


def digested(prompts: Any) -> list[SimpleNamespace]:
    return [SimpleNamespace(key=(p.id, text_digest(p.text)), category=p.category) for p in prompts]


def functions(block: Any) -> list[Any]:
    """Every routed expert and, last, the shared one: the model's own code."""

    def routed(index: int) -> Any:
        full = lambda x: torch.full((len(x), 1), index)  # noqa: E731
        return lambda x: block.experts(x, full(x), x.new_ones(len(x), 1))

    return [*map(routed, range(tiny_moe.EXPERTS)), shared_module(block)]


def cosines(rows: Tensor) -> Tensor:
    return F.cosine_similarity(rows[:, None], rows[None], dim=-1)


def check_table(result: Result) -> None:
    assert result.values.shape == (2, EVERY, EVERY)
    assert result.axes[1].labels == (*(f"E{e}" for e in range(tiny_moe.EXPERTS)), "shared")


def test_alignment_is_that_of_the_modules_mean_jacobians(family: str, tmp_path: Path) -> None:
    model = built(family).double()
    served = asked(model, tmp_path, "jacobian_alignment", {"tokens": "served"}).result
    common = asked(model, tmp_path, "jacobian_alignment", {}).result
    for layer, batch in enumerate(layers_of(model, "layers")):
        every, block = functions(adapt(model).layers[layer].block), batch.expert_input
        for result, rows in ((common, [common_tokens(batch)[0]] * EVERY), (served, own_rows(batch))):
            check_table(result)
            means = [mean_jacobian(f, block[mine]) for f, mine in zip(every, rows, strict=True)]
            np.testing.assert_allclose(result.values[layer], cosines(torch.stack(means)), rtol=0, atol=1e-9)


def own_rows(batch: LayerBatch) -> list[Tensor]:
    served = [(batch.indices == e).any(-1).nonzero()[:, 0] for e in range(tiny_moe.EXPERTS)]
    return [*served, torch.arange(len(batch.keys))]


def mean_jacobian(function: Any, x: Tensor) -> Tensor:
    found = jacobian(lambda rows: function(rows).sum(0), x)  # rows do not touch each other
    assert isinstance(found, Tensor)
    return found.mean(1).flatten()


def test_likeness_is_that_of_the_modules_outputs(family: str, tmp_path: Path) -> None:
    model = built(family).double()
    found = asked(model, tmp_path, "output_similarity", {"likeness": "cosine"}).result
    check_table(found)
    for layer, batch in enumerate(layers_of(model, "layers")):
        x = batch.expert_input[common_tokens(batch)[0]]
        with torch.no_grad():
            outputs = torch.stack([f(x) for f in functions(adapt(model).layers[layer].block)], 1)
        each = F.cosine_similarity(outputs[:, :, None], outputs[:, None], dim=-1)
        np.testing.assert_allclose(found.values[layer], each.mean(0), rtol=0, atol=1e-9)


def test_distances_are_those_of_what_the_shared_expert_saw_at_its_weight(family: str, tmp_path: Path) -> None:
    model, n = built(family).double(), 3
    found = asked(model, tmp_path, "grassmann_distance", {"n": n}).result
    check_table(found)
    for layer, batch in enumerate(layers_of(model, "layers")):
        hashes, sets = token_hash(batch.prompts, batch.keys), []
        gate = gate_of(adapt(model).layers[layer].block, batch.expert_input)
        for index, mine in enumerate(own_rows(batch)):
            mine = mine[hashes[mine].argsort()][: int(found.facts["rows per expert"])]
            weight = (batch.weights * (batch.indices == index)).sum(-1) if index < tiny_moe.EXPERTS else gate
            rows = batch.expert_input[mine].bfloat16().double() * weight[mine].float().double()[:, None]
            covariance = np.cov(rows.detach().numpy().T, ddof=0)
            sets.append(np.linalg.eigh(covariance)[1][:, ::-1][:, :n])
        for index in range(tiny_moe.EXPERTS):
            expected = np.linalg.norm(subspace_angles(sets[index], sets[-1]))
            assert found.values[layer, index, -1] == pytest.approx(expected, abs=1e-6)


def test_it_contributes_what_its_module_gives_and_has_a_row_of_weights(family: str, tmp_path: Path) -> None:
    model = built(family).double()
    found = asked(model, tmp_path, "expert_contribution", {}).result
    weights = asked(model, tmp_path, "weight_similarity", {"matrix": "up"}).result
    assert found.axes[1].labels[-1] == weights.axes[1].labels[-1] == "shared"
    for layer, batch in enumerate(layers_of(model, "layers", "outputs")):
        block, x = adapt(model).layers[layer].block, batch.expert_input
        with torch.no_grad():
            given = (gate_of(block, x)[:, None] * shared_module(block)(x)).norm(dim=-1)
        theirs = (batch.weights * batch.output_norms)[batch.served].double().mean()
        assert found.values[layer, -1] == pytest.approx(float(given.mean() / theirs), rel=1e-6)
        own, up = shared_module(block).up_proj.weight, adapt(model).layers[layer].weights("up_weight")
        same = WITH[family] == tiny_moe.HIDDEN
        expected = F.cosine_similarity(up.flatten(1), own.flatten()[None]) if same else up.new_full((len(up),), np.nan)
        np.testing.assert_allclose(weights.values[layer, -1, :-1], expected.detach(), rtol=0, atol=1e-9)


def test_loads_never_see_it(family: str, tmp_path: Path) -> None:
    found = asked(built(family), tmp_path, "expert_load", {}).result
    assert found.values.shape == (2, tiny_moe.EXPERTS) and "shared" not in found.axes[1].labels
    np.testing.assert_allclose(found.values.mean(1), 1)


def test_a_state_stored_before_there_were_shared_experts_is_still_read(tmp_path: Path) -> None:
    shape = Shape(("0", "1"), 4, 2, 8, 8)
    data = Arrays(tmp_path).put_state(get_statistic("slope_sums").empty(shape))
    kept = read_state((tmp_path / data.path).read_bytes())
    assert kept.shape == shape and kept["shared_up"].shape == (8, 2, 0)
    about = {"statistic": "prompt_counts", "prompts": {"ids": [], "digests": [], "categories": []}}
    old = {"layers": ["0"], "experts": 4, "top_k": 2, "model": 8, "hidden": 8}
    stored = safetensors.torch.save({"x": torch.zeros(1)}, metadata={"state": json.dumps(about | {"shape": old})})
    assert read_state(stored).shape == Shape(("0",), 4, 2, 8, 8, shared=0)
