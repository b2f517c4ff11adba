"""Loading the steps that a data set names, and what identifies them in a fingerprint.

This module does not run steps, and imports no filter. Loading a step executes its module.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from niels_cache_assets.base.fingerprint import Identity
from niels_cache_assets.base.user_code import code_identity, load_code
from niels_cache_assets.sources.step_use import StepUse
from niels_cache_assets.sources.types import PretrainSource
from niels_cache_runtime.errors import NielsCacheError


def load_step(use: StepUse, where: str = "steps") -> Callable[..., Any]:
    """Return the function or class of an entry of `steps`.

    Args:
        use: The entry.
        where: What messages begin with.

    Raises:
        NielsCacheError: If it cannot be loaded.
    """
    return load_code(use.use, group="niels_cache.steps", folder=use.folder, where=where)


def file_settings(use: StepUse, target: Callable[..., Any]) -> dict[str, str]:
    """Return the settings that are paths, as the attribute `file_settings` of a step names them, relative to the configuration."""
    return {key: str(Path(use.folder, str(use.settings[key]))) for key in getattr(target, "file_settings", ()) if key in use.settings}


def is_stateful(source: PretrainSource) -> bool:
    """Return whether a step of a data set is stateful."""
    return any(getattr(load_step(use), "stateful", False) for use in source.steps if use.is_code)


def steps_identity(source: PretrainSource, where: str = "steps") -> Identity:
    """Return what identifies each step of a data set, by its number and name.

    Args:
        source: The table of the data set.
        where: What messages begin with.

    Raises:
        NielsCacheError: If a step cannot be loaded, or is stateful in a data set in parts.
    """
    found: Identity = {}
    for number, use in enumerate(source.steps, start=1):
        own: Identity = {"where": use.where}
        if use.is_code:
            target = load_step(use, where)
            if source.corpus_parts > 1 and getattr(target, "stateful", False):
                raise NielsCacheError(f"{where}: {use.use} is stateful, which parts cannot be; remove parts, or the step")
            files = file_settings(use, target)
            settings = use.model_dump(mode="json", include=use.settings.keys() - files)
            of_errors = {} if use.on_error == "stop" else {"on_error": "drop", "seconds_per_document": use.seconds_per_document}
            own = {
                **code_identity(target, settings, [*use.depends_on, *files.values()]),
                "name": use.name,
                "keep": list(use.keep),
                **of_errors,
            }
            own["stateful"] = getattr(target, "stateful", None) or None  # so that workers notice if it has changed since this import
        found[f"{number} {use.title}"] = {key: value for key, value in own.items() if value not in (None, [])}
    return found
