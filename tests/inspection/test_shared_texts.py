"""Texts of train that are in the val of another data set, by the hashes in lineage."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import xxhash

from niels_cache_assets.base.documents import Document
from niels_cache_assets.base.strings import Strings, hash_strings
from niels_cache_assets.build_cache.pretrain import build_pretrain_cache
from niels_cache_assets.dedup.signatures import hash_canonical
from niels_cache_assets.inspection.shared_texts import SharedTexts, shared_texts
from niels_cache_assets.project.registry import load_registry
from niels_cache_assets.reports.cache import cache_report, find_items
from niels_cache_assets.reports.history import History
from niels_cache_assets.tokenizer.kinds import SentencePieceTokenizer
from niels_cache_pages.page import render_page
from niels_cache_runtime.format.meta import read_meta
from niels_cache_runtime.verify import verify_dataset
from tests.helpers.corpora import write_jsonl
from tests.helpers.tiny import sentences

OF_VAL = 21
SETTINGS: dict[str, Any] = {"shard_bytes": 4096, "seed": 1, "shuffle_buffer": None}


def cache_of(folder: Path, tokenizer: SentencePieceTokenizer, train: Sequence[str], val: Sequence[str]) -> Path:
    documents = [Document(text, file=f"{folder.name}.jsonl", row=row, split="train") for row, text in enumerate(train)]
    documents += [Document(text, file=f"{folder.name}.jsonl", row=row, split="val") for row, text in enumerate(val, start=len(train))]
    build_pretrain_cache(documents, str(folder), tokenizer=tokenizer, max_train_tokens=10**9, max_val_tokens=0, **SETTINGS)
    return folder


@pytest.fixture
def folders(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> dict[str, Path]:
    """Ten of the 21 documents in the val of `news` are in the train of `web`, one twice, one in capitals. Empty texts do not count."""
    texts = sentences(120)
    val = texts[:OF_VAL]
    web = [*texts[30:60], *val[3:12], val[3], val[20].upper(), "", ""]
    return {
        "web": cache_of(tmp_path / "web", tokenizer, web, texts[60:65]),
        "news": cache_of(tmp_path / "news", tokenizer, texts[70:], [*val, ""]),
    }


def test_a_hash_is_that_of_the_bytes_in_every_form_of_a_column() -> None:
    texts = ["", "a", "Gr\u00fc\u00dfe \U0001f600", "x" * 3000]
    expected = np.array([xxhash.xxh3_64_intdigest(text.encode()) for text in texts], np.uint64).view(np.int64)
    column = Strings.of(["left out", *texts])
    assert column is not None
    assert np.array_equal(hash_strings(column[1:]), expected)
    assert np.array_equal(hash_strings(column[[4, 1]]), expected[[3, 0]])
    assert len(hash_strings(column[:0])) == 0


def test_equal_canonical_texts_have_equal_hashes_in_every_form_of_a_column() -> None:
    groups = [
        ["", ""],
        ["'"],
        ["Gr\u00fc\u00dfe &amp; \U0001f600", "gr\u00fc\u00dfe & \U0001f600"],
        ["e\u0301 x", "\u00e9  X."],
        ["a, b!", "A b"],
    ]
    texts = [text for group in groups for text in group]
    column = Strings.of(["left out", *texts])
    assert column is not None
    hashes = hash_canonical(texts).tolist()
    assert hash_canonical(column[1:]).tolist() == hashes
    assert [hashes.index(each) for each in hashes] == [0, 0, 2, 3, 3, 5, 5, 7, 7]
    assert hash_canonical(column[:0]).tolist() == hash_canonical([]).tolist() == []
    expected = [xxhash.xxh3_64_intdigest(f"\0{text}".encode("utf-8", "surrogatepass")) for text in ("", "\ud800")]
    assert hash_canonical(["", "\ud800"]).view(np.uint64).tolist() == expected


def test_ten_of_21_documents_are_found(folders: dict[str, Path]) -> None:
    (found,) = shared_texts(folders).found
    assert (found.train, found.val, found.documents) == ("web", "news", 11)
    assert (found.first.file, found.first.row) == ("web.jsonl", 30)
    assert shared_texts({"web": folders["web"]}) == SharedTexts()


def test_the_report_names_them_and_the_key_that_mends_it(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    texts, root = sentences(40), tmp_path / "cache"
    for name, own, val in (("web", texts[10:], texts[:3]), ("news", texts[:3], texts[10:19])):
        write_jsonl(tmp_path / f"{name}.jsonl", texts)
        (root / "pretrain").mkdir(parents=True, exist_ok=True)
        cache_of(root / "pretrain" / name, tokenizer, own, val)
    tables = [f'[pretrain.{name}]\nsource = "jsonl"\nfiles = ["{name}.jsonl"]\n' for name in ("web", "news")]
    (tmp_path / "niels_cache.toml").write_text("".join(tables))
    registry = load_registry(config=str(tmp_path / "niels_cache.toml"))
    report = cache_report(registry, find_items(registry, root=root), root=root, history=History(source="none"))
    told = {notice.name: notice.text for notice in report.notices if "decontaminate_against" in notice.text}
    assert told.keys() == {"web", "news"}
    assert '["news"]' in told["web"]
    assert {row["documents"] for row in report.as_json()["shared_texts"]["found"]} == {9, 3}
    assert "web.jsonl:0" in render_page(report, {}, now=0.0)


def test_a_cache_without_hashes_is_not_checked(folders: dict[str, Path]) -> None:
    """Its val still counts if only its train has none."""
    path = folders["news"] / "train_documents.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["text_hash"]), path)
    shared = shared_texts(folders)
    assert ([(each.train, each.val, each.documents) for each in shared.found], shared.not_checked) == ([("web", "news", 11)], ("news",))
    path = folders["news"] / "val_documents.parquet"
    pq.write_table(pq.read_table(path).drop_columns(["text_hash"]), path)
    assert shared_texts(folders) == SharedTexts(not_checked=("news",))
    path.write_bytes(b"broken")
    assert shared_texts(folders) == SharedTexts(not_checked=("news",))


def test_the_hashes_are_those_of_the_whole_texts_and_do_not_count_for_the_content(
    tmp_path: Path, tokenizer: SentencePieceTokenizer
) -> None:
    texts = [text.replace(" ", "\r\n", 1) for text in sentences(20)]
    build_pretrain_cache(texts, str(tmp_path / "cut"), tokenizer=tokenizer, max_train_tokens=50, max_val_tokens=20, **SETTINGS)
    meta = read_meta(str(tmp_path / "cut" / "meta.json"))
    assert sum(meta["cut"].values()) == 2
    tables = [pq.read_table(tmp_path / "cut" / f"{split}_documents.parquet") for split in ("val", "train")]
    hashes = [value for table in tables for value in table["text_hash"].to_pylist()]
    assert hashes == hash_canonical(texts)[: len(hashes)].tolist()
    assert len(hashes) > 2
    assert verify_dataset(tmp_path / "cut") == []
