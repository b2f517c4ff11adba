"""max_document_mib of rows that come out of Parquet, or of the hub's library."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from niels_cache_assets.sources.chat_jsonl import ChatJsonl
from niels_cache_assets.sources.dolly15k import Dolly15k
from niels_cache_assets.sources.huggingface import Huggingface
from niels_cache_assets.sources.oasst1 import Oasst1
from niels_cache_assets.sources.parquet import Parquet
from niels_cache_assets.sources.types import Source
from niels_cache_runtime.errors import NielsCacheError
from tests.read_sources import read

READERS: dict[str, Callable[[list[str], int], Source]] = {
    "parquet": lambda files, limit: Parquet(files=files, max_document_mib=limit),
    "messages": lambda files, limit: ChatJsonl(files=files, max_document_mib=limit),
    "instructions": lambda files, limit: Dolly15k(files=files, max_document_mib=limit),
    "flat messages": lambda files, limit: Oasst1(files=files, max_document_mib=limit),
    "any": lambda files, limit: Huggingface(dataset="a/b", files=files, shuffle_buffer=0, max_document_mib=limit),
}


@pytest.mark.parametrize("kind", READERS)
def test_a_row_above_the_limit_is_refused_and_one_below_it_is_read(kind: str, tmp_path: Path) -> None:
    texts = ["short", "word " * 250_000]
    rows = [
        {
            **dict.fromkeys(("text", "instruction"), text),
            **dict.fromkeys(("response", "title", "category", "context"), "x"),
            **dict.fromkeys(("id", "message_id", "message_tree_id"), str(row)),
            "parent_id": None,
            "role": "assistant",
            "messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "x"}],
        }
        for row, text in enumerate(texts)
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    files = [str(tmp_path / "a.parquet")]
    with pytest.raises(NielsCacheError, match=r"a\.parquet: row 1: .* 1 MiB"):
        read(READERS[kind](files, 1))
    read(READERS[kind](files, 5))


def test_flat_messages_in_parquet_are_known_by_a_suffix_of_any_case(tmp_path: Path) -> None:
    columns = {"message_id": "a", "parent_id": None, "message_tree_id": "t", "text": "x", "role": "assistant"}
    pq.write_table(pa.Table.from_pylist([columns]), tmp_path / "A.PARQUET")
    _, context = read(Oasst1(files=[str(tmp_path / "A.PARQUET")]))
    assert context.report.facts["trees"] == 1
