"""What the READMEs say can be typed; nothing tracked points outside the repository."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

TEXT = {".py", ".md", ".toml", ".yml", ".yaml", ".txt", ".sh", ".js", ".css", ".json", ".html", ""}
# Whole lines of other people's text: prompts, token lists and logs quote what they quote.
QUOTED = ("data/prompts", "data/checkpoints")
OUTSIDE = re.compile(r"\.\./" + r"shared|(?<![\w.])/(?:work|root|home|Users|opt/wheels)/")
ROOMS = ("analysis", "backend", "frontend", "data", "tests")


def documents(root: Path, tracked: tuple[Path, ...]) -> list[tuple[Path, str]]:
    return [(name, (root / name).read_text()) for name in tracked if name.suffix == ".md"]


def typed(text: str) -> list[str]:
    """Lines of fenced blocks and inline code spans."""
    fenced = re.findall(r"```[^\n]*\n(.*?)```", text, flags=re.DOTALL)
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return [line.strip().removeprefix("$ ") for block in fenced for line in block.splitlines()] + inline


def test_nothing_tracked_points_outside_the_repository(root: Path, tracked: tuple[Path, ...]) -> None:
    found = []
    for name in tracked:
        if name.suffix in TEXT and not str(name).startswith(QUOTED):
            for number, line in enumerate((root / name).read_text().splitlines(), 1):
                if OUTSIDE.search(line):
                    found.append(f"{name}:{number}: {line.strip()[:100]}")
    assert not found, "\n".join(found)


def test_every_make_command_in_a_document_exists(root: Path, tracked: tuple[Path, ...]) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (root / "Makefile").read_text(), flags=re.MULTILINE))
    spoken = {
        (str(name), match.group(1))
        for name, text in documents(root, tracked)
        for line in typed(text)
        if (match := re.match(r"make ([a-z-]+)", line))
    }
    assert ("README.md", "up") in spoken and ("README.md", "test") in spoken
    assert not {pair for pair in spoken if pair[1] not in targets}


def test_every_path_in_the_readme_exists(root: Path) -> None:
    text = (root / "README.md").read_text()
    linked = [target for target in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in target]
    assert linked and not [target for target in linked if not (root / target).exists()]


@pytest.mark.slow
def test_every_command_line_in_a_document_exists(
    root: Path, tracked: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    from backend.cli import main

    spoken = {
        tuple(words)
        for _, text in documents(root, tracked)
        for line in typed(text)
        if (match := re.match(r"(?:\.venv/bin/)?moe-geometry((?: [a-z][a-z-]*)+)", line))
        for words in [match.group(1).split()[: 2 if " lab " in line else 1]]
    }
    assert spoken
    for words in sorted(spoken):
        monkeypatch.setattr(sys, "argv", ["moe-geometry", *words, "--help"])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code, f"moe-geometry {' '.join(words)}"


@pytest.mark.parametrize("room", ROOMS)
def test_each_room_has_a_sign_on_its_door(root: Path, room: str) -> None:
    text = (root / room / "README.md").read_text()
    assert text.startswith("# ") and len(text.splitlines()) >= 5
