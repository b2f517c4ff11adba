"""The key `exclude`: documents that are taken down by their ids, in caches, corpora and mixtures."""

import json
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from niels_cache_assets.artifacts.base import Outcome
from niels_cache_assets.artifacts.builds import prepare_corpus
from niels_cache_assets.artifacts.forecast.sample import _documents
from niels_cache_assets.artifacts.pretrain import Pretrain
from niels_cache_assets.config.registry import Registry
from niels_cache_assets.corpus.reading import open_prepared
from niels_cache_assets.corpus.report import corpus_report, plot_names
from niels_cache_assets.defs.metadata.corpora import report_metadata
from niels_cache_assets.documents import DocumentBatch
from niels_cache_assets.sources.excluding import excluded_ids
from niels_cache_assets.sources.jsonl import Jsonl
from niels_cache_assets.sources.types import StreamContext
from niels_cache_runtime.errors import NielsCacheError
from tests.corpora import articles, corpus_registry

GONE = ("books-3", "books-17", "books-58")


def excluded(tmp_path: Path, ids: str, **more: Any) -> tuple[list[str], StreamContext]:
    """Read 60 rows without these ids, and return the ids that stay."""
    (tmp_path / "ids.txt").write_text(ids, encoding="utf-8")
    (tmp_path / "books.jsonl").write_text("".join(json.dumps({"id": f"books-{row}", "text": f"text {row}"}) + "\n" for row in range(60)))
    source = Jsonl(files=[str(tmp_path / "books.jsonl")], exclude=str(tmp_path / "ids.txt"), **more)
    context = StreamContext(seed=1)
    return [document.source_id for batch in source.kept_documents(context) for document in batch], context


def test_the_rest_equals_a_plain_loop(tmp_path: Path) -> None:
    stay, context = excluded(tmp_path, "\ufeffbooks-3\r\n\n  books-17 \nbooks-58\nbooks-99")
    assert stay == [f"books-{row}" for row in range(60) if f"books-{row}" not in GONE]
    assert context.report.dropped == {"excluded": 3}
    assert context.report.facts["excluded"] == dict.fromkeys(GONE, 1)


def test_an_id_may_have_other_ends_of_lines(tmp_path: Path) -> None:
    (tmp_path / "ids.txt").write_bytes("a\u2028b\r\nc\x85d\rlast".encode())
    assert excluded_ids(str(tmp_path / "ids.txt")) == {"a\u2028b", "c\x85d", "last"}


def test_an_estimate_reads_the_rest(tmp_path: Path) -> None:
    stay, _ = excluded(tmp_path, "\n".join(GONE))
    source = Jsonl(files=[str(tmp_path / "books.jsonl")], exclude=str(tmp_path / "ids.txt"))
    read = _documents(source, source.list_files(None), StreamContext(seed=1))
    assert [document.source_id for batch in read for document in batch] == stay


def test_the_count_for_val_frac_leaves_them_out(tmp_path: Path) -> None:
    stay, _ = excluded(tmp_path, "\n".join(GONE))
    source = Jsonl(files=[str(tmp_path / "books.jsonl")], exclude=str(tmp_path / "ids.txt"))
    assert source.count_unsplit(StreamContext(seed=1)) == len(stay) == 57


def test_the_ids_decide_the_fingerprint_and_the_path_does_not(tmp_path: Path) -> None:
    identities = []
    for name, ids in (("a.txt", "1\n2\n"), ("b.txt", "2\r\n\r\n1"), ("c.txt", "1\n3\n")):
        (tmp_path / name).write_text(ids)
        identities.append(Jsonl(files=["a.jsonl"], exclude=str(tmp_path / name)).identity())
    assert identities[0] == identities[1] != identities[2]
    assert "exclude" not in Jsonl(files=["a.jsonl"]).identity()


@pytest.mark.parametrize(("content", "keyword"), [(None, "correct its path"), (b"\n \n", "no id"), (b"\xff\xfe1", "UTF-8")])
def test_a_file_of_no_ids_is_one_line(tmp_path: Path, content: bytes | None, keyword: str) -> None:
    if content is not None:
        (tmp_path / "ids.txt").write_bytes(content)
    with pytest.raises(NielsCacheError, match=keyword) as raised:
        Jsonl(files=["a.jsonl"], exclude=str(tmp_path / "ids.txt")).identity()
    assert "ids.txt" in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("rule", ["val_frac = 0.1", "val_tokens = 50", ""])
@pytest.mark.parametrize("name", ["books", "mix"])
def test_a_cache_and_a_mixture_read_the_rest(tmp_path: Path, rule: str, name: str) -> None:
    (tmp_path / "ids.txt").write_text("\n".join(GONE))
    mix = f'[pretrain.mix]\nsource = "interleave"\nmembers = {{ books = 1.0 }}\n{rule}\n'
    registry = corpus_registry(tmp_path, {"books": articles(60)}, settings=mix, table='exclude = "ids.txt"\n' + rule)
    artifact = Pretrain(registry=registry, root=tmp_path, name=name, source=registry.pretrain[name], build=registry.build)
    siblings = registry.pretrain
    context = StreamContext(seed=1, revision=artifact.source.revision(siblings), siblings=siblings)
    read = [document.source_id for batch in artifact._feed(context).open() for document in DocumentBatch.of(batch)]
    assert len(read) > 40
    assert set(read).isdisjoint(GONE)
    assert context.report.dropped["excluded"] == 3


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    (tmp_path / "ids.txt").write_text("\n".join(GONE))
    return corpus_registry(tmp_path, {"books": articles(60)}, table='prepare = ["clean"]\nval_frac = 0.1\nexclude = "ids.txt"\n')


def test_a_corpus_and_its_report_say_what_was_removed(registry: Registry, tmp_path: Path) -> None:
    prepare_corpus(registry, "books", root=tmp_path, processes=1)
    prepared = open_prepared(registry, "books", root=tmp_path)
    assert {document.source_id for batch in prepared.documents() for document in batch}.isdisjoint(GONE)
    report = corpus_report(registry, "books", root=tmp_path)
    assert report["documents"] == {"given": 60, "kept": 57}
    assert report["excluded"] == dict.fromkeys(GONE, 1)
    assert [row["documents"] for row in report["reasons"] if row["reason"] == "excluded"] == [3]
    for name in plot_names(report):
        (tmp_path / name).write_bytes(b"a picture")
    shown = report_metadata(Outcome(key="reports/corpus/books", state="built", meta=report, directory=tmp_path))["excluded_table"]
    assert isinstance(shown, dg.TableMetadataValue)
    assert [record.data for record in shown.records] == [{"id": each, "documents": 1} for each in sorted(GONE)]
    (tmp_path / "ids.txt").write_text("books-4")
    with pytest.raises(NielsCacheError, match="other settings"):
        open_prepared(registry, "books", root=tmp_path)
