"""A run that is cut short goes on to the same numbers."""

import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from accelerate import Accelerator
from typer.testing import CliRunner

from analysis.lab.routers import DENSE, router_names
from backend.errors import Conflict
from backend.lab import cli
from backend.lab.batches import TokenisedCorpus, batches
from backend.lab.model_files import relative_distance, state, vocabulary
from backend.lab.train import finished, moments, read_settings, train
from backend.lab.unfinished import Unfinished
from tests.backend.lab_corpus import TINY

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]

PATIENCE = 120.0


def end(lab_corpus: Path, settings, unfinished: Unfinished | None = None, steps: int | None = None):
    """The state after `steps` of a run, or after all."""
    stream = batches(TokenisedCorpus(lab_corpus), settings.seed)
    for moment in moments(settings, vocabulary(lab_corpus), stream, unfinished):
        if moment.step == steps:
            break
    return state(moment.model)


@pytest.mark.parametrize("router", [*router_names(), DENSE])
def test_every_router_goes_on_to_the_same_numbers(router: str, lab_corpus: Path, tmp_path: Path) -> None:
    settings = replace(TINY, router=router, balancing=None, steps=5)
    unfinished = Unfinished(tmp_path / "kept", 2)
    end(lab_corpus, settings, unfinished, steps=3)
    assert unfinished.step == 2
    resumed = end(lab_corpus, settings, unfinished)
    assert relative_distance(resumed, end(lab_corpus, settings)) == 0.0
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["4"]


def test_a_killed_run_ends_with_the_files_of_one_that_was_not(lab_corpus: Path, tmp_path: Path) -> None:
    words = ["train", "--router", "kmeans", "--size", "s32", "--steps", "60", "--corpus", str(lab_corpus)]
    words += ["--keep-every", "7", "--out"]
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    command = [sys.executable, "-m", "backend.cli", "lab", *words, str(killed)]
    process = subprocess.Popen(command)
    until = time.monotonic() + PATIENCE
    while Unfinished(killed / "unfinished", 7).step < 14:
        assert process.poll() is None and time.monotonic() < until
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    settings = read_settings(json.loads((killed / "run.json").read_text())["settings"])
    assert not finished(settings, killed)
    for out in (killed, whole):
        done = CliRunner().invoke(cli.app, [*words, str(out)])
        assert done.exit_code == 0, done.output
    assert finished(settings, killed) and not (killed / "unfinished").exists()
    for name in ("step-00000", "step-00020", "step-00060"):
        ours, theirs = ((out / name / "model.safetensors").read_bytes() for out in (killed, whole))
        assert ours == theirs, name
    ours, theirs = (
        [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()] for out in (killed, whole)
    )
    resumed = [line["step"] for line in ours if line["kind"] == "resumed"]
    assert len(resumed) == 1 and resumed[0] >= 14 and resumed[0] % 7 == 0
    assert [line for line in ours[:-1] if line["kind"] != "resumed"] == theirs[:-1]


def test_a_run_at_its_end_is_left_as_it_is(lab_corpus: Path, tmp_path: Path) -> None:
    train(TINY, lab_corpus, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    train(TINY, lab_corpus, tmp_path)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_a_folder_that_holds_another_run_is_refused_and_left_as_it_was(lab_corpus: Path, tmp_path: Path) -> None:
    out, other_text = tmp_path / "run", tmp_path / "text"
    train(replace(TINY, steps=1, stored=(0, 1)), lab_corpus, out)
    other = replace(TINY, seed=1, options={"kmeans_ema": 0.1}, steps=1, stored=(0, 1))
    with pytest.raises(
        Conflict,
        match=r"run holds a run of other settings \(seed 0, not 1; options {}, not {'kmeans_ema': 0.1}\): name",
    ):
        train(other, lab_corpus, out)
    shutil.copytree(lab_corpus, other_text)
    np.save(other_text / "train-code.npy", np.load(lab_corpus / "train-code.npy")[::-1])
    (out / "log.jsonl").write_text("")  # cut short, as far as anybody can tell
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    with pytest.raises(Conflict, match=r"holds a run on another text than that of .*text: name another folder"):
        train(replace(TINY, steps=1, stored=(0, 1)), other_text, out)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before


def test_a_folder_of_something_else_is_refused(lab_corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "step-00003").mkdir()
    with pytest.raises(Conflict, match=r"holds step-00003 of a run that no run\.json tells of"):
        train(TINY, lab_corpus, tmp_path)
    (tmp_path / "run.json").write_text('{"name": "recorded", "every": 1}')
    with pytest.raises(Conflict, match="not a training run's: something else lives in"):
        train(TINY, lab_corpus, tmp_path)


def test_what_was_kept_of_a_run_nobody_wrote_down_is_begun_anew(lab_corpus: Path, tmp_path: Path) -> None:
    end(lab_corpus, TINY, Unfinished(tmp_path / "unfinished", 1), steps=2)
    train(TINY, lab_corpus, tmp_path)  # kept, but of a run whose settings nobody wrote down
    assert "resumed" not in (tmp_path / "log.jsonl").read_text()
    assert finished(TINY, tmp_path)


def test_what_is_kept_is_whole_or_absent(lab_corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unfinished = Unfinished(tmp_path / "kept", 1)
    end(lab_corpus, TINY, unfinished, steps=2)

    def torn(self: Accelerator, folder: str) -> None:
        (Path(folder) / "model.safetensors").write_bytes(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr(Accelerator, "save_state", torn)
    with pytest.raises(OSError, match="no space left"):
        end(lab_corpus, TINY, unfinished)
    monkeypatch.undo()
    assert unfinished.step == 1
    assert relative_distance(end(lab_corpus, TINY, unfinished), end(lab_corpus, TINY)) == 0.0
