"""What may have to be said beside a file, since many files do not say it themselves."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from backend.errors import Refusal

_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


@dataclass(frozen=True)
class Options:
    """What whoever imports knows of the file; None is what they left to the file.

    `layers` are the rows of the file's layer axis that are MoE layers, `window` cuts a stream without prompts into
    pieces of so many tokens, `budget` is how many bytes the routes may take.
    """

    format: str | None = None
    k: int | None = None
    experts: int | None = None
    layers: tuple[int, ...] | None = None
    window: int | None = None
    budget: int = 2 << 30

    @classmethod
    def said(cls, words: Mapping[str, Any]) -> Options:
        """From the words of a command line or a form, `layers` as text; None and what is left out are not said."""
        given = {name: value for name, value in words.items() if value is not None}
        return cls(**{**given, "layers": layer_numbers(given.get("layers"))})

    def __post_init__(self) -> None:
        """Refuse numbers that nothing can have."""
        for name in ("k", "experts", "window"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise Refusal(f"--{name} is {value}; it must be 1 or more.")
        if self.k and self.experts and self.k > self.experts:
            raise Refusal(
                f"--k {self.k} and --experts {self.experts}: a token cannot choose more experts than there are."
            )


def layer_numbers(text: str | None) -> tuple[int, ...] | None:
    """`3-60` or `1,3,5` as numbers; raises `Refusal` for anything else."""
    if text is None:
        return None
    found: list[int] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise Refusal(f"--layers {text!r} is no list of layers; write 3-60, or 1,3,5.")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last - first > 10_000:
            raise Refusal(f"--layers {text!r}: {part.strip()} does not go up by a number of layers that a model has.")
        found += range(first, last + 1)
    if len(set(found)) < len(found):
        raise Refusal(f"--layers {text!r} names a layer twice.")
    return tuple(sorted(found))
