"""The table of every key in our meta.json files: the kinds of folders that have it, the form of its value, and its meaning.

docs/meta.md is made from this table, and a test compares the table with built caches. `check_form` compares the values with the table once,
when a folder is opened. This is needed because `read_meta` accepts a meta.json that was edited and hashed again. The code that reads a key
decides whether the key is needed. `verify` checks whether values agree with each other and with the files.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from niels_cache_runtime.errors import NielsCacheError

Kind = Literal["tokenizer", "pretrain", "sft", "corpus", "duplicates", "index"]
Form = Literal[
    "text",
    "text or null",
    "true or false",
    "a whole number",
    "a whole number or null",
    "a table",
    "a table or null",
    "a table of whole numbers",
    "a list of texts",
    "a list of tables",
]

EVERY: tuple[Kind, ...] = ("tokenizer", "pretrain", "sft", "corpus", "duplicates", "index")
_FAMILIES: tuple[Kind, ...] = ("pretrain", "sft")
_DATASETS: tuple[Kind, ...] = (*_FAMILIES, "corpus")
_BUILT: tuple[Kind, ...] = ("tokenizer", *_DATASETS, "duplicates")


class MetaKey(NamedTuple):
    """A key. `kinds` lists the folders whose meta.json may have it. `meaning` is Markdown, one sentence without its full stop."""

    name: str
    form: Form
    kinds: tuple[Kind, ...]
    meaning: str


def is_count(value: object) -> bool:
    """Return whether `value` is a whole number that is at least 0 and fits into an int64."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_table(value: object) -> bool:
    return isinstance(value, dict)


FORMS: dict[Form, Callable[[Any], bool]] = {
    "text": _is_text,
    "text or null": lambda value: value is None or _is_text(value),
    "true or false": lambda value: isinstance(value, bool),
    "a whole number": is_count,
    "a whole number or null": lambda value: value is None or is_count(value),
    "a table": _is_table,
    "a table or null": lambda value: value is None or _is_table(value),
    "a table of whole numbers": lambda value: _is_table(value) and all(map(is_count, value.values())),
    "a list of texts": lambda value: isinstance(value, list) and all(map(_is_text, value)),
    "a list of tables": lambda value: isinstance(value, list) and all(map(_is_table, value)),
}

