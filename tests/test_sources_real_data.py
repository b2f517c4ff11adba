"""Sources on real samples: NIELS_CACHE_REAL_DATA names their folder."""

import os
from pathlib import Path

import pytest

from niels_cache_assets.sources.dolly15k import Dolly15k
from niels_cache_assets.sources.fineweb_edu import FinewebEdu
from niels_cache_assets.sources.gutenberg import Gutenberg
from niels_cache_assets.sources.jsonl import Jsonl
from niels_cache_assets.sources.markdown_folder import MarkdownFolder
from niels_cache_assets.sources.oasst1 import Oasst1
from niels_cache_assets.sources.roam import Roam
from niels_cache_assets.sources.wikitext import Wikitext
from tests.read_sources import read

DATA = Path(os.environ.get("NIELS_CACHE_REAL_DATA", "/nonexistent"))

pytestmark = [
    pytest.mark.real_data,
    pytest.mark.skipif("NIELS_CACHE_REAL_DATA" not in os.environ, reason="NIELS_CACHE_REAL_DATA does not name the folder of real samples"),
]


def test_wikitext_articles() -> None:
    raw = DATA / "wikitext/wikitext-2-raw_test.first_half.raw"
    articles, _ = read(Wikitext(files=[str(raw)]))
    # 31 lines look like titles; two of them belong to a formula in the middle of a paragraph (" = 1 rad / s and a nominal impedance k = ").
    assert len(articles) == 29
    assert all(article.title for article in articles)
    assert "".join(article.text for article in articles) == raw.read_text(encoding="utf-8")
    whole_split, _ = read(Wikitext(files=[str(DATA / "wikitext/wikitext-2_valid.tokens.txt")]))
    assert len(whole_split) == 60


def test_gutenberg_books_lose_their_frame_and_nothing_else() -> None:
    books, context = read(Gutenberg(path=str(DATA / "gutenberg")))
    assert len(books) == 7
    assert not context.report.dropped
    for book in books:
        assert book.title
        assert "***" not in book.text.replace("*****", "")
        assert "gutenberg.org/license" not in book.text
        assert len(book.text) > 100_000
    title, last_words = "Moby-Dick; or The Whale", "only found another orphan."
    assert {book.title: book.text for book in books}[title].endswith(last_words)


def test_notes_and_roam_graphs() -> None:
    notes, context = read(MarkdownFolder(path=str(DATA / "markdown_notes")))
    on_disk = [path for path in (DATA / "markdown_notes").rglob("*.md") if "/." not in path.as_posix().removeprefix(DATA.as_posix())]
    assert len(notes) + context.report.dropped["empty"] == len(on_disk) > 300
    pages, _ = read(Roam(path=str(DATA / "roam")))
    assert len(pages) == 6


def test_web_rows_from_json_and_parquet_are_the_same() -> None:
    texts = [
        [document.text for document in read(FinewebEdu(files=[str(DATA / f"web_fineweb/fineweb_rows.{suffix}")]))[0]]
        for suffix in ("jsonl", "parquet")
    ]
    assert texts[0] == texts[1]
    assert len(texts[0]) == 15
    c4, _ = read(Jsonl(files=[str(DATA / "web_c4/*.json*")]))
    assert len(c4) == 30


def test_conversations() -> None:
    dolly, context = read(Dolly15k(files=[str(DATA / "dolly/*.jsonl")]))
    assert len(dolly) + sum(context.report.dropped.values()) == 2511
    trees, context = read(Oasst1(files=[str(DATA / "oasst1/en_trees_60.jsonl")]))
    flat, _ = read(Oasst1(files=[str(DATA / "oasst1/en_messages_60.flattened.jsonl")]))
    assert [thread.messages for thread in trees] == [thread.messages for thread in flat]
    assert len(trees) > 300
    assert context.report.facts["trees"] == 60
