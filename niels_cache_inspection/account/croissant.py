"""The description of a cache in Croissant 1.0, a JSON-LD vocabulary of MLCommons for data sets: its files, and the columns of its lineage.

The lineage of each split is a record set, which other programs read through this description. Tokens are files without records, because
Croissant has no words for headerless integers. `version` ends with the beginning of the content hash.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, NamedTuple

from niels_cache_inspection.account.dimensions import UNKNOWN
from niels_cache_inspection.account.splits import AccountedCache
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import META_NAME, SPLITS, documents_folder, documents_name, examples_name
from niels_cache_runtime.format.meta import MAX_META_BYTES, Meta, sha256_file
from niels_cache_runtime.remote.record import read_published
from niels_cache_runtime.remote.store import MissingError, open_store

NAME = "croissant.json"
_CONFORMS_TO = "http://mlcommons.org/croissant/1.0"
_TERMS = """citeAs column equivalentProperty extract field fileObject fileProperty fileSet format includes isLiveDataset jsonPath key md5
parentField path recordSet references regex repeated replace samplingRate separator source subField transform"""
_CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "dct": "http://purl.org/dc/terms/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "sc": "https://schema.org/",
    "conformsTo": "dct:conformsTo",
    **{name: {"@id": f"cr:{name}", "@type": "@json"} for name in ("data", "examples")},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    **{name: f"cr:{name}" for name in _TERMS.split()},
}
_FORMATS = {".parquet": "application/x-parquet", ".json": "application/json", ".jinja": "text/plain"}
_COLUMNS = {  # of lineage: the type, and the meaning
    "ordinal": ("sc:Integer", "Number of the document or example in the split; in the file of a part, in this part"),
    "source_id": ("sc:Text", "Id at the source"),
    "file": ("sc:Text", "File at the source, relative to its root"),
    "row": ("sc:Integer", "Row in this file"),
    "tokens": ("sc:Integer", "Number of tokens, with those that end or begin the document"),
    "group": ("sc:Text", "Group of the example, whose members are in one split"),
    "category": ("sc:Text", "Category of the example at the source"),
    "kept": ("sc:Text", "The columns of the source that were kept, as a JSON object"),
}


class DescribedFile(NamedTuple):
    """A file of a cache: its path in the cache, where it is, its bytes and its sha256."""

    path: str
    url: str
    size: int
    sha256: str


def describe_local(cache: AccountedCache, folder: Path, *, licenses: Sequence[str], published: date | None) -> str:
    """Return the description of a cache on this machine.

    Args:
        cache: The cache.
        folder: The folder of the description, which the paths of files start from.
        licenses: As in `describe`.
        published: The date, or None for the day, in UTC, at which meta.json was written.
    """
    listed: dict[str, dict[str, Any]] = cache.meta.get("files", {})
    meta = cache.directory / META_NAME
    entries = {**listed, META_NAME: {"bytes": meta.stat().st_size, "sha256": sha256_file(str(meta))}}
    base = Path(os.path.relpath(cache.directory.resolve(), folder.resolve())).as_posix()
    files = [DescribedFile(path, f"{base}/{path}", entry["bytes"], entry["sha256"]) for path, entry in sorted(entries.items())]
    at = published or datetime.fromtimestamp(meta.stat().st_mtime, UTC).date()
    return describe(cache.name, cache.family, cache.meta, files, licenses=licenses, published=at)


def publish_description(address: str, *, licenses: Callable[[Meta], Sequence[str]], published: date | None) -> str:
    """Write the description of a published cache beside its record, and return its address. No build changes, and no reader sees it.

    Args:
        address: The address of the cache.
        licenses: Called with the meta.json of the cache; see `describe`.
        published: The date, or None for that of the record.

    Raises:
        NielsCacheError: If there is no published cache.
        RemoteError: If the store refuses or does not answer.
    """
    store = open_store(address)
    found = read_published(store)
    files = [DescribedFile(file.path, file.key, file.size, file.sha256) for file in sorted(found.files)]
    at = published or store.get(META_NAME, most_bytes=MAX_META_BYTES).modified.date()
    content = describe(found.name, found.family, found.meta, files, licenses=licenses(found.meta), published=at).encode()
    state = None
    with suppress(MissingError):
        earlier = store.get(NAME, most_bytes=len(content) + MAX_META_BYTES)
        if earlier.content == content:
            return store.name_of(NAME)
        state = earlier.state
    store.write_if(NAME, content, state=state)
    return store.name_of(NAME)


def describe(name: str, family: str, meta: Meta, files: Sequence[DescribedFile], *, licenses: Sequence[str], published: date) -> str:
    """Return the description as JSON.

    Args:
        name: The name of the cache.
        family: Its family.
        meta: Its meta.json.
        files: Its files.
        licenses: The licences of its documents. An empty list means that they are unknown.
        published: The date of the build.
    """
    content = str(meta.get("content_sha256") or meta.get("meta_sha256") or "")
    kind = "documents to pretrain language models" if family == "pretrain" else "conversations to fine-tune language models"
    tokens = " and ".join(f"{int(meta.get(f'{split}_tokens') or 0):,} in {split}" for split in SPLITS)
    described = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "name": name,
        "description": f"Token cache of {kind}: {tokens}, as {meta.get('token_dtype')}. Each record is the origin of one document.",
        "conformsTo": _CONFORMS_TO,
        "citeAs": f"{name}, token cache, content_sha256 {content}",
        "datePublished": published.isoformat(),
        "license": list(licenses) or [UNKNOWN],
        "version": f"1.0.0+{content[:12]}" if content else "1.0.0",
        "distribution": [_distribution(file) for file in files],
        "recordSet": [_record_set(file, lineage_columns(meta, family)) for file in files if _is_lineage(file.path)],
    }
    return json.dumps(described, indent=2, ensure_ascii=False) + "\n"


def _distribution(file: DescribedFile) -> dict[str, Any]:
    return {
        "@type": "cr:FileObject",
        "@id": file.path,
        "name": file.path,
        "contentUrl": file.url,
        "contentSize": f"{file.size} B",
        "encodingFormat": _FORMATS.get(Path(file.path).suffix, "application/octet-stream"),
        "sha256": file.sha256,
    }


def _is_lineage(path: str) -> bool:
    return any(path in (documents_name(split), examples_name(split)) or path.startswith(f"{documents_folder(split)}/") for split in SPLITS)


def _record_set(file: DescribedFile, columns: Sequence[str]) -> dict[str, Any]:
    records = file.path.removesuffix(".parquet").replace("/", "_")
    return {
        "@type": "cr:RecordSet",
        "@id": records,
        "name": records,
        "description": f"The origins in {file.path}",
        "field": [
            {
                "@type": "cr:Field",
                "@id": f"{records}/{column}",
                "name": f"{records}/{column}",
                "description": _COLUMNS[column][1],
                "dataType": _COLUMNS[column][0],
                "source": {"fileObject": {"@id": file.path}, "extract": {"column": column}},
            }
            for column in columns
        ],
    }


def parse_date(text: str) -> date:
    """Return a date that was given as `2026-11-30`.

    Raises:
        NielsCacheError: If it is none.
    """
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise NielsCacheError(f"--date {text}: is no date; give one as 2026-11-30") from error


def lineage_columns(meta: Mapping[str, Any], family: str) -> list[str]:
    """Return columns that the lineage of a cache has, whatever version of niels-cache built it."""
    others = ["group", "category"] if family == "sft" else ["kept"] if meta.get("keep") else []
    return ["ordinal", "source_id", "file", "row", "tokens", *others]
