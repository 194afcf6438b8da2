"""What servers and llama.cpp write, spoilt: the request or the tensor is named, and what is wrong with it."""

from __future__ import annotations

import base64
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.backend.trace_files import CHOSEN, Bad, cut, gguf, imatrix, npy, objects, refused

ROUTED = {"experts": 4}
COUNTS = np.array([[3, 1, 2, 2], [0, 4, 4, 0]])


def server(**response: Any) -> dict[str, Any]:
    return {"id": "r", "prompt_routed_experts": CHOSEN} | response


def sglang(data: bytes, **meta: Any) -> list[dict[str, Any]]:
    return [
        {
            "meta_info": {"prompt_tokens": 3, "completion_tokens": 2, "routed_experts": base64.b64encode(data).decode()}
            | meta
        }
    ]


FLAT = np.array(CHOSEN, "<i4").tobytes()
LAYERS = {0: COUNTS[0], 1: COUNTS[1]}
WHOLE = imatrix(LAYERS, **{"imatrix.chunk_size": 4})
SUMS = {0: np.where(COUNTS[0][:, None] > 0, 1.0, 0.0) * np.ones((4, 2)), 1: (COUNTS[1][:, None] > 0) * np.ones((4, 2))}

BAD: Bad = {
    # servers
    "ids of other tokens": (
        "a.json",
        server(prompt_token_ids=[1, 2]),
        ROUTED,
        "a.json, request 1: prompt_routed_experts has 4 rows and prompt_token_ids 2 ids",
    ),
    "a routed text": (
        "a.json",
        server(prompt_routed_experts="nrlre1:abc"),
        ROUTED,
        "prompt_routed_experts is the text 'nrlre1:abc', which is no base64",
    ),
    "base64 of anything": (
        "a.json",
        server(prompt_routed_experts="AAAA"),
        ROUTED,
        "is base64 of 3 bytes that are no .npy",
    ),
    "base64 cut short": (
        "a.json",
        server(prompt_routed_experts=base64.b64encode(cut(base64.b64decode(npy(np.array(CHOSEN))))).decode()),
        ROUTED,
        "prompt_routed_experts is no whole .npy",
    ),
    "two axes": (
        "a.json",
        server(prompt_routed_experts=[[1, 2]]),
        ROUTED,
        "prompt_routed_experts has shape [1, 2]; it must be [tokens, layers, k].",
    ),
    "an object": ("a.json", server(prompt_routed_experts={"data": ""}), ROUTED, "prompt_routed_experts is an object"),
    "requests of different models": (
        "a.json",
        [server(), server(id="s", prompt_routed_experts=[[[1, 2, 3]]])],
        ROUTED,
        "the routes of 's' have 1 layers of 3 experts, and those of 'r' 2 of 2",
    ),
    "a request twice": ("a.json", [server(), server()], ROUTED, "a.json has position 0 of the prompt 'r' twice."),
    "a flat list without k": (
        "a.json",
        sglang(FLAT),
        ROUTED,
        "meta_info.routed_experts is a flat list of 16 ids; give --k",
    ),
    "a flat list of other tokens": (
        "a.json",
        sglang(FLAT[:-4]),
        {**ROUTED, "k": 2},
        "holds 15 ids, which are no whole number of layers for 4 tokens of 2",
    ),
    "bytes that are no numbers": (
        "a.json",
        sglang(FLAT[:-1]),
        {**ROUTED, "k": 2},
        "holds 63 bytes, which are no int32 numbers",
    ),
    "tokens left open": (
        "a.json",
        sglang(FLAT, prompt_tokens=None),
        {**ROUTED, "k": 2},
        "meta_info has no prompt_tokens and completion_tokens",
    ),
    "physical experts": (
        "a.npz",
        {"global_physical_count": COUNTS},
        {"k": 2},
        "a.npz counts physical experts (global_physical_count)",
    ),
    "a .npz cut short": ("a.npz", cut(objects(logical_count=COUNTS), 40), {"k": 2}, "a.npz is no whole NumPy file"),
    # importance matrices
    "a model's GGUF": (
        "a.gguf",
        gguf({"general.type": "model"}, {}),
        {},
        "a.gguf: general.type is 'model'; it must be 'imatrix'.",
    ),
    "GGUF by its name alone": ("a.gguf", b"GGML" + bytes(40), {"format": "imatrix"}, "a.gguf is no GGUF file"),
    "GGUF of another version": ("a.gguf", gguf({}, {}, version=1), {}, "a.gguf is GGUF of version 1"),
    "GGUF cut in its head": (
        "a.gguf",
        WHOLE[:60],
        {},
        "a.gguf ends at byte 60, in the middle of its head. Was it cut short?",
    ),
    "GGUF cut in a tensor": ("a.gguf", WHOLE[:-40], {}, "Was it cut short?"),
    "GGUF of endless tensors": (
        "a.gguf",
        b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0),
        {},
        "a.gguf says that it has 1,152,921,504,606,846,976 tensors",
    ),
    "a dense model": (
        "a.gguf",
        gguf({"general.type": "imatrix"}, {"blk.0.ffn_up.weight.counts": np.array([[4.0]])}),
        {},
        "a.gguf counts no experts",
    ),
    "counts that differ": (
        "a.gguf",
        gguf(
            {"general.type": "imatrix"},
            {f"blk.0.ffn_{p}_exps.weight.counts": np.array([[n], [2.0]]) for n, p in enumerate(("gate", "up"))},
        ),
        {},
        "blk.0.ffn_up_exps.weight.counts and blk.0.ffn_gate_exps.weight.counts differ",
    ),
    "NaN counts": (
        "a.gguf",
        imatrix({0: np.array([1, np.nan, 2, 1])}),
        {},
        "weight.counts[1] is nan",
    ),
    "NaN sums": (
        "a.gguf",
        imatrix(LAYERS, {**SUMS, 1: SUMS[1] * np.nan}, **{"imatrix.chunk_size": 4}),
        {},
        "blk.1.ffn_gate_exps.weight.in_sum[0, 0] is nan",
    ),
    "squares below 0": (
        "a.gguf",
        imatrix(LAYERS, SUMS, {n: -s for n, s in SUMS.items()}, **{"imatrix.chunk_size": 4}),
        {},
        "a.gguf: blk.0.ffn_gate_exps.weight.in_sum2[0, 0] is -",
    ),
    "squares of another width": (
        "a.gguf",
        imatrix(LAYERS, SUMS, {n: np.zeros((4, 7)) for n in SUMS}, **{"imatrix.chunk_size": 4}),
        {},
        "a.gguf: in_sum and in_sum2 have widths [",
    ),
    "sums without tokens": (
        "a.gguf",
        imatrix(LAYERS, {**SUMS, 1: np.ones((4, 2))}, **{"imatrix.chunk_size": 4}),
        {},
        "blk.1.ffn_gate_exps.weight counts no token of expert 0 and yet has its in_sum.",
    ),
    "counts on the wrong axis": (
        "a.gguf",
        gguf({"general.type": "imatrix"}, {"blk.0.ffn_up_exps.weight.counts": np.array([[2.0, 2.0]])}),
        {},
        "has shape [1, 2]; it must be [experts, 1].",
    ),
    "layers of different sizes": (
        "a.gguf",
        imatrix({0: COUNTS[0], 1: np.array([4, 4])}),
        {},
        "a.gguf: layer 1 has 2 experts and layer 0 4.",
    ),
    "tokens that do not follow": (
        "a.gguf",
        imatrix(LAYERS, **{"imatrix.chunk_size": 3}),
        {},
        "a.gguf counts 8 selections a layer and 3 tokens, so how many",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_response_or_matrix_is_refused_with_what_is_wrong(tmp_path: Path, case: str) -> None:
    refused(tmp_path, BAD[case])
