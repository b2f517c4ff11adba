"""Names of figures and settings in words, for pages and tables that people read: `train_tokens` is "tokens of train".

The one table of them. Programs (--json) and files keep the keys of meta.json.
"""

from __future__ import annotations

# A key of a meta.json, or the path of a value in one of its tables.
_LABELS = {
    "sft": "SFT",
    "append_eot": "every document ends with EOT",
    "bands": "LSH bands",
    "built": "switched on",
    "bytes.after": "bytes after cleaning",
    "bytes.before": "bytes before cleaning",
    "characters.after": "characters after cleaning",
    "characters.before": "characters before cleaning",
    "characters.train": "characters of train",
    "characters.val": "characters of val",
    "content_sha256": "sha256 of the content",
    "cut.train": "documents of train that the budget cut",
    "cut.val": "documents of val that the budget cut",
    "cut_document.train": "number of the document of train that the budget cut",
    "cut_document.val": "number of the document of val that the budget cut",
    "dataset_config": "configuration on the hub",
    "dataset_name": "name of the data set",
    "dataset_revision": "revision of the source",
    "documents": "documents",
    "documents.kept": "documents kept",
    "documents.read": "documents read",
    "documents.train": "documents of train",
    "documents.val": "documents of val",
    "fingerprint": "fingerprint of all settings",
    "meta_sha256": "sha256 of meta.json",
    "seed": "seed",
    "sha256": "sha256 of the model",
    "shard_bytes": "size of a full shard, in bytes",
    "split_rule": "rule of the split",
    "token_dtype": "type of a token",
    "tokenizer_sha256": "sha256 of the tokenizer",
    "train_examples": "examples of train",
    "train_tokens": "tokens of train",
    "val_examples": "examples of val",
    "val_tokens": "tokens of val",
    "vocab_size": "pieces of the vocabulary",
}
_PREFIXES = {
    "cleaning": "cleaning",
    "decontaminate": "keeping copies of val out of train",
    "dropped": "dropped",
    "dropped_by_source": "dropped while reading",
    "facts": "noted while reading",
    "languages": "documents by language",
    "parameters": "parameter",
    "settings": "setting",
    "source": "source",
    "special_token_ids": "id of the special token",
    "special_tokens": "special token",
    "trained_on": "trained on",
}
_REASONS = {
    "exact_duplicate": "exact duplicate",
    "near_duplicate": "near duplicate",
    "no_assistant": "no message of the assistant",
    "special_token_collision": "spells a special token",
}


def label(key: str) -> str:
    """A key in words. `key`: of a meta.json, or a path in one, such as `documents.train` and `dropped.too_short`."""
    if key in _LABELS:
        return _LABELS[key]
    table, dot, rest = key.partition(".")
    if dot:
        said = reason(rest) if table.startswith("dropped") else _spaced(rest)
        return f"{_PREFIXES.get(table, _spaced(table))}: {said}"
    return _spaced(key)


def reason(name: str) -> str:
    """Why documents or examples were dropped, in words."""
    return _REASONS.get(name, _spaced(name))


def _spaced(name: str) -> str:
    return name.replace("_", " ").replace(".", " ")
