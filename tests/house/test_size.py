"""Small rooms with a sign on the door: file and function lengths, names that say what is inside."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

FILE_LINES = 300
FUNCTION_LINES = 40
JUNK_DRAWERS = {"utils", "util", "common", "helpers", "helper", "misc", "manager"}


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from `def` to the end, without the docstring: text is not what makes a function long."""
    first = function.body[0]
    is_text = (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    )
    text = (first.end_lineno or 0) - first.lineno + 1 if is_text else 0
    return (function.end_lineno or 0) - function.lineno + 1 - text


def python_files(root: Path, tracked: tuple[Path, ...]) -> Iterator[tuple[Path, str]]:
    for name in tracked:
        if name.suffix == ".py":
            yield name, (root / name).read_text()


def test_no_file_is_longer_than_a_reader_holds(root: Path, tracked: tuple[Path, ...]) -> None:
    lengths = {str(name): text.count("\n") for name, text in python_files(root, tracked)}
    long = [f"{name}: {lines} lines" for name, lines in sorted(lengths.items()) if lines > FILE_LINES]
    assert not long, f"longer than {FILE_LINES} lines: " + "; ".join(long)


def test_no_function_is_longer_than_a_screen(root: Path, tracked: tuple[Path, ...]) -> None:
    long = [
        f"{name}:{node.lineno} {node.name}: {code_lines(node)} lines"
        for name, text in python_files(root, tracked)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and code_lines(node) > FUNCTION_LINES
    ]
    assert not long, f"longer than {FUNCTION_LINES} lines without docstring:\n" + "\n".join(long)


def test_no_file_is_a_junk_drawer(tracked: tuple[Path, ...]) -> None:
    drawers = [str(name) for name in tracked if name.stem.lower() in JUNK_DRAWERS or set(name.parts) & JUNK_DRAWERS]
    assert not drawers


def test_test_files_have_names_of_their_own(tracked: tuple[Path, ...]) -> None:
    names = [name.name for name in tracked if name.name.startswith("test_")]
    assert sorted(names) == sorted(set(names))
