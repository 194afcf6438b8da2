"""The recorder counts what was routed, is nowhere between recordings, and never stops a training."""

from __future__ import annotations

import http.server
import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.testing import assert_close
from transformers import Trainer, TrainingArguments

from analysis.errors import GeometryError
from backend.adapters import Unsupported, adapt
from backend.recorder import GeometryRecorder
from backend.recorder.folder import SENT
from backend.recorder.health import TRAINERS, timeline
from backend.recorder.record import BadRecord, Record, file_name, merged, read
from backend.recorder.trainer import GeometryCallback
from tests.backend import tiny_moe

pytestmark = pytest.mark.slow


def model_of(family: str = "olmoe") -> Any:
    torch.manual_seed(0)
    return getattr(tiny_moe, family)().train()


def ids(seed: int = 1, sequences: int = 2, length: int = 12) -> torch.Tensor:
    return torch.randint(0, 256, (sequences, length), generator=torch.Generator().manual_seed(seed))


def loads_of(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Counts from the logits that the model itself reports, layer by expert."""
    with torch.no_grad():
        logits = model(input_ids=tokens, output_router_logits=True).router_logits
    chosen = [each.topk(tiny_moe.TOP_K).indices.flatten() for each in logits]
    return torch.stack([torch.bincount(each, minlength=tiny_moe.EXPERTS) for each in chosen])


def records(folder: Path) -> list[Record]:
    return merged(file for file in folder.iterdir() if file.suffix == ".safetensors")


def hooks(model: Any) -> int:
    return sum(len(m._forward_pre_hooks) + len(m._forward_hooks) + len(m._backward_hooks) for m in model.modules())


@pytest.mark.parametrize("family", ["olmoe", "mixtral", "qwen3_moe"])
def test_counts_are_those_of_the_models_own_logits_over_all_passes_of_a_step(family: str, tmp_path: Path) -> None:
    model = model_of(family)
    recorder = GeometryRecorder(model, every=1, folder=tmp_path)
    for seed in (1, 2):
        model(input_ids=ids(seed)).logits.sum().backward()
    recorder.step()
    recorder.close()
    [record] = records(tmp_path)
    assert torch.equal(record.sums["selected"], loads_of(model, ids(1)) + loads_of(model, ids(2)))
    assert record.sums["tokens"].tolist() == [48] * 3 and record.sums["passes"].tolist() == [2] * 3


def test_padding_and_evaluation_do_not_count(tmp_path: Path) -> None:
    model, mask = model_of(), torch.ones(2, 12, dtype=torch.long)
    mask[1, 7:] = 0
    recorder = GeometryRecorder(model, every=1, folder=tmp_path)
    model(input_ids=ids(), attention_mask=mask)
    model.eval()
    model(input_ids=ids(3))
    recorder.step()
    recorder.close()
    [record] = records(tmp_path)
    assert record.sums["tokens"].tolist() == [19] * 3
    assert record.sums["selected"].sum(-1).tolist() == [19 * tiny_moe.TOP_K] * 3


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_pass_that_checkpointing_runs_again_counts_once(reentrant: bool, tmp_path: Path) -> None:
    model = model_of()
    model.activation_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    recorder = GeometryRecorder(model, every=1, folder=tmp_path)
    model(input_ids=ids(), use_cache=False).logits.sum().backward()
    recorder.step()
    recorder.close()
    [record] = records(tmp_path)
    assert record.sums["tokens"].tolist() == [24] * 3


def test_between_recordings_there_is_no_hook_and_the_model_gives_what_it_gave(tmp_path: Path) -> None:
    model = model_of()
    before, plain = hooks(model), model(input_ids=ids()).logits
    recorder = GeometryRecorder(model, every=3, folder=tmp_path)
    found = []
    for _ in range(6):
        found.append(hooks(model) - before)
        assert torch.equal(model(input_ids=ids()).logits, plain)
        recorder.step()
    recorder.close()
    layers = len(adapt(model).layers)
    assert found == [0, 0, layers + 1] * 2 and hooks(model) == before
    assert [record.step for record in records(tmp_path)] == [3, 6]


def test_two_processes_add_up_to_one(tmp_path: Path) -> None:
    model = model_of()
    for rank, part in ((0, ids()[:1]), (1, ids()[1:])):
        recorder = GeometryRecorder(model, every=1, folder=tmp_path / "two", geometry=True, rank=rank)
        model(input_ids=part)
        recorder.step()
    one = GeometryRecorder(model, every=1, folder=tmp_path / "one", geometry=True, rank=0)
    model(input_ids=ids())
    one.step()
    [two], [whole] = records(tmp_path / "two"), records(tmp_path / "one")
    for name in ("selected", "weights", "tokens", "centroids", "rows"):
        assert_close(two.sums[name], whole.sums[name], rtol=1e-5, atol=1e-5)


def test_health_by_hand_under_each_trainers_name() -> None:
    sums = {"selected": torch.tensor([[6, 2, 0, 0], [2, 2, 2, 2]]), "tokens": torch.tensor([4, 4])}
    sums |= {"weights": torch.zeros(2, 4), "passes": torch.tensor([1, 1]), "violation": torch.tensor([2.0, 0.0])}
    [point] = timeline([Record(5, sums)])
    assert point["max_violation"] == [2.0, 0.0] and point["dead_experts"] == [2, 0] and point["load"][0] == [3, 1, 0, 0]
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25)) / math.log(4)
    assert point["load_entropy"] == pytest.approx([entropy, 1])
    expected = [3.0, 1.0, 1.0, 1.0, math.sqrt(2) / 2, 0.0, 0.0, math.sqrt(2), 1.0, 0.0, 3.0]
    expected += [(entropy + 1) / 2, entropy, 0.5, 0.75, 0.75]
    assert point["trainers"] == pytest.approx(dict(zip(TRAINERS, expected, strict=True)))


@contextmanager
def taking(taken: list[str], port: int = 0, answer: Callable[[str], int] = lambda name: 204) -> Iterator[int]:
    """A server that takes what is put to it, or answers otherwise; 0 is an answer that is no HTTP."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            name = self.path.rsplit("/", 1)[1]
            taken.append(name)
            if not (status := answer(name)):
                self.wfile.write(b"who is there?\r\n\r\n")
                return
            self.send_response(status)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


def test_a_backend_that_is_away_stops_nothing_and_gets_all_in_order_when_it_is_back(tmp_path: Path) -> None:
    taken: list[str] = []
    with taking(taken) as port:
        pass
    model = model_of()
    recorder = GeometryRecorder(model, every=1, folder=tmp_path / "run", to=f"http://127.0.0.1:{port}")
    for _ in range(3):
        model(input_ids=ids())
        recorder.step()
    time.sleep(0.2)
    assert not taken and len(records(tmp_path / "run")) == 3
    with taking(taken, port):
        model(input_ids=ids())
        recorder.step()
        recorder.close(20)
    wanted = [file_name(step, 0) for step in (1, 2, 3, 4)]
    assert [name for name in taken if name != "run.json"] == wanted
    assert (tmp_path / "run" / SENT).read_text().split() == wanted


def test_a_record_that_is_refused_and_an_answer_that_is_no_http_keep_the_others_not_waiting(tmp_path: Path) -> None:
    taken: list[str] = []
    wanted = [file_name(step, 0) for step in (1, 2, 3)]

    def answer(name: str) -> int:
        if name == wanted[0]:
            return 0 if taken.count(name) == 1 else 422
        return 204

    model = model_of()
    with taking(taken, answer=answer) as port:
        recorder = GeometryRecorder(model, every=1, folder=tmp_path / "run", to=f"http://127.0.0.1:{port}")
        for _ in wanted:
            model(input_ids=ids())
            recorder.step()
            time.sleep(0.2)
        recorder.close(20)
    assert (tmp_path / "run" / SENT).read_text().split() == wanted


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model, folder = model_of(), tmp_path / "run"
    recorder = GeometryRecorder(model, every=1, folder=folder)
    (folder / "run.json").unlink()
    folder.rmdir()
    model(input_ids=ids())
    recorder.step()
    assert "step 1 could not be written" in caplog.text


def test_a_step_without_a_pass_is_said_and_not_recorded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    GeometryRecorder(model_of(), every=1, folder=tmp_path).step()
    assert "no forward pass in training mode" in caplog.text and not records(tmp_path)


@pytest.mark.parametrize(
    ("data", "name", "sentence"),
    [(b"", "x.bin", "no name of a record"), (b"xxxxxxxxxxxx", file_name(1, 0), "no whole safetensors file")],
)
def test_what_is_no_record_is_refused_in_a_sentence(data: bytes, name: str, sentence: str) -> None:
    with pytest.raises(BadRecord, match=sentence):
        read(data, name)


def test_bad_arguments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(GeometryError, match="every must be 1 or more"):
        GeometryRecorder(model_of(), every=0, folder=tmp_path)
    with pytest.raises(GeometryError, match="no address of a backend"):
        GeometryRecorder(model_of(), folder=tmp_path, to="localhost:8000")


def test_weights_that_fsdp_of_version_1_flattened_are_refused_at_the_start_and_later_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = model_of()
    recorder = GeometryRecorder(model, every=2, folder=tmp_path)
    wrapper = FullyShardedDataParallel.__new__(FullyShardedDataParallel)
    torch.nn.Module.__init__(wrapper)  # a real one needs processes
    model.model.layers[0].add_module("wrapped", wrapper)
    for _ in range(2):
        recorder.step()
    assert "FSDP of version 1 flattens weights" in caplog.text and not records(tmp_path)
    with pytest.raises(Unsupported, match=r"shard by version 2 \(fsdp_version 2"):
        GeometryRecorder(model, folder=tmp_path)


class Tokens(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = ids(index, 1)[0]
        return {"input_ids": row, "labels": row}


def test_a_trainer_with_the_callback_leaves_a_record_every_so_many_steps(tmp_path: Path) -> None:
    model = model_of()
    before = hooks(model)
    arguments = TrainingArguments(
        output_dir=str(tmp_path / "out"),
        max_steps=4,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
        logging_strategy="no",
        dataloader_pin_memory=False,
    )
    callback = GeometryCallback(every=2, folder=tmp_path / "run", geometry=True)
    Trainer(model, arguments, train_dataset=Tokens(), callbacks=[callback]).train()
    found = records(tmp_path / "run")
    assert [record.step for record in found] == [2, 4] and hooks(model) == before
    assert [record.sums["passes"].tolist() for record in found] == [[2] * 3] * 2
    assert [record.sums["tokens"].tolist() for record in found] == [[48] * 3] * 2
    assert all(set(point) >= {"row_cosine", "centroid_cosine", "trainers"} for point in timeline(found))


def test_the_recorder_needs_no_service_package(root: Path) -> None:
    code = (
        "import sys, backend.recorder, backend.recorder.trainer; "
        "sys.exit(bool({'fastapi', 'duckdb', 'uvicorn', 'starlette'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=root).returncode == 0
