"""Checks of settings that a caller gives: whole numbers, token ids, choices and indices. They need no torch."""

import inspect
import operator
from collections.abc import Sequence
from numbers import Real
from typing import Any, Self

import numpy as np

from niels_cache_runtime.errors import NielsCacheError, did_you_mean
from niels_cache_runtime.format.layout import max_vocab_size

MAX_COUNT = 2**62 - 1  # the largest count: the sum of two counts still fits into an int64
_ELSEWHERE = {"t": "T", "block_size": "T", "max_length": "T", "seq_len": "T", "batch_size": "B"}  # what other libraries call T and B


class NamesArguments:
    """A base class whose constructor suggests the nearest argument if an unknown one is given."""

    def __new__(cls, *given: Any, **settings: Any) -> Self:
        try:
            inspect.signature(cls.__init__).bind_partial(None, *given, **settings)
        except TypeError:
            known = [*inspect.signature(cls).parameters]
            arguments = f"its arguments are {', '.join(known)}; a folder may name the split, such as NAME/val"
            for name in settings:
                if name not in known:
                    hint = did_you_mean(_ELSEWHERE.get(name, name), known, arguments)
                    raise TypeError(f"{cls.__name__} has no argument {name!r}; {hint}") from None
            raise
        return super().__new__(cls)


def as_int(value: Any) -> int | None:
    """Return `value` as an int, or None if it is not a whole number. numpy's integers are accepted, booleans are not."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def check_whole(name: str, value: Any, *, least: int = 0, most: int | None = None) -> int:
    """Return `value` as an int from `least` to `most`.

    Raises:
        NielsCacheError: If `value` is no such number. The message names the setting.
    """
    number = as_int(value)
    if number is None or number < least or (most is not None and number > most):
        limits = f"from {least} to {most}" if most not in (None, MAX_COUNT) else f"of at least {least}"
        raise NielsCacheError(f"{name}={value!r:.60}: must be a whole number {limits}{' that an int64 holds' if most == MAX_COUNT else ''}")
    return number


def check_positive(name: str, value: Any) -> int:
    """Return `value` as an int from 1 to the largest count.

    Raises:
        NielsCacheError: For any other value. The message names the setting.
    """
    return check_whole(name, value, least=1, most=MAX_COUNT)


def check_token_id(name: str, value: Any, *, dtype: np.dtype) -> int:
    """Return `value` as an int that can be the id of a token of this dtype.

    Raises:
        NielsCacheError: For any other value. The message names the setting.
    """
    return check_whole(name, value, most=max_vocab_size(dtype) - 1)


def is_target_weight(value: Any) -> bool:
    """Return whether `value` can be the weight of a target: 0, or within limits in which products of weights stay above 0."""
    return isinstance(value, Real) and not isinstance(value, bool) and (value == 0 or 1e-6 <= float(value) <= 1e6)


def check_target_weight(name: str, value: Any) -> float:
    """Return `value` as a float that can be the weight of a target.

    Raises:
        NielsCacheError: For any other value. The message names the setting.
    """
    if not is_target_weight(value):
        raise NielsCacheError(f"{name}={value!r:.60}: must be 0 or a number from 0.000001 to 1000000")
    return float(value)


def check_has_window(folder: str, tokens: int, *, T: int) -> None:
    """Check that a split has a window of T + 1 tokens.

    Raises:
        NielsCacheError: If it has fewer tokens.
    """
    if not tokens:
        raise NielsCacheError(f"{folder}: this split is empty (0 tokens); there is nothing to read")
    if tokens < T + 1:
        hint = f"; use T <= {tokens - 1}" if tokens > 1 else ""
        raise NielsCacheError(f"{folder}: T={T} needs {T + 1} tokens, but this split has {tokens}{hint}")


def check_choice(name: str, value: Any, choices: Sequence[str]) -> None:
    """Raise NielsCacheError unless `value` is one of `choices`. The message suggests the nearest choice."""
    if value not in choices:
        hint = did_you_mean(value, choices, f"choose from {', '.join(map(repr, choices))}")
        raise NielsCacheError(f"{name}={value!r}: unknown; {hint}")


def check_index(index: Any, count: int, *, what: str, from_end: bool = False) -> int:
    """Return `index` as an int from 0 to count - 1.

    Args:
        index: The index.
        count: The number of items.
        what: The name of an item in messages, such as "row".
        from_end: Whether negative indices count from the end, so that -1 is the last item.

    Raises:
        TypeError: If `index` is not a whole number.
        IndexError: If `index` is out of range.
    """
    number = as_int(index)
    if number is None:
        raise TypeError(f"index {index!r}: must be a whole number")
    if not (-count if from_end else 0) <= number < count:
        raise IndexError(f"{what} {number}: there are {count} {what}s")
    return number % count
