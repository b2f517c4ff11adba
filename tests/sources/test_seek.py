"""Sources that start in the middle: from every place that a pass reports, another gives exactly what was left, with the same counts."""

import bz2
import gzip
import json
from pathlib import Path
from typing import Any, get_args
from xml.sax.saxutils import escape

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from niels_cache_assets.artifacts.prepared_corpora import open_prepared, with_corpus_readers
from niels_cache_assets.corpus import store
from niels_cache_assets.exchange import FORMATS
from niels_cache_assets.exchange.corpus_text import FileType, TextExport
from niels_cache_assets.exchange.formats import ExportSettings, plan_export
from niels_cache_assets.exchange.writing import write_export
from niels_cache_assets.sources.chat_jsonl import ChatJsonl
from niels_cache_assets.sources.huggingface import Huggingface
from niels_cache_assets.sources.jsonl import Jsonl
from niels_cache_assets.sources.markdown_folder import MarkdownFolder
from niels_cache_assets.sources.parquet import Parquet
from niels_cache_assets.sources.reading import rows
from niels_cache_assets.sources.text import Text
from niels_cache_assets.sources.types import Source, StreamContext
from niels_cache_corpora.dolly15k import Dolly15k
from niels_cache_corpora.gutenberg import Gutenberg
from niels_cache_corpora.roam import Roam
from niels_cache_corpora.wikipedia import dump as mediawiki
from niels_cache_corpora.wikipedia.source import Wikipedia
from niels_cache_corpora.wikitext import Wikitext
from niels_cache_formats.megatron_import import Vocabulary, import_megatron
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.megatron import IndexedWriter
from tests.helpers.builds import find_duplicates, prepare_corpus
from tests.helpers.corpora import articles, corpus_registry
from tests.helpers.exports import random_documents, write_documents_cache
from tests.helpers.places import batches_of, places_of, require_every_place_is_exact, started_at
from tests.helpers.read_sources import COMPRESS
from tests.helpers.tiny import sentences

