"""Every format by a small file made by hand, against loads counted by hand; and published counts of real models."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from backend.settings import Settings
from backend.traces import Options, formats, read
from backend.traces.trace import Trace
from tests.backend.trace_files import CHOSEN, Bench, bench, gguf, imatrix, npy, rows, written

pytestmark = pytest.mark.slow

# In layer 0 of CHOSEN expert 0 is chosen 3 times, 1 once, 2 and 3 twice;
# in layer 1 experts 1 and 2 by every token. Two selections an expert is uniform.
COUNTS = [[3, 1, 2, 2], [0, 4, 4, 0]]
LOADS = [[1.5, 0.5, 1.0, 1.0], [0.0, 2.0, 2.0, 0.0]]

IDS = np.array(CHOSEN)
PROMPT, ANSWER = CHOSEN[:3], CHOSEN[3:]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    here = tmp_path_factory.mktemp("traces")
    with bench(Settings(data=here / "data", store=here / "store")) as found:
        yield found


def flame(folder: Path, layers: dict[int, np.ndarray], **more: list) -> Path:
    """A FLAME-MoE iteration: 16-bit ids and scores, a file a layer."""
    folder.mkdir(parents=True)
    for number, ids in layers.items():
        scores = pa.array([[0.75, 0.25]] * len(ids), pa.list_(pa.float16()))
        table = {"scores": scores, "indices": pa.array(ids.tolist(), pa.list_(pa.int16()))} | more
        pyarrow.parquet.write_table(pa.table(table), folder / f"layer_{number:02d}.parquet")
    return folder


def sglang(ids: np.ndarray, **meta: Any) -> dict[str, Any]:
    text = base64.b64encode(ids.astype("<i4").tobytes()).decode()
    return {
        "text": "x",
        "meta_info": {"id": "one", "prompt_tokens": 3, "completion_tokens": 2, "routed_experts": text} | meta,
    }


FILES: dict[str, tuple[str, Any, dict[str, Any], str]] = {
    "counts as whole numbers": ("a.npy", np.array(COUNTS, dtype=np.uint16), {"k": 2}, "counts"),
    "counts as floats": ("a.npy", np.array(COUNTS, dtype=np.float32), {"k": 2}, "counts"),
    "counts as JSON": ("a.json", COUNTS, {"k": 2}, "counts"),
    "counts that say their k": ("a.json", {"counts": COUNTS, "k": 2, "layers": [3, 7]}, {}, "counts"),
    "counts as CSV": ("a.csv", "3,1,2,2\n0,4,4,0\n", {"k": 2}, "counts"),
    "counts as CSV with names": ("a.csv", "layer,E0,E1,E2,E3\n3,3,1,2,2\n7,0,4,4,0\n", {"k": 2}, "counts"),
    "a stack of counts": ("a.npy", np.array([COUNTS, COUNTS]), {"k": 2, "format": "counts"}, "counts"),
    "moe-trace": (
        "a.csv",
        "layer,expert\n"
        + "".join(f"{layer},{e}\n" for token in CHOSEN for layer, chosen in enumerate(token) for e in chosen),
        {"k": 2, "experts": 4},
        "moe-trace",
    ),
    "our routes": ("a.jsonl", rows({"p": CHOSEN}), {"experts": 4}, "routes"),
    "vLLM, prompt and answer": (
        "a.json",
        {"prompt_routed_experts": PROMPT, "choices": [{"index": 0, "routed_experts": ANSWER}]},
        {"experts": 4},
        "vllm",
    ),
    "vLLM as base64": (
        "a.jsonl",
        [
            {
                "id": "r",
                "prompt_routed_experts": npy(IDS[:3].astype(np.int16)),
                "choices": [{"routed_experts": npy(IDS[3:])}],
            }
        ],
        {"experts": 4},
        "vllm",
    ),
    "vLLM's arrays": ("a.npz", {"prompt_routed_experts": IDS[:3], "routed_experts": IDS[3:]}, {"experts": 4}, "vllm"),
    "vLLM's bare array": ("a.npy", IDS, {"experts": 4, "format": "vllm"}, "vllm"),
    "SGLang": ("a.json", [sglang(IDS)], {"experts": 4, "k": 2}, "sglang"),
    "SGLang's recorder": ("a.npz", {"logical_count": np.array([COUNTS, COUNTS])}, {"k": 2}, "sglang"),
    "imatrix": (
        "a.gguf",
        imatrix({0: np.array(COUNTS[0]), 1: np.array(COUNTS[1])}, **{"imatrix.chunk_size": 4}),
        {},
        "imatrix",
    ),
}


@pytest.mark.parametrize("case", FILES)
def test_a_file_made_by_hand_gives_the_loads_counted_by_hand(opened: Bench, tmp_path: Path, case: str) -> None:
    name, content, said, kind = FILES[case]
    kept = opened.add(written(tmp_path / name, content), f"file-{list(FILES).index(case)}", **said)
    assert (kept.trace, kept.moe_layers, kept.experts, kept.top_k) == (kind, 2, 4, 2)
    found = opened.ask("expert_load", kept.id)
    assert found.values.tolist() == LOADS
    assert opened.ask("load_violation", kept.id).values.tolist() == [0.5, 1.0]


def test_every_format_is_tried() -> None:
    assert {kind for *_, kind in FILES.values()} | {"flame"} == set(formats())


def test_flame_rows_are_aligned_over_layers_and_keep_their_numbers(opened: Bench, tmp_path: Path) -> None:
    folder = flame(tmp_path / "run" / "actives" / "iter_0540", {2: IDS[:, 0], 3: IDS[:, 1]})
    kept = opened.add(folder, "flame", experts=4)
    found = opened.ask("expert_load", "flame")
    assert kept.trace == "flame" and found.values.tolist() == LOADS and found.axes[0].labels == ("2", "3")
    assert any("scores" in caveat for caveat in found.caveats)
    samples = tmp_path / "run" / "samples"
    samples.mkdir()
    pyarrow.parquet.write_table(pa.table({"token_id": pa.array([5, 6, 5, 6], pa.int32())}), samples / "000.parquet")
    opened.add(folder, "flame-ids", experts=4, window=2)
    words = opened.ask("vocabulary_specialisation", "flame-ids", min_count=1)
    # Id 5 ranks 0, then 1 first in layer 0; id 6 ranks 3, then 0: half each. Layer 1: 1 and 1, 2 and 2.
    assert words.values.tolist() == [0.5, 1.0]
    assert opened.ask("expert_load", "flame-ids").prompts == 2


def test_sizes_of_co_selection_and_transition_are_those_of_the_tokens(opened: Bench, tmp_path: Path) -> None:
    opened.add(written(tmp_path / "a.jsonl", rows({"p": CHOSEN})), "pairs", experts=4)
    both = opened.ask("coactivation", "pairs").values[0]
    # Of three tokens that chose 0 in layer 0 two chose 3 as well and one chose 2.
    assert both[0, 3] == pytest.approx(2 / 3) and both[0, 2] == pytest.approx(1 / 3) and both[2, 1] == 0.5


def test_centroids_of_an_importance_matrix_are_its_sums_over_its_counts(opened: Bench, tmp_path: Path) -> None:
    counts, generator = np.array([3, 1, 2, 2]), np.random.default_rng(0)
    for name in ("early", "late"):
        inputs = generator.normal(size=(4, 5)).astype(np.float32)
        inputs[:, 0] = counts * [2.0, 1.0, 0.5, 4.0]
        file = written(tmp_path / f"{name}.gguf", imatrix({0: counts}, {0: inputs}, **{"imatrix.chunk_size": 4}))
        prompts = opened.services.prompts.find("early") if name == "late" else None
        kept = opened.add(file, name, prompts)
        assert kept.statistics == ("prompt_counts", "centroid_sums") and kept.model == 5
    length = opened.ask("centroid_trajectory", "early", "late", prompts="early", centroid="plain")
    assert length.values.shape[-1] == 4 and np.isfinite(length.values).all()
    state = next(iter(opened.services.store.sql("select key from states where statistic = 'centroid_sums'").rows))[0]
    sums = opened.services.store.get_state(state)
    assert sums is not None
    centroid = sums["input"].sum(0)[0, :, 0] / sums["served"].sum(0)[0]
    assert centroid.tolist() == [2.0, 1.0, 0.5, 4.0]
    # Each token stands in the sums of two experts, and there are four tokens: (6 + 1 + 1 + 8) / 2 / 4.
    assert float(sums["seen_input"].sum(0)[0, 0] / sums["seen"].sum(0)[0]) == 2.0


def test_second_moments_of_an_importance_matrix_are_kept_channel_by_channel_and_said_to_be_read_by_nothing(
    opened: Bench, tmp_path: Path
) -> None:
    counts, values = np.array([2, 1, 1, 0]), np.array([[3.0, -1.0], [2.0, 4.0], [1.0, 1.0], [0.0, 0.0]])
    sums = counts[:, None] * values
    squares = counts[:, None] * (values**2 + 0.25)  # a variance of 1/4 in each channel
    squares[3] = 0
    content = imatrix({3: counts}, {3: sums}, {3: squares}, **{"imatrix.chunk_size": 2})
    kept = opened.add(written(tmp_path / "moments.gguf", content), "moments")
    trace = Trace.from_bytes((opened.services.settings.store / kept.folder).read_bytes())
    mean, second = (trace.arrays[name][0, 0, :3].numpy() / counts[:3, None] for name in ("input", "input_square"))
    assert np.allclose(second - mean**2, 0.25) and trace.arrays["input_square"].shape == (1, 1, 4, 2)
    assert kept.statistics == ("prompt_counts", "centroid_sums")
    assert any("in_sum2" in note and "no measure reads them" in note for note in kept.notes)
    (again,) = [c for c in opened.services.checkpoints.list() if c.id == "moments"]
    assert again.notes == kept.notes and again.to_json()["notes"] == list(kept.notes)


def test_dense_tensors_of_an_importance_matrix_say_how_many_tokens_there_were(tmp_path: Path) -> None:
    tensors = {
        "blk.0.attn_q.weight.counts": np.array([[4.0]]),
        "blk.0.ffn_up_exps.weight.counts": np.array([COUNTS[0]]).T,
    }
    file = written(tmp_path / "a.gguf", gguf({"general.type": "imatrix"}, tensors))
    assert read(file, Options())[1].top_k == 2


@pytest.mark.parametrize("dense", [0, -1, 7])
def test_a_layer_that_no_token_chose_in_is_left_out_and_told_of(opened: Bench, tmp_path: Path, dense: int) -> None:
    wide = np.concatenate([np.full((4, 1, 2), dense), IDS], 1)
    kept = opened.add(written(tmp_path / "a.npy", wide), f"dense{dense}", format="vllm", experts=8)
    found = opened.ask("expert_load", kept.id)
    assert found.axes[0].labels == ("1", "2") and found.values[:, :4].tolist() == (2 * np.array(LOADS)).tolist()
    assert any("taken as dense and left out: 0" in caveat for caveat in found.caveats)


def test_padding_rows_and_unused_slots_do_not_count(opened: Bench, tmp_path: Path) -> None:
    padded = np.concatenate([IDS, np.full((2, 2, 2), -1), np.zeros((1, 2, 2), int)])
    wide = np.concatenate([padded, np.full((7, 2, 6), -1)], 2)
    opened.add(written(tmp_path / "a.npy", padded), "padded", format="vllm", experts=4)
    opened.add(
        written(tmp_path / "b.npy", np.where(np.arange(7)[:, None, None] > 3, -1, wide)),
        "wide",
        format="vllm",
        experts=4,
    )
    for name in ("padded", "wide"):
        found = opened.ask("expert_load", name)
        assert found.values.tolist() == LOADS and found.tokens == 4
        assert any("3 tokens without a route" in caveat for caveat in found.caveats)


def test_of_several_answers_the_prompt_counts_once(tmp_path: Path) -> None:
    response = {"id": "r", "prompt_routed_experts": PROMPT, "choices": [{"routed_experts": ANSWER}] * 2}
    draft = read(written(tmp_path / "a.json", response), Options(experts=4))[1]
    assert draft.ids == ("r", "r-1") and np.bincount(draft.arrays["prompt"]).tolist() == [4, 1]
    assert draft.arrays["position"].tolist() == [0, 1, 2, 3, 3] and draft.arrays["role"].tolist() == [0, 0, 0, 1, 1]


def test_the_token_written_last_needs_no_route(tmp_path: Path) -> None:
    response = {"prompt_token_ids": [1, 2, 3], "prompt_routed_experts": PROMPT}
    response |= {"choices": [{"token_ids": [4, 5], "routed_experts": ANSWER}]}
    draft = read(written(tmp_path / "a.json", response), Options(experts=4))[1]
    assert draft.arrays["token"].tolist() == [1, 2, 3, 4]
    whole = {"prompt_token_ids": [1, 2, 3], "token_ids": [4, 5], "routed_experts": CHOSEN}
    again = read(written(tmp_path / "b.json", whole), Options(experts=4))[1]
    assert all(np.array_equal(again.arrays[name], array) for name, array in draft.arrays.items())


# The counts are published (github.com/allenai/OLMoE at 357454f4). What follows was worked out of them by hand, with
# nothing of this program, for layers 0, 7 and 15: the largest count over the mean, less 1, of all texts together and as
# the mean over texts; and the cosine of two texts' counts, as the mean over layers.
VIOLATION = {
    "olmoe-1b-7b-0924": (64, 8, "all", [1.098, 1.751, 1.727]),
    "mixtral-8x7b": (8, 2, "prompts", [0.1966, 0.1338, 0.2216]),
}
COSINES = {
    ("github", "arxiv"): (0.7102, 0.9284, 0.8516),
    ("github", "book"): (0.6750, 0.2653, 0.2437),
    ("c4", "wikipedia"): (0.7483, 0.6551, 0.4479),
}


@pytest.mark.parametrize("name", VIOLATION)
def test_published_counts_give_the_imbalance_worked_out_from_them(opened: Bench, root: Path, name: str) -> None:
    experts, k, over, wanted = VIOLATION[name]
    kept = opened.add(root / "data" / "traces" / f"{name}.json", name)
    assert (kept.experts, kept.top_k) == (experts, k)
    found = opened.ask("load_violation", name, over=over)
    assert found.axes[0].labels == ("0", "7", "15") and found.tokens == 5 * 208_896
    np.testing.assert_allclose(found.values, wanted, atol=5e-4)


def test_published_counts_give_the_likeness_worked_out_from_them(opened: Bench, root: Path) -> None:
    opened.add(root / "data" / "traces" / "olmoe-1b-7b-0924.json", "texts")
    found = opened.ask("signature_similarity", "texts")
    labels = found.axes[0].labels
    for (a, b), wanted in COSINES.items():
        assert found.values[labels.index(a), labels.index(b)] == pytest.approx(np.mean(wanted), abs=5e-5)
