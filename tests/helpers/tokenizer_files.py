"""Tokenizer files that tests make: a small tokenizer.json, ranks of tiktoken; and where the real ones lie."""

import base64
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from niels_cache_assets.tokenizer.byte_level import byte_characters
from tests.helpers.tiny import WORDS

EOT = "<|endoftext|>"
REAL = Path(os.environ.get("NIELS_CACHE_REAL_DATA", "/nonexistent")) / "tokenizers"
needs_real = pytest.mark.skipif(
    "NIELS_CACHE_REAL_DATA" not in os.environ, reason="NIELS_CACHE_REAL_DATA does not name the folder of real samples"
)
WORDS_PATTERN = r"'s| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def pieces() -> list[bytes]:
    """All bytes, then the beginnings of each word of `tests.helpers.tiny`, with and without a blank before it, shortest first."""
    words = [form.encode() for word in WORDS for form in (word, f" {word}")]
    beginnings = sorted((word[:end] for word in words for end in range(2, len(word) + 1)), key=len)
    return list(dict.fromkeys([*(bytes([byte]) for byte in range(256)), *beginnings]))


def merges() -> list[tuple[bytes, bytes]]:
    """All pairs of pieces that make a piece, in the order of what they make: what ranks mean."""
    known = set(pieces())
    cuts = ((piece[:cut], piece[cut:]) for piece in pieces() for cut in range(1, len(piece)))
    return [(left, right) for left, right in cuts if left in known and right in known]


def write_ranks(path: Path) -> Path:
    """Write ranks of tiktoken: all bytes, then the words."""
    path.write_bytes(b"".join(base64.b64encode(piece) + f" {rank}\n".encode() for rank, piece in enumerate(pieces())))
    return path


def added(token: int, content: str, *, special: bool = True, **changes: Any) -> dict[str, Any]:
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": not special}
    return {"id": token, "content": content, "special": special, **plain, **changes}


def described(*, tokens: Mapping[str, bool] | None = None, **changes: Any) -> dict[str, Any]:
    """The content of a tokenizer.json with the same pieces as `write_ranks`. `tokens`: added tokens, and whether each is special."""
    characters = {byte: character for character, byte in byte_characters().items()}

    def spell(piece: bytes) -> str:
        return "".join(characters[byte] for byte in piece)

    vocabulary = {spell(piece): token for token, piece in enumerate(pieces())}
    first = len(vocabulary)
    given = {EOT: True} if tokens is None else tokens
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [added(first + number, token, special=special) for number, (token, special) in enumerate(given.items())],
        "normalizer": None,
        "pre_tokenizer": {**byte_level, "use_regex": True},
        "post_processor": None,
        "decoder": {**byte_level, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": [[spell(left), spell(right)] for left, right in merges()],
        },
        **changes,
    }


def write_json(path: Path, **changes: Any) -> Path:
    path.write_text(json.dumps(described(**changes)), encoding="utf-8")
    return path
