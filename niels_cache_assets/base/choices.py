"""The error for a name that is not among the valid ones."""

from collections.abc import Iterable
from typing import NoReturn

from niels_cache_runtime.errors import NielsCacheError, did_you_mean


def raise_unknown_choice(where: str, problem: str, given: str, choices: Iterable[str], elsewhere: str = "") -> NoReturn:
    """Raise an error for an invalid name, with the nearest valid name as a suggestion.

    Args:
        where: Where the name comes from. The message begins with it.
        problem: What is wrong with the name, such as "unknown source".
        given: The invalid name.
        choices: The valid names, all of which are listed if none is near.
        elsewhere: Text that follows the list; by default none.

    Raises:
        NielsCacheError: Always.
    """
    choices = list(choices)
    hint = did_you_mean(given, choices, f"choose from {', '.join(choices) or 'none'}{elsewhere}")
    raise NielsCacheError(f"{where}: {problem} {given!r}; {hint}")
