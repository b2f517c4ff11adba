"""Types of values in niels_cache.toml: paths, and the names of data sets, chat templates and models that may stand in place of a path.

The key `turns`, which depends on the chat template, is here too.
"""

import os
import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ValidationInfo

from niels_cache_assets.base.defaults import Turns
from niels_cache_runtime.errors import did_you_mean


def _resolve_path(value: Any, info: ValidationInfo) -> Any:
    """Expand ~ and $VARIABLES in a path, and make the path relative to the folder of its TOML file.

    The validation context gives this folder as `base_dir`. URLs are returned unchanged.
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
    """Return whether an entry of a list is the name of a data set and not a path: it has no slash, dot or star."""
    return _NAME.fullmatch(value) is not None


def _name_or_path(value: Any, info: ValidationInfo) -> Any:
    return value if isinstance(value, str) and is_name(value) else _resolve_path(value, info)


def hub_or_path(value: Any, path: Any) -> Any:
    """Return the address of a model on the Hugging Face hub if a value is OWNER/NAME, and the path if it is not, or if the path exists."""
    return f"{HUB}{value}" if isinstance(value, str) and _HUB_NAME.fullmatch(value) and not os.path.exists(path) else path


def _model(value: Any, info: ValidationInfo) -> Any:
    return hub_or_path(value, _resolve_path(value, info))


HUB = "hf://"
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+(?<!\.json)(?<!\.model)(?<!\.tiktoken)")
_NAME = re.compile(r"[A-Za-z0-9_-]+")
ConfigPath = Annotated[str, BeforeValidator(_resolve_path)]
NameOrPath = Annotated[str, BeforeValidator(_name_or_path)]
ModelPath = Annotated[str, BeforeValidator(_model)]

SENTINELS = "sentinels"
NAMED_TEMPLATES = (SENTINELS, "chatml", "model")


def _resolve_template(value: Any, info: ValidationInfo) -> Any:
    """Accept the name of a template, or the path of a .jinja file, which is treated like a ConfigPath."""
    if not isinstance(value, str) or value in NAMED_TEMPLATES:
        return value
    if not value.endswith(".jinja"):
        hint = did_you_mean(value, NAMED_TEMPLATES, f"choose {', '.join(NAMED_TEMPLATES)}, or give the path of a .jinja file")
        raise ValueError(f"{value!r:.80} is no chat template; {hint}")
    return _resolve_path(value, info)


TemplateName = Annotated[str, BeforeValidator(_resolve_template)]


def _require_template(turns: Turns, info: ValidationInfo) -> Turns:
    if turns != "all" and info.data.get("template") == SENTINELS:
        raise ValueError(f"{turns!r} is for a chat template; remove it, or set template")
    return turns


LearnedTurns = Annotated[Turns, AfterValidator(_require_template)]
"""The key `turns`. The key `template` must come before it."""
