"""A corpus built from a small invented library: nothing held out leaks, and nothing is lost in packing."""

import functools
import random
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from backend.lab import corpus, prompts, report, vocabulary
from backend.lab.corpus import Share
from backend.lab.document import DOMAINS, Document, Source

pytestmark = pytest.mark.slow

SHARE = Share(train=60_000, validation=60_000, prompts=24)
SHARES = {domain: SHARE for domain in DOMAINS}
SYLLABLES = [first + vowel for first in "bdfgklmnprstvz" for vowel in "aeiou"]


def invented(domain: str, chance: random.Random) -> Document:
    """A document of made-up words that reads, to the code that cuts it, like one of its domain."""
    paragraphs = []
    for _ in range(12):
        words = ["".join(chance.choices(SYLLABLES, k=chance.randint(1, 3))) for _ in range(40)]
        if domain == "code":
            lines = [" ".join(words[start : start + 6]) for start in range(0, 40, 6)]
            paragraphs.append(f"def {words[0]}():\n    " + "\n    ".join(lines))
        else:
            paragraphs.append(". ".join(" ".join(words[at : at + 10]).capitalize() for at in range(0, 40, 10)) + ".")
    return Document(domain, f"{domain} {chance.random():.12f}", "\n\n".join(paragraphs))


@functools.cache
def library() -> tuple[Source, ...]:
    sources = []
    for domain in DOMAINS:
        chance = random.Random(f"a library of {domain}")
        documents = tuple(invented(domain, chance) for _ in range(50))
        sources.append(Source(domain, domain, "1", "CC0-1.0", documents))
    return tuple(sources)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, report.CorpusReport]:
    out = tmp_path_factory.mktemp("corpus")
    return out, corpus.assemble(library(), out, 0, shares=SHARES)


def test_no_document_has_two_uses() -> None:
    for source in library():
        part = corpus.split(source, SHARE, 0)
        uses = [{document.name for document in use} for use in (part.train, part.validation, part.prompts)]
        assert sum(map(len, uses)) == len(set.union(*uses))
        assert all(uses)


def test_documents_of_an_unseen_kind_never_reach_training() -> None:
    source = library()[0]
    new = Document(source.name, "unseen", "something else")
    part = corpus.split(Source("s", "code", "1", "CC0-1.0", source.documents, (new,)), SHARE, 0)
    assert new in part.prompts
    assert new not in (*part.train, *part.validation)


def test_the_same_seed_builds_the_same_files(built: tuple[Path, report.CorpusReport], tmp_path: Path) -> None:
    assert corpus.assemble(library(), tmp_path, 0, shares=SHARES).digests == built[1].digests


def test_another_seed_holds_other_documents_out() -> None:
    source = library()[0]
    assert corpus.split(source, SHARE, 0).prompts != corpus.split(source, SHARE, 1).prompts


def test_a_prompt_that_training_text_repeats_is_refused() -> None:
    text = " ".join(f"word{number}" for number in range(40))
    planted = prompts.Prompt("story-01", text, "story", "s", "d", 0, 96)
    known = prompts.overlap.index([f"before {' '.join(text.split()[20:33])} after"])
    with pytest.raises(prompts.PromptsOverlap, match="story-01"):
        prompts.require_new([planted], known)


def test_documents_copied_into_training_text_yield_no_prompts(tmp_path: Path) -> None:
    *others, fact = library()
    held_out = corpus.split(fact, SHARE, 0).prompts
    leaking = Source(
        "leak", "fact", "1", "CC0-1.0", tuple(Document("leak", document.name, document.text) for document in held_out)
    )
    shares = SHARES | {"leak": Share(train=10_000_000, validation=0, prompts=0)}
    with pytest.raises(prompts.PromptsOverlap, match="0 prompts of fact"):
        corpus.assemble((*others, fact, leaking), tmp_path, 0, shares=shares)


def test_rows_are_129_tokens_and_each_begins_with_the_last_of_the_row_before(
    built: tuple[Path, report.CorpusReport],
) -> None:
    for domain in DOMAINS:
        rows = np.load(built[0] / f"train-{domain}.npy")
        assert rows.dtype == np.uint16
        assert rows.shape[1] == corpus.CONTEXT + 1
        assert (rows[1:, 0] == rows[:-1, -1]).all()


def test_packed_documents_decode_to_their_text(built: tuple[Path, report.CorpusReport]) -> None:
    tokenizer = Tokenizer.from_file(str(built[0] / "tokenizer.json"))
    documents = list(library()[2].documents[:5])
    rows = corpus.pack(documents, tokenizer)
    text = tokenizer.decode([*rows[:, :-1].ravel().tolist(), int(rows[-1, -1])], skip_special_tokens=False)
    assert "".join(vocabulary.END + document.text for document in documents).startswith(text)


def test_texts_too_short_for_one_row_pack_to_none(built: tuple[Path, report.CorpusReport]) -> None:
    tokenizer = Tokenizer.from_file(str(built[0] / "tokenizer.json"))
    assert corpus.pack([Document("s", "n", "short")], tokenizer).shape == (0, corpus.CONTEXT + 1)


def test_the_report_counts_what_lies_in_the_folder(built: tuple[Path, report.CorpusReport]) -> None:
    out, result = built
    for use in ("train", "validation"):
        for domain in DOMAINS:
            assert result.sequences[use][domain] == len(np.load(out / f"{use}-{domain}.npy"))
    assert result.digests == report.digests(out)
    assert result.prompts["four-tasks"] == prompts.EACH * len(DOMAINS)


def test_publishing_copies_the_tokenizer_and_the_prompts(
    built: tuple[Path, report.CorpusReport], tmp_path: Path
) -> None:
    corpus.publish(built[0], tmp_path)
    assert names(tmp_path / "tokenizer") == sorted(vocabulary.FILES)
    assert names(tmp_path / "prompts") == sorted(prompts.FILES)


def names(folder: Path) -> Iterable[str]:
    return sorted(path.name for path in folder.iterdir())
