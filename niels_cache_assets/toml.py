"""TOML as this project takes it: numbers that a computer's integer holds, and a byte order mark that some editors write."""

import tomllib
from collections.abc import Iterator
from typing import Any

_LARGEST = 2**63  # TOML 1.0 asks for 64 bits; Python's own integers have no end


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML. Raises ValueError (tomllib.TOMLDecodeError is one) for what is no TOML, or a whole number of more than 64 bits."""
    try:
        tables = tomllib.loads(text.removeprefix("\ufeff"))
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:  # Python converts no decimal number of more than 4,300 digits
        raise ValueError("a whole number has more than 64 bits") from error
    for key, number in _whole_numbers(tables):
        if not -_LARGEST <= number < _LARGEST:
            raise ValueError(f"a whole number has more than 64 bits: {key}")
    return tables


def _whole_numbers(tables: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Every whole number with its key. No recursion: a table may be nested thousands deep."""
    left: list[tuple[str, Any]] = list(tables.items())
    while left:
        key, value = left.pop()
        if isinstance(value, dict):
            left += [(f"{key}.{name}", inner) for name, inner in value.items()]
        elif isinstance(value, list):
            left += [(key, inner) for inner in value]
        elif isinstance(value, int):
            yield key, value
