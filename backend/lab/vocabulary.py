"""The corpus's own tokenizer: byte-level BPE of 2,048 tokens, in the files that `AutoTokenizer` loads offline."""

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

SIZE = 2_048
END, PADDING = "<|endoftext|>", "<|padding|>"
"""Their names and ids (0, 1) are those of OLMoE's tokenizer; the end of a text is also the start of the next."""
END_ID, PADDING_ID = 0, 1
FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


def train(texts: Iterable[str], size: int = SIZE) -> Tokenizer:
    """Train the tokenizer; the same texts in the same order give the same tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    # Untrimmed: the character span of a token takes in the space before it, so that spans tile the text.
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END, PADDING],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path, context: int) -> None:
    """Write the tokenizer with the two small files that tell transformers its class and special tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    special = {"bos_token": END, "eos_token": END, "pad_token": PADDING}
    config = special | {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
    }
    tokenizer.save(str(folder / FILES[0]))
    for name, content in ((FILES[1], config), (FILES[2], special)):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
