"""The digest of code that decides a number, blind to docstrings and comments."""

from __future__ import annotations

import ast
import hashlib
import inspect
from functools import cache
from types import ModuleType


@cache
def code_digest(module: ModuleType) -> str:
    """SHA-256 of a module's syntax tree without docstrings: an edit of prose keeps every stored answer."""
    tree = ast.parse(inspect.getsource(module))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
            body[0] = ast.Expr(ast.Constant(None))
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()
