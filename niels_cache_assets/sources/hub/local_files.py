"""Local files that the loaders of the datasets library read: which loader reads them, and what it does not check."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath

from niels_cache_assets.first_bytes import content_of, described
from niels_cache_assets.sources.reading.encodings import UTF8, encoding_of
from niels_cache_assets.sources.reading.files import SourceFile, first_bytes, open_bytes, open_seekable, reading
from niels_cache_runtime.errors import NielsCacheError

_LOADERS = {".parquet": "parquet"} | dict.fromkeys((".jsonl", ".json", ".ndjson"), "json")
_LOADERS |= dict.fromkeys((".txt", ".raw", ".tokens", ".md", ""), "text")


def format_of(names: list[str]) -> str:
    """Return the name of the loader for these files, by their suffixes."""
    formats = {_loader(re.sub(r"\.(gz|bz2|xz|zst)$", "", name)) for name in names}
    if len(formats) > 1:
        raise NielsCacheError(f"files: {' and '.join(sorted(formats))} files cannot be mixed in one data set; narrow the globs")
    return formats.pop()


def _loader(name: str) -> str:
    suffix = PurePosixPath(name).suffix.lower()
    if suffix not in _LOADERS:
        raise NielsCacheError(f"{name}: files of this kind are not read; name files that end in {', '.join(filter(None, _LOADERS))}")
    return _LOADERS[suffix]


def require_content(file: SourceFile, path: str) -> None:
    """Raise NielsCacheError if the first bytes of a local file are not of its kind, because the loaders do not say what they found."""
    with reading(file), open_seekable(file) if path == "parquet" else open_bytes(file, lambda damage: None) as stream:
        head = first_bytes(stream)
    found = content_of(head)
    if not head or found is None or path == "text":
        return
    if found.what.startswith("an HTML page") or (found.what != "Parquet" if path == "parquet" else not found.is_text):
        raise NielsCacheError(f"{file.name}: not {'Parquet' if path == 'parquet' else 'JSON lines'}{described(head)}")


def need_decoding(local_names: Mapping[str, str], encoding: str) -> bool:
    """Return whether at least one file is not UTF-8. The loader reads only UTF-8 itself."""
    if encoding != UTF8:
        return True
    for file in map(SourceFile, local_names, local_names.values()):
        if "://" not in file.url:
            with reading(file), open_bytes(file, lambda damage: None) as stream:  # damage is reported later, when the file is read
                if encoding_of(stream, UTF8) != UTF8:
                    return True
    return False
