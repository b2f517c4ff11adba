"""A cache as a `datasets.Dataset`: the name and path that are public. `niels_cache_formats.hf` makes it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from niels_cache_assets.base.beside import load_beside

if TYPE_CHECKING:
    from datasets import Dataset


def to_hf_dataset(name: str, *, split: str = "train", T: int | None = None, cache_dir: str | Path | None = None) -> Dataset:
    """Return a split of a built data set as a `datasets.Dataset` over its memory map.

    A pretrain data set without T has a row for each document. `input_ids` are the tokens of the document (uint16 or uint32 as in the cache,
    EOT last). With T, each row is a window of T tokens of the stream, and windows do not overlap. `input_ids` and `labels`, both (T,), have
    the same tokens, because models of transformers shift labels themselves. Up to T-1 tokens at the end of the stream are left out.

    An SFT data set has a row for each example. `input_ids` are at most the first T tokens of the example. `labels` are made when a row is
    read. In the assistant's messages, labels are the same tokens; at all other positions they are -100 (int). Nothing is padded. With a
    chat template, the column `labels` stores the positions of targets, and each row that is read has labels instead.

    A data set of preference pairs has a row for each pair. A row that is read has `chosen_input_ids`, `chosen_labels`, `rejected_input_ids`
    and `rejected_labels`. They are made from the columns `input_ids` and `labels`, which store both sides.

    Args:
        name: The name of the data set, such as "wikitext", or "pretrain/wikitext" if both families have a data set of this name.
        split: "train" or "val".
        T: The number of tokens in a window of a pretrain data set, or the largest number of tokens of an SFT example. With None, rows are
            whole documents or examples.
        cache_dir: The folder that contains `pretrain/` and `sft/`. With None, the default, the folder in the configuration.

    Raises:
        NielsCacheError: If the data set does not exist (the message names the most similar one), is not built or has a different tokenizer,
            if the split is unknown, or if T is below 1 or longer than a pretrain split.
    """
    return load_beside("formats", "hf").open_rows(name, split, T, cache_dir)


def __getattr__(name: str) -> Any:
    """Return what is in the other module now: pickles of a Dataset made by 1.0.0 name it here."""
    return getattr(load_beside("formats", "hf"), name)
