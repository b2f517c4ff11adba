"""Limits for a tokenizer's file from an unknown source, without which a file of some kilobytes could take all memory, or an hour.

A file has at most 128 MiB; the largest known one has 33 MB. A tokenizer.json has at most 100,000 added tokens, which load in half a second,
and its normalizers and decoders turn one character into at most 100: NFKC makes 18. So the memory for a text is bounded by its length,
which `max_document_mib` of a source bounds. The library itself ends a regular expression after ten million steps.
"""

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from functools import wraps
from hashlib import sha256
from math import prod
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from niels_cache_assets.tokenizer.settings import is_tekken
from niels_cache_runtime.errors import NielsCacheError

Model = TypeVar("Model")

MAX_BYTES = 128 << 20
MAX_ADDED_TOKENS = 100_000
MAX_GROWTH = 100

_PARTS = ("normalizers", "pretokenizers", "decoders")  # of a sequence
_MAY_BE_EMPTY = re.compile(r"[*?|^$]|\{[0,]|\\[bBAzZG]")  # in a regular expression; some of them match at least one character


def read_model(path: str | Path) -> bytes:
    """Return the bytes of a tokenizer's file.

    Raises:
        NielsCacheError: If it does not exist, cannot be read, or is too large.
    """
    if not Path(path).is_file():
        raise NielsCacheError(f"{path}: no such tokenizer model; materialize the tokenizer first or correct the path")
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise NielsCacheError(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(content) > MAX_BYTES:
        raise NielsCacheError(f"{path}: has more than {MAX_BYTES >> 20} MiB, too many for a tokenizer; give another file")
    return content


def remember_last(load: Callable[[bytes, str], Model]) -> Callable[[str | Path], Model]:
    """Make a function that loads the content of a file remember the last one, so that a process loads a model once.

    Args:
        load: Loads the content of a file. Messages of its errors name the path, which is the second argument.

    Returns:
        A function that takes a path, of which only the kind matters: a tekken.json is loaded in another way than its bytes as ranks.
    """
    last: dict[tuple[bytes, bool], Model] = {}
    lock = Lock()

    @wraps(load)
    def load_once(path: str | Path) -> Model:
        content = read_model(path)
        key = sha256(content).digest(), is_tekken(path)
        with lock:
            if key not in last:
                model = load(content, str(path))
                last.clear()
                last[key] = model
            return last[key]

    return load_once


def require_bounded(described: Mapping[str, Any], path: str | Path) -> None:
    """Check the limits of a tokenizer.json.

    Raises:
        NielsCacheError: If it has too many added tokens, or if its normalizers or decoders can make a text too long.
    """
    added = described.get("added_tokens") or ()
    if len(added) > MAX_ADDED_TOKENS:
        raise NielsCacheError(f"{path}: has {len(added):,} added tokens, more than {MAX_ADDED_TOKENS:,}; put them into its vocabulary")
    for part in ("normalizer", "decoder"):
        growth = _growth(described.get(part))
        if growth > MAX_GROWTH:
            raise NielsCacheError(
                f"{path}: its {part} makes up to {growth:.3g} characters of one, more than {MAX_GROWTH}; give another tokenizer"
            )


def _growth(component: Any) -> float:
    """Return how many characters a component may make of one character."""
    if not isinstance(component, dict):
        return 1.0
    growth = prod(_growth(part) for name in _PARTS for part in component.get(name) or ())
    content, pattern = component.get("content"), component.get("pattern")
    if isinstance(content, str):  # of a Replace
        plain, regex = map(pattern.get, ("String", "Regex")) if isinstance(pattern, dict) else (None, None)
        least = len(plain) if isinstance(plain, str) else int(isinstance(regex, str) and not _MAY_BE_EMPTY.search(regex))
        growth *= max(1.0, len(content) / least) if least else 1.0 + len(content)
    if isinstance(prepended := component.get("prepend"), str):
        growth *= 1.0 + len(prepended)
    if isinstance(mapping := component.get("precompiled_charsmap"), str):
        growth *= max(1, _longest_replacement(mapping))
    return growth


def _longest_replacement(mapping: str) -> int:
    """Return the length, in characters, of the longest replacement in a character map of SentencePiece.

    The map consists of the size of a table in 4 bytes, the table, and the replacements.
    """
    try:
        content = base64.b64decode(mapping)
    except (binascii.Error, ValueError):  # the library refuses it
        return 1
    texts = content[4 + int.from_bytes(content[:4], "little") :]
    return max(len(text.decode(errors="replace")) for text in texts.split(b"\0"))
