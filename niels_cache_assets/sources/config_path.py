"""Paths in niels_cache.toml, and names of data sets that stand among paths."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, ValidationInfo


def _from_config_folder(value: Any, info: ValidationInfo) -> Any:
    """Expand ~ and $VARIABLES in a path, and make the path relative to the folder of its TOML file.

    The validation context gives this folder as `base_dir`. URLs are not changed.
    """
    if not isinstance(value, str) or "://" in value:
        return value
    if not value:
        raise ValueError("is empty; give a path, or leave the key out")
    if "\0" in value:
        raise ValueError("holds a NUL, which no path can")
    try:
        path = Path(os.path.expandvars(value)).expanduser()
    except RuntimeError as error:  # ~user with a user that this machine does not have
        raise ValueError("names a user with no home directory here; write the path out") from error
    return str(Path(info.context["base_dir"] if info.context else ".") / path)


def is_name(value: str) -> bool:
    """Return whether an entry of a list names a data set: it has no slash, no dot and no star. Otherwise, it is a path."""
    return _NAME.fullmatch(value) is not None


def _name_or_path(value: Any, info: ValidationInfo) -> Any:
    return value if isinstance(value, str) and is_name(value) else _from_config_folder(value, info)


_NAME = re.compile(r"[A-Za-z0-9_-]+")
ConfigPath = Annotated[str, BeforeValidator(_from_config_folder)]
NameOrPath = Annotated[str, BeforeValidator(_name_or_path)]
