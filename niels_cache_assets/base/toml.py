"""A TOML parser with two additions: it limits the size of numbers, and it skips a byte order mark, which some editors write."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

_MAX_BITS = 1024  # schemas check the range of each key; this limit only rejects integers that are too long to show


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML.

    Raises:
        ValueError: If the text is not TOML (then the subclass tomllib.TOMLDecodeError), or if a number has too many digits.
    """
    try:
        tables = tomllib.loads(text.removeprefix("\ufeff"))
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:  # Python refuses to convert a decimal number of more than 4,300 digits
        raise ValueError("a whole number has more than 64 bits") from error
    for key, number in _whole_numbers(tables):
        if number.bit_length() > _MAX_BITS:
            raise ValueError(f"a whole number has more than 64 bits: {key}")
    return tables


def _whole_numbers(tables: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Yield every whole number with its key, without recursion, because a table may be nested thousands of levels deep."""
    left = list(tables.items())
    while left:
        key, value = left.pop()
        if isinstance(value, dict):
            left += [(f"{key}.{name}", inner) for name, inner in value.items()]
        elif isinstance(value, list):
            left += [(key, inner) for inner in value]
        elif isinstance(value, int):
            yield key, value


def as_toml(value: Any) -> str:
    """Return a string, a boolean, a number or a list of such values as TOML, which for these values equals JSON.

    A date or a time becomes a string, because messages also show values that no key takes.
    """
    return json.dumps(value, ensure_ascii=False, default=str)


def typed_toml(value: Any) -> str:
    """Return a value of any type as a user types it in niels_cache.toml. JSON strings are valid TOML."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{toml_key(str(name))} = {typed_toml(each)}" for name, each in value.items()) + " }" if value else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(typed_toml, value))}]"
    return f"{value:_}" if isinstance(value, int) and abs(value) >= 10_000 else str(value)


def toml_key(name: str) -> str:
    """Return a part of a key, in quotes if it needs them."""
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)
