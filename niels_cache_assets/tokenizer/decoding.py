"""Tokens as text to be read: special tokens as short labels (<|asst|>), control characters spelled out.

Text is not trusted: control characters could drive a terminal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from niels_cache_assets.tokenizer.kinds import SentencePieceTokenizer
from niels_cache_runtime.format.layout import META_NAME, TOKENIZER_MODEL_NAME, tokenizer_dir
from niels_cache_runtime.format.meta import read_meta

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def open_tokenizer(root: str | Path) -> SentencePieceTokenizer:
    """The tokenizer of a cache root, with the special tokens that it was built with."""
    folder = tokenizer_dir(root)
    return SentencePieceTokenizer(str(folder / TOKENIZER_MODEL_NAME), special_tokens=read_meta(str(folder / META_NAME))["special_tokens"])


def as_text(tokens: Iterable[int], tokenizer: SentencePieceTokenizer, *, continues: bool = False) -> str:
    """`continues`: the tokens go on with a text begun before them, so that a blank they begin with is one and not the mark of a start."""
    labels = {token: f"<|{role}|>" for role, token in tokenizer.special_token_ids().items()}
    parts: list[str] = []
    for special, group in groupby(tokens, key=labels.__contains__):
        run = list(group)
        if special:
            parts.extend(labels[token] for token in run)
        elif continues and not parts:
            parts.append(spell_controls(_decode_on(run, tokenizer)))
        else:
            parts.append(spell_controls(tokenizer.decode(run)))
    return "".join(parts)


def _decode_on(tokens: list[int], tokenizer: SentencePieceTokenizer) -> str:
    """SentencePiece drops the blank that begins a text; behind another token it is kept."""
    eot = tokenizer.special_token_ids()["eot"]
    return tokenizer.decode([eot, *tokens]).removeprefix(tokenizer.decode([eot]))


def spell_controls(text: str) -> str:
    """Line feed and tab stay, every other control character becomes \\x1b and the like."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
