"""Worker processes: never left behind, never in the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from backend.errors import Refusal
from backend.runners.device import resolve_device
from backend.runners.failures import TaskFailed
from backend.runners.lane import STOPPED, Lane
from backend.runners.local import LocalRunner
from backend.runners.messages import EvaluateTask
from backend.runners.worker import WorkerOptions

pytestmark = pytest.mark.slow

ORPHANS = """
import sys, time
from pathlib import Path
from backend.runners.lane import STOPPED
from backend.runners.local import LocalRunner
if __name__ == "__main__":
    runner = LocalRunner(Path(sys.argv[1]), "cpu", eager=True)
    while not (runner.worker("model") and runner.worker("quick")):
        time.sleep(0.05)
    print(runner.worker("model"), runner.worker("quick"), flush=True)
    time.sleep(600)
"""


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def children(of: int) -> list[int]:
    stats = [path.read_text() for path in Path("/proc").glob("[0-9]*/stat")]
    return [int(stat.split()[0]) for stat in stats if int(stat.rsplit(")", 1)[1].split()[1]) == of]


def test_workers_die_with_a_parent_that_is_killed(tmp_path: Path, root: Path) -> None:
    script = tmp_path / "orphans.py"
    script.write_text(ORPHANS)
    environment = {**os.environ, "PYTHONPATH": str(root)}
    parent = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert parent.stdout
    workers = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(workers) == 2 and all(alive(pid) for pid in workers)
    workers += children(parent.pid)  # and whom they were forked from
    assert len(workers) > 2
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    end = time.monotonic() + 20
    while any(alive(pid) for pid in workers) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(alive(pid) for pid in workers)


def test_no_worker_starts_before_it_has_something_to_do(tmp_path: Path) -> None:
    runner = LocalRunner(tmp_path, "cpu")
    assert [runner.worker(lane) for lane in ("model", "quick", "slow")] == [None, None, None]
    assert runner.status == "idle"
    runner.close()


def test_a_closed_runner_leaves_no_worker_and_tells_who_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.runners.lane.STOP_SECONDS", 0.2)
    runner = LocalRunner(tmp_path, "cpu", eager=True)
    end = time.monotonic() + 60
    while runner.status != "idle" and time.monotonic() < end:
        time.sleep(0.01)
    pids = [pid for lane in ("model", "quick", "slow") if (pid := runner.worker(lane))]
    assert len(pids) == 2 and all(map(alive, pids))
    os.kill(pids[1], signal.SIGSTOP)  # it will never answer
    waiting, told = runner.run(EvaluateTask("waiting", "expert_load", {}, (), "quick")), []

    def wait() -> None:
        try:
            list(waiting)
        except TaskFailed as error:
            told.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    while runner.status != "busy" and time.monotonic() < end:
        time.sleep(0.01)
    runner.close()
    assert not any(map(alive, pids))
    thread.join(10)
    assert told == [STOPPED]
    with pytest.raises(TaskFailed, match="The service stopped"):
        list(runner.run(EvaluateTask("late", "expert_load", {}, (), "quick")))


def test_a_task_that_comes_while_another_is_being_cancelled_is_given_to_the_next_worker(tmp_path: Path) -> None:
    lane = Lane(WorkerOptions("slow", tmp_path, "cpu", memory_budget=10**9, threads=1))
    for turn in "ab":
        lane.submit(EvaluateTask(f"{turn} first", "expert_load", {}, (), "slow"))
        end = time.monotonic() + 60
        while not lane.pid and time.monotonic() < end:
            time.sleep(0.01)
        lane.cancel(f"{turn} first")
        told = lane.submit(EvaluateTask(f"{turn} second", "expert_load", {}, (), "slow")).get(timeout=60)
        assert told is not None and "killed" not in getattr(told, "message", ""), told
    lane.close()


def test_a_device_that_is_not_there_is_refused_by_name() -> None:
    assert resolve_device("cpu") == "cpu"
    with pytest.raises(Refusal, match="MOE_GEOMETRY_DEVICE is 'cuda:99'"):
        resolve_device("cuda:99")
