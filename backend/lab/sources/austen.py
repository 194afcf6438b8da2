"""Story: the six novels of Jane Austen (public domain), one document a chapter."""

import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

from backend.lab.document import Document, Source
from backend.lab.sources import fetch

PACKAGE, VERSION = "r-cran-janeaustenr", "1.0.0-1"
NOVELS = ("Emma", "Mansfield Park", "Northanger Abbey", "Persuasion", "Pride and Prejudice", "Sense and Sensibility")
CHAPTER = re.compile(r"^(?:VOLUME|CHAPTER|Chapter)\b.*$")
SMALLEST = 1_500
VECTOR_OF_STRINGS, MISSING = 16, -1


def read(folder: Path) -> Source:
    """Fetch the package into `folder` and return its chapters."""
    root = fetch.debian(PACKAGE, VERSION, folder)
    database = root / "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"
    documents: list[Document] = []
    for novel, lines in zip(NOVELS, character_vectors(database.read_bytes()), strict=True):
        documents += chapters(novel, lines)
    return Source("jane-austen", "story", VERSION, "public domain (package: MIT)", tuple(documents))


def character_vectors(database: bytes) -> Iterator[list[str]]:
    r"""Yield the character vectors of an R lazy-load database.

    The file is a run of entries, each a big-endian length and a zlib stream; inside is R's XDR serialisation, version
    3 ("X\n", three version words, a native encoding), here always of one plain character vector.
    """
    start = 0
    while start < len(database):
        stream = zlib.decompressobj()
        data = stream.decompress(database[start + 4 :])
        start = len(database) - len(stream.unused_data)
        yield _strings(data)


def _strings(data: bytes) -> list[str]:
    if data[:2] != b"X\n":
        raise fetch.SourceMissing("The Austen package is not in R's XDR serialisation; its format has changed.")
    encoding = struct.unpack_from(">i", data, 14)[0]
    at = 18 + encoding
    kind, count = struct.unpack_from(">ii", data, at)
    if kind & 0xFF != VECTOR_OF_STRINGS:
        raise fetch.SourceMissing(f"The Austen package holds an R object of type {kind & 0xFF}, not a vector of texts.")
    at += 8
    texts = []
    for _ in range(count):
        size = struct.unpack_from(">i", data, at + 4)[0]
        at += 8
        texts.append("" if size == MISSING else data[at : at + size].decode("utf-8"))
        at += max(size, 0)
    return texts


def chapters(novel: str, lines: list[str]) -> list[Document]:
    """Cut a novel at its chapter headings, joining the wrapped lines of each paragraph."""
    parts: list[list[str]] = [[]]
    for line in lines:
        if CHAPTER.match(line.strip()):
            parts.append([])
        else:
            parts[-1].append(line.rstrip())
    documents = []
    for part in parts[1:]:
        paragraphs = re.split(r"\n\s*\n", "\n".join(part).strip())
        text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs if paragraph.strip())
        if len(text) >= SMALLEST:
            documents.append(Document("jane-austen", f"{novel}, chapter {len(documents) + 1}", text))
    return documents
