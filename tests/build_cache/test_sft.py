"""An SFT cache against the tokenizer's own output: layout, splits, lineage, and sampling what was written."""

from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch

from niels_cache_assets.base.defaults import ROLE_TO_KEY, SPECIAL_TOKENS
from niels_cache_assets.base.documents import Conversation, Message
from niels_cache_assets.build_cache import build_sft_cache
from niels_cache_assets.tokenizer.kinds import SentencePieceTokenizer
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import TOKEN_DTYPE
from niels_cache_runtime.format.meta import Meta, read_meta
from niels_cache_runtime.verify import verify_dataset
from tests.helpers.tiny import sentences


def chat(*contents: str, system: str | None = None) -> list[Message]:
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    return messages + [Message(role="user" if turn % 2 == 0 else "assistant", content=content) for turn, content in enumerate(contents)]


def chats(count: int) -> list[list[Message]]:
    lines = sentences(4 * count, seed=9)
    return [chat(*lines[4 * i : 4 * i + (2 if i % 3 else 4)], system="Be brief." if i % 2 else None) for i in range(count)]


def build(folder: Path, examples: object, tokenizer: SentencePieceTokenizer, **changes: object) -> Meta:
    settings = {"val_frac": 0.1, "seed": 2, **changes}
    build_sft_cache(examples, str(folder), tokenizer=tokenizer, **settings)  # type: ignore[arg-type]
    assert verify_dataset(folder) == []
    return read_meta(str(folder / "meta.json"))


def encoded(messages: list[Message], tokenizer: SentencePieceTokenizer) -> list[int]:
    ids = tokenizer.special_token_ids()
    return [
        token for message in messages for token in (ids[ROLE_TO_KEY[message["role"]]], *tokenizer.encode(message["content"]), ids["eot"])
    ]


def on_disk(folder: Path, split: str) -> list[list[int]]:
    tokens = np.fromfile(folder / f"{split}_tokens.bin", TOKEN_DTYPE)
    starts = np.load(folder / f"{split}_idx.npy")
    assert starts.dtype == np.int64
    return [ids.tolist() for ids in np.split(tokens, starts[1:])] if len(starts) else []


def test_each_message_is_its_sentinel_its_content_and_eot(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    examples = chats(60)
    meta = build(tmp_path / "x", examples, tokenizer)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(2)).tolist()
    val = set(order[:6])
    assert on_disk(tmp_path / "x", "val") == [encoded(examples[i], tokenizer) for i in range(60) if i in val]
    assert on_disk(tmp_path / "x", "train") == [encoded(examples[i], tokenizer) for i in range(60) if i not in val]
    assert (meta["train_examples"], meta["val_examples"]) == (54, 6)


def test_blocks_of_the_spool_do_not_show(tmp_path: Path, tokenizer: SentencePieceTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = build(tmp_path / "whole", chats(60), tokenizer)
    monkeypatch.setattr("niels_cache_assets.build_cache.sft_spool._TOKENS_PER_BLOCK", 37)
    assert build(tmp_path / "blocks", chats(60), tokenizer)["content_sha256"] == whole["content_sha256"]


def test_by_group_no_group_straddles_the_splits(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    examples = [Conversation(messages, group=f"tree{index // 4}") for index, messages in enumerate(chats(80))]
    assert build(tmp_path / "example", examples, tokenizer)["facts"]["straddling_groups"] > 0
    meta = build(tmp_path / "group", examples, tokenizer, split_by="group")
    assert meta["facts"]["straddling_groups"] == 0
    sides = [
        pyarrow.parquet.read_table(tmp_path / "group" / f"{split}_examples.parquet")["group"].to_pylist() for split in ("train", "val")
    ]
    assert len(sides[1]) == 8
    assert set(sides[0]) | set(sides[1]) == {f"tree{index}" for index in range(20)}
    assert not set(sides[0]) & set(sides[1])


def test_an_example_that_carries_a_split_keeps_it(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    examples = [Conversation(messages, split="val" if index < 7 else "train") for index, messages in enumerate(chats(20))]
    meta = build(tmp_path / "x", examples, tokenizer)
    assert (meta["train_examples"], meta["val_examples"]) == (13, 7)


def test_one_example_makes_an_empty_val_that_is_still_a_valid_cache(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    meta = build(tmp_path / "x", chats(1), tokenizer)
    assert (meta["train_examples"], meta["val_examples"], meta["val_tokens"]) == (1, 0, 0)
    assert (tmp_path / "x" / "val_tokens.bin").stat().st_size == 0


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "empty_conversation"),
        ([{"role": "user", "content": "only a question"}], "no_assistant"),
        ([{"role": "tool", "content": "x"}, {"role": "assistant", "content": "y"}], "unknown_role"),
        ([{"role": "user", "content": None}, {"role": "assistant", "content": "y"}], "null_content"),
    ],
)
def test_an_invalid_conversation_raises_or_is_counted(
    tmp_path: Path, tokenizer: SentencePieceTokenizer, messages: list[Message], reason: str
) -> None:
    with pytest.raises(NielsCacheError, match=f"example 1: {reason}"):
        build(tmp_path / "x", [chats(1)[0], messages], tokenizer)
    assert build(tmp_path / "y", [chats(1)[0], messages], tokenizer, on_invalid="drop")["dropped"] == {reason: 1}


def test_a_message_that_spells_a_special_token_drops_its_conversation(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    examples = [*chats(10), chat("hi", f"{SPECIAL_TOKENS['usr']} ignore that"), chat("half \udc00", "x")]
    meta = build(tmp_path / "x", examples, tokenizer)
    assert meta["dropped"] == {"special_token_collision": 1, "invalid_unicode": 1}
    assert meta["train_examples"] + meta["val_examples"] == 10


def test_no_conversation_at_all_is_an_error_and_keeps_the_last_good_cache(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    before = build(tmp_path / "x", chats(5), tokenizer)
    with pytest.raises(NielsCacheError, match="no usable conversation"):
        build_sft_cache([], str(tmp_path / "x"), tokenizer=tokenizer, val_frac=0.1, seed=1)
    assert read_meta(str(tmp_path / "x" / "meta.json")) == before
    assert verify_dataset(tmp_path / "x") == []
