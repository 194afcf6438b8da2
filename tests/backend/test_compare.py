"""`moe-geometry compare`: a checkpoint and its copy under other numbers are matched, and differ in nothing."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from transformers.models.auto.modeling_auto import AutoModelForCausalLM
from transformers.models.auto.tokenization_auto import AutoTokenizer

from analysis.errors import NotComparable
from analysis.lab.model import register
from backend.cli.ask import ask
from backend.cli.compare import compare
from backend.cli.door import Wanted
from backend.errors import NotFound, Refusal

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("in_process")]

ORDERS = ([3, 0, 5, 1, 2, 4, 7, 6], [1, 2, 3, 4, 5, 6, 7, 0], [7, 6, 5, 4, 3, 2, 1, 0])


@pytest.fixture
def renamed(root: Path, tmp_path: Path) -> Path:
    """Expert e of layer l is called ORDERS[l][e]."""
    register()
    own = root / "data" / "checkpoints" / "aux-s1" / "step-06000"
    model = AutoModelForCausalLM.from_pretrained(own)
    for layer, order in zip(model.model.layers, ORDERS, strict=True):
        back = torch.tensor(order).argsort()
        for weight in (layer.mlp.gate.weight, layer.mlp.experts.gate_up_proj, layer.mlp.experts.down_proj):
            weight.data = weight.data[back]
    model.save_pretrained(tmp_path / "renamed")
    AutoTokenizer.from_pretrained(own).save_pretrained(tmp_path / "renamed")
    return tmp_path / "renamed"


def test_a_renamed_copy_is_matched_and_differs_in_nothing(
    root: Path, renamed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "some.jsonl"
    rows = (root / "data" / "prompts" / "four-tasks.jsonl").read_text("utf-8").splitlines()
    prompts.write_text("\n".join(rows[::5]) + "\n", "utf-8")
    monkeypatch.setenv("MOE_GEOMETRY_DATA", str(root / "data"))
    monkeypatch.setenv("MOE_GEOMETRY_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("MOE_GEOMETRY_DEVICE", "cpu")
    report, latex = tmp_path / "report.html", tmp_path / "differences.tex"
    compare("aux-s1/step-06000", str(renamed), prompts=str(prompts), report=report, latex=latex, as_json=True)
    (told,) = json.loads(capsys.readouterr().out)["pairs"]
    for layer, order in zip(told["layers"], ORDERS, strict=True):
        assert layer["p"] <= 0.05
        assert layer["matching"] == {f"E{e}": f"E{to}" for e, to in enumerate(order)}
        assert layer["match_quality"] == pytest.approx(1, abs=1e-6) and layer["null"]["high"] < 0.5
    found = {each["measure"]: each for each in told["differences"]}
    assert not [name for name, each in found.items() if "refused" in each]
    agreement = [value for value in found["routing_agreement"]["values"] if isinstance(value, float | int)]
    assert agreement == pytest.approx([1] * len(agreement))
    loads = [value for row in found["load_difference"]["values"] for value in row]
    assert loads == pytest.approx([0] * len(loads), abs=1e-9)
    tables = latex.read_text("utf-8")
    assert all(rf"\paragraph{{{each['title']}}}" in tables for each in found.values())
    assert tables.count(r"\bottomrule") == len(found) and r"corrected $p$" in tables
    assert report.stat().st_size > 1_000_000 and "https://" not in report.read_text("utf-8").split("<script>")[0]


def test_checkpoints_of_two_tokenizers_are_compared_where_tokens_end_together(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own, other, file = root / "data" / "checkpoints" / "aux-s1" / "step-06000", tmp_path / "other", tmp_path / "x.jsonl"
    shutil.copytree(own, other)
    spelling = json.loads((own / "tokenizer.json").read_text("utf-8"))
    spelling["model"]["merges"] = spelling["model"]["merges"][100:]  # other tokens, by the same numbers
    (other / "tokenizer.json").write_text(json.dumps(spelling), "utf-8")
    rows = map(json.loads, (root / "data" / "prompts" / "four-tasks.jsonl").read_text("utf-8").splitlines()[::8])
    texts = [row["text"][:100] for row in rows]  # of so few tokens either way that none is cut
    file.write_text("\n".join(json.dumps({"text": text}) for text in texts), "utf-8")
    monkeypatch.setenv("MOE_GEOMETRY_DATA", str(root / "data"))
    monkeypatch.setenv("MOE_GEOMETRY_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("MOE_GEOMETRY_DEVICE", "cpu")
    sides = [str(own), str(other)]
    ask("routing_agreement", sides, str(file), knob=["matching=identity"])
    told = json.loads(capsys.readouterr().out)
    cuts = [Tokenizer.from_file(str(side / "tokenizer.json")) for side in (own, other)]
    counts, shared = [0, 0], 0
    for text in texts:
        ends = [[end for _, end in cut.encode(text).offsets] for cut in cuts]
        counts = [count + len(each) for count, each in zip(counts, ends, strict=True)]
        shared += len(set(ends[0]) & set(ends[1]))
    assert counts[0] < counts[1] and shared < counts[0]
    said = f"different tokens ({counts[0]:,}, {counts[1]:,})"
    assert any(said in caveat and f"reads the {shared:,} that end" in caveat for caveat in told["caveats"])
    assert all(high < value < 1 for value, high in zip(told["values"], told["null"]["high"], strict=True))


class Answers:
    """A door that answers each question with who was asked, and refuses some."""

    def __init__(self, refusing: tuple[str, ...]) -> None:
        self.refusing = refusing
        self.asked: list[tuple[str, tuple[str, ...]]] = []

    def ask(self, wanted: Wanted, progress: object) -> dict[str, Any]:
        if wanted.checkpoints[-1] == "unknown":
            raise NotFound("No checkpoint 'unknown'.")
        if wanted.checkpoints[-1] in self.refusing:
            raise NotComparable("b has 3 MoE layers")
        self.asked.append((wanted.measure, tuple(wanted.checkpoints)))
        values: list[Any] = [[[0.9, "NaN"], ["NaN", 0.8]]] if wanted.measure == "expert_matching" else [0.5]
        null = {"low": [[[-0.2]]], "high": [[[0.2]]], "how": "planted", "p": [[[0.01]]]}
        return {"measure": wanted.measure, "values": values, "axes": [{"labels": ["0"]}], "null": null, "facts": {}}


def answering(monkeypatch: pytest.MonkeyPatch, refusing: tuple[str, ...] = ()) -> Answers:
    door = Answers(refusing)
    monkeypatch.setattr("backend.cli.compare.open_door", lambda settings: nullcontext(door))
    return door


def test_each_of_up_to_three_others_is_taken_against_the_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    door = answering(monkeypatch, refusing=("C",))
    compare("A", "B", "C", "D", prompts="some", as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["command"] == "moe-geometry compare A B C D --prompts some --evidence co-selection"
    assert [(pair["a"], pair["b"]) for pair in told["pairs"]] == [("A", "B"), ("A", "C"), ("A", "D")]
    first, apart, last = told["pairs"]
    for pair in (first, last):
        [layer] = pair["layers"]
        assert layer["matching"] == {"E0": "E0", "E1": "E1"} and layer["p"] == 0.01
    assert apart["layers"] == [] and apart["matching"]["refused"] == "b has 3 MoE layers"
    assert all(each["refused"] == "b has 3 MoE layers" for each in apart["differences"])
    assert {ends for _, ends in door.asked} == {("A", "B"), ("A", "D")}
    asked = {name for name, _ in door.asked}
    assert {"violation_difference", "entropy_difference", "load_difference", "router_drift"} <= asked
    compare("A", "B", "C", prompts="some")
    table = capsys.readouterr().out
    assert "A (a) and C (b) on some\n\nExperts are not matched: b has 3 MoE layers" in table


def test_a_name_nobody_knows_and_sides_of_which_nothing_can_be_compared_end_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answering(monkeypatch, refusing=("C",))
    with pytest.raises(NotFound, match="'unknown'"):
        compare("A", "B", "unknown", prompts="some")
    with pytest.raises(Refusal, match="b has 3 MoE layers"):
        compare("A", "C", prompts="some")


def test_a_report_that_is_no_html_is_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match=r"ends in '.pdf'"):
        compare("a", "b", prompts="p", report=tmp_path / "r.pdf")


def test_a_latex_file_under_another_ending_is_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match=r"ends in '.txt'; it is LaTeX, so .tex"):
        compare("a", "b", prompts="p", latex=tmp_path / "r.txt")