HEADER = '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/"><siteinfo><sitename>Wé</sitename></siteinfo>\n'
NOT_UTF8 = b"\xff\xe2\x82"


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of two, so that there are many places, and blocks that end inside pages and characters."""
    monkeypatch.setattr(rows, "BATCH_DOCUMENTS", 2)
    monkeypatch.setattr(rows, "PARQUET_ROWS", 2)
    monkeypatch.setattr("niels_cache_assets.sources.parquet.MAX_ROWS", 2)
    monkeypatch.setattr("niels_cache_assets.sources.jsonl.ROWS", 3)
    monkeypatch.setattr(mediawiki, "_BLOCK", 701)


def json_file(values: list[Any]) -> bytes:
    """JSON Lines with a byte order mark, blank lines, Windows line ends, and no end of the last line."""
    lines = [json.dumps(value, ensure_ascii=False) for value in values]
    return b"\xef\xbb\xbf" + "\n \n".join(lines[:5]).encode() + "\r\n".join(["", *lines[5:]]).encode()


def texts(seed: int, count: int = 14) -> list[str]:
    return [f"{sentence} – {'é' * index}" for index, sentence in enumerate(sentences(count, seed=seed))]


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_json_lines_start_at_every_place(tmp_path: Path, suffix: str) -> None:
    for name in "abd":
        values: list[Any] = [{"text": text, "id": f"{name}{index}"} for index, text in enumerate(texts(ord(name)))]
        values[6:9] = [{"text": None}, {"other": "x"}, {"text": " "}]
        (tmp_path / f"{name}.jsonl{suffix}").write_bytes(COMPRESS.get(suffix, bytes)(json_file(values) if name != "b" else b"\n\n"))
    require_every_place_is_exact(Jsonl(files=[str(tmp_path / "*.jsonl*")]), at_least=8)


@pytest.mark.parametrize("row_group", [1, 3, 100])
def test_parquet_starts_at_every_place(tmp_path: Path, row_group: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("niels_cache_assets.sources.parquet.MAX_ROWS", 4)  # two groups in a batch
    for name in "abc":
        values: list[Any] = [{"text": text, "id": index, "title": name} for index, text in enumerate(texts(ord(name)))]
        values[4:7] = [{"text": None}, {"text": ""}, {"text": "x"}]
        table = pa.Table.from_pylist(values).rename_columns(["text" if name != "b" else "body", "id", "title"])
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=row_group)
    require_every_place_is_exact(Parquet(files=[str(tmp_path / "*.parquet")]), at_least=8, same_batches=False)


@pytest.mark.parametrize(("suffix", "sample_by"), [("", "document"), ("", "paragraph"), ("", "line"), (".gz", "line")])
def test_text_starts_at_every_place(tmp_path: Path, suffix: str, sample_by: Any) -> None:
    for name in "abcde":
        content = b"\xef\xbb\xbf" + "\n\n \r\n".join(texts(ord(name), 6)).encode() + NOT_UTF8 + b"\r\nlast" + NOT_UTF8
        (tmp_path / f"{name}.txt{suffix}").write_bytes(COMPRESS.get(suffix, bytes)(b"" if name == "c" else content))
    source = Text(files=[str(tmp_path / f"*.txt{suffix}")], sample_by=sample_by)
    require_every_place_is_exact(source, at_least=2 if sample_by == "document" else 10)


def test_notes_start_at_every_place(tmp_path: Path) -> None:
    for number, text in enumerate(texts(3)):
        (tmp_path / f"{number:02}.md").write_text(text if number % 5 else " ")
    require_every_place_is_exact(MarkdownFolder(path=str(tmp_path)), at_least=5)


def test_roam_pages_start_at_every_place(tmp_path: Path) -> None:
    pages: list[Any] = [{"title": f"Page {index}", "children": [{"string": text}, 3]} for index, text in enumerate(texts(4))]
    pages[3] = {"title": "empty", "children": 7}
    (tmp_path / "a.md").write_text("A note")
    (tmp_path / "b.json").write_text(json.dumps(pages))
    (tmp_path / "c.json").write_text('{"not": "an export"}')
    (tmp_path / "d.md").write_text("Another note")
    (tmp_path / "e.json").write_text("[]")
    require_every_place_is_exact(Roam(path=str(tmp_path)), at_least=7)
    require_every_place_is_exact(Roam(path=str(tmp_path / "b.json")), at_least=6)


def test_books_start_at_every_place(tmp_path: Path) -> None:
    for number, text in enumerate(texts(5)):
        (tmp_path / f"{number:02}.txt").write_text(f"Title: B\n*** START OF THIS PROJECT GUTENBERG EBOOK ***\n{text if number % 4 else ''}")
    require_every_place_is_exact(Gutenberg(path=str(tmp_path)), at_least=5)


def wiki_page(number: int, text: str) -> str:
    namespace = 1 if number % 5 == 3 else 0
    redirect = '<redirect title="x"/>' if number % 7 == 2 else ""
    body = "{{only|template}}" if number % 6 == 5 else f"'''{escape(text)}''' [[link]] " * (number % 4 + 1)
    return (
        f"<page><title>T{number}é</title><ns>{namespace}</ns><id>{number}</id>{redirect}<revision><text>{body}</text></revision></page>\n"
    )


def wiki_dump(seed: int, *, header: str = HEADER) -> bytes:
    pages = [wiki_page(number, text).encode() for number, text in enumerate(texts(seed, 24))]
    pages[8] = pages[8].replace(b"[[link]]", b"\xff\x00\xe2\x82 [[link]]")  # bytes that become longer
    return header.encode() + b"".join(pages) + b"</mediawiki>"


@pytest.mark.parametrize(("suffix", "header"), [("", HEADER), (".bz2", "\ufeff" + HEADER), ("", HEADER.replace("Wé", "W" * 2000))])
def test_wiki_dumps_start_at_every_place(tmp_path: Path, suffix: str, header: str) -> None:
    for name, seed in (("a", 6), ("b", 7)):
        (tmp_path / f"{name}.xml{suffix}").write_bytes(COMPRESS.get(suffix, bytes)(wiki_dump(seed, header=header)))
    require_every_place_is_exact(Wikipedia(files=[str(tmp_path / "*.xml*")]), at_least=10)


@pytest.mark.parametrize("suffix", ["", ".zst"])
def test_conversations_start_at_every_place(tmp_path: Path, suffix: str) -> None:
    values: list[Any] = [
        {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "yes"}], "id": index}
        for index, text in enumerate(texts(10))
    ]
    values[3:6] = [{"messages": 3}, {"other": []}, {"messages": []}]
    (tmp_path / f"a.jsonl{suffix}").write_bytes(COMPRESS.get(suffix, bytes)(json_file(values)))
    (tmp_path / f"b.jsonl{suffix}").write_bytes(COMPRESS.get(suffix, bytes)(json_file(values)))
    require_every_place_is_exact(ChatJsonl(files=[str(tmp_path / "*.jsonl*")]), at_least=8)
    rows_ = [{"instruction": text, "response": "yes", "context": None, "category": "qa"} for text in texts(10)]
    for name in "ab":
        (tmp_path / f"{name}.json{suffix}").write_bytes(COMPRESS.get(suffix, bytes)(json_file(rows_)))
    dolly = Dolly15k(files=[str(tmp_path / f"b.json{suffix}")], val_files=[str(tmp_path / f"a.json{suffix}")])
    require_every_place_is_exact(dolly, at_least=8)


def test_a_file_that_is_damaged_at_the_place_where_a_pass_begins_counts_once(tmp_path: Path) -> None:
    """Its last line, which is cut, and the last pages of a block are given when the damage was met already."""
    for name, content in (("a.txt.gz", "\n".join(texts(22)).encode()), ("b.xml.gz", wiki_dump(23))):
        whole = gzip.compress(content)
        (tmp_path / name).write_bytes(whole[: len(whole) * 3 // 4])
        (tmp_path / f"c{name}").write_bytes(whole)
    for sample_by in ("line", "paragraph", "document"):
        source = Text(files=[str(tmp_path / "*.txt.gz")], sample_by=sample_by, keep_damaged=True)  # type: ignore[arg-type]
        require_every_place_is_exact(source, at_least=1)
    source = Wikipedia(files=[str(tmp_path / "*.xml.gz")], keep_damaged=True)
    require_every_place_is_exact(source, at_least=5)
    assert {counted["damaged_file"] for _, counted, _ in places_of(source)[-3:]} == {1}


def shares_of(source: Source) -> list[float | None]:
    context = StreamContext(seed=42)
    return [context.report.share for _ in batches_of(source, context)]


def test_a_pass_says_how_much_of_its_files_it_has_read_where_that_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows_ = [{"text": text} for text in texts(24, 40)]
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_bytes(json_file(rows_))
        (tmp_path / f"{name}.md").write_text("\n".join(texts(26, 40)))
        pq.write_table(pa.Table.from_pylist(rows_), tmp_path / f"{name}.parquet", row_group_size=7)
    hub = Huggingface(dataset="local/files", files=[str(tmp_path / "*.parquet")])
    books = Gutenberg(files=[str(tmp_path / "*.parquet")])
    for source in (Jsonl(files=[str(tmp_path / "*.jsonl")]), Parquet(files=[str(tmp_path / "*.parquet")]), hub, books):
        shares = [share or 0.0 for share in shares_of(source)]
        assert shares == pytest.approx([(number + 1) / len(shares) for number in range(len(shares))], abs=0.06)
        assert shares[-1] == 1.0
    (tmp_path / "d.xml.bz2").write_bytes(bz2.compress(wiki_dump(27)))
    shares = [share for share in shares_of(Wikipedia(files=[str(tmp_path / "d.xml.bz2")])) if share is not None]  # none of rows read ahead
    assert shares == sorted(shares)
    assert 0 < shares[0] <= shares[-1] == 1.0
    assert shares_of(MarkdownFolder(path=str(tmp_path)))[-1] == 1.0


def test_other_files_than_those_of_the_place_are_an_error(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_bytes(json_file([{"text": text} for text in texts(18)]))
    source = Jsonl(files=[str(tmp_path / "*.jsonl")])
    place, *counted = places_of(source)[2]
    (tmp_path / "0.jsonl").write_bytes(b'{"text": "new"}')
    with pytest.raises(NielsCacheError, match=r"a\.jsonl: .*--force"):
        list(batches_of(source, started_at(place, *counted)))


PARAGRAPHS = [
    [" \n", f" = Title {index} = \n", " \n", f" {text} \n", " = = Part = = \n", " more \n"] for index, text in enumerate(texts(20))
]


def test_articles_of_wikitext_start_at_every_place(tmp_path: Path) -> None:
    for name in "abc":
        lines = [" before any heading \n", *(line for article in PARAGRAPHS for line in article), " \n"]
        (tmp_path / f"{name}.txt").write_bytes("".join(lines).encode())
    require_every_place_is_exact(Wikitext(files=[str(tmp_path / "*.txt")]), at_least=20)


def test_rows_of_local_files_start_at_every_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "PARQUET_ROWS", 3)
    for name in "abc":
        values: list[Any] = [{"text": text} for text in texts(ord(name))]
        values[4:7] = [{"text": None}] * 3
        pq.write_table(pa.Table.from_pylist(values), tmp_path / f"{name}.parquet", row_group_size=5)
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(value) + "\n" for value in values))
    val = [str(tmp_path / "a.parquet")]
    for files in ([str(tmp_path / "*.parquet")], [str(tmp_path / "*.jsonl")]):
        require_every_place_is_exact(Huggingface(dataset="local/files", files=files, shuffle_buffer=0), at_least=10, every=3)
        require_every_place_is_exact(Gutenberg(files=files), at_least=15, every=4)
    parts = Huggingface(dataset="local/files", files=[str(tmp_path / "[bc].parquet")], val_files=val, shuffle_buffer=0)
    require_every_place_is_exact(parts, at_least=10, every=3)


def test_prepared_documents_start_at_every_row_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "ROWS_PER_GROUP", 3)
    written = articles(20)
    registry = corpus_registry(tmp_path, {"notes": [*written, *written[3:9], "too short"]})
    prepare_corpus(registry, "notes", root=tmp_path, processes=1)
    find_duplicates(registry, root=tmp_path)
    require_every_place_is_exact(with_corpus_readers(registry, tmp_path)["notes"], at_least=6)


def test_a_place_where_no_row_group_of_a_corpus_begins_is_an_error_not_a_gap(tmp_path: Path) -> None:
    registry = corpus_registry(tmp_path, {"notes": articles(20)})
    prepare_corpus(registry, "notes", root=tmp_path, processes=1)
    find_duplicates(registry, root=tmp_path)
    with pytest.raises(NielsCacheError, match=r"row group.*document 7"):
        next(batches_of(with_corpus_readers(registry, tmp_path)["notes"], started_at({"file": "notes", "row": 7}, {}, {})))


# The values of progress: how many bytes, documents or shares of the input are done, and of how many.


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
    monkeypatch.setattr("niels_cache_formats.megatron_import._TOKENS", 100)
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


@pytest.mark.parametrize("file_type", get_args(FileType))
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
    for number, count in enumerate(counts):
        texts = [f"text {number} {row} " * (1 + number) for row in range(count)]
        pq.write_table(pa.table({"text": texts}), tmp_path / f"{number}.parquet", row_group_size=1_000)
    paths = [tmp_path / f"{number}.parquet" for number in range(len(counts))]
    sizes = [path.stat().st_size for path in paths]
    context, shares = StreamContext(seed=1), list[float]()
    for _ in Parquet(files=list(map(str, paths))).documents(context):
        place = context.report.position
        assert place is not None
        assert context.report.share is not None
        before, rest = sum(sizes[: place["number"]]), [*zip(sizes, counts, strict=True)][place["number"] :]
        inside = rest[0][0] * place["row"] / rest[0][1] if rest else 0
        assert context.report.share == pytest.approx((before + inside) / sum(sizes))
        shares.append(context.report.share)
    assert len(shares) > 3
    assert shares == sorted(shares)
    assert 0 < shares[0] < shares[-1] == 1.0
