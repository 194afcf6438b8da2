"""A folder holds one recorded run: another is refused, the same goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from backend.recorder import GeometryRecorder
from backend.recorder.folder import SENT, FolderTaken
from backend.recorder.record import file_name
from tests.backend.test_recorder import ids, model_of, records

pytestmark = pytest.mark.slow


def recorded(folder: Path, steps: int, seed: int = 1, family: str = "olmoe", **options: Any) -> Path:
    """A run of some more steps in that folder."""
    model = model_of(family)
    recorder = GeometryRecorder(model, folder=folder, **({"every": 1} | options))
    for _ in range(steps):
        model(input_ids=ids(seed))
        recorder.step()
    recorder.close()
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_another_run_in_a_recorded_folder_is_refused_and_the_folder_left_as_it_was(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "run", 3)
    before = content(folder)
    with pytest.raises(FolderTaken, match=r"run holds a run already, recorded to step 3: name another folder"):
        recorded(folder, 1)
    with pytest.raises(FolderTaken, match=r"holds another run \(every 1, not 2; model_type olmoe, not mixtral\)"):
        recorded(folder, 1, family="mixtral", every=2, first=3)
    assert content(folder) == before


def test_a_run_that_goes_on_replaces_what_was_recorded_after_the_step_it_stands_at(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "run", 4)
    (folder / file_name(4, 1)).write_bytes((folder / file_name(4, 0)).read_bytes())  # of a second process, then
    (folder / SENT).write_text("".join(f"{file_name(step, 0)}\n" for step in (1, 2, 3, 4)))
    first = records(folder)
    recorded(folder, 1, seed=2, first=2)
    again = records(folder)
    assert [record.step for record in again] == [1, 2, 3] and len({record.run for record in again}) == 1
    assert again[0].run and again[0].run != records(recorded(tmp_path / "other", 1))[0].run
    assert torch.equal(again[1].sums["selected"], first[1].sums["selected"])
    assert not torch.equal(again[2].sums["selected"], first[2].sums["selected"])
    assert (folder / SENT).read_text().split() == [file_name(1, 0), file_name(2, 0)], "step 3 is to be sent anew"


def test_a_renamed_folder_goes_on_and_one_begun_but_not_recorded_is_free(tmp_path: Path) -> None:
    recorded(recorded(tmp_path / "run", 2).rename(tmp_path / "renamed"), 1, first=2)
    assert [record.step for record in records(tmp_path / "renamed")] == [1, 2, 3]
    recorded(recorded(tmp_path / "begun", 1, every=5), 1, family="mixtral")
    assert [record.step for record in records(tmp_path / "begun")] == [1]


@pytest.mark.parametrize("text", ['{"settings": {}}', "[1]", "no JSON"])
def test_a_folder_of_something_else_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(FolderTaken, match="not a recorder's: something else lives in"):
        recorded(tmp_path, 1)
    assert (tmp_path / "run.json").read_text() == text
