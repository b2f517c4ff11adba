"""Where text of documents is stored, for a takedown: what to look at after documents have left a data set.

Below the cache directory, each folder of a build is one location, even if the build is unfinished. Tokens count as text, because they
decode to it. Of the pages of reports, only those of `report NAME` contain any. Dagster's home and its logs have names, ids, positions and
counts. Files are listed and never opened.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from niels_cache_assets.base.config_path import is_name

if TYPE_CHECKING:
    from niels_cache_assets.project.registry import Registry

_KINDS = {  # by the end of a file's name; the first that fits counts
    "_documents.parquet": "ids, titles and kept columns",
    "_examples.parquet": "ids and titles",
    "rejected.parquet": "excerpts of dropped documents",
    ".parquet": "texts",
    ".bin": "tokens",
    "spm.model": "pieces of words",
    "tokenizer.json": "pieces of words",
    "tiktoken.json": "pieces of words",
    "tokenizer/meta.json": "the longest words",
}
_FOLDERS = {
    "/reports/tune/": "excerpts of documents",
    "/reports/cache.html": "excerpts of documents, if `report` wrote it",
    ".partial": "an unfinished build",
}


@dataclass(frozen=True, kw_only=True)
class TextLocation:
    """A location where text is stored.

    Attributes:
        where: A folder, a pattern of files, or an address.
        what: Kinds of text there.
        bytes: Size, or None if it was not counted.
    """

    where: str
    what: str
    bytes: int | None = None


def text_locations(registry: Registry, root: Path) -> Iterator[TextLocation]:
    """Yield every location that this configuration and this cache directory know."""
    from huggingface_hub import constants

    yield from _in_caches(root.absolute())
    for name in registry.partition_keys():
        source = registry.source(name)
        label = f"{source.family}.{name}"
        given = [getattr(source, key, None) or () for key in ("files", "val_files", "path", "exclude")]
        for where in (each for value in given for each in ([value] if isinstance(value, str) else value)):
            what = "ids" if where == getattr(source, "exclude", None) else "the original text"
            yield TextLocation(where=where, what=f"{what} of {label}")
        for where in (each for each in getattr(source, "decontaminate_against", ()) if not is_name(each)):
            yield TextLocation(where=where, what=f"texts that stay out of {label}")
        if (dataset := getattr(source, "dataset", None)) and not getattr(source, "local_key", None):
            yield TextLocation(where=f"hub: {dataset}", what=f"the original text of {label}")
    for folder in (Path(constants.HF_HUB_CACHE), Path(constants.HF_HOME) / "datasets"):
        if folder.is_dir():
            yield TextLocation(where=str(folder), what="files that the hub's libraries keep")
    if registry.publish.address is not None:
        yield TextLocation(where=registry.publish.address, what="published caches")


def _in_caches(root: Path) -> Iterator[TextLocation]:
    """Yield the folders below the cache directory with a file that contains text. Links to one file count once for each name."""
    found: dict[str, tuple[set[str], int]] = {}
    for path in sorted(root.rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        kind = _kind(path.relative_to(root).as_posix())
        if kind is not None:
            folder = path.parent
            while folder.name in ("train", "val", "val_texts", "spool") or folder.name.endswith(("_documents", "_examples")):
                folder = folder.parent
            kinds, size = found.setdefault(str(folder), (set(), 0))
            found[str(folder)] = kinds | {kind}, size + path.stat().st_size
    for where, (kinds, size) in found.items():
        yield TextLocation(where=where, what=", ".join(sorted(kinds)), bytes=size)


def _kind(path: str) -> str | None:
    for part, kind in _FOLDERS.items():
        if part in f"/{path}":
            return kind
    if path.startswith(("duplicates/", "repeats/")):  # ordinals, similarities and positions
        return None
    return next((kind for end, kind in _KINDS.items() if path.endswith(end)), None)
