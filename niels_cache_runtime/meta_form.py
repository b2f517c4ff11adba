"""What kind of value each key of a meta.json has: checked once, where a cache is opened, for all who then take it for granted.

Somebody who edits a meta.json and hashes it again passes `read_meta`. Whether values agree with each other and with the files is `verify`'s
business, and which keys are needed is known to those who need them.
"""

from collections.abc import Callable
from typing import Any

from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.meta import Meta


def is_count(value: object) -> bool:
    """Whether it is a whole number that an int64 holds, 0 or more."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_table(value: object) -> bool:
    return isinstance(value, dict)


def _is_table_of_counts(value: object) -> bool:
    return isinstance(value, dict) and all(map(is_count, value.values()))


_FORMS: dict[str, tuple[Callable[[Any], bool], tuple[str, ...]]] = {
    "text": (_is_text, ("kind", "dataset_name", "token_dtype", "sha256", "content_sha256", "meta_sha256")),
    "text or null": (
        lambda value: value is None or _is_text(value),
        ("dataset_config", "dataset_revision", "tokenizer_sha256", "split_rule", "fingerprint"),
    ),
    "true or false": (lambda value: isinstance(value, bool), ("built", "append_eot")),
    "a whole number": (is_count, ("train_tokens", "val_tokens", "train_examples", "val_examples")),
    "a whole number or null": (lambda value: value is None or is_count(value), ("vocab_size", "shard_bytes")),
    "a table": (_is_table, ("source", "facts", "special_token_ids", "datasets", "parameters")),
    "a table of whole numbers": (_is_table_of_counts, ("documents", "dropped", "characters", "cut")),
}


def form_problem(meta: Meta) -> str | None:
    """One clause about the first key with a value that no such key has, else None."""
    for form, (holds, keys) in _FORMS.items():
        for key in keys:
            if key in meta and not holds(meta[key]):
                return f"{key} is {meta[key]!r:.80}, expected {form}"
    return None


def check_form(meta: Meta, path: object) -> Meta:
    """`meta`, read from `path`. Raises NielsCacheError with its `form_problem`."""
    if problem := form_problem(meta):
        raise NielsCacheError(f"{path}: {problem}; rebuild this data set")
    return meta
