"""The digest of code that decides a number, blind to docstrings and comments."""

from __future__ import annotations

import ast
import hashlib
import importlib
import inspect
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import ModuleType

DECLARATIONS = frozenset(
    f"analysis.{name}" for name in ("code", "errors", "knob", "measure", "result", "slots", "spec", "statistic")
)
"""What says how things are declared and carried; nothing in it decides a number, so it stays out of the keys."""


@cache
def code_digest(module: ModuleType) -> str:
    """SHA-256 of a module's syntax tree without docstrings: an edit of prose keeps every stored answer.

    Returns:
        64 hexadecimal digits.

    Source:
        Ours: comments never reach the syntax tree, and a docstring changes no number.
    """
    tree = _tree(module)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if (
            isinstance(body, list)
            and body
            and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
        ):
            body[0] = ast.Expr(ast.Constant(None))
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()


def code_of(modules: Iterable[ModuleType]) -> str:
    """One digest of these modules and of every number-deciding `analysis` module they import.

    Returns:
        32 hexadecimal digits, the same whatever the order of the modules.

    Source:
        Ours: a formula moved into a shared file must still change the key when it changes.
    """
    found: dict[str, ModuleType] = {}
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        if module.__name__ not in found and module.__name__ not in DECLARATIONS:
            found[module.__name__] = module
            waiting.extend(importlib.import_module(name) for name in _imports(module))
    text = " ".join(f"{name}:{code_digest(found[name])}" for name in sorted(found))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _tree(module: ModuleType) -> ast.Module:
    # From the file itself: `inspect.getsource` would answer from a cache that outlives an edit.
    return ast.parse(Path(inspect.getfile(module)).read_text(encoding="utf-8"))


@cache
def _imports(module: ModuleType) -> tuple[str, ...]:
    nodes = [node for node in ast.walk(_tree(module)) if isinstance(node, ast.ImportFrom)]
    names = [f"{n.module}.{a.name}" for n in nodes for a in n.names if n.module == "analysis"]
    names += [n.module for n in nodes if n.module and n.module.startswith("analysis.")]
    return tuple(name for name in names if name not in DECLARATIONS)
