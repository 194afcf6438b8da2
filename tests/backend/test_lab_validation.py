"""The prompt set on which MaxVio is judged is the packed text that the routers were validated on."""

from pathlib import Path

from tokenizers import Tokenizer

from backend.lab.document import Document
from backend.lab.windows import windows


def test_windows_are_the_packed_tokens_and_name_their_documents(root: Path) -> None:
    tokenizer = Tokenizer.from_file(str(root / "data/tokenizer/tokenizer.json"))
    documents = [Document("s", f"d{i}", f"Theorem {i}. " + "all x are y. " * 5 * i) for i in range(1, 9)]
    found = windows(documents, tokenizer, 3, 16)
    stream = [i for d in documents for i in [tokenizer.token_to_id("<|endoftext|>"), *tokenizer.encode(d.text).ids]]
    assert [tokenizer.encode(w.text).ids for w in found] == [stream[w.start : w.start + 16] for w in found]
    assert found[0].start == 0
    assert found[-1].documents[-1] == documents[-1]
    assert found[-1].start == (len(stream) // 16 - 1) * 16
