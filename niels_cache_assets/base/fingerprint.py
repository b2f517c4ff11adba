"""The fingerprint of anything that can be built: one sha256 over everything that determines the bytes.

This module loads no code that builds. A key that was added to a released table counts only if its value differs from its default
(`identity_settings`). So older caches remain valid. If you change the default of such a key, raise the code version of everything that
the key affects.
"""

import inspect
from collections.abc import Collection
from typing import Any

from pydantic import BaseModel

from niels_cache_runtime.format.meta import canonical_json, sha256_text

Identity = dict[str, Any]  # everything that determines the bytes

# For each table (for sources: each kind), the keys that count even at their defaults, because fingerprints had them from the start.
# Never add a key to a table that has been released. A new kind lists all of its keys.
_FIRST_KEYS = {
    "fineweb_edu": "config dataset enabled id_field pinned_revision shuffle_buffer split text_field train_tokens val_frac val_split"
    " val_tokens",
    "wikitext": "config dataset enabled pinned_revision shuffle_buffer split train_tokens val_frac val_split val_tokens",
    "roam": "enabled shuffle_buffer train_tokens val_frac val_tokens",
    "gutenberg": "config dataset enabled pinned_revision shuffle_buffer split train_tokens val_frac val_split val_tokens",
    "wikipedia": "config dataset enabled pinned_revision shuffle_buffer split train_tokens val_frac val_split val_tokens",
    "huggingface": "config dataset enabled id_field pinned_revision shuffle_buffer split text_field train_tokens val_frac val_split"
    " val_tokens",
    "markdown_folder": "enabled shuffle_buffer train_tokens val_frac val_tokens",
    "parquet": "enabled id_field shuffle_buffer text_field train_tokens val_frac val_tokens",
    "jsonl": "enabled id_field shuffle_buffer text_field train_tokens val_frac val_tokens",
    "arrow": "enabled id_field shuffle_buffer text_field train_tokens val_frac val_tokens",
    "csv": "enabled id_field shuffle_buffer text_field train_tokens val_frac val_tokens",
    "text": "enabled sample_by shuffle_buffer train_tokens val_frac val_tokens",
    "html": "enabled shuffle_buffer train_tokens val_frac val_tokens",
    "epub": "enabled shuffle_buffer train_tokens val_frac val_tokens",
    "warc": "enabled shuffle_buffer train_tokens val_frac val_tokens",
    "interleave": "enabled members shuffle_buffer stopping_strategy train_tokens val_frac val_tokens",
    "python_docs": "enabled shuffle_buffer train_tokens val_frac val_tokens",
    "code": "copies enabled file_end file_start fork_share id_field licenses licenses_field max_characters max_file_bytes max_line_length"
    " max_mean_line_length min_alphanumeric_share notebooks path_field repo_field repositories rules sample_by shuffle_buffer text_field"
    " train_tokens unknown_license val_frac val_tokens",
    "dolly15k": "config dataset enabled pinned_revision split system_message val_frac val_split",
    "oasst1": "config dataset enabled languages max_messages pinned_revision split split_by val_frac val_split",
    "chat_jsonl": "enabled input_field instruction_field messages_field output_field system_field val_frac",
    "python_help": "enabled val_frac",
    "cleaning": "language_characters languages max_bigram_share max_bullet_share max_duplicate_lines max_duplicate_paragraphs"
    " max_mean_word_length max_reason_share max_symbols_per_word max_top_2gram_characters max_top_3gram_characters max_top_4gram_characters"
    " min_alpha_word_share min_characters min_language_share min_mean_word_length min_stopwords min_words skip",
    "dedup": "bands ngram num_perm priority rows threshold verify",
    "lines": "max_copies min_characters",
    "spans": "min_bytes",
    "tokenizer": "character_coverage model model_type sample_bytes special_tokens train_on vocab_size",
    "added": "parts revision train_tokens",
    "blend": "num_samples part seed sequence_length split weights",
    "reports": "batch_size max_epochs sequence_length steps",
}


def fingerprint_of(settings: Identity) -> str:
    """Return the sha256 over the canonical JSON of everything that determines the bytes, as 64 hex digits."""
    return sha256_text(canonical_json(settings))


def identity_settings(table: BaseModel, name: str, *, without: Collection[str] = ()) -> Identity:
    """Return the settings of a table that count for a fingerprint: their keys, and their values as JSON values.

    A key that is not in _FIRST_KEYS counts only if it differs from its default. If _FIRST_KEYS does not list the table (as for a source of
    a third party), all keys that its class declares count.

    Args:
        table: The table.
        name: Name of the table, or kind of a source.
        without: Keys to leave out; by default none.
    """
    always, fields = _first_keys(table, name), type(table).model_fields
    counted = {
        key
        for key in fields
        if key not in without and (key in always or getattr(table, key) != fields[key].get_default(call_default_factory=True))
    }
    return table.model_dump(mode="json", include=counted)


def _first_keys(table: BaseModel, name: str) -> set[str]:
    if name in _FIRST_KEYS:
        return {"source", *_FIRST_KEYS[name].split()}
    first = " ".join(keys for table_name, keys in _FIRST_KEYS.items() if table_name != "added")  # `added` came later; `parts` is its key
    return {"source", *inspect.get_annotations(type(table)), *first.split()}
