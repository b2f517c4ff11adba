"""A cache with GPT-2's tokenizer, from tiktoken or Hugging Face: the builders take any object with these three members.

    python examples/gpt2_tokenizer.py notes.txt cache/gpt2_notes        (pip install tiktoken; downloads GPT-2's vocabulary once)

GPT-2 has one special token, <|endoftext|>, and a pretrain cache needs no other. `encode` must not turn text into special ids.
The builder checks this too: it drops and counts such a document.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from niels_cache_assets.build_cache import build_pretrain_cache


class TiktokenTokenizer:
    """A `tiktoken.Encoding`, for example `tiktoken.get_encoding("gpt2")`."""

    def __init__(self, encoding: Any) -> None:
        self._encoding = encoding
        self.vocab_size: int = encoding.n_vocab

    def encode(self, text: str) -> list[int]:
        return self._encoding.encode_ordinary(text)

    def encode_batch(self, texts: Sequence[str], threads: int) -> list[list[int]]:
        return self._encoding.encode_ordinary_batch(list(texts), num_threads=threads)

    def special_token_ids(self) -> dict[str, int]:
        return {"eot": self._encoding.eot_token}


class HuggingFaceTokenizer:
    """A tokenizer of the transformers library, for example `AutoTokenizer.from_pretrained("gpt2")`."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.vocab_size: int = len(tokenizer)

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)

    def special_token_ids(self) -> dict[str, int]:
        return {"eot": self._tokenizer.eos_token_id}


def main(text_file: str, out_dir: str) -> None:
    import tiktoken

    build_pretrain_cache(
        Path(text_file).read_text(encoding="utf-8").split("\n\n"),
        out_dir,
        tokenizer=TiktokenTokenizer(tiktoken.get_encoding("gpt2")),
        max_train_tokens=1_000_000_000,
        max_val_tokens=0,
        shard_bytes=134_217_728,
        seed=42,
        shuffle_buffer=None,
    )


if __name__ == "__main__":
    main(*sys.argv[1:3])
