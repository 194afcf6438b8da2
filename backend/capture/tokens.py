"""From prompts to token ids that know where they come from: span, role, class; and the order they are run in."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from analysis.errors import GeometryError
from analysis.slots import GENERATED, PROMPT, TOKEN_CLASSES, Prompts, TokenKeys, text_digest

NOWHERE = (-1, -1)
"""Span of a token that the prompt's text does not hold: special, templated or generated."""


class PromptLike(Protocol):
    """What a capture reads of a prompt."""

    @property
    def id(self) -> str: ...  # noqa: D102
    @property
    def text(self) -> str: ...  # noqa: D102
    @property
    def category(self) -> str: ...  # noqa: D102


@dataclass(frozen=True)
class Encoded:
    """A prompt as the model gets it. `given` tokens are the prompt's, the rest generated; `cut` were over the limit."""

    prompt: PromptLike
    ids: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    given: int
    cut: int = 0

    def __len__(self) -> int:
        return len(self.ids)

    def continued(self, ids: Sequence[int]) -> Encoded:
        """With these generated tokens behind it."""
        return replace(self, ids=(*self.ids, *ids), spans=self.spans + (NOWHERE,) * len(ids))


def encode(tokenizer: Any, prompt: PromptLike, *, chat_template: bool, max_tokens: int) -> Encoded:
    """Token ids and their character spans in the prompt's own text.

    Raises:
        GeometryError: If a chat template is asked for and the tokenizer has none, or if it gives no offsets.
    """
    text, held, start = prompt.text, (0, len(prompt.text)), 0
    if chat_template:
        text, held, start = _templated(tokenizer, prompt.text)
    if not getattr(tokenizer, "is_fast", False):
        raise GeometryError(
            f"{type(tokenizer).__name__} gives no character offsets; a fast tokenizer (tokenizer.json) does"
        )
    found = tokenizer(
        text,
        add_special_tokens=not chat_template,
        return_offsets_mapping=True,
        return_attention_mask=False,
        verbose=False,
    )
    ids, offsets = found["input_ids"], found["offset_mapping"]
    first, last = start + held[0], start + held[1]
    spans = tuple([(a - start, b - start) if first <= a < b <= last else NOWHERE for a, b in offsets])
    keep = min(len(ids), max_tokens)
    return Encoded(prompt, tuple(ids[:keep]), spans[:keep], keep, len(ids) - keep)


def batches(encoded: Sequence[Encoded], budget: int, extra: int) -> Iterator[list[Encoded]]:
    """Prompts in order of length, cut so that a padded batch holds at most `budget` tokens (one prompt may exceed it).

    `extra` is how many tokens each may grow by.
    """
    batch: list[Encoded] = []
    for each in sorted(encoded, key=len):
        if batch and (len(batch) + 1) * (len(each) + extra) > budget:
            yield batch
            batch = []
        batch.append(each)
    if batch:
        yield batch


def padded(batch: Sequence[Encoded], pad: int) -> tuple[Tensor, Tensor]:
    """Ids and attention mask, padded on the right whatever the tokenizer prefers.

    On that side causal attention never lets padding reach a token, with or without a mask, and positions count from 0.
    """
    longest = max(len(each) for each in batch)
    ids = torch.full((len(batch), longest), pad)
    mask = torch.zeros(len(batch), longest, dtype=torch.long)
    for row, each in enumerate(batch):
        ids[row, : len(each)] = torch.tensor(each.ids)
        mask[row, : len(each)] = 1
    return ids, mask


def counted_rows(mask: Tensor, first_token: bool) -> Tensor:
    """Which rows of the flattened batch count: all tokens, or all but the first of each prompt; never padding."""
    if not first_token:
        mask = mask.clone()
        mask[:, 0] = 0
    return mask.flatten().nonzero().squeeze(-1)


def parted(encoded: Sequence[Encoded], alone: bool) -> tuple[list[Encoded], list[Encoded]]:
    """Prompts that have a token that counts, and the others; `alone`: whether one of a single token has."""
    least = 1 if alone else 2
    return [each for each in encoded if len(each) >= least], [each for each in encoded if len(each) < least]


