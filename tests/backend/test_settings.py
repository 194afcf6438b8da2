"""Settings come from the environment, and a bad one is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from backend.app import address
from backend.errors import Refusal
from backend.settings import Settings, memory


def test_without_variables_everything_has_a_default() -> None:
    settings = Settings.from_environment({})
    assert (settings.data, settings.store) == (Path("data"), Path(".moe-geometry"))
    assert (settings.host, settings.port, settings.device) == ("127.0.0.1", 8000, "auto")
    assert settings.upload_cap == 64 << 20 and settings.memory_budget > 0
    assert settings.checkpoint_roots == (Path("data/checkpoints"), Path("data/runs"))


def test_each_variable_is_read() -> None:
    settings = Settings.from_environment(
        {
            "MOE_GEOMETRY_DATA": "d",
            "MOE_GEOMETRY_STORE": "s",
            "MOE_GEOMETRY_HOST": "0.0.0.0",
            "MOE_GEOMETRY_PORT": "9",
            "MOE_GEOMETRY_DEVICE": "cuda:1",
            "MOE_GEOMETRY_ROOTS": "one: :two",
            "MOE_GEOMETRY_UPLOAD_CAP": "10",
            "MOE_GEOMETRY_MEMORY": "11",
            "HF_TOKEN": "secret",
        }
    )
    assert settings.checkpoint_roots == (Path("d/checkpoints"), Path("d/runs"), Path("one"), Path("two"))
    assert (settings.port, settings.upload_cap, settings.memory_budget, settings.device) == (9, 10, 11, "cuda:1")
    assert "secret" not in repr(settings) and settings.hub_token == "secret"


@pytest.mark.parametrize("name", ["MOE_GEOMETRY_PORT", "MOE_GEOMETRY_UPLOAD_CAP", "MOE_GEOMETRY_MEMORY"])
def test_a_variable_that_is_no_number_is_named(name: str) -> None:
    with pytest.raises(Refusal, match=f"{name} is '64MB'; it must be a whole number"):
        Settings.from_environment({name: "64MB"})


def test_an_address_is_one_that_this_machine_can_reach() -> None:
    assert address(Settings(host="0.0.0.0", port=1)) == "http://127.0.0.1:1"
    assert address(Settings(host="::1", port=2)) == "http://[::1]:2"


def test_memory_is_the_least_of_machine_and_container(tmp_path: Path) -> None:
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limited, unlimited = tmp_path / "memory.max", tmp_path / "unlimited"
    limited.write_text(f"{whole // 3}\n")
    unlimited.write_text("max\n")
    assert memory((tmp_path / "absent", unlimited)) == whole
    assert memory((unlimited, limited)) == whole // 3
    limited.write_text(f"{2**63 - 4096}\n")  # what version 1 says where there is none
    assert memory((limited,)) == whole
