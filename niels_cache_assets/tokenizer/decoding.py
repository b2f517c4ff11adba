"""The conversion of tokens to readable text: special tokens become short labels (<|asst|>), and control characters are escaped.

Control characters are escaped because the text is not trusted, and they could drive a terminal.
"""

import re
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

from niels_cache_assets.tokenizer.kinds import TextTokenizer, open_built_model
from niels_cache_runtime.format.layout import tokenizer_dir

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def open_tokenizer(root: str | Path) -> TextTokenizer:
    """Return the tokenizer of a cache root, with the special tokens that were recorded when it was built."""
    return open_built_model(tokenizer_dir(root))


def as_text(tokens: Iterable[int], tokenizer: TextTokenizer, *, continues: bool = False) -> str:
    """Return tokens as readable text.

    Args:
        tokens: Ids of the tokens.
        tokenizer: The tokenizer that gave the ids.
        continues: Whether these tokens follow other tokens, so that a blank at their start is part of the text; by default no.
    """
    labels = {token: f"<|{role}|>" for role, token in tokenizer.special_token_ids().items()}
    parts: list[str] = []
    for special, group in groupby(tokens, key=labels.__contains__):
        run = list(group)
        if special:
            parts.extend(labels[token] for token in run)
        elif continues and not parts:
            parts.append(spell_controls(tokenizer.decode_continued(run)))
        else:
            parts.append(spell_controls(tokenizer.decode(run)))
    return "".join(parts)


def spell_controls(text: str) -> str:
    r"""Replace every control character except line feed and tab by an escape such as \x1b."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)
