"""Every key that a meta.json of ours has: in which kinds of folders, what form its value has, and what it says.

The one table of them. docs/meta.md is made of it, a test holds it to what is built, and `check_form` checks values by it once, where a
folder is opened: somebody who edits a meta.json and hashes it again passes `read_meta`. Which keys are needed is known to those who need
them. Whether values agree with each other and with the files is `verify`'s business.
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
]

EVERY: tuple[Kind, ...] = ("tokenizer", "pretrain", "sft", "corpus", "duplicates", "index")
_FAMILIES: tuple[Kind, ...] = ("pretrain", "sft")
_DATASETS: tuple[Kind, ...] = (*_FAMILIES, "corpus")
_BUILT: tuple[Kind, ...] = ("tokenizer", *_DATASETS, "duplicates")


class MetaKey(NamedTuple):
    """`kinds`: in whose meta.json it may be. `meaning`: Markdown, a sentence without its full stop."""

    name: str
    form: Form
    kinds: tuple[Kind, ...]
    meaning: str


def is_count(value: object) -> bool:
    """Whether it is a whole number that an int64 holds, 0 or more."""
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
}

META_KEYS: tuple[MetaKey, ...] = (
    MetaKey("kind", "text", EVERY, "What the folder is; an index has `index/` and its kind"),
    MetaKey("schema_version", "a whole number", EVERY, "1. A reader refuses a newer one than it knows"),
    MetaKey("meta_sha256", "text", EVERY, "sha256 of this file with the value of this key empty: an edit by hand shows"),
    MetaKey("files", "a table", EVERY, "Every file of the folder but this one: its path in it to its `bytes` and `sha256`"),
    MetaKey("built", "true or false", _BUILT, "False where the data set is switched off (`enabled = false`): nothing is there"),
    MetaKey("fingerprint", "text or null", _BUILT, "sha256 over all that decides the bytes; who asks for the same gets a cache hit"),
    MetaKey("content_sha256", "text", _DATASETS, "sha256 over tokens and offsets (a corpus: its documents); lineage is left out"),
    MetaKey("content_sha256", "text", ("duplicates",), "sha256 over the lists of all data sets"),
    MetaKey("seed", "a whole number or null", ("tokenizer", *_DATASETS), "`[build] seed`; null for what is imported or switched off"),
    # Whence
    MetaKey("dataset_name", "text or null", _DATASETS, "The data set's table; null, where a builder was given none, fits any folder"),
    MetaKey("dataset_config", "text or null", _DATASETS, "Its configuration on the hub"),
    MetaKey("dataset_revision", "text or null", _DATASETS, "What was read: the hub's commit, or a digest of local files"),
    MetaKey("source", "a table", _DATASETS, "`kind` of the source, and what identifies the data; no absolute path"),
    MetaKey("split_rule", "text or null", _FAMILIES, "How train and val were divided, in one line"),
    MetaKey("decontaminate", "a table", ("pretrain",), "Where copies of val were kept out of train: `kind`, `threshold`, code version"),
    # Tokens
    MetaKey("token_dtype", "text", _FAMILIES, "`uint16-le`"),
    MetaKey("vocab_size", "a whole number or null", ("tokenizer", *_FAMILIES), "Ids are below it; null for imported tokens where unknown"),
    MetaKey("tokenizer_sha256", "text or null", _FAMILIES, "Of the tokenizer's model; readers refuse another one than `tokenizer/` holds"),
    MetaKey("special_token_ids", "a table", ("tokenizer", *_FAMILIES), "`sys`, `usr`, `asst`, `eot`: ids, or null where there is none"),
    MetaKey("append_eot", "true or false", ("pretrain",), "Whether every document ends with EOT, and no EOT is elsewhere"),
    MetaKey("shard_bytes", "a whole number or null", ("pretrain",), "Size of every shard but a split's last, in bytes"),
    # Counts
    MetaKey("train_tokens", "a whole number", _FAMILIES, "Tokens of train, special tokens included"),
    MetaKey("val_tokens", "a whole number", _FAMILIES, "Tokens of val"),
    MetaKey("train_examples", "a whole number", ("sft",), "Examples of train"),
    MetaKey("val_examples", "a whole number", ("sft",), "Examples of val"),
    MetaKey("documents", "a table of whole numbers", ("pretrain",), "Documents of `train` and `val`"),
    MetaKey("documents", "a table of whole numbers", ("corpus",), "`read` from the source, and `kept`"),
    MetaKey("characters", "a table of whole numbers", ("pretrain",), "Characters of the documents of `train` and `val`"),
    MetaKey("characters", "a table of whole numbers", ("corpus",), "`before` and `after` cleaning"),
    MetaKey("bytes", "a table of whole numbers", ("corpus",), "The same, as UTF-8"),
    MetaKey("words", "a whole number", ("corpus",), "Words of what was kept"),
    MetaKey("cut", "a table of whole numbers", ("pretrain",), "Documents that a token budget cut: 0 or 1 in `train` and `val`"),
    MetaKey("cut_document", "a table", ("pretrain",), "Which one that is, by its ordinal in the split; else null"),
    MetaKey("dropped", "a table of whole numbers", _DATASETS, "What was left out, counted by reason"),
    MetaKey("dropped_by_source", "a table of whole numbers", ("corpus",), "Those of `dropped` that the source left out while reading"),
    MetaKey("facts", "a table", _DATASETS, "What else the source had to say, such as trees that both splits share"),
    # Tokenizer
    MetaKey("sha256", "text", ("tokenizer",), "Of `spm.model`; caches carry it as `tokenizer_sha256`"),
    MetaKey("model_type", "text", ("tokenizer",), "`unigram`, `bpe`, ..., or `imported`"),
    MetaKey("special_tokens", "a table", ("tokenizer",), "Strings of the four special tokens; a text that spells one is dropped"),
    MetaKey("sentencepiece_version", "text", ("tokenizer",), "The version that trained it, or looked into an imported one"),
    MetaKey(
        "trained_on",
        "a table",
        ("tokenizer",),
        "Of a trained one, its sample: `sources` (bytes of each), `revisions`, `skipped` (what could not be read), `bytes`, `sha256`; "
        "with `prepare`, `read_as` (`prepared`: documents of a corpus that go to train; `members`: a mixture; `raw`); and "
        "how it fits: `characters_per_token` by source (newlines count, EOT does not), `longest_words`",
    ),
    MetaKey("imported", "text", ("tokenizer",), "Of an imported one: the name of its file"),
    # Corpus and duplicates
    MetaKey("prepare", "a list of texts", ("corpus",), "`clean`, `dedup`"),
    MetaKey("cleaning", "a table or null", ("corpus",), "Settings that decided what was kept; null where nothing was cleaned"),
    MetaKey("signatures", "a table or null", ("corpus",), "What decides the MinHash signatures; null where duplicates are not looked for"),
    MetaKey("signatures", "a table or null", ("duplicates",), "By data set: sha256 of its digests and signatures"),
    MetaKey("lengths", "a table", ("corpus",), "Documents by length, `before` and `after`, for the report's histogram"),
    MetaKey("splits", "a table", ("corpus",), "Documents by upstream's own split, or `unknown`"),
    MetaKey("splits", "a table", ("duplicates",), "By data set: `val_frac` and `seed` of its split; null where upstream or budgets decide"),
    MetaKey("languages", "a table of whole numbers", ("corpus",), "Documents by language, of those asked"),
    MetaKey("settings", "a table", ("duplicates",), "`[dedup]`"),
    MetaKey("bands", "a whole number", ("duplicates",), "LSH bands that were used"),
    MetaKey("rows", "a whole number", ("duplicates",), "Slots of a band"),
    MetaKey("order", "a list of texts", ("duplicates",), "Data sets, in the order in which the first one wins"),
    MetaKey("missing", "a list of texts", ("duplicates",), "Data sets that had no corpus yet"),
    MetaKey("inputs", "a table", ("duplicates",), "By data set: `content_sha256` of its corpus"),
    MetaKey("datasets", "a table", ("duplicates",), "By data set: documents, exact and near duplicates, of whom, sizes of clusters"),
    # Index
    MetaKey("index_version", "a whole number", ("index",), "Changes with the order that Megatron's indices give"),
    MetaKey("parameters", "a table", ("index",), "What the index is of; the folder is named by their hash"),
)  # fmt: skip

FORM_OF: dict[str, Form] = {key.name: key.form for key in META_KEYS}  # one form for a name, whatever the kind


def form_problem(meta: dict[str, Any]) -> str | None:
    """One clause about the first key with a value that no such key has, else None."""
    for name, form in FORM_OF.items():
        if name in meta and not FORMS[form](meta[name]):
            return f"{name} is {meta[name]!r:.80}, expected {form}"
    return None


def check_form(meta: dict[str, Any], path: object) -> dict[str, Any]:
    """`meta`, read from `path`. Raises NielsCacheError with its `form_problem`."""
    if problem := form_problem(meta):
        raise NielsCacheError(f"{path}: {problem}; rebuild this data set")
    return meta
