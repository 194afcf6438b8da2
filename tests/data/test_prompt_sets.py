"""The prompt sets that ship keep their promises, checked with nothing but what ships."""

import hashlib
import itertools
import json
import re
from collections import Counter
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from backend.lab import overlap, prompts, sketch
from backend.lab.document import DOMAINS

Rows = list[dict[str, str]]


def read(path: Path) -> Rows:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def folder(root: Path) -> Path:
    return root / "data/prompts"


@pytest.fixture(scope="module")
def four_tasks(folder: Path) -> Rows:
    return read(folder / prompts.FOUR_TASKS)


@pytest.fixture(scope="module")
def validation(folder: Path) -> Rows:
    return read(folder / prompts.VALIDATION)


@pytest.fixture(scope="module")
def provenance(folder: Path) -> dict:
    return json.loads((folder / prompts.PROVENANCE).read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def tokenizer(root: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(root / "data/tokenizer")


def lengths(rows: Rows, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    return [len(tokenizer(row["text"])["input_ids"]) for row in rows]


def test_four_tasks_has_twenty_prompts_of_each_category(four_tasks: Rows) -> None:
    assert Counter(row["category"] for row in four_tasks) == dict.fromkeys(DOMAINS, 20)


def test_rows_are_id_text_and_category_and_no_id_is_used_twice(four_tasks: Rows, validation: Rows) -> None:
    rows = [*four_tasks, *validation]
    assert all(set(row) == {"id", "text", "category"} for row in rows)
    assert len({row["id"] for row in rows}) == len(rows)


def test_prompts_of_four_tasks_have_60_to_120_tokens(four_tasks: Rows, tokenizer: PreTrainedTokenizerBase) -> None:
    found = lengths(four_tasks, tokenizer)
    assert min(found) >= 60
    assert max(found) <= 120


def test_validation_has_40000_tokens_and_10000_of_each_category(
    validation: Rows, tokenizer: PreTrainedTokenizerBase
) -> None:
    tokens: Counter[str] = Counter()
    for row, length in zip(validation, lengths(validation, tokenizer), strict=True):
        tokens[row["category"]] += length
    assert tokens.total() >= 40_000
    assert min(tokens[domain] for domain in DOMAINS) >= 10_000


def test_no_row_is_longer_than_the_models_were_trained_to_read(
    four_tasks: Rows, validation: Rows, tokenizer: PreTrainedTokenizerBase
) -> None:
    assert max(lengths([*four_tasks, *validation], tokenizer)) <= tokenizer.model_max_length == 128


def test_provenance_names_the_origin_of_every_row_and_its_length(
    four_tasks: Rows, validation: Rows, provenance: dict, tokenizer: PreTrainedTokenizerBase
) -> None:
    rows = [*four_tasks, *validation]
    assert list(provenance["prompts"]) == [row["id"] for row in rows]
    assert [origin["tokens"] for origin in provenance["prompts"].values()] == lengths(rows, tokenizer)


def test_the_two_sets_share_no_document(four_tasks: Rows, validation: Rows, provenance: dict) -> None:
    first, second = (
        {name for row in rows for name in provenance["prompts"][row["id"]]["document"].split(prompts.JOINED)}
        for rows in (four_tasks, validation)
    )
    assert not first & second
    assert len(first) == len(four_tasks), "each prompt of four-tasks is from a document of its own"


def test_no_prompt_of_four_tasks_repeats_thirteen_words_of_the_training_text(four_tasks: Rows, folder: Path) -> None:
    known = sketch.load(folder / prompts.SKETCH)
    assert [row["id"] for row in four_tasks if sketch.may_repeat(row["text"], known)] == []


def test_the_sketch_of_the_training_text_finds_every_row_known_to_repeat_it(
    validation: Rows, folder: Path, provenance: dict
) -> None:
    known = sketch.load(folder / prompts.SKETCH)
    repeating = set(provenance["overlap"]["rows_of_validation_that_repeat_training_text"])
    assert len(repeating) > 50, "generated problems repeat their sentences, so some rows must"
    assert all(sketch.may_repeat(row["text"], known) for row in validation if row["id"] in repeating)


def test_no_prompt_of_four_tasks_repeats_thirteen_words_of_validation(four_tasks: Rows, validation: Rows) -> None:
    known = overlap.index(row["text"] for row in validation)
    assert [row["id"] for row in four_tasks if overlap.shared(row["text"], known)] == []


def test_no_two_prompts_of_four_tasks_are_near_duplicates(four_tasks: Rows) -> None:
    runs = {row["id"]: set(overlap.runs(row["text"], prompts.ALIKE).tolist()) for row in four_tasks}
    assert [pair for pair in itertools.combinations(runs, 2) if runs[pair[0]] & runs[pair[1]]] == []


def test_prompts_of_four_tasks_begin_where_a_reader_would(four_tasks: Rows) -> None:
    for row in four_tasks:
        pattern = r"@\w|async def |def |class " if row["category"] == "code" else r"[A-Z0-9\"'_(]"
        assert re.match(pattern, row["text"]), row["text"][:40]
        assert row["text"] == row["text"].rstrip()


def test_no_markup_is_left_in_the_facts(four_tasks: Rows, validation: Rows) -> None:
    markup = re.compile(r"</?(?:p|br|b|i|em|strong|div|span|a|ul|li|h\d)\b[^>]*>|&(?:nbsp|amp|lt|gt|quot|#\d+);")
    assert [
        row["id"] for row in (*four_tasks, *validation) if row["category"] == "fact" and markup.search(row["text"])
    ] == []


def test_the_readme_gives_the_digest_of_every_file(root: Path) -> None:
    readme = (root / "data/README.md").read_text(encoding="utf-8")
    for part in ("prompts", "tokenizer"):
        for path in sorted((root / "data" / part).iterdir()):
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            assert f"| `data/{part}/{path.name}` | `{digest}` |" in readme


def test_the_tokenizer_keeps_every_byte_and_pads_with_a_token_of_its_own(tokenizer: PreTrainedTokenizerBase) -> None:
    text = "def f(x):\n\treturn 'é ∀ 😀'  # 12,345\n"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert len(tokenizer) == 2048
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (0, 0, 1)


def test_the_spans_of_the_tokens_tile_the_text(tokenizer: PreTrainedTokenizerBase, four_tasks: Rows) -> None:
    for row in four_tasks:
        spans = tokenizer(row["text"], return_offsets_mapping=True)["offset_mapping"]
        assert spans[0][0] == 0
        assert spans[-1][1] == len(row["text"])
        # A character of several bytes may be several tokens, which then share its span.
        assert all(after[0] in (before[0], before[1]) for before, after in itertools.pairwise(spans))
