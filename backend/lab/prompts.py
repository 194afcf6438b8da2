"""Choose the prompt sets that ship: four-tasks.jsonl and validation.jsonl, from documents that training never saw."""

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tokenizers import Tokenizer

from backend.lab import excerpts, overlap, sketch
from backend.lab.document import DOMAINS, Document
from backend.lab.excerpts import Excerpt, Size
from backend.lab.settings import CONTEXT
from backend.lab.windows import windows

if TYPE_CHECKING:
    from backend.lab.corpus import Split

FOUR_TASKS, VALIDATION, PROVENANCE = "four-tasks.jsonl", "validation.jsonl", "provenance.json"
SKETCH = "training-text.npz"
FILES = (FOUR_TASKS, VALIDATION, PROVENANCE, SKETCH)
EACH = 20
SHORT = Size(least=60, wanted=96, most=120)
VALIDATION_WINDOWS = 100
"""A domain, each as long as the models' context and no longer: nobody trained them beyond it."""
JOINED = " + "
Packed = Mapping[str, Sequence[Document]]
"""Each domain's held-out documents, in the order in which they are packed."""
ALIKE = 8
"""Two prompts that share so many words in a row are too alike to both be shown."""


class PromptsOverlap(ValueError):
    """A prompt repeats 13 words in a row of the text it should be independent of."""


@dataclass(frozen=True)
class Known:
    """The text that prompts must not repeat: runs of training and validation text, and training text's sketch."""

    runs: overlap.Hashes
    sketch: sketch.Sketch


@dataclass(frozen=True)
class Prompt:
    """A row of a prompt set, with where it was cut from.

    `start` counts characters into the document; for windows of the validation set, which may span documents, tokens
    into the documents of the domain laid end to end.
    """

    id: str
    text: str
    category: str
    source: str
    document: str
    start: int
    tokens: int


@dataclass(frozen=True)
class Written:
    """The two sets, and what was compared to know that four-tasks is new to the models."""

    four_tasks: tuple[Prompt, ...]
    validation: tuple[Prompt, ...]
    training_runs: int
    prompt_runs: int
    validation_runs: int
    validation_runs_seen: dict[str, float]
    validation_rows_seen: tuple[str, ...]


def write(splits: Sequence["Split"], packed: Packed, tokenizer: Tokenizer, folder: Path, seed: int) -> Written:
    """Choose both prompt sets and write them with their provenance.

    Raises:
        PromptsOverlap: a chosen prompt repeats training or validation text, or a domain yields too few prompts.
    """
    training = overlap.index(document.text for part in splits for document in part.train)
    training_sketch = sketch.sketch(document.text for part in splits for document in part.train)
    set_aside = overlap.index(document.text for part in splits for document in part.validation)
    validation = tuple(_validation(packed, tokenizer))
    four_tasks = tuple(_four_tasks(splits, tokenizer, Known(np.union1d(training, set_aside), training_sketch), seed))
    require_new(four_tasks, training)
    require_new(four_tasks, set_aside)
    written = Written(
        four_tasks,
        validation,
        training_runs=len(training),
        prompt_runs=sum(len(overlap.runs(prompt.text)) for prompt in four_tasks),
        validation_runs=sum(len(overlap.runs(prompt.text)) for prompt in validation),
        validation_runs_seen={domain: _share_seen(validation, domain, training) for domain in DOMAINS},
        validation_rows_seen=tuple(prompt.id for prompt in validation if overlap.shared(prompt.text, training)),
    )
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in ((FOUR_TASKS, four_tasks), (VALIDATION, validation)):
        (folder / name).write_text(lines(rows), encoding="utf-8")
    sketch.save(training_sketch, folder / SKETCH)
    (folder / PROVENANCE).write_text(json.dumps(provenance(written), indent=1) + "\n", encoding="utf-8")
    return written


def lines(rows: Iterable[Prompt]) -> str:
    """Return a prompt set as JSON lines of id, text and category."""
    fields = ("id", "text", "category")
    return "".join(json.dumps({name: getattr(row, name) for name in fields}, ensure_ascii=False) + "\n" for row in rows)


