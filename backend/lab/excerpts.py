"""Cut prompts out of documents: from a place where a reader would start to one where a reader could stop."""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tokenizers import Tokenizer

from backend.lab.document import Document

STARTS = {"code": re.compile(r"^(?=(?:@\w|async def |def |class )\w*)", re.MULTILINE)}
PARAGRAPH = re.compile(r"(?:\A|(?<=\n\n))(?=[^\n])")
STOPS = {
    "code": re.compile(r"\n"),
    "mathematics": re.compile(r"\n|\Z"),
    "story": re.compile(r"(?<=[.!?])(?<!\bMr\.)(?<!\bMrs\.)(?<!\bDr\.)(?<!\bSt\.)[\"')]*(?=\s+[\"'(]*[A-Z_]|\Z)"),
    "fact": re.compile(r"(?<=[.;])(?=\s)|\n|\Z"),
}
WHOLE = 1_000
"""A document of fewer characters, which is to say a problem, is taken whole or not at all."""


@dataclass(frozen=True)
class Size:
    """How many tokens an excerpt may have, and how many it should have."""

    least: int
    wanted: int
    most: int


@dataclass(frozen=True)
class Excerpt:
    """A readable piece of one document, `start` characters into it."""

    document: Document
    start: int
    text: str
    tokens: int


def at(document: Document, domain: str, start: int, size: Size, tokenizer: Tokenizer) -> Excerpt | None:
    """Return the excerpt that begins at `start` and stops nearest to the wanted size, or None if none fits."""
    if len(document.text) < WHOLE:
        return _whole(document, size, tokenizer) if start == 0 else None
    text = document.text[start : start + 8 * size.most]
    best: Excerpt | None = None
    for stop in STOPS[domain].finditer(text):
        if start + stop.end() < len(document.text) and stop.end() == len(text):
            continue  # the window's edge, not a place to stop
        piece = text[: stop.end()].rstrip().removesuffix(";")
        tokens = len(tokenizer.encode(piece).ids)
        if tokens > size.most:
            break
        if tokens >= size.least and (best is None or abs(tokens - size.wanted) <= abs(best.tokens - size.wanted)):
            best = Excerpt(document, start, piece, tokens)
    return best


def _whole(document: Document, size: Size, tokenizer: Tokenizer) -> Excerpt | None:
    tokens = len(tokenizer.encode(document.text).ids)
    return Excerpt(document, 0, document.text, tokens) if size.least <= tokens <= size.most else None


def scattered(document: Document, domain: str, size: Size, tokenizer: Tokenizer, seed: str) -> Iterator[Excerpt]:
    """Yield excerpts of a document from its readable starts, in a seeded order."""
    starts = [match.start() for match in STARTS.get(domain, PARAGRAPH).finditer(document.text)]
    random.Random(f"{seed}:{document.name}").shuffle(starts)
    for start in starts:
        excerpt = at(document, domain, start, size, tokenizer)
        if excerpt:
            yield excerpt
