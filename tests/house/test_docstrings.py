"""What a statistic or a measure gives is written where it is defined: unit, range and source."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SECTIONS = ("Returns:", "Source:")


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
