"""Messages for names that are not configured, each with the nearest choice."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import NoReturn

from niels_cache_assets.config.defaults import CONFIG_NAME
from niels_cache_assets.config.shipped import catalog
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import FAMILIES, Family


def refuse_choice(where: str, problem: str, given: str, choices: Iterable[str], elsewhere: str = "") -> NoReturn:
    """Raise the message for a name that is not among the valid ones, with the nearest. `elsewhere`: what to add where none is near."""
    choices = list(choices)
    near = difflib.get_close_matches(given, choices, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(choices) or 'none'}{elsewhere}"
    raise NielsCacheError(f"{where}: {problem} {given!r}; {hint}")


def refuse_unknown(
    where: str,
    problem: str,
    given: str,
    choices: Iterable[str],
    *,
    names: Iterable[str],
    origin: str,
    elsewhere: str = "",
    families: Iterable[Family] = FAMILIES,
) -> NoReturn:
    """`names`: all that are configured. `families`: those that would do."""
    choices, names = list(choices), set(names)
    addable = [name for name, (family, _) in catalog().items() if family in families and name not in names]
    near = [given] if given in addable else difflib.get_close_matches(given, addable, n=1)
    if given in names or not near or difflib.get_close_matches(given, choices, n=1):
        refuse_choice(where, problem, given, choices, elsewhere)
    shown = "it" if near[0] == given else repr(near[0])
    add = f"add [{catalog()[near[0]][0]}.{near[0]}] to {CONFIG_NAME if origin.startswith('profile ') else origin}"
    raise NielsCacheError(f"{where}: {problem} {given!r}; {shown} is in the catalog, and {origin} does not name it: {add}")
