"""The error for a name that is not among the valid ones."""

import difflib
from collections.abc import Iterable
from typing import NoReturn

from niels_cache_runtime.errors import NielsCacheError


def refuse_choice(where: str, problem: str, given: str, choices: Iterable[str], elsewhere: str = "") -> NoReturn:
    """Raise NielsCacheError for an invalid name.

    The message suggests the nearest valid name. If no valid name is near, the message lists all valid names, and then the text of the
    argument `elsewhere`.
    """
    choices = list(choices)
    near = difflib.get_close_matches(given, choices, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(choices) or 'none'}{elsewhere}"
    raise NielsCacheError(f"{where}: {problem} {given!r}; {hint}")
