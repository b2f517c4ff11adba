"""The example of a tokenizer that is not ours."""

import runpy
from pathlib import Path

import pytest

from niels_cache_assets.build_cache import build_pretrain_cache
from niels_cache_runtime.format.meta import read_meta

ROOT = Path(__file__).parents[2]


def test_the_tiktoken_example_builds_what_tiktoken_encodes(tmp_path: Path) -> None:
    tiktoken = pytest.importorskip("tiktoken")
    bytes_alone = {bytes([value]): value for value in range(256)}
    encoding = tiktoken.Encoding("tiny", pat_str=r"\S+|\s+", mergeable_ranks=bytes_alone, special_tokens={"<|endoftext|>": 256})
    example = runpy.run_path(str(ROOT / "examples" / "gpt2_tokenizer.py"))
    wrapped = example["TiktokenTokenizer"](encoding)
    build_pretrain_cache(
        ["text with <|endoftext|> spelt out", "more"],
        str(tmp_path / "x"),
        tokenizer=wrapped,
        max_train_tokens=1_000,
        max_val_tokens=0,
        shard_bytes=1 << 20,
        seed=1,
        shuffle_buffer=None,
    )
    tokens = (tmp_path / "x" / "train" / "shard_00000.bin").read_bytes()[::2]
    assert tokens == b"text with <|endoftext|> spelt out\x00more\x00"
    assert read_meta(str(tmp_path / "x" / "meta.json"))["special_token_ids"]["eot"] == 256
