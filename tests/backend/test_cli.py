"""The command line: one object, one sentence, and the same store as the backend."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from backend.cli import main
from backend.cli.ask import ProgressLine
from backend.settings import Settings
from tests.backend import fake_hub, tiny_olmoe
from tests.backend.live import Live, serving
from tests.backend.terminal import Terminal, environment

pytestmark = pytest.mark.slow

KEYS = {"measure", "values", "axes", "unit", "null", "interval", "caveats", "facts", "tokens", "prompts", "provenance"}


def run(settings: Settings, *words: str, root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "backend.cli", *words]
    return subprocess.run(
        command, cwd=root, env=os.environ | environment(settings), capture_output=True, text=True, timeout=600
    )


@pytest.fixture(scope="module")
def words_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "cli-words.jsonl"
    rows = [{"id": p.id, "text": p.text, "category": p.category} for p in tiny_olmoe.prompts(20, start=5000).prompts]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_what_the_command_line_answers_the_backend_has(
    tiny_models: Path, words_file: Path, tmp_path: Path, root: Path, terminal: Terminal
) -> None:
    settings = Settings(data=tmp_path / "data", store=tmp_path / "store", device="cpu", extra_roots=(tiny_models,))
    out = tmp_path / "load.parquet"
    ask = ["ask", "--checkpoint", str(tiny_models / "tiny"), "--prompts", str(words_file), "--measure", "expert_load"]
    first = run(settings, *ask, "--format", "json", "--out", str(out), root=root)
    assert (first.returncode, first.stderr) == (0, "")
    answer = json.loads(first.stdout)
    assert set(answer) == KEYS
    assert [axis["name"] for axis in answer["axes"]] == ["layer", "expert"]
    assert set(answer["null"]) == {"mean", "low", "high", "how"}
    assert set(answer["interval"]) == {"low", "high", "level", "how"}
    assert pyarrow.parquet.read_table(out).column("value").to_pylist() == np.ravel(answer["values"]).tolist()
    with serving(settings) as backend:
        reply = backend.http.get(f"/questions/{answer['provenance']['key']}")
        assert reply.json() == answer
        through = terminal(backend.settings, *ask)
        assert json.loads(through.stdout) == answer
        assert not backend.runner.log


def test_what_the_backend_answers_the_command_line_has(live: Live, words_file: Path, terminal: Terminal) -> None:
    words = live.add(tiny_olmoe.prompts(20, "asked over http", start=5100))
    answer = live.answer("load_violation", words)
    ask = ["ask", "--checkpoint", "tiny", "--prompts", words, "--measure", "load_violation"]
    told = terminal(live.settings, *ask)
    assert json.loads(told.stdout) == answer
    ask = ["ask", "--checkpoint", "tiny", "--prompts", str(words_file), "--measure", "load_entropy"]
    fresh = terminal(live.settings, *ask)
    assert fresh.returncode == 0, fresh.stderr
    key = json.loads(fresh.stdout)["provenance"]["key"]
    assert live.http.get(f"/questions/{key}").status_code == 200
    table = terminal(live.settings, "sql", "--json", f"select measure from answers where key = '{key}'")
    assert json.loads(table.stdout)["rows"] == [["load_entropy"]]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--measure", "expert_lod", "--checkpoint", "tiny", "--prompts", "x"), "There is no prompt set 'x'"),
        (("--measure", "expert_load", "--checkpoint", "nowhere"), "There is no checkpoint 'nowhere'"),
        (("--measure", "expert_load", "--checkpoint", "tiny", "--out", "x.xls"), "--out x.xls ends in '.xls'"),
    ],
)
def test_a_refusal_is_one_sentence_and_exit_code_two(
    live: Live, words: tuple[str, ...], sentence: str, terminal: Terminal
) -> None:
    told = terminal(live.settings, "ask", *words)
    assert told.returncode == 2 and told.stdout == ""
    assert told.stderr.startswith(sentence) and told.stderr.count("\n") == 1


def test_text_that_cannot_be_fetched_is_a_sentence_and_exit_code_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lab is an app of its own inside the whole one: its exit code must come through."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["moe-geometry", "lab", "corpus", "--out", str(tmp_path / "corpus")])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 1 and "apt-get is not on this system" in capsys.readouterr().err


def test_a_store_held_by_a_process_that_does_not_serve_is_named(live: Live, tmp_path: Path, root: Path) -> None:
    settings = replace(live.settings, store=tmp_path / "held")
    from backend.store import Store

    with Store.open(settings.store):
        told = run(settings, "prompts", root=root)
    assert told.returncode == 2
    assert f"in use by process {os.getpid()}" in told.stderr


def test_help_does_not_wait_for_torch(root: Path) -> None:
    code = "import sys; from backend.cli import app; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=root).returncode == 0


def test_a_run_on_the_hub_is_added_by_its_headers_asked_about_and_asked_about_offline(
    tmp_path: Path, words_file: Path, root: Path, monkeypatch: pytest.MonkeyPatch, terminal: Terminal, in_process: None
) -> None:
    settings = Settings(data=tmp_path / "data", store=tmp_path / "store", device="cpu")
    with fake_hub.running() as hub:
        hub.gated.add(fake_hub.NAME)
        for seed, branch in enumerate(("step-1", "step-2")):
            hub.add(tiny_olmoe.save(tmp_path / branch, seed=seed), branch=branch)
        surroundings = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": fake_hub.TOKEN}
        for name, value in {**surroundings, "NO_PROXY": "*", "HF_HUB_DISABLE_TELEMETRY": "1"}.items():
            monkeypatch.setenv(name, value)
        sources = [f"{fake_hub.NAME}@{branch}" for branch in ("step-2", "step-1")]
        added = run(settings, "checkpoints", "add-run", *sources, root=root)
        assert added.returncode == 0 and "tiny/step-1" in added.stdout, added.stderr
        assert hub.fetched() == []
        both = ["ask", "--checkpoint", "tiny/step-1", "--checkpoint", "tiny/step-2", "--prompts", str(words_file)]
        hub.install(monkeypatch, tmp_path / "home" / "hub")
        asked = terminal(settings, *both, "--measure", "load_difference")
        assert (asked.returncode, asked.stderr) == (0, "")
        assert len(hub.fetched()) == 2 and fake_hub.TOKEN not in added.stdout + asked.stdout
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    offline = run(settings, *both, "--measure", "routing_agreement", root=root)
    assert offline.returncode == 0, offline.stderr


def test_progress_is_a_line_that_a_terminal_rewrites_and_a_pipe_never_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal_file, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", terminal_file)
        line = ProgressLine()
        line("capture", 0.25, 12.4)
        line("capture", 0.5, None)
        line.clear()
    clean = "\r\x1b[K"
    expected = f"{clean} 25% capture · 12 s left{clean} 50% capture{clean}".encode()
    seen = b""
    while len(seen) < len(expected):  # what a terminal is told comes in pieces
        seen += os.read(ours, 1000)
    os.close(ours)
    assert seen == expected
    piped = io.StringIO()
    monkeypatch.setattr(sys, "stderr", piped)
    silent = ProgressLine()
    silent("capture", 0.25, 12.4)
    silent.clear()
    assert piped.getvalue() == ""


def test_measures_lists_what_can_be_asked(live: Live, terminal: Terminal) -> None:
    told = json.loads(terminal(live.settings, "measures", "--json").stdout)
    assert {"name", "question", "unit", "source", "family", "reads", "axes", "knobs"} <= set(told[0])
    assert [m["name"] for m in told] == [m["name"] for m in live.http.get("/measures").json()["measures"]]
