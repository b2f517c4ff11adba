"""Paths in niels_cache.toml, and names of chat templates, which may be paths."""

from __future__ import annotations

import difflib
import os
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


ConfigPath = Annotated[str, BeforeValidator(_from_config_folder)]

SENTINELS = "sentinels"
NAMED_TEMPLATES = (SENTINELS, "chatml", "model")


def _known_or_a_file(value: Any, info: ValidationInfo) -> Any:
    """Accept the name of a template, or the path of a .jinja file, which is treated like a ConfigPath."""
    if not isinstance(value, str) or value in NAMED_TEMPLATES:
        return value
    if not value.endswith(".jinja"):
        near = difflib.get_close_matches(value, NAMED_TEMPLATES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose {', '.join(NAMED_TEMPLATES)}, or give the path of a .jinja file"
        raise ValueError(f"{value!r:.80} is no chat template; {hint}")
    return _from_config_folder(value, info)


TemplateName = Annotated[str, BeforeValidator(_known_or_a_file)]
