"""Writes docs/meta.md: what each key of our meta.json files means, and which kinds of folders have it.

The forms of the values come from the code that checks them, and a test compares the table with built caches.

python docs/meta.py            (a test fails while the file is out of date)
"""

from pathlib import Path
from typing import Literal, NamedTuple

from niels_cache_runtime.format.meta_keys import FORM_OF

Kind = Literal["tokenizer", "pretrain", "sft", "corpus", "duplicates", "index"]
EVERY: tuple[Kind, ...] = ("tokenizer", "pretrain", "sft", "corpus", "duplicates", "index")
_FAMILIES: tuple[Kind, ...] = ("pretrain", "sft")
_DATASETS: tuple[Kind, ...] = (*_FAMILIES, "corpus")
_BUILT: tuple[Kind, ...] = ("tokenizer", *_DATASETS, "duplicates")

TARGET = Path(__file__).with_suffix(".md")

INTRODUCTION = """\
# Keys of meta.json

<!-- Made by docs/meta.py from the code; edit that. -->

A build writes `meta.json` last.
A folder is a cache only if it has this file.
The file is canonical JSON: sorted keys, two blanks, UTF-8, one newline at the end.
It has no time, no host name and no absolute path.
So the same inputs give the same bytes.
`niels-cache show NAME` prints the file, and `niels_cache_runtime.read_meta` reads and checks it.

In the tables below, "a whole number" is a number from 0 to 2**63 - 1.
If a key may be missing or null, the row of the key says what that means.
"""

_TITLES: dict[Kind, str] = {
    "tokenizer": "tokenizer/",
    "pretrain": "pretrain/NAME/",
    "sft": "sft/NAME/",
    "corpus": "corpus/NAME/",
    "duplicates": "duplicates/",
    "index": "index/HASH/",
}


class MetaKey(NamedTuple):
    """A key. `kinds` lists the folders whose meta.json may have it. `meaning` is Markdown, one sentence without its full stop."""

    name: str
    kinds: tuple[Kind, ...]
    meaning: str


