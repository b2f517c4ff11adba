"""Small helpers of many tests. They make a tokenizer that trains in a moment, and made-up text for its training."""

from collections.abc import Sequence
from pathlib import Path

import torch

from niels_cache_assets.project.registry import load_registry
from tests.helpers.builds import build_tokenizer

_TEXT = (
    "the a of to and in is it for on with as was by at from that this cache token shard stream split seed document train val model "
    "text reads writes every byte once while nothing vanishes between source and disk because order size hash line blank tab"
)
WORDS = _TEXT.split()


def sentences(count: int, *, seed: int = 0, words: int = 12) -> list[str]:
    """Return `count` made-up sentences of `words` words. The same seed gives the same sentences."""
    generator = torch.Generator().manual_seed(seed)
    draws = torch.randint(len(WORDS), (count, words), generator=generator).tolist()
    return [" ".join(WORDS[index] for index in row).capitalize() + "." for row in draws]


class WideTokenizer:
    """Duck-typed, with 100,000 ids. A letter of ASCII has many ids, below and above 65,536: its place in the text chooses one of them."""

    vocab_size = 100_000

    def special_token_ids(self) -> dict[str, int]:
        return {"sys": 1, "usr": 99_997, "asst": 99_998, "eot": 99_999}

    def encode(self, text: str) -> list[int]:
        return [_FIRST_ID + _IDS_OF_A_LETTER * ord(letter) + place % _IDS_OF_A_LETTER for place, letter in enumerate(text)]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(chr((token - _FIRST_ID) // _IDS_OF_A_LETTER) for token in ids)

    def piece_bytes(self) -> list[bytes]:
        return [b""] * _FIRST_ID + [self.decode([token]).encode() for token in range(_FIRST_ID, self.vocab_size)]


_FIRST_ID, _IDS_OF_A_LETTER = 100, 780  # of "~", the last letter: 98,380 to 99,159


def train_tiny_tokenizer(folder: Path) -> Path:
    """Train a tokenizer of 400 pieces on made-up text with the real code. Return the .model file."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sample.txt").write_text("\n".join(sentences(400)), encoding="utf-8")
    config = folder / "niels_cache.toml"
    config.write_text(
        '[tokenizer]\nvocab_size = 400\ntrain_on = ["sample"]\n[pretrain.sample]\nsource = "text"\nfiles = ["sample.txt"]\n',
        encoding="utf-8",
    )
    return build_tokenizer(load_registry(profile="quickstart", config=str(config)), root=folder / "cache").model
