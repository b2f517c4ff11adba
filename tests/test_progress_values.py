"""The values of progress: how many bytes, documents or shares of the input are done, and of how many."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from niels_cache_assets.artifacts.builds import prepare_corpus
from niels_cache_assets.corpus.reading import open_prepared
from niels_cache_assets.corpus.text_export import FILE_TYPES, FileType, TextExport
from niels_cache_assets.exchange.formats import FORMATS, ExportSettings, plan_export
from niels_cache_assets.exchange.megatron_import import Vocabulary, import_megatron
from niels_cache_assets.exchange.writing import write_export
from niels_cache_assets.sources.parquet import Parquet
from niels_cache_assets.sources.types import StreamContext
from niels_cache_runtime.megatron import IndexedWriter
from tests.corpora import articles, corpus_registry
from tests.exports import random_documents, write_documents_cache

Told = list[tuple[int, int]]


def assert_grows_to(total: int, told: Told) -> None:
    """Each value is above the one before it, or equal, and only the last ones are the whole."""
    assert {each for _, each in told} == {total}
    done = [each for each, _ in told]
    assert done == sorted(done)
    assert len(set(done)) > 2
    assert 0 < done[0] < done[-1] == total


@pytest.mark.parametrize("format", FORMATS)
def test_an_export_counts_the_bytes_of_its_files(tmp_path: Path, format: str) -> None:
    documents = {"train": random_documents(300, seed=1), "val": random_documents(40, seed=2)}
    cache = write_documents_cache(tmp_path / "cache" / "notes", documents)
    limit = {} if format == "nanogpt" else {"max_bytes": 4_000}
    plan, told = plan_export("notes", cache, ExportSettings(format=format, out=tmp_path / "out" / "x", **limit)), Told()
    write_export(plan, progress=lambda *counts: told.append(counts))
    written = sum(path.stat().st_size for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert_grows_to(written, told)
    assert told[-2] == told[-1], "all bytes are counted before the files are placed"


def test_an_import_counts_the_bytes_that_it_looks_at_imports_and_verifies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("niels_cache_assets.exchange.megatron_import._TOKENS", 100)
    for name, tokens in (("train", 700), ("val", 200)):
        with IndexedWriter(tmp_path / name, dtype=np.int32) as writer:
            writer.add_document(np.arange(tokens, dtype=np.int32))
    told: dict[str, Told] = {}
    prefixes = {name: tmp_path / name for name in ("train", "val")}
    import_megatron(
        prefixes,  # type: ignore[arg-type]
        tmp_path / "x",
        vocabulary=Vocabulary(),
        shard_bytes=1024,
        progress=lambda step, *counts: told.setdefault(step, []).append(counts),
    )
    size = sum(path.stat().st_size for path in (tmp_path / "x").rglob("*") if path.is_file() and path.name != "meta.json")
    for step, total in (("looking at", 900 * 4), ("importing", 900 * 4), ("verifying", size)):
        assert_grows_to(total, told.pop(step))
    assert told == {}


@pytest.mark.parametrize("file_type", FILE_TYPES)
def test_an_export_of_text_counts_documents(tmp_path: Path, file_type: FileType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("niels_cache_assets.corpus.store.TEXT_BYTES_PER_FILE", 8_000)
    monkeypatch.setattr("niels_cache_assets.corpus.store.TEXT_BYTES_PER_GROUP", 2_500)
    registry = corpus_registry(tmp_path, {"books": articles(20)}, table='prepare = ["clean"]\n', settings="[build]\nthreads = 1\n")
    prepare_corpus(registry, "books", root=tmp_path / "cache", processes=1)
    told = Told()
    export = TextExport(prepared=open_prepared(registry, "books", root=tmp_path / "cache"), folder=tmp_path / "out", file_type=file_type)
    export.write(progress=lambda *counts: told.append(counts))
    assert_grows_to(20, told)


def test_parquet_says_which_share_of_its_bytes_was_read(tmp_path: Path) -> None:
    counts = [5_000, 3_000]
    for number, rows in enumerate(counts):
        texts = [f"text {number} {row} " * (1 + number) for row in range(rows)]
        pq.write_table(pa.table({"text": texts}), tmp_path / f"{number}.parquet", row_group_size=1_000)
    paths = [tmp_path / f"{number}.parquet" for number in range(len(counts))]
    sizes = [path.stat().st_size for path in paths]
    context, shares = StreamContext(seed=1), list[float]()
    for _ in Parquet(files=list(map(str, paths))).documents(context):
        place = context.report.place
        assert place is not None
        assert context.report.share is not None
        before, rest = sum(sizes[: place["number"]]), [*zip(sizes, counts, strict=True)][place["number"] :]
        inside = rest[0][0] * place["row"] / rest[0][1] if rest else 0
        assert context.report.share == pytest.approx((before + inside) / sum(sizes))
        shares.append(context.report.share)
    assert len(shares) > 3
    assert shares == sorted(shares)
    assert 0 < shares[0] < shares[-1] == 1.0
