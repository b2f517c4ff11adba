"""The form of each value in our meta.json files. docs/meta.py says what the keys mean, and which kinds of folders have them.

`check_form` compares the values with these forms once, when a folder is opened. This is needed because `read_meta` accepts a meta.json that
was edited and hashed again. The code that reads a key decides whether the key is needed. `verify` checks whether values agree with each
other and with the files.
"""

from collections.abc import Callable
from typing import Any

from niels_cache_runtime.errors import NielsCacheError


def is_count(value: object) -> bool:
    """Return whether `value` is a whole number that is at least 0 and fits into an int64."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_table(value: object) -> bool:
    return isinstance(value, dict)


FORMS: dict[str, Callable[[Any], bool]] = {
    "text": _is_text,
    "text or null": lambda value: value is None or _is_text(value),
    "true or false": lambda value: isinstance(value, bool),
    "a whole number": is_count,
    "a whole number or null": lambda value: value is None or is_count(value),
    "a table": _is_table,
    "a table or null": lambda value: value is None or _is_table(value),
    "a table of whole numbers": lambda value: _is_table(value) and all(map(is_count, value.values())),
    "a list of texts": lambda value: isinstance(value, list) and all(map(_is_text, value)),
    "a table with a number of copies": lambda value: _is_table(value) and is_count(value.get("copies")),
    "a list of tables": lambda value: isinstance(value, list) and all(map(_is_table, value)),
}

_KEYS = {  # by form; a key has the same form in all kinds of folders
    "text": (
        "kind meta_sha256 content_sha256 token_dtype sha256 model_type model_kind sentencepiece_version tokenizers_version "
        "tiktoken_version imported revision step"
    ),
    "a whole number": "schema_version train_tokens val_tokens train_examples val_examples words bands rows index_version range_tokens",
    "a list of texts": "forms keep sides prepare order missing",
    "a table": (
        "files source decontaminate decontaminate_against special_token_ids template cut_document part facts special_tokens trained_on "
        "steps lengths masked splits settings inputs datasets parameters overlap tombstones"
    ),
    "a table with a number of copies": "fim",
    "true or false": "built append_eot",
    "text or null": "fingerprint dataset_name dataset_config dataset_revision split_rule tokenizer_sha256",
    "a whole number or null": "seed vocab_size shard_bytes",
    "a list of tables": "decontaminated_examples parts",
    "a table of whole numbers": "targets documents characters bytes cut dropped dropped_by_source languages fim_tokens",
    "a table or null": "cleaning signatures",
}
FORM_OF = {name: form for form, names in _KEYS.items() for name in names.split()}


def form_problem(meta: dict[str, Any]) -> str | None:
    """Return one clause about the first key whose value has a wrong form, or None."""
    for name, form in FORM_OF.items():
        if name in meta and not FORMS[form](meta[name]):
            return f"{name} is {meta[name]!r:.80}, expected {form}"
    return None


def check_form(meta: dict[str, Any], path: object) -> dict[str, Any]:
    """Return `meta`, which was read from `path`.

    Raises:
        NielsCacheError: If `meta` has a `form_problem`.
    """
    if problem := form_problem(meta):
        raise NielsCacheError(f"{path}: {problem}; rebuild this data set")
    return meta
