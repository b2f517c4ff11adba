"""Neutral words in the place of the texts of a conversation, so that a template shows what it writes itself.

It runs in the child process (child.py), and imports only the standard library.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

WORD = "zq"  # neutral words begin so
TAG = re.compile(r"</?\w+>|\[/?\w+\]")
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})


class Words:
    """Neutral words in the place of the texts of a conversation. Equal texts have equal words.

    What the template asks for stays: roles, keys that it reads, texts that it compares, and tags that it looks for in texts.
    said: all strings in the template. compared: those that it compares. names: the strings of special tokens, which never stay.
    """

    def __init__(self, said: frozenset[str], compared: frozenset[str], names: frozenset[str]) -> None:
        self._keys, self._compared = said, compared - _ROLES
        self._tags = frozenset(tag for text in said for tag in TAG.findall(text)) - names
        self._words: dict[str, str] = {}

    def of(self, value: Any) -> Any:
        """Return a JSON value with neutral words."""
        if isinstance(value, str):
            return value if value in self._compared else self._of_text(value)
        if isinstance(value, Mapping):
            return {self._of_key(key): each if key == "role" else self.of(each) for key, each in value.items()}
        return [self.of(each) for each in value] if isinstance(value, list | tuple) else value

    def _of_key(self, key: str) -> str:
        return key if key in self._keys or key in ("role", "content") else self._word(key)

    def _of_text(self, text: str) -> str:
        if not self._tags or ("<" not in text and "[" not in text):
            return self._word(text)
        pieces = TAG.split(text)
        tags = [tag if tag in self._tags else self._word(tag) for tag in TAG.findall(text)]
        return "".join(piece for pair in zip(map(self._word, pieces), [*tags, ""], strict=True) for piece in pair)

    def _word(self, text: str) -> str:
        return text if not text or text.isspace() else self._words.setdefault(text, f"{WORD}{len(self._words)}q")
