"""Batches of packed documents in the forms of other trainers, compared with their own code."""

import warnings
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from niels_cache_runtime import Batch, BestFit, TokenLoader
from tests.helpers.hand_made import EOT, write_stream

T = 48
SETTINGS: dict[str, Any] = {"T": T, "B": 4, "seed": 3}


@pytest.fixture
def split(tmp_path: Path) -> str:
    lengths = torch.randint(2, 100, (300,), generator=torch.Generator().manual_seed(1)).numpy()
    stream, ends = 100 + np.arange(lengths.sum()), np.cumsum(lengths)
    stream[ends - 1] = EOT
    return write_stream(tmp_path / "notes", stream, doc_ends=ends.tolist())


class Group:
    """What Megatron-Core asks of a group of processes."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = (lambda: rank), (lambda: size)


@pytest.mark.walk  # the import takes seconds
def test_a_flat_batch_is_what_the_collator_of_trl_makes_of_its_rows(split: str) -> None:
    pytest.importorskip("trl", reason="trl is not installed: pip install trl")
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    seen = 0
    for batch in islice(TokenLoader(split, **SETTINGS, packing="best_fit"), 20):
        assert batch.document_ids is not None
        assert batch.position_ids is not None
        rows = []
        for row in range(4):
            lengths = batch.document_ids[row].bincount().tolist()
            is_target = batch["y_masked"][row, :-1] != -100
            labels = torch.where(torch.nn.functional.pad(is_target, (1, 0)), batch.x[row], -100)
            rows.append({"input_ids": batch.x[row].tolist(), "labels": labels.tolist(), "seq_lengths": lengths})
            seen += len(lengths)
        made = DataCollatorForLanguageModeling(pad_token_id=EOT, padding_free=True)(rows)
        assert torch.equal(made["input_ids"], batch.x.view(1, -1))
        assert torch.equal(made["labels"], batch.labels.view(1, -1))
        assert torch.equal(made["position_ids"], batch.position_ids.view(1, -1).long())
        assert torch.equal(made["cu_seq_lens_q"], batch["cu_seqlens"])
        assert made["max_length_q"] == batch.max_seqlen
    assert seen > 100


@pytest.mark.walk  # the import takes seconds
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("limit", [None, 6])
def test_megatron_core_has_the_positions_of_the_parts_of_each_rank(split: str, size: int, limit: int | None) -> None:
    pytest.importorskip("megatron.core", reason="compares with megatron-core, which is not installed (the extra `bridges`)")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the warning that Transformer Engine is missing
        from megatron.core.models.common.embeddings.rope_utils import _apply_rotary_pos_emb_bshd, _apply_rotary_pos_emb_thd
        from megatron.core.packed_seq_params import PackedSeqParams

    frequencies = torch.outer(torch.arange(T), torch.tensor([1.0, 0.1])).repeat(1, 2)[:, None, None]
    for rank in range(size):
        loader = TokenLoader(split, **SETTINGS, packing=BestFit(pad_documents_to=12), max_documents=limit, cp_rank=rank, cp_size=size)
        for batch in islice(loader, 10):
            params = PackedSeqParams(**packed_seq(batch))
            hidden = torch.randn(batch.x.numel(), 2, 4)
            theirs = _apply_rotary_pos_emb_thd(hidden, params.cu_seqlens_q_padded, frequencies, cp_group=Group(rank, size))
            ours = _apply_rotary_pos_emb_bshd(hidden[:, None], frequencies[batch["position_ids"].flatten().long()])[:, 0]
            assert torch.equal(theirs, ours)
            assert {field.name for field in fields(params)} >= packed_seq(batch).keys()


def packed_seq(batch: Batch) -> dict[str, Any]:
    """The arguments of PackedSeqParams, as docs/recipes.md has them."""
    both = {"cu_seqlens": batch.cu_seqlens, "max_seqlen": batch.max_seqlen}
    named = {f"{name}_{side}": value for name, value in both.items() for side in ("q", "kv")}
    return {"qkv_format": "thd", **named, "cu_seqlens_q_padded": batch.cu_seqlens_padded, "cu_seqlens_kv_padded": batch.cu_seqlens_padded}
