"""Folders are the packages, the wheel holds them alone, and the frontend's extra brings no torch."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

pytestmark = pytest.mark.slow

PACKAGES = ("analysis", "backend", "frontend")
# What may stand on the top level; dot files besides.
TOP_LEVEL = {
    *PACKAGES, "data", "tests", "docker-compose.yml", "docker-compose.gpu.yml", "pyproject.toml", "constraints.txt",
    "README.md", "Makefile", "CHANGELOG.md", "LICENSE",
}  # fmt: skip
HEAVY = {"torch", "transformers", "scikit-learn", "umap-learn", "duckdb", "accelerate", "safetensors"}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(root: Path) -> dict[str, list[str]]:
    return tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def needed(requirement: Requirement, extras: dict[str, list[str]], seen: set[tuple[str, str]]) -> None:
    """Add (package, extra) of everything the requirement brings, by the metadata of what is installed here."""
    name = canonical(requirement.name)
    for extra in ("", *requirement.extras):
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        if name == "moe-geometry":
            lines = extras.get(extra, [])
        else:
            try:
                lines = requires(name) or []
            except PackageNotFoundError:
                continue  # a requirement of another platform
        for line in map(Requirement, lines):
            if line.marker is None or line.marker.evaluate({"extra": extra}):
                needed(line, extras, seen)


@pytest.mark.parametrize("name", PACKAGES)
def test_each_package_is_the_folder_of_this_repository(root: Path, name: str) -> None:
    # An installed distribution of the same top-level name would win silently from any other working directory.
    file = importlib.import_module(name).__file__
    assert file and Path(file).resolve() == root / name / "__init__.py"


def test_the_top_level_holds_only_the_known_names(tracked: tuple[Path, ...]) -> None:
    strangers = {path.parts[0] for path in tracked if not path.parts[0].startswith(".")} - TOP_LEVEL
    assert not strangers, f"on the top level, and not in the plan of the house: {sorted(strangers)}"


def test_the_frontend_extra_brings_no_torch(root: Path) -> None:
    seen: set[tuple[str, str]] = set()
    needed(Requirement("moe-geometry[frontend]"), declared(root), seen)
    brought = {name for name, _ in seen}
    assert {"dash", "plotly", "httpx", "starlette", "flask"} <= brought, "the closure was not followed"
    assert not brought & HEAVY


def test_the_backend_extra_brings_torch_but_nothing_that_draws(root: Path) -> None:
    seen: set[tuple[str, str]] = set()
    needed(Requirement("moe-geometry[backend]"), declared(root), seen)
    brought = {name for name, _ in seen}
    assert {"torch", "numba", "jinja2"} <= brought
    assert not brought & {"dash", "plotly", "dash-ag-grid", "dash-mantine-components"}


def test_every_declared_requirement_is_pinned(root: Path) -> None:
    pins = {
        canonical(line.split("==")[0]) for line in (root / "constraints.txt").read_text().splitlines() if "==" in line
    }
    extras = declared(root)
    asked = {
        canonical(Requirement(line).name)
        for extra in ("all", "dev", "backend", "frontend", "analysis")
        for line in extras[extra]
    }
    assert asked - {"moe-geometry"} <= pins


def test_the_wheel_holds_the_three_packages_and_nothing_else(root: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=root, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == set(PACKAGES)
    assert not [name for name in names if name.endswith(("Dockerfile", ".pyc"))]


def test_it_can_never_be_published_by_accident(root: Path) -> None:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    assert "Private :: Do Not Upload" in project["classifiers"]
