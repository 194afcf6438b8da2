"""What a statistic or a measure gives is written where it is defined: unit, range and source."""

from __future__ import annotations

import ast
import inspect
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

import pytest

from analysis.measure import Measure, measures

SECTIONS = ("Returns:", "Source:")
TOLD = ("Formula", "Returns", "Raises", "Source", "Caveat")
"""What the docstring of a measure says, in this order."""

RANGE = re.compile(r"[-\d]\S*( \([^)]*\))? to \S|between \S+ and \S|or more|any number")
GIVEN = re.compile(
    r"State|Tensor|Layered( \| None)?|Inputs|Values|tuple\[Inputs, \.\.\.\]|(Float|Int|Bool|Shaped)\[Tensor, .+\]"
)
FORMULA_LINES = 4
MEASURES = Path(__file__).parents[2] / "analysis" / "measures"


def public_functions(file: Path) -> list[ast.FunctionDef]:
    tree = ast.parse(file.read_text())
    return [node for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")]


def is_registered(function: ast.FunctionDef) -> bool:
    """Decorated by `@statistic(...)` or `@measure(...)`."""
    calls = [d.func for d in function.decorator_list if isinstance(d, ast.Call)]
    return any(isinstance(call, ast.Name) and call.id in ("statistic", "measure") for call in calls)


@pytest.mark.parametrize("folder", ["statistics", "measures"])
def test_each_registered_function_states_what_it_returns_and_from_where(root: Path, folder: str) -> None:
    seen, bare = 0, []
    for file in sorted((root / "analysis" / folder).glob("[a-z]*.py")):
        for function in filter(is_registered, public_functions(file)):
            seen += 1
            text = ast.get_docstring(function) or ""
            bare += [f"{file.name}: {function.name} lacks {section}" for section in SECTIONS if section not in text]
    assert seen and not bare, bare


@pytest.mark.parametrize("folder", ["statistics", "measures"])
def test_each_file_registers_one_function_of_its_own_name(root: Path, folder: str) -> None:
    for file in sorted((root / "analysis" / folder).glob("[a-z]*.py")):
        assert [f.name for f in public_functions(file) if is_registered(f)] == [file.stem]


def test_each_public_function_of_analysis_says_what_it_answers(root: Path) -> None:
    files = [file for file in (root / "analysis").rglob("*.py")]
    silent = [f"{file.name}: {f.name}" for file in files for f in public_functions(file) if not ast.get_docstring(f)]
    assert not silent, silent


def section(function: Callable, title: str) -> list[str]:
    lines = (inspect.getdoc(function) or "").splitlines()
    start = lines.index(f"{title}:") + 1 if f"{title}:" in lines else len(lines)
    return [line.strip() for line in takewhile(lambda line: line.startswith(" "), lines[start:])]


def untold(measure: Measure) -> list[str]:
    """What a reader of this measure is not told: sections, axes, range, refusals, the null."""
    text = {title: " ".join(section(measure.function, title)) for title in TOLD}
    heads = [line[:-1] for line in (inspect.getdoc(measure.function) or "").splitlines() if line[:-1] in TOLD]
    shape = re.split(r"[,:;.]", text["Returns"])[0].lower()
    axes = Counter(axis.removesuffix("_b") for axis in measure.axes) or {"one number": 1}
    raised = set(re.findall(r"raise (\w+)\(", (MEASURES / f"{measure.name}.py").read_text()))
    raised |= {"BadKnob"} if any(knob.range for knob in measure.knobs) else set()
    null = [title for title in ("Returns", "Source") if measure.null and not section(measure.null, title)]
    formula = section(measure.function, "Formula")
    complaints = {
        "question": not measure.question.endswith("?"),
        "unit or source": not (measure.unit and measure.source),
        f"all of {TOLD}, once and in this order": heads != list(TOLD) or not all(text.values()),
        f"a formula of 1 to {FORMULA_LINES} ASCII lines": not (
            0 < len(formula) <= FORMULA_LINES and text["Formula"].isascii() and "=" in text["Formula"]
        ),
        f"axes {measure.axes} at the start of Returns": any(shape.count(axis) < n for axis, n in axes.items()),
        "a range in Returns": not RANGE.search(text["Returns"]),
        f"{sorted(raised)} in Raises": any(f"{error}: " not in text["Raises"] for error in raised),
        "a chance function or a reason for none": (measure.null is None) == (measure.null_reason is None),
        f"{null} of its chance function": bool(null),
    }
    return [f"{measure.name}: {what}" for what, lacking in complaints.items() if lacking]


def test_each_measure_tells_its_formula_shape_range_refusals_source_caveat_and_null() -> None:
    assert measures()
    assert not (lacking := [line for measure in measures().values() for line in untold(measure)]), "\n".join(lacking)


def test_a_measure_that_tells_nothing_is_found_out() -> None:
    def silent(router_weight):
        """A number."""

    bare = replace(measures()["router_z_loss"], function=silent, question="What", unit="", null_reason=None)
    assert len(untold(bare)) == 7


def test_each_input_and_answer_of_a_measure_is_annotated() -> None:
    bare = []
    for name, measure in measures().items():
        signature = inspect.signature(measure.function)
        given = {p.name: p.annotation for p in signature.parameters.values() if p.kind is not p.KEYWORD_ONLY}
        every = {**given, "its answer": signature.return_annotation}
        bare += [f"{name}: {what}" for what, kind in every.items() if not GIVEN.fullmatch(str(kind))]
    assert not bare, bare
