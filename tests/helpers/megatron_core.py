"""megatron-core, if it is installed. Tests compare our code with it. The import takes seconds, so it is made once, when a test needs it."""

import warnings
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from niels_cache_runtime.megatron import IndexedWriter

REASON = "compares with megatron-core, which is not installed (the extra `bridges`)"


@cache
def load() -> Any:
    """Return megatron-core's modules `indexed`, `gpt`, `blended`, `builder`, `helpers`, and `Split`. Skip the test if megatron-core is not
    installed.
    """
    pytest.importorskip("megatron.core", reason=REASON)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the warning that Transformer Engine is missing
        from megatron.core.datasets import blended_dataset, blended_megatron_dataset_builder, gpt_dataset, helpers_cpp, indexed_dataset
        from megatron.core.datasets.utils import Split
    return SimpleNamespace(
        indexed=indexed_dataset,
        gpt=gpt_dataset,
        blended=blended_dataset,
        builder=blended_megatron_dataset_builder,
        helpers=helpers_cpp,
        Split=Split,
    )


class Tokenizer:
    """The part of a tokenizer that megatron-core's GPTDataset needs."""

    def __init__(self, *, eod: int = 0, pad: int | None = None, vocab_size: int = 50_000) -> None:
        self.eod, self.vocab_size, self._pad = eod, vocab_size, pad
        self.unique_identifiers = {"eod": eod, "pad": pad}

    @property
    def pad(self) -> int:
        if self._pad is None:
            raise AttributeError("no pad token")
        return self._pad


def config(folder: Path, *, blend: Any = (["unused"], None), split: str = "1", **settings: Any) -> Any:
    """Return megatron-core's GPTDatasetConfig, without attention masks. Indices are kept in `folder`."""
    given = {
        "random_seed": 1,
        "sequence_length": 16,
        "reset_position_ids": False,
        "reset_attention_mask": False,
        "eod_mask_loss": False,
        "create_attention_mask": False,
        "tokenizer": Tokenizer(),
        "path_to_cache": str(folder),
        **settings,
    }
    return load().gpt.GPTDatasetConfig(blend=blend, split=split, **given)


def random_lengths(count: int, *, seed: int, mean: float, empty: float = 0.0) -> list[int]:
    """Return lengths of `count` documents. A share of them is empty, and at least one is not empty."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.empty(count).exponential_(1 / mean, generator=generator).int() + 1
    lengths[torch.rand(count, generator=generator) < empty] = 0
    lengths[count // 2] = max(int(lengths[count // 2]), 3)
    return lengths.tolist()


def write_documents(prefix: Path, lengths: list[int], *, seed: int = 0, dtype: Any = np.uint16, vocab_size: int = 200) -> list[np.ndarray]:
    """Write PREFIX.bin and PREFIX.idx with random documents of these lengths, by our writer. Return the documents."""
    generator = torch.Generator().manual_seed(seed)
    documents = [torch.randint(vocab_size, (length,), generator=generator).numpy().astype(dtype) for length in lengths]
    with IndexedWriter(prefix, dtype=dtype) as writer:
        for document in documents:
            writer.add_document(document)
    return documents
