"""A byte-level BPE of 16,000 tokens, for the benchmarks that give one tokenizer to several projects (peers.py, command.py)."""

from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

EOT = "<|endoftext|>"
_VOCABULARY = 16_000
_TRAINED_ON_BYTES = 10_000_000


def train_tokenizer(texts: list[str], path: Path) -> None:
    """Train the tokenizer on the first 10 MB of the texts, and write it as a tokenizer.json."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=_VOCABULARY, special_tokens=[EOT], initial_alphabet=alphabet, show_progress=False)
    sizes = np.cumsum([len(text.encode()) for text in texts])
    tokenizer.train_from_iterator(texts[: int(np.searchsorted(sizes, _TRAINED_ON_BYTES)) + 1], trainer)
    tokenizer.save(str(path))