META_KEYS: tuple[MetaKey, ...] = (
    MetaKey("kind", "text", EVERY, "The kind of the folder; for an index, `index/` and the kind of the index"),
    MetaKey("schema_version", "a whole number", EVERY, "1, in every file. A reader refuses any other number"),
    MetaKey(
        "forms",
        "a list of texts",
        _FAMILIES,
        "What a reader must know, sorted: `pairs`, `parts`, `spans` (of targets), `uint32` (tokens). A reader refuses a form that it does "
        "not know",
    ),
    MetaKey("meta_sha256", "text", EVERY, "sha256 of this file with the value of this key empty; detects an edit by hand"),
    MetaKey("files", "a table", EVERY, "For each of the other files in the folder: its relative path, with its `bytes` and `sha256`"),
    MetaKey("built", "true or false", _BUILT, "False if the data set is switched off (`enabled = false`) and has no files"),
    MetaKey("fingerprint", "text or null", _BUILT, "sha256 over all inputs of the build; a build with the same fingerprint is a cache hit"),
    MetaKey("content_sha256", "text", _DATASETS, "sha256 over tokens and offsets (in a corpus, over its documents), without lineage files"),
    MetaKey("content_sha256", "text", ("duplicates",), "sha256 over the lists of all data sets"),
    MetaKey("seed", "a whole number or null", ("tokenizer", *_DATASETS), "`[build] seed`; null if imported or switched off"),
    # Origin
    MetaKey("dataset_name", "text or null", _DATASETS, "Name of the data set's table; null fits any folder (if the builder got no name)"),
    MetaKey("dataset_config", "text or null", _DATASETS, "The configuration of the data set on the hub"),
    MetaKey("dataset_revision", "text or null", _DATASETS, "The revision that was read: the hub's commit, or a digest of local files"),
    MetaKey("source", "a table", _DATASETS, "`kind` of the source, keys that identify the data, `text_field` of rows; no absolute path"),
    MetaKey("split_rule", "text or null", _FAMILIES, "The rule that divided train and val, in one line"),
    MetaKey("decontaminate", "a table", ("pretrain",), "If copies of val were removed from train: `kind`, `threshold`, code version"),
    MetaKey(
        "decontaminate_against",
        "a table",
        ("pretrain",),
        "If texts of other data sets or files were kept out of train: limits, names of the data sets, code version",
    ),
    MetaKey(
        "decontaminated_examples",
        "a list of tables",
        ("pretrain",),
        "The first 50 documents that `decontaminate_against` dropped: origin, reason, the text they overlap (`because`), value",
    ),
    MetaKey("keep", "a list of texts", ("pretrain", "corpus"), "Columns of the source that stay with the documents; missing without any"),
    # Tokens
    MetaKey("token_dtype", "text", _FAMILIES, "`uint16-le`, or `uint32-le` for a vocabulary of more than 65,536 ids"),
    MetaKey("vocab_size", "a whole number or null", ("tokenizer", *_FAMILIES), "Every id is below this; null if unknown (imported tokens)"),
    MetaKey("tokenizer_sha256", "text or null", _FAMILIES, "sha256 of the tokenizer's model; readers compare it with `tokenizer/`"),
    MetaKey(
        "special_token_ids",
        "a table",
        ("tokenizer", *_FAMILIES),
        "`sys`, `usr`, `asst`, `eot`: ids, or null for a missing one; `bos` only if each document of pretraining begins with it",
    ),
    MetaKey("append_eot", "true or false", ("pretrain",), "Whether every document ends with EOT, and no other token is EOT"),
    MetaKey("shard_bytes", "a whole number or null", ("pretrain",), "Bytes of every shard, except the last one of a split or a part"),
    # Counts
    MetaKey("train_tokens", "a whole number", _FAMILIES, "Tokens of train, special tokens included"),
    MetaKey("val_tokens", "a whole number", _FAMILIES, "Tokens of val"),
    MetaKey("train_examples", "a whole number", ("sft",), "Examples of train"),
    MetaKey("val_examples", "a whole number", ("sft",), "Examples of val"),
    MetaKey(
        "template",
        "a table",
        ("sft",),
        "The chat template, if it is not `sentinels`: `name`, `sha256` of its text (the file `chat_template.jinja`), `marks`: whether it "
        "marks its targets itself, and `turns` if each example learns only one turn of a conversation",
    ),
    MetaKey(
        "targets",
        "a table of whole numbers",
        ("sft",),
        "Spans of targets in `train` and `val`; missing if sentinels alone mark the targets (no template, no pairs, no masked messages)",
    ),
    MetaKey(
        "sides",
        "a list of texts",
        ("sft",),
        "If the examples are preference pairs: `chosen`, `rejected`, the two parts of each example in the order of the files",
    ),
    MetaKey("documents", "a table of whole numbers", ("pretrain",), "Documents of `train` and `val`"),
    MetaKey("documents", "a table of whole numbers", ("corpus",), "`read` from the source, and `kept`"),
    MetaKey("characters", "a table of whole numbers", ("pretrain",), "Characters of the documents of `train` and `val`"),
    MetaKey("characters", "a table of whole numbers", ("corpus",), "`before` and `after` cleaning"),
    MetaKey("bytes", "a table of whole numbers", ("corpus",), "Bytes of UTF-8 `before` and `after` cleaning"),
    MetaKey("words", "a whole number", ("corpus",), "Words of the kept documents"),
    MetaKey("cut", "a table of whole numbers", ("pretrain",), "Documents of `train` and of `val` that were cut by a token budget"),
    MetaKey("cut_document", "a table", ("pretrain",), "The ordinal of the cut document in each split, or null (from parts: a list)"),
    MetaKey(
        "parts",
        "a list of tables",
        ("pretrain",),
        "The parts that this cache was joined from, in order. Each has `name`, `meta_sha256`, `short` (tokens of its budget that its files "
        "lacked), and by split `shards`, `tokens` and `documents`",
    ),
    MetaKey("part", "a table", ("pretrain",), "In a part: `plan` (its fingerprint), `number`, `short`, and in the val part `taken`"),
    MetaKey("parts", "a list of tables", ("corpus",), "The parts that were joined, in order: `name`, `documents` (kept), `meta_sha256`"),
    MetaKey("part", "a table", ("corpus",), "In a part: `plan` (its fingerprint) and `number`"),
    MetaKey("dropped", "a table of whole numbers", _DATASETS, "The number of documents that were left out, for each reason"),
    MetaKey("dropped_by_source", "a table of whole numbers", ("corpus",), "The part of `dropped` that the source left out while reading"),
    MetaKey(
        "facts",
        "a table",
        _DATASETS,
        "Further facts, such as `masked_messages` (of the assistant, not trained on), and the trees of messages that are in both splits. "
        "About drops: `first_dropped` (the place of the first one of each unasked reason), `dropped_of_val` (how many are known to be of "
        "val), `files_without_items`, `files_without_text_field`",
    ),
    # Tokenizer
    MetaKey(
        "sha256",
        "text",
        ("tokenizer",),
        "sha256 of `spm.model`, `tokenizer.json` or `tiktoken.json`; caches record it as `tokenizer_sha256`",
    ),
    MetaKey("model_type", "text", ("tokenizer",), "`unigram`, `bpe`, `bytelevel_bpe`, or `imported`"),
    MetaKey("model_kind", "text", ("tokenizer",), "`tokenizer.json` or `tiktoken`; SentencePiece has no such key"),
    MetaKey("special_tokens", "a table", ("tokenizer",), "Strings of the special tokens by role; a text that yields one is dropped"),
    MetaKey("sentencepiece_version", "text", ("tokenizer",), "The version of SentencePiece that trained or imported the tokenizer"),
    MetaKey("tokenizers_version", "text", ("tokenizer",), "The version of `tokenizers` that trained or imported the tokenizer"),
    MetaKey("tiktoken_version", "text", ("tokenizer",), "The version of tiktoken that imported the tokenizer"),
    MetaKey(
        "trained_on",
        "a table",
        ("tokenizer",),
        "The training sample has `sources` (bytes of each), `revisions`, `skipped` (unreadable items), `bytes` and `sha256`. "
        "If a data set uses `prepare`, the training sample also has `read_as`. For each data set, `read_as` is `prepared` (the "
        "documents of its corpus that go to train), `members` (for a mixture) or `raw`. The quality of the tokenizer is in "
        "`characters_per_token` by source (newlines count, EOT does not) and `longest_words`",
    ),
    MetaKey("imported", "text", ("tokenizer",), "The file name of an imported tokenizer"),
    # Corpus and duplicates
    MetaKey("prepare", "a list of texts", ("corpus",), "`clean`, `dedup`"),
    MetaKey("cleaning", "a table or null", ("corpus",), "Settings that decided which documents were kept; null if nothing was cleaned"),
    MetaKey("signatures", "a table or null", ("corpus",), "Settings of the MinHash signatures; null without a search for duplicates"),
    MetaKey("signatures", "a table or null", ("duplicates",), "For each data set, the sha256 of its digests and signatures"),
    MetaKey("lengths", "a table", ("corpus",), "Number of documents by length, `before` and `after` cleaning, for the report's histogram"),
    MetaKey("masked", "a table", ("corpus",), "If places were masked: `documents`, `places` by kind, and `examples`"),
    MetaKey("splits", "a table", ("corpus",), "Number of documents by split of upstream; documents without a split are `unknown`"),
    MetaKey("splits", "a table", ("duplicates",), "`val_frac` and `seed` of each data set's split; null if upstream or budgets decide"),
    MetaKey("languages", "a table of whole numbers", ("corpus",), "Number of documents by configured language"),
    MetaKey("settings", "a table", ("duplicates",), "The settings in `[dedup]`"),
    MetaKey("bands", "a whole number", ("duplicates",), "Number of LSH bands"),
    MetaKey("rows", "a whole number", ("duplicates",), "Slots per band"),
    MetaKey("order", "a list of texts", ("duplicates",), "Data sets in order of priority: the first one keeps a duplicate"),
    MetaKey("missing", "a list of texts", ("duplicates",), "Data sets that had no corpus yet"),
    MetaKey("inputs", "a table", ("duplicates",), "For each data set, the `content_sha256` of its corpus"),
    MetaKey("datasets", "a table", ("duplicates",), "By data set: documents, duplicates (exact, near) with their origin, cluster sizes"),
    # Index
    MetaKey("index_version", "a whole number", ("index",), "Changes if the order of Megatron's indices changes"),
    MetaKey("parameters", "a table", ("index",), "The parameters of the index; their hash is the folder's name"),
)  # fmt: skip

FORM_OF: dict[str, Form] = {key.name: key.form for key in META_KEYS}  # a key has the same form in all kinds of folders


def form_problem(meta: dict[str, Any]) -> str | None:
    """Return one clause about the first key whose value has a wrong form, or None."""
    for name, form in FORM_OF.items():
        if name in meta and not FORMS[form](meta[name]):
            return f"{name} is {meta[name]!r:.80}, expected {form}"
    return None


def check_form(meta: dict[str, Any], path: object) -> dict[str, Any]:
    """Return `meta`, which was read from `path`. Raises NielsCacheError if `meta` has a `form_problem`."""
    if problem := form_problem(meta):
        raise NielsCacheError(f"{path}: {problem}; rebuild this data set")
    return meta
