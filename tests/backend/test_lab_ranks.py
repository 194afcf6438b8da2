"""Several processes that train one run leave the state of one."""

import os
import socket
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import DistributedType, FullyShardedDataParallelPlugin
from accelerate.state import AcceleratorState
from safetensors.torch import load_file, save_file
from torch import multiprocessing

from analysis.lab.routers import router_names
from backend.errors import Refusal
from backend.lab import ranks
from backend.lab.batches import TokenisedCorpus, batches
from backend.lab.model_files import relative_distance, vocabulary
from backend.lab.settings import RunSettings
from backend.lab.train import moments, train
from backend.lab.unfinished import Unfinished
from backend.recorder import GeometryRecorder
from backend.recorder.record import file_name, merged, read
from tests.backend.lab_corpus import TINY

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]

STEPS = 6
TOLERANCE = 2e-7
"""Of the norm of the whole state: sums of float32 in another order, six times (measured: 1.3e-8 to 1.6e-8)."""
SUMMED = 2e-6
"""Of the norm of recorded sums: of float32 inputs to some hundred tokens, in another order (measured: 2e-9 to 6e-7)."""
LEARNT = [name for name in router_names() if name not in ("frozen", "hashed", "unbalanced")]


RESUMED, RECORDED = "kmeans", "softmax_aux"
WAYS = {"whole": LEARNT, "sharded": ["expert_choice", "kmeans", "loss_free", "softmax_aux"]}
"""Each with the whole model, or with half of every tensor: there, one router of each kind of state."""


def end(
    settings: RunSettings, corpus: Path, kept: Unfinished | None = None, until: int = STEPS
) -> dict[str, torch.Tensor]:
    torch.set_num_threads(1)
    for moment in moments(settings, vocabulary(corpus), batches(TokenisedCorpus(corpus), settings.seed), kept):
        last = moment
        if moment.step == until:
            break
    return last.weights()


def cut_short(settings: RunSettings, corpus: Path, kept: Unfinished) -> dict[str, torch.Tensor]:
    """Begun, stopped after step 3 and gone on with from step 2."""
    end(settings, corpus, kept, until=3)
    return end(settings, corpus, kept)


def recorded(settings: RunSettings, corpus: Path, folder: Path) -> None:
    """A run that a recorder watches from its start, with geometry."""
    torch.set_num_threads(1)
    for moment in moments(settings, vocabulary(corpus), batches(TokenisedCorpus(corpus), settings.seed)):
        if moment.step == 0:  # prepared already: wrapped, and sharded where this run is
            recorder = GeometryRecorder(moment.model, every=2, folder=folder, geometry=True)
        else:
            recorder.step()
    recorder.close()


SHARDED = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_TRANSFORMER_CLS_TO_WRAP": "LabDecoderLayer",
    "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",
    "FSDP_CPU_RAM_EFFICIENT_LOADING": "false",
}
"""What `accelerate launch --use_fsdp --fsdp_version 2` sets."""


def shard_on_processors() -> None:
    """Torch shards on processors as on GPUs; accelerate allows it on GPUs only, so it is told that it may."""
    made = AcceleratorState.__init__

    def allowed(self: AcceleratorState, *args: Any, **more: Any) -> None:
        made(self, *args, **more)
        if self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type = DistributedType.FSDP
            self.fsdp_plugin = FullyShardedDataParallelPlugin()

    AcceleratorState.__init__ = allowed


