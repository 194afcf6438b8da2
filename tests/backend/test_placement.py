"""A model spread by a device map: on this machine all of it lies on the CPU, under accelerate's hooks all the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from analysis.statistic import State, statistics
from backend.adapters import adapt
from backend.capture import CaptureOptions, capture
from backend.checkpoints import Checkpoint
from backend.checkpoints.digests import Digests
from backend.checkpoints.loading import load, load_tokenizer
from backend.checkpoints.placement import device_map, spread
from backend.checkpoints.source import read_folder
from backend.errors import Refusal, TooLarge
from backend.runners.residents import SpreadResident, together
from tests.backend import tiny_olmoe

WORDS = tiny_olmoe.prompts(6)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder: Path = tiny_olmoe.save(tmp_path_factory.mktemp("spread"))
    return read_folder(folder, None, Digests(), hash_all=True)


def states(model: Any, checkpoint: Checkpoint) -> dict[str, State]:
    """Every statistic there is, of one pass."""
    found: dict[str, State] = {}
    needs = frozenset().union(*(s.needs for s in statistics().values()))
    for batch in capture(model, adapt(model), load_tokenizer(checkpoint), WORDS.prompts, CaptureOptions(), needs):
        assert batch.route is not None
        for name, statistic in statistics().items():
            for part in batch.layers if statistic.reads_layers else (batch.route,):
                found[name] = statistic.grow(found.get(name) or statistic.empty(part.shape), part)
    return found


def hooked(model: Any) -> set[str]:
    """Parts that accelerate brings their inputs to."""
    return {name for name, module in model.named_modules() if hasattr(module, "_hf_hook")}


def test_every_statistic_of_a_spread_model_is_that_of_the_same_model_on_one_device(
    tiny: Checkpoint, one_thread: None
) -> None:
    plain = load(tiny, "cpu")
    parts = {"model.embed_tokens": "cpu", "model.norm": "cpu", "model.rotary_emb": "cpu", "lm_head": "cpu"}
    layers = {f"model.layers.{n}": "cpu" for n in range(tiny.layers)}
    mixed = spread(load(tiny, "cpu"), {**parts, **layers})
    assert {"", "model.layers.0", "model.layers.1.mlp.experts"} <= hooked(mixed) and not hooked(plain)
    own, other = states(plain, tiny), states(mixed, tiny)
    for name, state in own.items():
        for array, values in state.arrays.items():
            assert torch.equal(values.nan_to_num(-7.0), other[name][array].nan_to_num(-7.0)), (name, array)


def test_loading_with_places_spreads_and_what_no_place_takes_is_refused(tiny: Checkpoint) -> None:
    mixed = load(tiny, "cpu", {"cpu": 1 << 30})
    assert "" in hooked(mixed) and {p.device.type for p in mixed.parameters()} == {"cpu"}
    assert torch.equal(adapt(mixed).weights("down_weight"), adapt(load(tiny, "cpu")).weights("down_weight"))
    with pytest.raises(TooLarge, match="cpu do not take OlmoeForCausalLM in whole decoder layers"):
        load(tiny, "cpu", {"cpu": 1000})


def test_no_decoder_layer_is_cut_in_two(tiny: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """A place for the table of words, one layer and half of the next: the second layer goes on to the next place."""
    model = load(tiny, "cpu")
    sizes = {name: sum(p.nbytes for p in m.parameters()) for name, m in model.named_modules()}
    words, layer = sizes["model.embed_tokens"], sizes["model.layers.0"]
    room = {0: 2 * words + layer * 3 // 2, "cpu": 1 << 30}  # accelerate keeps the largest part free on the first card
    monkeypatch.setattr("accelerate.utils.modeling.get_max_memory", lambda given: given)  # there is no card 0 here
    where = device_map(model, room)
    assert where["model.layers.0"] == 0 and where["model.layers.1"] == "cpu"


@pytest.mark.gpu
def test_a_model_half_on_a_card_and_half_on_the_cpu_routes_as_on_the_cpu(tiny: Checkpoint) -> None:
    parts: dict[str, int | str] = {"model.embed_tokens": 0, "model.layers.0": 0, "model.layers.1": "cpu"}
    rest: dict[str, int | str] = {"model.norm": "cpu", "model.rotary_emb": 0, "lm_head": "cpu"}
    mixed = spread(load(tiny, "cpu"), parts | rest)
    assert {p.device.type for p in mixed.parameters()} == {"cuda", "cpu"}
    own, other = states(load(tiny, "cpu"), tiny), states(mixed, tiny)
    for name in ("prompt_counts", "coactivation_counts", "token_routes"):
        for array, values in own[name].arrays.items():
            torch.testing.assert_close(values, other[name][array], rtol=1e-4, atol=1e-5, equal_nan=True)
    assert set(other) == set(statistics())


def test_an_edit_of_a_spread_model_is_refused_in_a_sentence() -> None:
    with pytest.raises(Refusal, match=r"tiny is spread over several devices.*an edit is made for one device"):
        together(SpreadResident(None, None, None, 0), "tiny", "an edit")
