"""A paged pass that was killed goes on after the last layer that all prompts had left, and ends with the same bits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from backend.checkpoints import Checkpoint
from backend.paging.tree import Unkeepable, digest, packed, unpacked
from tests.backend import tiny_olmoe
from tests.backend.paged_files import Machine, read, saved, task

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
LAYERS = 4
KILLED = """
import os, signal, sys
from pathlib import Path
import torch
from tests.backend.paged_files import Machine, read, task
torch.set_num_threads(1)
machine, layer = Machine(Path(sys.argv[2]), "always"), 0
for message in machine.messages(task(read(Path(sys.argv[1])))):
    if "layer 3 of 4" in getattr(message, "stage", ""):
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return read(tiny_olmoe.save(tmp_path / "model", num_hidden_layers=LAYERS))


def stopped(machine: Machine, checkpoint: Checkpoint, words: str) -> None:
    """Run until somebody is told of this, and go no further."""
    messages = machine.messages(task(checkpoint))
    assert any(words in getattr(message, "stage", "") for message in messages)
    messages.close()  # pyright: ignore[reportAttributeAccessIssue]


def layers_read(machine: Machine, checkpoint: Checkpoint) -> set[int]:
    times = machine.pager(checkpoint).files.times
    assert set(times.values()) == {1}
    return {int(name.split(".layers.")[1].split(".")[0]) for name in times if ".layers." in name}


@pytest.mark.slow
def test_a_killed_process_is_gone_on_with_by_the_next(checkpoint: Checkpoint, tmp_path: Path) -> None:
    expected = Machine(tmp_path / "whole", "never").run(task(checkpoint))
    store, root = tmp_path / "store", Path(__file__).parents[2]
    command = [sys.executable, "-c", KILLED, checkpoint.folder, str(store)]
    ended = subprocess.run(command, cwd=root, env=os.environ | {"PYTHONPATH": str(root)}, capture_output=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    machine = Machine(store, "always")
    assert machine.run(task(checkpoint)) == expected
    assert layers_read(machine, checkpoint) == {2, 3}
    assert not list((store / "unfinished").iterdir()), "what is finished leaves nothing behind"


@pytest.mark.parametrize("kind", ["deepseek_v3", "gpt_oss", "zaya", "cohere2_moe", "gemma4_text"])
def test_layers_that_were_run_are_not_read_again_whatever_passes_between_them(
    kind: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    checkpoint = saved(kind, tmp_path / kind)
    expected = Machine(tmp_path / "whole", "never").run(task(checkpoint))
    stopped(Machine(tmp_path / "store", "always"), checkpoint, "layer 2 of 2")
    again = Machine(tmp_path / "store", "always")
    assert again.run(task(checkpoint)) == expected
    assert layers_read(again, checkpoint) == {1}


def test_another_question_of_the_same_prompts_begins_at_the_first_layer(checkpoint: Checkpoint, tmp_path: Path) -> None:
    stopped(Machine(tmp_path, "always"), checkpoint, "layer 3 of 4")
    machine = Machine(tmp_path, "always")
    machine.run(task(checkpoint, ("prompt_counts",)))
    assert layers_read(machine, checkpoint) == set(range(LAYERS))


@pytest.mark.parametrize("spoilt", ["done.json", "walk-2-1.safetensors", "routed-0.safetensors"])
def test_what_is_damaged_is_made_anew(spoilt: str, checkpoint: Checkpoint, tmp_path: Path) -> None:
    expected = Machine(tmp_path / "whole", "never").run(task(checkpoint))
    stopped(Machine(tmp_path / "store", "always"), checkpoint, "layer 3 of 4")
    [file] = (tmp_path / "store").glob(f"unfinished/*/{spoilt}")
    file.write_bytes(file.read_bytes()[:-20])
    machine = Machine(tmp_path / "store", "always")
    assert machine.run(task(checkpoint)) == expected
    assert layers_read(machine, checkpoint) == set(range(LAYERS))


def test_bits_that_changed_on_disk_are_noticed(checkpoint: Checkpoint, tmp_path: Path) -> None:
    stopped(Machine(tmp_path / "store", "always"), checkpoint, "layer 3 of 4")
    [file] = (tmp_path / "store").glob("unfinished/*/walk-2-1.safetensors")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    expected = Machine(tmp_path / "whole", "never").run(task(checkpoint))
    machine = Machine(tmp_path / "store", "always")
    assert machine.run(task(checkpoint)) == expected
    assert layers_read(machine, checkpoint) == set(range(LAYERS))


def test_whatever_a_layer_gives_is_kept_or_refused() -> None:
    tensor = torch.arange(6.0).view(2, 3)
    value = (tensor, [None, tensor.bfloat16()], {"state": tensor[:, :1], "k": 2})
    tensors: dict[str, torch.Tensor] = {}
    told = packed(value, tensors)
    assert digest(unpacked(told, tensors, torch.device("cpu"))) == digest(value)
    assert digest((tensor, 1)) != digest((tensor + 1, 1)) != digest((tensor, 2))
    with pytest.raises(Unkeepable, match="a layer gives a set"):
        packed({1, 2}, {})
