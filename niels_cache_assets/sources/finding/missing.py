"""Advice for a path or a glob that matches nothing."""

from __future__ import annotations

import difflib
import glob
import itertools
import os
import re
from pathlib import Path

from niels_cache_assets.sources.finding.globs import glob_files

_BRACKET = re.compile(r"\[\[\]|\[")  # also one that is escaped already
_MOST_TRIED = 64  # ways to take the brackets of a glob
_MOST_NAMES = 10_000  # number of names in a folder that are read to find a name similar to a missing name


def advice_for_missing(pattern: str) -> str:
    """Return advice for a path or glob that matches nothing."""
    near = None if "://" in pattern else _near_path(pattern)
    return _bracket_advice(pattern) or (f"did you mean {near!r}?" if near else "check the path")


def _bracket_advice(pattern: str) -> str | None:
    """Return advice for a glob that matches nothing and has an opening bracket, or None.

    If there are files whose names have these brackets, the advice has the glob that matches them.
    """
    if "[" not in pattern:
        return None
    what = "brackets in a glob stand for one of the characters in them"
    components = pattern.split("/")
    choices = [dict.fromkeys([_BRACKET.sub("[[]", each), each]) if "[" in each else [each] for each in components]
    for literal in [] if "://" in pattern else itertools.islice(map("/".join, itertools.product(*choices)), _MOST_TRIED):
        if literal != pattern and glob_files(os.path.expanduser(literal)).paths:
            return f"{what}; write {literal!r}"
    return f"{what}; write [[] for a bracket of a name"


def _near_path(path: str) -> str | None:
    """Return the path up to its first missing name, with the nearest existing name in place of the missing name.

    Return None if nothing is missing, or if no name is near. In a glob, only the names before the first wildcard are checked.
    """
    folder = Path()
    for part in Path(path).parts:
        if glob.has_magic(part):
            return None
        if not os.path.lexists((folder / part).expanduser()):
            try:
                with os.scandir(folder.expanduser()) as entries:
                    names = [entry.name for entry in itertools.islice(entries, _MOST_NAMES)]
            except OSError:
                return None
            near = difflib.get_close_matches(part, names, n=1)
            return str(folder / near[0]) if near else None
        folder /= part
    return None
