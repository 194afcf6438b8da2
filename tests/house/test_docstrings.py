"""What a statistic or a measure gives is written where it is defined: unit, range and source."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

import pytest

from analysis.measure import Measure, measures
from analysis.slots import SLOTS

SECTIONS = ("Returns:", "Source:")
TOLD = ("Formula", "Returns", "Raises", "Source", "Caveat")
"""What the docstring of a measure says, in this order."""

RANGE = re.compile(r"[-\d]\S*( \([^)]*\))? to \S|between \S+ and \S|or more|any number")
SHAPED = re.compile(r"(Float|Int|Bool|Shaped)\[Tensor, (.+)\]")
GIVEN = re.compile(r"State|Layered( \| None)?|Inputs|tuple\[Inputs, \.\.\.\]|" + SHAPED.pattern)
ANSWERS = re.compile(r"Values|" + SHAPED.pattern)
CHANCES = ("Chance", "Chance | Reason")
BY_SPEC = "dict[str, Tensor]"
"""What a statistic gives: each array is held to the axes of its `Spec` when it comes."""

FORMULA_LINES = 4


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
    file = sys.modules[measure.function.__module__].__file__
    raised = set(re.findall(r"raise (\w+)\(", Path(file or "").read_text()))
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


def shapeless(name: str, function: Callable, answers: re.Pattern | tuple[str, ...]) -> list[str]:
    """What in this signature has no shape that somebody holds it to.

    A `State` has the axes that its statistic declares, a slot those of `SLOTS`, `Values` those of the measure, and a
    tensor what jaxtyping reads beside it.
    """
    signature = inspect.signature(function)
    given = {p.name: str(p.annotation) for p in signature.parameters.values() if p.kind is not p.KEYWORD_ONLY}
    answer = str(signature.return_annotation)
    right = answers.fullmatch(answer) if isinstance(answers, re.Pattern) else answer in answers
    found = [f"{name}: {what} is {kind}" for what, kind in given.items() if not GIVEN.fullmatch(kind)]
    for what, kind in given.items():
        axes = " ".join(SLOTS[what].axes) if what in SLOTS else None
        if (shaped := SHAPED.fullmatch(kind)) and axes and ast.literal_eval(shaped[2]).strip() != axes:
            found.append(f"{name}: {what} is {kind}, the slot has the axes {axes}")
    return found + ([] if right else [f"{name}: its answer is {answer}"])


def test_each_input_and_answer_of_a_measure_and_of_its_null_has_a_shape() -> None:
    found = [line for name, measure in measures().items() for line in shapeless(name, measure.function, ANSWERS)]
    nulls = {f"{name}.chance": measure.null for name, measure in measures().items() if measure.null}
    assert nulls
    assert not (found := found + [line for name, null in nulls.items() for line in shapeless(name, null, CHANCES)]), (
        found
    )


def test_an_input_or_an_answer_without_a_shape_or_with_another_than_its_slot_is_found_out() -> None:
    def silent(router_weight: Tensor, slope_sums: State) -> Tensor: ...

    def wrong(router_weight: Float[Tensor, "layer model expert"]) -> Values: ...

    silent.__annotations__ |= {"router_weight": "Tensor", "slope_sums": "State", "return": "Tensor"}
    wrong.__annotations__ |= {"router_weight": 'Float[Tensor, "layer model expert"]', "return": "Values"}
    assert shapeless("silent", silent, ANSWERS) == ["silent: router_weight is Tensor", "silent: its answer is Tensor"]
    [told] = shapeless("wrong", wrong, ANSWERS)
    assert told.endswith("the slot has the axes layer expert model")


def bare(annotation: ast.expr | None) -> bool:
    """Whether a tensor stands in it without its axes."""
    if annotation is None:
        return True
    if isinstance(annotation, ast.Subscript) and SHAPED.fullmatch(ast.unparse(annotation)):
        return False
    named = {ast.Name: "id", ast.Attribute: "attr"}.get(type(annotation))
    return getattr(annotation, named or "", "") == "Tensor" or any(map(bare, ast.iter_child_nodes(annotation)))


@pytest.mark.parametrize("folder", ["statistics", "measures"])
def test_no_public_function_takes_or_gives_a_tensor_without_its_axes(root: Path, folder: str) -> None:
    found = []
    for file in sorted((root / "analysis" / folder).glob("[a-z]*.py")):
        for function in public_functions(file):
            arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
            kinds = {each.arg: each.annotation for each in arguments}
            if not (folder == "statistics" and ast.unparse(function.returns or ast.Name("None")) == BY_SPEC):
                kinds["its answer"] = function.returns
            found += [f"{file.name}: {function.name}: {what}" for what, kind in kinds.items() if bare(kind)]
    assert not found, found


def test_a_tensor_without_its_axes_is_seen_wherever_it_stands() -> None:
    for told, seen in (
        ("Tensor", True), ("torch.Tensor", True), ("tuple[Tensor, int]", True), ("Tensor | None", True),
        ("dict[str, Tensor]", True), ("State", False), ('Float[Tensor, "layer"] | None', False),
        ('tuple[Float[Tensor, "a b"], Int[Tensor, " a"]]', False),
    ):  # fmt: skip
        assert bare(ast.parse(told, mode="eval").body) == seen, told
