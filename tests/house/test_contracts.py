"""Rooms import only what the design allows; the contracts are shown to bite, lazily imported modules included."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ALLOWED_IN_ANALYSIS = {"analysis", "torch", "numpy", "scipy", "sklearn", "jaxtyping"} | sys.stdlib_module_names
PLANTED = {
    "analysis/measures/planted_service.py": "def f():\n    import fastapi\n",
    "analysis/statistics/planted_model.py": "def f():\n    import transformers\n",
    "analysis/statistics/planted_measure.py": "import analysis.measures\n",
    "analysis/projections/planted_map.py": "def f():\n    import umap\n",
    "analysis/planted_lab.py": "import analysis.lab\n",
    "frontend/planted_torch.py": "def f():\n    from torch import nn\n",
    "frontend/planted_backend.py": "import backend\n",
    "backend/planted_figure.py": "def f():\n    import plotly.graph_objects\n",
    "backend/lab/planted_service.py": "import fastapi\n",
}


def linter(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [Path(sys.executable).with_name("lint-imports"), "--no-cache"]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def copy_of_the_house(root: Path, folder: Path) -> None:
    for room in ("analysis", "backend", "frontend"):
        shutil.copytree(root / room, folder / room, ignore=shutil.ignore_patterns("__pycache__", "assets"))
    shutil.copy(root / "pyproject.toml", folder)


def imports(file: Path) -> Iterator[tuple[str, bool]]:
    """Every absolutely imported module, and whether it stands inside a function."""
    tree = ast.parse(file.read_text())
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, id(node) in inside) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, id(node) in inside


def test_the_contracts_hold(root: Path) -> None:
    done = linter(root)
    assert done.returncode == 0, done.stdout


def test_each_contract_bites(root: Path, tmp_path: Path) -> None:
    copy_of_the_house(root, tmp_path)
    for name, source in PLANTED.items():
        (tmp_path / name).write_text(source)
    done = linter(tmp_path)
    let_through = [name for name in PLANTED if name.removesuffix(".py").replace("/", ".") not in done.stdout]
    assert done.returncode == 1 and not let_through, f"{let_through} let through:\n{done.stdout}{done.stderr}"


def test_analysis_imports_only_arithmetic(root: Path) -> None:
    strangers = []
    for file in sorted((root / "analysis").rglob("*.py")):
        name = file.relative_to(root)
        for module, lazy in imports(file):
            top = module.split(".")[0]
            # A configuration class of transformers is made with its hub package's `strict`.
            in_the_lab = top in ("transformers", "huggingface_hub") and "lab" in name.parts
            in_the_fit = top == "umap" and lazy and name == Path("analysis/projections/umap.py")
            if top not in ALLOWED_IN_ANALYSIS and not in_the_lab and not in_the_fit:
                strangers.append(f"{name}: {module}")
    assert not strangers, strangers


def test_no_product_code_imports_tests_or_data(root: Path) -> None:
    rooms = [file for room in ("analysis", "backend", "frontend") for file in (root / room).rglob("*.py")]
    wrong = [
        f"{file}: {module}"
        for file in rooms
        for module, _ in imports(file)
        if module.split(".")[0] in ("tests", "data")
    ]
    assert not wrong, wrong


@pytest.mark.parametrize("module", ["backend.lab", "frontend"])
def test_a_light_room_loads_no_service_or_model_package(root: Path, module: str) -> None:
    unwanted = {"backend.lab": ("fastapi", "duckdb", "dash"), "frontend": ("torch", "transformers", "duckdb")}[module]
    script = f"import sys, {module}; print([m for m in {unwanted!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
