"""A prompt and a named set of them."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Prompt:
    """One prompt. Its category is a label for grouping and never reaches the model.

    The text is empty where it is not known: the prompts of an imported trace may have ids alone.
    """

    id: str
    text: str
    category: str

    @property
    def digest(self) -> str:
        """SHA-256 of the text; of the id where no text is known, so that such prompts fall into several blocks too."""
        return hashlib.sha256((self.text or self.id).encode()).hexdigest()


@dataclass(frozen=True)
class PromptSet:
    """Named prompts in order."""

    name: str
    prompts: tuple[Prompt, ...]
    shipped: bool

    @cached_property
    def digest(self) -> str:
        """SHA-256 over ids, texts and categories in order; the name is no part of it."""
        digest = hashlib.sha256()
        for prompt in self.prompts:
            digest.update(json.dumps([prompt.id, prompt.text, prompt.category]).encode() + b"\n")
        return digest.hexdigest()

    @property
    def textless(self) -> bool:
        """Whether no text of it is known, so that no model can be run on it."""
        return not any(p.text for p in self.prompts)

    @property
    def characters(self) -> int:
        """Length of all texts."""
        return sum(len(p.text) for p in self.prompts)

    @property
    def categories(self) -> dict[str, int]:
        """Prompts per category, in order of first sight."""
        return dict(Counter(p.category for p in self.prompts))

    def summary(self) -> dict[str, Any]:
        """What the set is, without its texts."""
        return {
            "name": self.name,
            "digest": self.digest,
            "prompts": len(self.prompts),
            "categories": self.categories,
            "shipped": self.shipped,
            "characters": self.characters,
        }
