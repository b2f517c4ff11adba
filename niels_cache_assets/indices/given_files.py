"""Files that options name: text, and JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from niels_cache_runtime.errors import NielsCacheError


def read_text(path: str | Path, advice: str) -> str:
    """Return the text of a file. Raises NielsCacheError for one that cannot be read or is no text, with `advice` what it should be."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise NielsCacheError(f"{path}: cannot be read: {error.strerror or error}; {advice}") from error
    except ValueError as error:
        raise NielsCacheError(f"{path}: is no text; {advice}") from error


def parse_json(text: str, where: str) -> Any:
    """Return the value that JSON holds. Raises NielsCacheError for anything else, with `where` it stands."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NielsCacheError(f"{where}: no valid JSON: {error}") from error
