"""The format of numbers, and the labels of keys, reasons and lines, for the command line, Dagster's UI, reports and messages.

People read "tokens of train" for `train_tokens`. Programs (--json) and files use the keys of meta.json.
"""

from collections.abc import Mapping, Sequence

DEBUG = "DEBUG: "  # prefix of log lines that a terminal does not show; the log of the run keeps these lines
UNKNOWN = "-"
SHORT_SHA256 = 12  # number of digits; enough to distinguish builds
_MAX_NAMES = 10  # number of names in one line; a table lists all

# Labels by key of meta.json, or by the path of a value in a table of meta.json.
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
    "documents.kept": "documents kept",
    "documents.read": "documents read",
    "documents.train": "documents of train",
    "documents.val": "documents of val",
    "fingerprint": "fingerprint of all settings",
    "meta_sha256": "sha256 of meta.json",
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
    "decontaminate": "removal of copies of val from train",
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


def by_count(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return names and counts, the largest count first, and equal counts by name."""
    return sorted(counts.items(), key=lambda row: (-row[1], row[0]))


def format_count(number: int, unit: str) -> str:
    """Return `1 token` or `12,345 tokens`."""
    return f"{number:,} {unit}" if number == 1 else f"{number:,} {unit}s"


def format_list(names: Sequence[str]) -> str:
    """Return `a, b, c`. If the list is long, return the first names and the number of the remaining names."""
    shown = names if len(names) <= _MAX_NAMES else names[: _MAX_NAMES - 1]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more else "")


def file_size(number: int) -> str:
    """Return `999 bytes` or `12.3 MB`."""
    from rich.filesize import decimal  # help must not load rich

    return decimal(number)


def format_share(part: float, whole: float = 1.0, *, digits: int = 1) -> str:
    """Return `12.3%`. A share above zero is never shown as 0%."""
    if not whole:
        return UNKNOWN
    least = 10**-digits  # the smallest percentage with this many digits
    return f"<{least:g}%" if 0 < part / whole < least / 200 else f"{part / whole:.{digits}%}"


def abbreviate(number: float) -> str:
    """Return a number such as `123`, `12.3k`, `4.5M`, `200.0M` or `1.2G`."""
    for unit in ("", "k", "M"):
        if number < 1000:
            return f"{number:.1f}{unit}" if unit else f"{number:.0f}"
        number /= 1000
    return f"{number:.1f}G"


def format_duration(seconds: float) -> str:
    """Return a duration such as `0:07`, `12:34` or `1:02:03`."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"


def label(key: str) -> str:
    """Return the label of a key of meta.json, or of a path such as `documents.train` or `dropped.too_short`."""
    if key in _LABELS or ":" in key:  # the name of a step is shown as it is
        return _LABELS.get(key, key)
    table, dot, rest = key.partition(".")
    if dot:
        return f"{_PREFIXES.get(table, _spaced(table))}: {_spaced(rest)}"
    return _spaced(key)


def _spaced(name: str) -> str:
    return name.replace("_", " ").replace(".", " ")
