"""The compose files without an engine: loopback ports, one volume, and variables that somebody reads."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

SERVICES = ("backend", "frontend")


@pytest.fixture(scope="module")
def compose(root: Path) -> dict[str, Any]:
    return yaml.safe_load((root / "docker-compose.yml").read_text())


def test_whatever_is_published_is_published_on_loopback(compose: dict[str, Any]) -> None:
    ports = [port for service in compose["services"].values() for port in service.get("ports", [])]
    assert ports and all(port.startswith("127.0.0.1:") for port in ports)


def test_both_services_heal_and_wait_for_each_other(compose: dict[str, Any]) -> None:
    services = compose["services"]
    assert set(services) == set(SERVICES)
    for service in services.values():
        assert service["restart"] == "unless-stopped" and service["stop_grace_period"] and service["healthcheck"]
        assert "start_interval" not in service["healthcheck"]  # needs an engine newer than Debian's
    assert services["frontend"]["depends_on"]["backend"]["condition"] == "service_healthy"


def test_only_the_backend_holds_the_one_volume(compose: dict[str, Any]) -> None:
    (name,) = compose["volumes"]
    assert compose["services"]["backend"]["volumes"] == [f"{name}:/store"]
    assert "volumes" not in compose["services"]["frontend"]


def test_the_end_to_end_run_asks_where_the_pages_are_published(root: Path, compose: dict[str, Any]) -> None:
    (port,) = compose["services"]["frontend"]["ports"]
    (variable,) = re.findall(r"\$\{(\w+):-8050\}", port)
    assert f"http://127.0.0.1:${variable}" in (root / "tests/compose/e2e.sh").read_text()


@pytest.mark.parametrize("room", SERVICES)
def test_every_variable_of_ours_is_read_by_its_room(root: Path, compose: dict[str, Any], room: str) -> None:
    said = set(re.findall(r"\b(MOE_GEOMETRY_\w+)=", (root / room / "Dockerfile").read_text()))
    said |= set(compose["services"][room]["environment"])
    source = "".join(file.read_text() for file in (root / room).rglob("*.py"))
    assert said and not {name for name in said if name not in source}


@pytest.mark.parametrize("room", SERVICES)
def test_the_images_are_built_by_old_engines_too_and_drop_root(root: Path, room: str) -> None:
    text = (root / room / "Dockerfile").read_text()
    assert not re.search(r"^# syntax=|<<\w*EOF", text, flags=re.MULTILINE)
    assert re.search(r"^USER app$", text, flags=re.MULTILINE)


def test_the_gpu_file_changes_the_index_and_reserves_a_device(root: Path) -> None:
    backend = yaml.safe_load((root / "docker-compose.gpu.yml").read_text())["services"]["backend"]
    assert "/cu" in backend["build"]["args"]["TORCH_INDEX"]
    (device,) = backend["deploy"]["resources"]["reservations"]["devices"]
    assert device["driver"] == "nvidia" and device["capabilities"] == ["gpu"]
