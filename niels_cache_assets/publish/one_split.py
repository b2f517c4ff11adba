"""One split of a cache as a cache of its own: the same files of the split, and an empty other split.

The result passes `verify` and every reader opens it. It has no fingerprint, because no build makes it: `status` shows it as stale, and a
build replaces it by the whole cache.
"""

from __future__ import annotations

import hashlib
import io
from typing import Any

import numpy as np

from niels_cache_runtime.format.layout import (
    IDX_DTYPE,
    SPLITS,
    TARGETS_DTYPE,
    Split,
    doc_ends_name,
    documents_folder,
    documents_name,
    examples_name,
    has_spans,
    idx_name,
    target_ends_name,
    targets_name,
    tokens_name,
)
from niels_cache_runtime.format.meta import Meta, content_sha256

_COUNTS = ("tokens", "examples")
_BY_SPLIT = ("documents", "characters", "cut", "targets")


def only_split(meta: Meta, split: Split) -> tuple[Meta, dict[str, bytes]]:
    """Return the meta.json of a cache that holds only this split, and the content of its empty files by relative path.

    The meta.json has no `meta_sha256` yet; `write_meta` adds it. Files of the split keep their names and hashes.
    """
    (other,) = (each for each in SPLITS if each != split)
    files = {path: entry for path, entry in meta["files"].items() if not _is_of(path, other)}
    empty = _empty_files(other, with_spans=has_spans(meta)) if meta["kind"] == "sft" else {}
    files |= {path: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()} for path, content in empty.items()}
    found: Meta = {key: value for key, value in meta.items() if key != "meta_sha256"}
    found |= {"files": files, "content_sha256": content_sha256(files), "fingerprint": None}
    found |= {f"{other}_{unit}": 0 for unit in _COUNTS if f"{other}_{unit}" in meta}
    found |= {key: {**meta[key], other: 0} for key in _BY_SPLIT if isinstance(meta.get(key), dict) and other in meta[key]}
    if other in (cut := meta.get("cut_document") or {}):
        found["cut_document"] = {**cut, other: [] if isinstance(cut[other], list) else None}
    if "parts" in meta:
        found["parts"] = [_without(entry, other) for entry in meta["parts"]]
    return found, empty


def _is_of(path: str, split: Split) -> bool:
    names = (name(split) for name in (doc_ends_name, documents_name, tokens_name, idx_name, targets_name, target_ends_name, examples_name))
    return path in names or path.startswith((f"{split}/", f"{documents_folder(split)}/"))


def _empty_files(split: Split, *, with_spans: bool) -> dict[str, bytes]:
    arrays = {idx_name(split): np.empty(0, IDX_DTYPE)}
    if with_spans:
        arrays |= {targets_name(split): np.empty((0, 2), TARGETS_DTYPE), target_ends_name(split): np.empty(0, TARGETS_DTYPE)}
    files = {tokens_name(split): b""}
    for name, array in arrays.items():
        content = io.BytesIO()
        np.save(content, array, allow_pickle=False)
        files[name] = content.getvalue()
    return files


def _without(entry: dict[str, Any], split: Split) -> dict[str, Any]:
    return {key: {**value, split: 0} if isinstance(value, dict) and split in value else value for key, value in entry.items()}
