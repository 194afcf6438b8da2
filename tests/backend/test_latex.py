"""An answer as a LaTeX table: everything a number must not stand without, and nobody's text as markup."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.result import Axis, Interval, Null, Reason, Result
from backend import wire
from backend.cli.compare import _latex
from backend.errors import Refusal
from backend.latex import MOST_ROWS, escape, to_latex
from tests.backend import answers

EVIL = "\\input{/etc/passwd}%\n\\end{tabular} & $x_1^2$ ~#"
MARKUP = re.compile(r"(?<!\\)[#$%&_{}^~\\]")


def by_layer(**changes: object) -> Result:
    """Three layers with an interval, a null and a corrected p."""
    values = np.array([0.25, -1.5e-7, np.nan])
    null = Null(np.array(0.0), np.array(-0.1), np.array(0.1), "999 shuffles", np.array([0.001, 0.9, np.nan]))
    bounds = Interval(values - 1, values + 1, 0.95, "jackknife")
    axes = (Axis("layer", ("0", "1", "2")),)
    result = Result("drift", values, axes, "radians (0 to 1)", null, bounds, ("NaN: layer 2 is alone.",), {}, 1200, 80)
    return replace(result, **changes)


def rows_of(text: str) -> list[list[str]]:
    """The cells of the body."""
    body = text.split(r"\midrule")[1].split(r"\bottomrule")[0].replace("\\endhead", "")
    return [re.split(r"(?<!\\)&", line.removesuffix(r" \\")) for line in body.strip().splitlines()]


def test_a_line_of_values_has_its_bounds_beside_it_and_says_all_of_itself() -> None:
    text = to_latex(by_layer(), answers.provenance(key="k_1"))
    assert r"\begin{tabular}{lrrrr}" in text and r"% \usepackage{booktabs}" in text
    assert r"layer & value & 95\,\% interval & null & corrected $p$ \\" in text
    assert r"0 & $0.25$ & $-0.75$ to $1.25$ & $-0.1$ to $0.1$ & $0.001$ \\" in text
    assert r"1 & $-1.5\times10^{-7}$ & " in text
    assert r"2 & -- & -- to -- & $-0.1$ to $0.1$ & -- \\" in text
    for said in ("Unit: radians (0 to 1).", "Null: 999 shuffles, -0.1 to 0.1.", r"Interval: 95\%, jackknife."):
        assert said in text
    for said in ("drift of free/step-02000 on four-tasks (80 prompts, 1,200 tokens).", "--: undefined.", r"Key: k\_1."):
        assert said in text
    assert "NaN: layer 2 is alone." in text


def test_a_short_second_axis_makes_columns_and_a_long_one_rows() -> None:
    wide = to_latex(answers.load(), answers.provenance())
    assert r"\begin{tabular}{lrrr}" in wide and r"layer & \multicolumn{3}{c}{expert} \\" in wide
    assert rows_of(wide)[1] == ["1 ", r" $\infty$ ", r" $-\infty$ ", r" $4.941\times10^{-324}$"]
    many = to_latex(answers.load(np.ones((3, 40))), {})
    assert r"\begin{longtable}{llrrr}" in many and r"\usepackage{booktabs,longtable}" in many and r"\endhead" in many
    assert len(rows_of(many)) == 120 and {len(row) for row in rows_of(many)} == {5}


def test_what_has_no_null_and_no_interval_says_why() -> None:
    text = to_latex(answers.number(0.5), {})
    assert r"\begin{tabular}{r}" in text and r"$0.5$ \\" in text
    assert "No null: no chance level." in text and "No interval: exact: weights only." in text


def test_an_answer_longer_than_a_reader_turns_over_is_refused_with_a_way_out() -> None:
    with pytest.raises(Refusal, match=r"2,001 rows.*CSV"):
        to_latex(answers.load(np.ones((MOST_ROWS + 1, 2))), {})


def test_text_of_others_is_text() -> None:
    axes = (Axis("prompt", (EVIL, "[3pt]", "*")),)
    provenance = answers.provenance(checkpoints=[{"id": EVIL}])
    text = to_latex(by_layer(axes=axes, caveats=(EVIL,), null=Reason(EVIL)), provenance)
    assert text.count("\\input") == 0 and text.count(r"\end{tabular}") == 1
    assert {len(row) for row in rows_of(text)} == {3} and len(rows_of(text)) == 3
    # A row may not begin with what would be read as the length after the row before it.
    assert [row[0].strip() for row in rows_of(text)[1:]] == ["{}[3pt]", "{}*"]


@given(st.text())
def test_nothing_of_an_escaped_text_is_markup(text: str) -> None:
    told = escape(text)
    for name in ("textbackslash", "textasciicircum", "textasciitilde", "textless", "textgreater", "textbar"):
        told = told.replace(rf"\{name}{{}}", "")
    told = told.replace(r"\textquotedbl{}", "").replace("$-$", "").removeprefix("{}")
    assert not MARKUP.search(re.sub(r"\\[#$%&_{}]", "", told)) and "\n" not in told and "\r" not in told


def test_every_way_out_uses_the_same_writer() -> None:
    result, provenance = by_layer(), answers.provenance(key="k")
    assert wire.to_file(result, provenance, "tex").decode() == to_latex(result, provenance)
    differences = [
        {"title": "Drift"} | wire.to_json(result, provenance),
        {"title": "Rows_of", "measure": "x", "refused": "b has 3 layers, 100 % fewer"},
        {"title": "Long"} | wire.to_json(answers.load(np.ones((MOST_ROWS + 1, 2))), {}),
    ]
    told = {
        "command": "moe-geometry compare a b",
        "pairs": [{"a": "a", "b": "b", "differences": differences}],
    }
    text = _latex(told)
    assert to_latex(result, provenance) in text and r"\paragraph{Drift}" in text
    assert r"\paragraph{Rows\_of}" in text and r"Not in this file: b has 3 layers, 100 \% fewer" in text
    assert "would be a table of 2,001 rows" in text
