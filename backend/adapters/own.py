"""Adapters of a user's own: every .py file in the folder that MOE_GEOMETRY_ADAPTERS names.

Such a file defines `find`, as the files in `families` do, and is asked before them. It may register a configuration
and model class of its own with transformers, so that its checkpoints load by their folder's name alone.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

from backend.adapters.anatomy import Unsupported

VARIABLE = "MOE_GEOMETRY_ADAPTERS"
PACKAGE = "moe_geometry_adapters"
"""What the files are imported as."""


def own_adapters() -> tuple[ModuleType, ...]:
    """The modules of that folder, by name; none if the variable is not set.

    Raises:
        Unsupported: If there is no such folder, or a file of it cannot be used.
    """
    folder = os.environ.get(VARIABLE, "").strip()
    return _modules(Path(folder).expanduser()) if folder else ()


@cache
def _modules(folder: Path) -> tuple[ModuleType, ...]:
    if not folder.is_dir():
        raise Unsupported(f"{VARIABLE} names {folder}, which is no folder; it must hold one .py file an architecture")
    return tuple(_module(file) for file in sorted(folder.glob("[a-z]*.py")))


def _module(file: Path) -> ModuleType:
    name = f"{PACKAGE}.{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever a user's file may raise
        del sys.modules[name]
        raise Unsupported(f"the adapter {file} cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(getattr(module, "find", None)):
        raise Unsupported(
            f"the adapter {file} defines no find(name, modules, label, top_k), which says whether a module of a model "
            "holds its experts"
        )
    return module