def one_of(rank: int, count: int, port: int, corpus: Path, folder: Path, routers: list[str], way: str) -> None:
    """A process of `count`: what `accelerate launch` tells it, it is told here."""
    if way == "sharded":
        os.environ |= SHARDED
        shard_on_processors()
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "ACCELERATE_USE_CPU": "true"}
    like = {router: replace(TINY, router=router, balancing=None, steps=STEPS) for router in routers}
    found = {router: end(settings, corpus) for router, settings in like.items()}
    found["resumed"] = cut_short(like[RESUMED], corpus, Unfinished(folder / "kept", 2))
    for name, weights in found.items() if rank == 0 else ():
        save_file({key: tensor.contiguous() for key, tensor in weights.items()}, folder / f"{name}.safetensors")
    train(replace(TINY, stored=(0, 3)), corpus, folder / "run")
    recorded(replace(TINY, router=RECORDED, balancing=None, steps=4), corpus, folder / "recorded")
    torch.distributed.destroy_process_group()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def ran(lab_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """What two processes left of each way, run once: pytest would set up a parameter anew for each router."""

    @cache
    def of(way: str) -> Path:
        folder = tmp_path_factory.mktemp("two")
        processes = (2, free_port(), lab_corpus, folder, WAYS[way], way)
        multiprocessing.get_context("forkserver").set_forkserver_preload(["backend.runners.preload", train.__module__])
        multiprocessing.start_processes(one_of, processes, nprocs=2, start_method="forkserver")
        return folder

    return of


@pytest.fixture(params=WAYS)
def of_two(request: pytest.FixtureRequest, ran: Callable[[str], Path]) -> Path:
    """What two processes left of a way."""
    return ran(request.param)


@pytest.mark.parametrize(
    ("of_two", "router"), [(way, router) for way, routers in WAYS.items() for router in routers], indirect=["of_two"]
)
def test_two_processes_give_the_state_of_one(router: str, lab_corpus: Path, of_two: Path) -> None:
    alone = end(replace(TINY, router=router, balancing=None, steps=STEPS), lab_corpus)
    together = load_file(of_two / f"{router}.safetensors")
    assert relative_distance(together, alone) < TOLERANCE
    start = end(replace(TINY, router=router, balancing=None, steps=0), lab_corpus)
    assert relative_distance(start, alone) > 1000 * TOLERANCE, "the tolerance sees a run that did not move"


def test_two_processes_go_on_from_where_they_were_kept(lab_corpus: Path, of_two: Path) -> None:
    assert Unfinished(of_two / "kept", 2).step == STEPS - 2, "what was kept went on and was kept again"
    alone = end(replace(TINY, router=RESUMED, balancing=None, steps=STEPS), lab_corpus)
    assert relative_distance(load_file(of_two / "resumed.safetensors"), alone) < TOLERANCE


def test_two_processes_write_one_run(lab_corpus: Path, of_two: Path, tmp_path: Path) -> None:
    train(replace(TINY, stored=(0, 3)), lab_corpus, tmp_path)
    for run in (of_two / "run", tmp_path):
        assert sorted(path.name for path in run.iterdir()) == [
            "first-batches.npy", "log.jsonl", "run.json", "step-00000", "step-00003"
        ]  # fmt: skip
    ours, theirs = ((run / "log.jsonl").read_text().count("\n") for run in (of_two / "run", tmp_path))
    assert ours == theirs
    steps = (load_file(run / "step-00003" / "model.safetensors") for run in (of_two / "run", tmp_path))
    assert relative_distance(*({name: t.float() for name, t in step.items()} for step in steps)) < 1e-4  # float16


def test_the_records_of_two_processes_add_up_to_those_of_one(lab_corpus: Path, of_two: Path, tmp_path: Path) -> None:
    recorded(replace(TINY, router=RECORDED, balancing=None, steps=4), lab_corpus, tmp_path)
    for one, two in zip(
        *(merged(folder.glob("*.safetensors")) for folder in (tmp_path, of_two / "recorded")), strict=True
    ):
        assert one.step == two.step
        for name in ("selected", "tokens"):
            assert torch.equal(one.sums[name], two.sums[name])
        for name in ("weights", "centroids", "rows"):
            assert (two.sums[name] - one.sums[name]).norm() < SUMMED * one.sums[name].norm()
    files = [read((of_two / "recorded" / file_name(4, rank)).read_bytes(), file_name(4, rank)) for rank in (0, 1)]
    assert torch.equal(*(file.sums["rows"] for file in files)), "both know the whole router"


def test_a_batch_that_cannot_be_shared_equally_is_refused() -> None:
    class OfThree:
        num_processes, process_index, device = 3, 0, "cpu"

    with pytest.raises(Refusal, match="16 sequences cannot be shared equally by 3 processes"):
        ranks.share(torch.zeros(16, 129), OfThree())