def provenance(written: Written) -> dict[str, object]:
    """Return where each prompt was cut from and what the overlap was looked for in."""
    rows = (*written.four_tasks, *written.validation)
    return {
        "overlap": {
            "words_in_a_row": overlap.RUN,
            "distinct_runs_of_training_text": written.training_runs,
            "runs_of_four_tasks": written.prompt_runs,
            "runs_of_four_tasks_in_training_or_validation_text": 0,
            "runs_of_validation": written.validation_runs,
            "share_of_validation_runs_in_training_text": written.validation_runs_seen,
            "rows_of_validation_that_repeat_training_text": written.validation_rows_seen,
        },
        "prompts": {
            row.id: {name: value for name, value in asdict(row).items() if name not in {"id", "text", "category"}}
            for row in rows
        },
    }


def require_new(rows: Iterable[Prompt], known: overlap.Hashes) -> None:
    """Refuse prompts that share 13 words in a row with indexed text."""
    seen = [row.id for row in rows if overlap.shared(row.text, known)]
    if seen:
        raise PromptsOverlap(f"These prompts repeat {overlap.RUN} words in a row of known text: {', '.join(seen)}.")


def _share_seen(rows: Sequence[Prompt], domain: str, training: overlap.Hashes) -> float:
    found = [overlap.runs(row.text) for row in rows if row.category == domain]
    total = sum(map(len, found))
    return round(sum(overlap.hits(part, training) for part in found) / total, 4) if total else 0.0


def _four_tasks(splits: Sequence["Split"], tokenizer: Tokenizer, known: Known, seed: int) -> Iterator[Prompt]:
    for domain in DOMAINS:
        parts = [part for part in splits if part.source.domain == domain and part.prompts]
        chosen: list[Excerpt] = []
        for place, part in enumerate(parts):
            # The last source makes up what the others could not give.
            quota = EACH * (place + 1) // len(parts) - len(chosen)
            for candidates in _families(part.prompts, domain, tokenizer, str(seed)):
                if quota == 0:
                    break
                new = next((each for each in candidates if _is_new(each, chosen, known)), None)
                if new:
                    chosen.append(new)
                    quota -= 1
        if len(chosen) < EACH:
            raise PromptsOverlap(
                f"Only {len(chosen)} prompts of {domain} are new to the training text; {EACH} are needed. "
                "Set more documents aside."
            )
        yield from _numbered(chosen, domain, "")


def _families(
    documents: Iterable[Document], domain: str, tokenizer: Tokenizer, seed: str
) -> Iterator[Iterator[Excerpt]]:
    """One stream of candidates for each document, or for each generator of problems, to take one prompt from."""
    families: dict[str, list[Document]] = {}
    for document in documents:
        generated = document.source == "reasoning-gym"
        families.setdefault(document.name.split("/")[0] if generated else document.name, []).append(document)
    for members in families.values():
        yield itertools.chain.from_iterable(
            excerpts.scattered(member, domain, SHORT, tokenizer, seed) for member in members
        )


def _is_new(candidate: Excerpt, chosen: Iterable[Excerpt], known: Known) -> bool:
    if overlap.shared(candidate.text, known.runs) or sketch.may_repeat(candidate.text, known.sketch):
        return False
    alike = overlap.index((each.text for each in chosen), ALIKE)
    return overlap.shared(candidate.text, alike, ALIKE) == 0


def _validation(packed: Packed, tokenizer: Tokenizer) -> Iterator[Prompt]:
    for domain, documents in packed.items():
        for number, window in enumerate(windows(documents, tokenizer, VALIDATION_WINDOWS, CONTEXT), start=1):
            yield Prompt(
                f"{domain}-v{number:03d}",
                window.text,
                domain,
                JOINED.join(dict.fromkeys(document.source for document in window.documents)),
                JOINED.join(document.name for document in window.documents),
                window.start,
                window.tokens,
            )


def _numbered(rows: Sequence[Excerpt], domain: str, mark: str) -> Iterator[Prompt]:
    width = len(str(len(rows)))
    for number, row in enumerate(rows, start=1):
        document = row.document
        yield Prompt(
            f"{domain}-{mark}{number:0{width}d}",
            row.text,
            domain,
            document.source,
            document.name,
            row.start,
            row.tokens,
        )