def prompts_of(batch: Sequence[Encoded]) -> Prompts:
    """Identity and label of the prompts, in the order the keys index."""
    prompts = [each.prompt for each in batch]
    return Prompts(
        tuple(p.id for p in prompts), tuple(text_digest(p.text) for p in prompts), tuple(p.category for p in prompts)
    )


def keys_of(batch: Sequence[Encoded], classes: TokenClasses, predicted: Tensor, first_token: bool = True) -> TokenKeys:
    """Keys of the tokens that count, prompt after prompt: the order of `counted_rows`."""
    column = lambda values: torch.tensor(list(values), dtype=torch.long)  # noqa: E731
    lengths, given = column(map(len, batch)), column(each.given for each in batch)
    prompt = torch.repeat_interleave(torch.arange(len(batch)), lengths)
    position = torch.arange(len(prompt)) - (lengths.cumsum(0) - lengths)[prompt]
    token = column(chain.from_iterable(each.ids for each in batch))
    following = torch.where(position + 1 < lengths[prompt], token.roll(-1), -1)
    kinds = classes.codes(token)
    keys = {
        "prompt": prompt,
        "position": position,
        "role": torch.where(position < given[prompt], PROMPT, GENERATED),
        "token": token,
        "next": following,
        "token_class": torch.where(position == 0, TOKEN_CLASSES.index("first"), kinds),
        "after": torch.where(following < 0, -1, kinds.roll(-1)),
        "span": torch.from_numpy(np.array([span for each in batch for span in each.spans], np.int64).reshape(-1, 2)),
    }
    kept = slice(None) if first_token else position > 0
    held = {name: values[kept].to(predicted.device) for name, values in keys.items()}
    whose = [held.pop("token_class"), held.pop("after"), classes.codes(predicted.cpu()).to(predicted.device)]
    return TokenKeys(predicted=predicted, token_class=torch.stack(whose, -1), **held)


class TokenClasses:
    """Surface class of a token: the first of a prompt is `first` whatever it is; else what its own text is."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._special = set(tokenizer.all_special_ids)
        self._codes: dict[int, int] = {}

    def codes(self, tokens: Tensor) -> Tensor:
        """Of each of these tokens its code, -1 for one that has no id; a text is looked at once."""
        of_id, which = tokens.unique(return_inverse=True)
        return torch.tensor([self.code(one) if one >= 0 else -1 for one in of_id.tolist()], dtype=torch.long)[which]

    def code(self, token: int) -> int:
        """Index into `TOKEN_CLASSES`, wherever in a prompt the token stands."""
        if token not in self._codes:
            name = "special" if token in self._special else surface(self._tokenizer.decode([token]))
            self._codes[token] = TOKEN_CLASSES.index(name)
        return self._codes[token]


def surface(text: str) -> str:
    """Class of a piece of text: newline, digit, punctuation (symbols included) or other."""
    bare = text.strip()
    if not bare:
        return "newline" if "\n" in text else "other"
    if bare.isdigit():
        return "digit"
    marks = all(unicodedata.category(c)[0] in "PS" and c != "\ufffd" for c in bare)  # U+FFFD: half of a character
    return "punctuation" if marks else "other"


def _templated(tokenizer: Any, text: str) -> tuple[str, tuple[int, int], int]:
    """The prompt as one user turn, the range of it that the turn holds, and where in the turn its first character is.

    A template may trim the prompt, or rewrite it: then the range is empty and no token has a span.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise GeometryError(
            f"this checkpoint's tokenizer ({type(tokenizer).__name__}) has no chat template; ask with chat_template off"
        )
    # Where a mark would go is where the text goes; a search for the text may find a word of the template's.
    turn, mark = _turn(tokenizer, text), "\ue000mark\ue000"
    start, bare = _turn(tokenizer, mark).find(mark), text.strip()
    if start >= 0 and turn.startswith(text, start):
        return turn, (0, len(text)), start
    if start >= 0 and turn.startswith(bare, start):
        lead = len(text) - len(text.lstrip())
        return turn, (lead, lead + len(bare)), start - lead
    return turn, (0, 0), 0


def _turn(tokenizer: Any, text: str) -> str:
    messages = [{"role": "user", "content": text}]
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
