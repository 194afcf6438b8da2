"""Windows of packed documents, as training sees its own text: the only cut that keeps the mix of the training tokens.

Excerpts that a person would choose leave out what is too short or too long to show; of the generated problems that was
most. A router is judged on the mix it learned to balance, so the validation set is cut blindly.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from backend.lab import vocabulary
from backend.lab.document import Document

HALF_CHARACTER = "\ufffd"


@dataclass(frozen=True)
class Window:
    """The text of consecutive tokens, the end-of-text token written out where a document begins."""

    text: str
    tokens: int
    start: int
    documents: tuple[Document, ...]


def windows(documents: Sequence[Document], tokenizer: Tokenizer, count: int, context: int) -> list[Window]:
    """Cut `count` windows of `context` tokens, spread evenly over the documents laid end to end."""
    stream: list[int] = []
    starts: list[int] = []
    for encoding in tokenizer.encode_batch([document.text for document in documents]):
        starts.append(len(stream))
        stream += [vocabulary.END_ID, *encoding.ids]
    rows = np.linspace(0, len(stream) // context - 1, min(count, len(stream) // context)).round().astype(int)
    found = []
    for start in (rows * context).tolist():
        text, tokens = _text(stream[start : start + context], tokenizer, context)
        first, last = np.searchsorted(starts, [start, start + context - 1], side="right") - 1
        found.append(Window(text, tokens, start, tuple(documents[first : last + 1])))
    return found


def _text(ids: list[int], tokenizer: Tokenizer, most: int) -> tuple[str, int]:
    # A window may begin or end inside a character, and its first piece may be cut anew: then it loses its last tokens.
    while True:
        text = tokenizer.decode(ids, skip_special_tokens=False).strip(HALF_CHARACTER)
        tokens = len(tokenizer.encode(text).ids)
        if tokens <= most:
            return text, tokens
        ids = ids[:-1]
