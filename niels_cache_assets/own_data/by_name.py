"""Sources of files that no table names: what kind each is, is told by the end of its name."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence
from typing import Any

from niels_cache_assets.sources import PRETRAIN_SOURCES
from niels_cache_assets.sources.reading.compressed import COMPRESSIONS
from niels_cache_assets.sources.reading.files import advice_for_missing, walk_folder
from niels_cache_assets.sources.types import PretrainSource
from niels_cache_runtime.errors import NielsCacheError

KINDS = {
    **dict.fromkeys((".txt", ".md", ".rst"), "text"),
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "jsonl"),  # C4's files of JSON Lines are named .json.gz
    ".parquet": "parquet",
    ".xml": "wikipedia",
}
_ENDINGS = f"{', '.join(KINDS)}, with or without {', '.join(COMPRESSIONS)}"
_DUMP_PART = re.compile(r"(?<=\.xml)-p[\d*]+p[\d*]+$")  # of a dump in parts: .xml-p1p41242.bz2; -p*p* is all of them


def sources_of(paths: Sequence[str], *, text_field: str | None = None) -> list[PretrainSource]:
    """A source for each kind of file among the paths; folders stand for all files of a known kind in them.

    Raises NielsCacheError for what is not there, a file whose name does not say what it holds, and a folder without any that does.
    """
    by_kind: dict[str, list[str]] = {}
    for path in paths:
        if "://" not in path and not os.path.exists(path) and not glob.glob(path, recursive=True):
            raise NielsCacheError(f"{path}: no such file or folder; {advice_for_missing(path)}")
        for file in files_in(path) if os.path.isdir(path) else [path]:
            kind = kind_of(file)
            if kind is None:
                raise NielsCacheError(f"{file}: its name does not say what it holds; it must end in {_ENDINGS}")
            by_kind.setdefault(kind, []).append(file)
    with_rows = {} if text_field is None else {"text_field": text_field}
    settings: dict[str, dict[str, Any]] = {"jsonl": with_rows, "parquet": with_rows}
    return [
        PRETRAIN_SOURCES[kind].model_validate({"source": kind, "files": files, "prepare": ["clean"], **settings.get(kind, {})})
        for kind, files in by_kind.items()
    ]


def files_in(folder: str) -> list[str]:
    """Those below it whose kind is known; none is an error."""
    files = [file.url for file in walk_folder(folder, ("",)) if kind_of(file.url) is not None]
    if not files:
        raise NielsCacheError(f"{folder}: holds no file that ends in {_ENDINGS}")
    return files


def kind_of(path: str) -> str | None:
    """`source` of a table for such a file, told by its name."""
    stem = path.lower()
    for compression in COMPRESSIONS:
        stem = stem.removesuffix(compression)
    return KINDS.get(_DUMP_PART.sub("", os.path.splitext(stem)[1]))
