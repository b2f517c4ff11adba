"""What several tokenizers make of the same text: characters per token.

Costs one encoding of the text by each model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from niels_cache_assets.tokenizer.kinds import SentencePieceTokenizer
from niels_cache_assets.tokenizer.measures import characters_per_token
from niels_cache_runtime.cache.mmap import MappedTokens
from niels_cache_runtime.cache.opening import open_meta
from niels_cache_runtime.format.layout import Family, list_shards, tokens_name
from niels_cache_runtime.format.reading import available_threads

if TYPE_CHECKING:
    import sentencepiece

_BLOCK_TOKENS = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One source: how many characters, and how many tokens each model makes of them."""

    source: str
    characters: int
    tokens: list[int]

    @property
    def characters_per_token(self) -> list[float | None]:
        return [characters_per_token(self.characters, tokens) for tokens in self.tokens]

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "characters_per_token": self.characters_per_token}


def compare(name: str, texts: Sequence[str], processors: Sequence[sentencepiece.SentencePieceProcessor]) -> Compared:
    threads = available_threads()
    tokens = [sum(map(len, processor.encode(list(texts), num_threads=threads))) for processor in processors]
    return Compared(source=name, characters=sum(map(len, texts)), tokens=tokens)


def spelled_texts(directory: Path, family: Family, tokenizer: SentencePieceTokenizer) -> Iterator[str]:
    """The texts between the special tokens of a train split: documents, and turns of conversations."""
    if not open_meta(directory):  # refuses a cache of another tokenizer
        return
    special = np.array(sorted(tokenizer.special_token_ids().values()))
    shards = list_shards(directory / "train") if family == "pretrain" else [directory / tokens_name("train")]
    rest: list[int] = []
    for shard in MappedTokens(shards).shards:
        for first in range(0, len(shard), _BLOCK_TOKENS):
            block = shard[first : first + _BLOCK_TOKENS]
            begin = 0
            for end in np.flatnonzero(np.isin(block, special)).tolist():
                yield tokenizer.decode([*rest, *block[begin:end].tolist()])
                rest, begin = [], end + 1
            rest += block[begin:].tolist()
    yield tokenizer.decode(rest)


def beginning(characters: int, texts: Iterator[str]) -> Iterator[str]:
    """The texts that are not empty, the last one cut, until there are so many characters."""
    for text in texts:
        if text:
            yield text[:characters]
        characters -= len(text)
        if characters <= 0:
            return