META_KEYS: tuple[MetaKey, ...] = (
    MetaKey("kind", EVERY, "The kind of the folder; for an index, `index/` and the kind of the index"),
    MetaKey("schema_version", EVERY, "1, in every file. A reader refuses any other number"),
    MetaKey(
        "forms",
        _FAMILIES,
        "What a reader must know, sorted: `pairs`, `parts`, `spans` (of targets), `uint32` (tokens). A reader refuses a form that it does "
        "not know",
    ),
    MetaKey("meta_sha256", EVERY, "sha256 of this file with the value of this key empty; detects an edit by hand"),
    MetaKey("files", EVERY, "For each of the other files in the folder: its relative path, with its `bytes` and `sha256`"),
    MetaKey("built", _BUILT, "False if the data set is switched off (`enabled = false`) and has no files"),
    MetaKey("fingerprint", _BUILT, "sha256 over all inputs of the build; a build with the same fingerprint is a cache hit"),
    MetaKey("content_sha256", _DATASETS, "sha256 over tokens and offsets (in a corpus, over its documents), without lineage files"),
    MetaKey("content_sha256", ("duplicates",), "sha256 over the lists of all data sets"),
    MetaKey("seed", ("tokenizer", *_DATASETS), "`[build] seed`; null if imported or switched off"),
    # Origin
    MetaKey("dataset_name", _DATASETS, "Name of the data set's table; null fits any folder (if the builder got no name)"),
    MetaKey("dataset_config", _DATASETS, "The configuration of the data set on the hub"),
    MetaKey("dataset_revision", _DATASETS, "The revision that was read: the hub's commit, or a digest of local files"),
    MetaKey("source", _DATASETS, "`kind` of the source, keys that identify the data, `text_field` of rows; no absolute path"),
    MetaKey("split_rule", _FAMILIES, "The rule that divided train and val, in one line"),
    MetaKey("decontaminate", ("pretrain",), "If copies of val were removed from train: `kind`, `threshold`, code version"),
    MetaKey(
        "decontaminate_against",
        ("pretrain",),
        "If texts of other data sets or files were kept out of train: limits, names of the data sets, code version",
    ),
    MetaKey(
        "decontaminated_examples",
        ("pretrain",),
        "The first 50 documents that `decontaminate_against` dropped: origin, reason, the text they overlap (`because`), value",
    ),
    MetaKey("keep", ("pretrain", "corpus"), "Columns of the source that stay with the documents; missing without any"),
    # Tokens
    MetaKey("token_dtype", _FAMILIES, "`uint16-le`, or `uint32-le` for a vocabulary of more than 65,536 ids"),
    MetaKey("vocab_size", ("tokenizer", *_FAMILIES), "Every id is below this; null if unknown (imported tokens)"),
    MetaKey("tokenizer_sha256", _FAMILIES, "sha256 of the tokenizer's model; readers compare it with `tokenizer/`"),
    MetaKey(
        "special_token_ids",
        ("tokenizer", *_FAMILIES),
        "`sys`, `usr`, `asst`, `eot`: ids, or null for a missing one; `bos` only if each document of pretraining begins with it",
    ),
    MetaKey("append_eot", ("pretrain",), "Whether every document ends with EOT, and no other token is EOT"),
    MetaKey("shard_bytes", ("pretrain",), "Bytes of every shard, except the last one of a split or a part"),
    # Counts
    MetaKey("train_tokens", _FAMILIES, "Tokens of train, special tokens included"),
    MetaKey("val_tokens", _FAMILIES, "Tokens of val"),
    MetaKey("train_examples", ("sft",), "Examples of train"),
    MetaKey("val_examples", ("sft",), "Examples of val"),
    MetaKey(
        "template",
        ("sft",),
        "The chat template, if it is not `sentinels`: `name`, `sha256` of its text (the file `chat_template.jinja`), `marks`: whether it "
        "marks its targets itself, and `turns` if each example learns only one turn of a conversation",
    ),
    MetaKey(
        "targets",
        ("sft",),
        "Spans of targets in `train` and `val`; missing if sentinels alone mark the targets (no template, no pairs, no masked messages)",
    ),
    MetaKey(
        "sides",
        ("sft",),
        "If the examples are preference pairs: `chosen`, `rejected`, the two parts of each example in the order of the files",
    ),
    MetaKey("documents", ("pretrain",), "Documents of `train` and `val`"),
    MetaKey("documents", ("corpus",), "`read` from the source, and `kept`"),
    MetaKey("characters", ("pretrain",), "Characters of the documents of `train` and `val`"),
    MetaKey("characters", ("corpus",), "`before` and `after` cleaning"),
    MetaKey("bytes", ("corpus",), "Bytes of UTF-8 `before` and `after` cleaning"),
    MetaKey("words", ("corpus",), "Words of the kept documents"),
    MetaKey("cut", ("pretrain",), "Documents of `train` and of `val` that were cut by a token budget"),
    MetaKey("cut_document", ("pretrain",), "The ordinal of the cut document in each split, or null (from parts: a list)"),
    MetaKey(
        "parts",
        ("pretrain",),
        "The parts that this cache was joined from, in order. Each has `name`, `meta_sha256`, `short` (tokens of its budget that its files "
        "lacked), and by split `shards`, `tokens` and `documents`",
    ),
    MetaKey("part", ("pretrain",), "In a part: `plan` (its fingerprint), `number`, `short`, and in the val part `taken`"),
    MetaKey("parts", ("corpus",), "The parts that were joined, in order: `name`, `documents` (kept), `meta_sha256`"),
    MetaKey("part", ("corpus",), "In a part: `plan` (its fingerprint) and `number`"),
    MetaKey("dropped", _DATASETS, "The number of documents that were left out, for each reason"),
    MetaKey("dropped_by_source", ("corpus",), "The part of `dropped` that the source left out while reading"),
    MetaKey(
        "facts",
        _DATASETS,
        "Further facts, such as `masked_messages` (of the assistant, not trained on), and the trees of messages that are in both splits. "
        "About drops: `first_dropped` (the place of the first one of each unasked reason), `dropped_of_val` (how many are known to be of "
        "val), `files_without_items`, `files_without_text_field`",
    ),
    # Tokenizer
    MetaKey(
        "sha256",
        ("tokenizer",),
        "sha256 of `spm.model`, `tokenizer.json` or `tiktoken.json`; caches record it as `tokenizer_sha256`",
    ),
    MetaKey("model_type", ("tokenizer",), "`unigram`, `bpe`, `bytelevel_bpe`, or `imported`"),
    MetaKey("model_kind", ("tokenizer",), "`tokenizer.json` or `tiktoken`; SentencePiece has no such key"),
    MetaKey("special_tokens", ("tokenizer",), "Strings of the special tokens by role; a text that yields one is dropped"),
    MetaKey("sentencepiece_version", ("tokenizer",), "The version of SentencePiece that trained or imported the tokenizer"),
    MetaKey("tokenizers_version", ("tokenizer",), "The version of `tokenizers` that trained or imported the tokenizer"),
    MetaKey("tiktoken_version", ("tokenizer",), "The version of tiktoken that imported the tokenizer"),
    MetaKey(
        "trained_on",
        ("tokenizer",),
        "The training sample has `sources` (bytes of each), `revisions`, `skipped` (unreadable items), `bytes` and `sha256`. "
        "If a data set uses `prepare`, the training sample also has `read_as`. For each data set, `read_as` is `prepared` (the "
        "documents of its corpus that go to train), `members` (for a mixture) or `raw`. The quality of the tokenizer is in "
        "`characters_per_token` by source (newlines count, EOT does not) and `longest_words`",
    ),
    MetaKey("imported", ("tokenizer",), "The file name of an imported tokenizer"),
    # Corpus and duplicates
    MetaKey("prepare", ("corpus",), "`clean`, `dedup`"),
    MetaKey("cleaning", ("corpus",), "Settings that decided which documents were kept; null if nothing was cleaned"),
    MetaKey("signatures", ("corpus",), "Settings of the MinHash signatures; null without a search for duplicates"),
    MetaKey("signatures", ("duplicates",), "For each data set, the sha256 of its digests and signatures"),
    MetaKey("lengths", ("corpus",), "Number of documents by length, `before` and `after` cleaning, for the report's histogram"),
    MetaKey("masked", ("corpus",), "If places were masked: `documents`, `places` by kind, and `examples`"),
    MetaKey("splits", ("corpus",), "Number of documents by split of upstream; documents without a split are `unknown`"),
    MetaKey("splits", ("duplicates",), "`val_frac` and `seed` of each data set's split; null if upstream or budgets decide"),
    MetaKey("languages", ("corpus",), "Number of documents by configured language"),
    MetaKey("settings", ("duplicates",), "The settings in `[dedup]`"),
    MetaKey("bands", ("duplicates",), "Number of LSH bands"),
    MetaKey("rows", ("duplicates",), "Slots per band"),
    MetaKey("order", ("duplicates",), "Data sets in order of priority: the first one keeps a duplicate"),
    MetaKey("missing", ("duplicates",), "Data sets that had no corpus yet"),
    MetaKey("inputs", ("duplicates",), "For each data set, the `content_sha256` of its corpus"),
    MetaKey("datasets", ("duplicates",), "By data set: documents, duplicates (exact, near) with their origin, cluster sizes"),
    # Index
    MetaKey("index_version", ("index",), "Changes if the order of Megatron's indices changes"),
    MetaKey("parameters", ("index",), "The parameters of the index; their hash is the folder's name"),
)  # fmt: skip


def rows(keys: list[MetaKey]) -> list[str]:
    return ["| key | value | |", "| --- | --- | --- |", *(f"| `{key.name}` | {FORM_OF[key.name]} | {key.meaning} |" for key in keys), ""]


def page() -> str:
    lines = [INTRODUCTION, "## In every folder", "", *rows([key for key in META_KEYS if key.kinds == EVERY])]
    for kind in EVERY:
        lines += [f"## {_TITLES[kind]}", "", *rows([key for key in META_KEYS if kind in key.kinds and key.kinds != EVERY])]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
