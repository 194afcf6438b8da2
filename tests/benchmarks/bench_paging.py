"""A checkpoint run one layer at a time, in a process that may hold a quarter of it, against reading it and running it.

The checkpoint is made here: OLMoE's layout, random weights, 8.4 GB unless MOE_BENCH_PAGING_GB says otherwise. Each side
is a process of its own that has imported all it needs. The resident one has a quarter of the layers in memory already
(all of them, while they are loaded, would take twice the checkpoint), so that four times its time is that of reading
the files once and of the passes. Before each run the files leave the page cache. The limit is
RLIMIT_DATA, which counts all memory of a process that is not a file's: a quarter of the checkpoint. One below 8 GB has
too few layers for that, and its process may hold six of them beside the interpreter. Arrow's own allocator reserves a
gigabyte at once, so it is told to use the system's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from transformers import OlmoeConfig

from tests.backend.tiny_olmoe import byte_tokenizer
from tests.benchmarks.case import Case, Race

GIGABYTES = float(os.environ.get("MOE_BENCH_PAGING_GB", "8.4"))
MODEL, HIDDEN, EXPERTS, TOP_K, HEADS = 1024, 512, 40, 8, 16
LAYER = 4 * (3 * EXPERTS * MODEL * HIDDEN + 4 * MODEL * MODEL)
PART = 4
LAYERS = PART * max(1, round(GIGABYTES * 1e9 / LAYER / PART))
CHILD = Path(__file__).with_name("paging_child.py")
WATCHERS: list[subprocess.Popen[bytes]] = []


def write(folder: Path) -> None:
    """A file for each layer, so that no more than one is ever in memory; weights of the size that init gives them."""
    config = OlmoeConfig(
        vocab_size=257,
        hidden_size=MODEL,
        intermediate_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        num_experts=EXPERTS,
        num_experts_per_tok=TOP_K,
        pad_token_id=256,
        eos_token_id=256,
        dtype=torch.float32,
        architectures=["OlmoeForCausalLM"],
    )
    config.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    generator, places = torch.Generator().manual_seed(0), {}

    def random(*size: int) -> torch.Tensor:
        return torch.empty(size).uniform_(-0.05, 0.05, generator=generator)

    def save(name: str, tensors: dict[str, torch.Tensor]) -> None:
        safetensors.torch.save_file(tensors, folder / name, metadata={"format": "pt"})
        places.update(dict.fromkeys(tensors, name))

    for number in range(LAYERS):
        at = f"model.layers.{number}"
        tensors = {f"{at}.self_attn.{part}_proj.weight": random(MODEL, MODEL) for part in "qkvo"}
        tensors |= {f"{at}.{name}.weight": torch.ones(MODEL) for name in NORMS}
        tensors[f"{at}.mlp.gate.weight"] = random(EXPERTS, MODEL)
        for expert in range(EXPERTS):
            for part, size in (("gate", (HIDDEN, MODEL)), ("up", (HIDDEN, MODEL)), ("down", (MODEL, HIDDEN))):
                tensors[f"{at}.mlp.experts.{expert}.{part}_proj.weight"] = random(*size)
        save(f"layer-{number}.safetensors", tensors)
    table = {"model.embed_tokens.weight": random(257, MODEL), "lm_head.weight": random(257, MODEL)}
    save("outside.safetensors", table | {"model.norm.weight": torch.ones(MODEL)})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    _first_layers(folder, config, places)


def _first_layers(folder: Path, config: OlmoeConfig, places: dict[str, str]) -> None:
    """Beside it, the same model cut off after a quarter of its layers: links to the same files."""
    part, most = folder / "part", LAYERS // PART
    config.num_hidden_layers = most
    config.save_pretrained(part)
    byte_tokenizer().save_pretrained(part)
    kept = {f"layer-{number}.safetensors" for number in range(most)} | {"outside.safetensors"}
    for name in kept:
        (part / name).symlink_to(folder / name)
    own = {tensor: name for tensor, name in places.items() if name in kept}
    (part / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": own}))


NORMS = ("input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm")


class Side:
    """A process that runs the prompts when it is told to, and says what that took."""

    def __init__(self, mode: str, folder: Path):
        command = [sys.executable, str(CHILD), mode, str(folder)]
        root = str(CHILD.parents[2])
        environment = os.environ | {"PYTHONPATH": root, "OMP_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=root
        )
        self._told()

    def run(self) -> dict[str, Any]:
        """One run of all prompts."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._told()

    def _told(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process ended with {self._process.wait()}")
        return json.loads(line)


def race() -> Race:
    """Both sides ready; the checkpoint goes with the process that made it."""
    folder = Path(tempfile.mkdtemp(prefix="paging-"))
    try:
        write(folder)
        return Race(Side("always", folder).run, Side("never", folder / "part").run, same, times=PART)
    finally:
        _when_done(folder)


def _when_done(folder: Path) -> None:
    """Nobody tells a benchmark's process that it is over, and 8 GB must not stay."""
    watcher = "import sys, shutil; sys.stdin.read(); shutil.rmtree(sys.argv[1], ignore_errors=True)"
    # Its input closes when this process ends, however it ends.
    WATCHERS.append(subprocess.Popen([sys.executable, "-c", watcher, str(folder)], stdin=subprocess.PIPE))


def same(mine: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Every state and route to the last bit, every byte read once, and no more memory than was promised."""
    told = {name: value for name, value in mine.items() if name != "digests"}
    print(json.dumps(told), file=sys.stderr)
    assert mine["digests"][: LAYERS // PART] == theirs["digests"], "of each layer that both have"
    assert mine["times"] == [1] and mine["bytes"] == mine["layer_bytes_all"]
    assert mine["peak"] - mine["base"] <= mine["outside"] + 3 * mine["layer"] + mine["activations"]


CASES = (
    Case(
        f"paged pass, {LAYERS * LAYER / 1e9:.1f} GB in a quarter of it",
        f"reading the files, and the resident pass: a quarter of the layers, times {PART}",
        1.6,
        race,
        1,
        overhead=True,
    ),
)
