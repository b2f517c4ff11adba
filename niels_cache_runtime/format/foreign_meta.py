"""A meta.json that another program wrote. It is enough to open a cache, but too little to verify the files of the cache.

Such a meta.json has none of `schema_version`, `meta_sha256` and `files`, but it has every key that a reader of tokens needs. A meta.json
with only some of these three keys is our own and damaged, not foreign. Only its keys and a few values are looked at, so the cost is small.
`opening` compares its counts with the files.
"""

import os
import warnings
from collections.abc import Mapping
from typing import Any

from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import Family, max_vocab_size, token_dtype_of
from niels_cache_runtime.format.meta_keys import FORM_OF, FORMS, is_count

UNVERIFIABLE = "another program wrote this meta.json; it lists no files and has no hash of its own, so nothing can be verified"

_OWN_KEYS = ("schema_version", "meta_sha256", "files")
_COUNTS: dict[Family, tuple[str, str]] = {"pretrain": ("train_tokens", "val_tokens"), "sft": ("train_examples", "val_examples")}
_NEEDED = ("token_dtype", "vocab_size", "special_token_ids")
_warned: set[str] = set()


class ForeignMetaError(NielsCacheError):
    """A meta.json of another program without the keys that a reader of tokens needs."""


def is_foreign(meta: Mapping[str, Any] | None) -> bool:
    """Return whether another program wrote `meta`. Return False for None, which means a folder without a meta.json."""
    return meta is not None and "token_dtype" in meta and not any(key in meta for key in _OWN_KEYS)


def foreign_family(meta: Mapping[str, Any]) -> Family:
    """Return the family (pretrain or sft) of a foreign `meta`. The counts in `meta` decide the family, because no key names the family."""
    return "sft" if any(key in meta for key in _COUNTS["sft"]) else "pretrain"


def check_foreign(meta: dict[str, Any], path: object) -> dict[str, Any]:
    """Return the foreign `meta`. If a key has one of our names but its value has a different form, the key is left out.

    Raises ForeignMetaError if a needed key is missing or its value has a wrong form, or if the tokens are neither little-endian uint16
    nor little-endian uint32.
    """
    try:
        most = max_vocab_size(token_dtype_of(meta))
    except NielsCacheError as error:
        raise ForeignMetaError(f"{path}: {error}") from error
    ids = meta.get("special_token_ids")
    counts = _COUNTS[foreign_family(meta)]
    lacking = [key for key in (*_NEEDED, *counts) if key not in meta]
    lacking += ["special_token_ids.eot"] if isinstance(ids, dict) and "eot" not in ids else []
    if lacking:
        raise ForeignMetaError(f"{path}: another program wrote it, and it has no {', '.join(lacking)}; add that, or remove the file")
    numbers = {"vocab_size": meta["vocab_size"], **{key: meta[key] for key in counts}}
    numbers |= {"special_token_ids.eot": ids["eot"] if isinstance(ids, dict) else ids}
    for key, value in numbers.items():
        if not is_count(value):
            raise ForeignMetaError(f"{path}: {key} is {value!r:.80}, expected a whole number")
    if not numbers["special_token_ids.eot"] < numbers["vocab_size"] <= most:
        raise ForeignMetaError(
            f"{path}: vocab_size is {numbers['vocab_size']} and the eot id {numbers['special_token_ids.eot']}; "
            f"the id must be below the size, and the size at most {most:,} for {meta['token_dtype']}"
        )
    return {key: value for key, value in meta.items() if key not in FORM_OF or FORMS[FORM_OF[key]](value)}


def warn_unverifiable(path: str) -> None:
    """Warn that the cache with this meta.json cannot be verified. A process warns only once about each cache."""
    known = os.path.abspath(path)
    if known not in _warned:
        _warned.add(known)
        warnings.warn(f"{path}: {UNVERIFIABLE}", stacklevel=3)
