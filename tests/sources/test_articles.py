"""WikiText rows to articles, notes and Roam exports to documents, books without Project Gutenberg's frame."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from niels_cache_assets.sources.chat_jsonl import ChatJsonl
from niels_cache_assets.sources.jsonl import Jsonl
from niels_cache_assets.sources.markdown_folder import MarkdownFolder
from niels_cache_assets.sources.reading.encodings import DecodingCounts
from niels_cache_assets.sources.reading.files import SourceFile
from niels_cache_assets.sources.reading.positions import FilePass
from niels_cache_assets.sources.text import Text
from niels_cache_assets.sources.types import StreamContext
from niels_cache_corpora.gutenberg import Gutenberg, strip_project_gutenberg
from niels_cache_corpora.roam import Roam, _outline
from niels_cache_corpora.wikitext import Wikitext, WikitextRow, articles
from niels_cache_runtime.errors import NielsCacheError
from tests.helpers.hub_repositories import parquet, wikitext_rows
from tests.helpers.messages import missing
from tests.helpers.read_sources import read


def titles(texts: list[str]) -> list[tuple[str | None, int]]:
    context = StreamContext(seed=0)
    rows = [WikitextRow(text, "f", row, 0, {"text": text}) for row, text in enumerate(texts)]
    files = FilePass([SourceFile("f", "f")], context)
    found = list(articles(rows, context.report, files, limit=1 << 20, decoding=DecodingCounts(Wikitext(), context)))
    assert "".join(document.text for document in found) == "".join(texts), "no row is lost"
    return [(document.title, document.row) for document in found]


def test_articles_start_at_headings_between_blank_rows() -> None:
    formula = [" the impedance \n", " = 1 rad / s and k = \n", " 1 ohm \n"]
    texts = ["", " = One = \n", "", " Text . \n", " = = Part = = \n", "", *formula, "", " = Two = \n", "", " More . \n"]
    assert titles(texts) == [("One", 1), ("Two", 10)]


def test_what_precedes_the_first_heading_is_kept() -> None:
    assert titles([" Before . \n", "", " = One = \n", "", "x"]) == [(None, 0), ("One", 2)]
    assert titles([" \n", " = One = \n", " \n", "x"]) == [("One", 1)]
    assert titles(["no", "heading"]) == [(None, 0)]
    assert titles([" = Last = \n"]) == [("Last", 0)]


def test_raw_text_and_row_files_give_the_same_articles(tmp_path: Path) -> None:
    rows = wikitext_rows(["Oak", "Elm", "Ash"])
    (tmp_path / "a.parquet").write_bytes(parquet(rows))
    raw = "".join(row["text"] or " \n" for row in rows)
    (tmp_path / "wiki.train.raw").write_text(raw)
    from_rows, _ = read(Wikitext(files=[str(tmp_path / "a.parquet")]))
    from_raw, _ = read(Wikitext(files=[str(tmp_path / "*.raw")]))
    assert [document.title for document in from_rows] == ["Oak", "Elm", "Ash"] == [document.title for document in from_raw]
    assert "".join(document.text for document in from_raw) == raw
    assert [(document.row, document.split) for document in from_rows] == [(1, None), (9, None), (17, None)]


def test_wikitext_files_with_val_files_keep_upstreams_splits(tmp_path: Path) -> None:
    for name in ("train", "valid"):
        (tmp_path / f"wiki.{name}.raw").write_text(f" \n = {name} = \n \n text \n")
    source = Wikitext(files=[str(tmp_path / "*.train.raw")], val_files=[str(tmp_path / "*.valid.raw")])
    documents, _ = read(source)
    assert [(document.title, document.split) for document in documents] == [("valid", "val"), ("train", "train")]
    assert source.has_own_splits
    assert Wikitext(val_files=["x"]).missing_setting()
    assert not Wikitext(files=["x"]).has_own_splits


def test_notes_come_sorted_by_relative_path_without_hidden_ones(tmp_path: Path) -> None:
    for name, text in {
        "b.md": "bee",
        "a/z.md": "zed",
        "a/empty.md": " \n",
        ".git/x.md": "no",
        "a/.hid.md": "no",
        "c.txt": "no",
        "D.MD": "dee",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "bad.md").write_bytes(b"caf\xff\r\n")
    documents, context = read(MarkdownFolder(path=str(tmp_path), max_replaced_share=1))
    assert [(document.file, document.text) for document in documents] == [
        ("D.MD", "dee"),
        ("a/z.md", "zed"),
        ("b.md", "bee"),
        ("bad.md", "caf\ufffd\r\n"),
    ]
    assert context.report.dropped == {"empty": 1}
    assert documents[1].title == "z"


def test_a_folder_that_is_not_there_is_an_error_and_roam_without_a_path_is_no_partition(tmp_path: Path) -> None:
    for source in (MarkdownFolder(path=str(tmp_path / "no")), Roam(path=str(tmp_path / "no")), Gutenberg(path=str(tmp_path / "no"))):
        for use in (lambda source=source: source.revision({}), lambda source=source: read(source)):
            with pytest.raises(NielsCacheError, match=r"path = .*not a folder"):
                use()
    assert "path" in (Roam().missing_setting() or "")
    assert Roam(path="x").missing_setting() is None


def test_a_folder_without_a_file_to_read_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "notes.txte").write_text("not read")
    for source, endings in ((MarkdownFolder, ".md"), (Roam, ".md or .json"), (Gutenberg, ".txt")):
        for use in (lambda source: source.revision({}), read):
            with pytest.raises(NielsCacheError) as error:
                use(source(path=str(tmp_path)))
            assert missing(error.value, f"path = {str(tmp_path)!r} ", "no file", f" {endings}; set it") == []


def deep_block(levels: int) -> dict[str, Any]:
    block: dict[str, Any] = {"string": "bottom"}
    for _ in range(levels):
        block = {"string": "level", "children": [block]}
    return block


def test_a_roam_export_becomes_one_outline_per_page(tmp_path: Path) -> None:
    blocks = [{"string": "first", "uid": "u1", "children": [{"string": "inner\nsecond line"}, {"string": ""}]}, {"string": "last"}]
    pages = [
        {"title": "Reading", "uid": "page1", "children": blocks, "edit-time": 1},
        {"title": "Empty", "children": []},
        {"title": "Deep", "children": [deep_block(300)]},
    ]
    (tmp_path / "graph.json").write_text(json.dumps(pages))
    (tmp_path / "note.md").write_text("- a note")
    from_file, context = read(Roam(path=str(tmp_path / "graph.json")))
    assert from_file[0].text == "Reading\n\n- first\n  - inner\n    second line\n- last"
    assert [(document.title, document.source_id, document.row) for document in from_file] == [
        ("Reading", "page1", 0),
        ("Deep", "graph.json#2", 2),
    ]
    assert from_file[1].text.endswith("  " * 300 + "- bottom")
    assert context.report.dropped == {"empty": 1}
    from_folder, _ = read(Roam(path=str(tmp_path)))
    assert [document.file for document in from_folder] == ["graph.json", "graph.json", "note.md"]


@pytest.mark.parametrize("content", ["{}", "[1]", '[{"children": []}]', "[{", '{"a":' * 100_000 + "1" + "}" * 100_000])
def test_json_that_is_no_roam_export_is_an_error_where_it_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "graph.json").write_text(content)
    with pytest.raises(NielsCacheError, match=r"graph\.json: not"):
        read(Roam(path=str(tmp_path / "graph.json")))


def test_a_roam_page_without_a_title_leaves_the_others(tmp_path: Path) -> None:
    pages = [
        {"title": "A", "children": [{"string": "a"}]},
        {"children": [{"string": "b"}]},
        5,
        {"title": "D", "children": [{"string": "d"}]},
    ]
    (tmp_path / "graph.json").write_text(json.dumps(pages))
    for path in (tmp_path / "graph.json", tmp_path):
        documents, context = read(Roam(path=str(path)))
        assert [(document.text, document.row) for document in documents] == [("A\n\n- a", 0), ("D\n\n- d", 3)]
        assert context.report.dropped == {"page_without_title": 2}


def test_other_json_among_the_notes_is_counted(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text('{"theme": "dark"}')
    (tmp_path / "note.md").write_text("a note")
    documents, context = read(Roam(path=str(tmp_path)))
    assert [document.text for document in documents] == ["a note"]
    assert context.report.dropped == {"not_a_roam_export": 1}


def test_roam_blocks_that_are_none_are_counted(tmp_path: Path) -> None:
    blocks = [{"string": "good", "children": {"string": "x"}}, "text", None, {"string": "also", "children": "abc"}]
    (tmp_path / "graph.json").write_text(json.dumps([{"title": "A", "children": blocks}, {"title": "B", "children": "abc"}]))
    documents, context = read(Roam(path=str(tmp_path / "graph.json")))
    assert [document.text for document in documents] == ["A\n\n- good\n- also"]
    assert context.report.dropped == {"malformed_block": 5, "empty": 1}


def test_a_roam_outline_may_be_as_long_as_the_limit_with_its_indents_and_no_longer() -> None:
    page = {"children": [{"string": "one\ntwo", "children": [{"string": "three"}]}]}
    outline = "- one\n  two\n  - three"
    length = len("one\ntwo") + 2 * 2 + len("three") + 4
    assert _outline(page, where="a.json", limit=length) == (outline, 0)
    with pytest.raises(NielsCacheError, match=r"^a\.json"):
        _outline(page, where="a.json", limit=length - 1)


def test_names_and_ids_that_utf8_cannot_hold_are_repaired(tmp_path: Path) -> None:
    with open(os.fsencode(tmp_path) + b"/caf\xe9.md", "w") as stream:
        stream.write("coffee")
    (tmp_path / "graph.json").write_text(json.dumps([{"title": "T\ud800", "uid": "u\ud800", "children": [{"string": "s"}]}]))
    (tmp_path / "rows.jsonl").write_text(json.dumps({"text": "words", "id": "r\ud800"}))
    (tmp_path / "chat.jsonl").write_text(
        json.dumps({"id": "c\ud800", "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]})
    )
    source = Roam(path=str(tmp_path))
    assert source.revision({})
    documents, _ = read(source)
    assert [(document.source_id, document.title) for document in documents] == [("caf?.md", "caf?"), ("u?", "T?")]
    sources = (
        Text(files=[str(tmp_path / "*.md")]),
        Jsonl(files=[str(tmp_path / "rows.jsonl")]),
        ChatJsonl(files=[str(tmp_path / "chat.jsonl")]),
    )
    assert [read(one)[0][0].source_id for one in sources] == ["caf?.md#0", "r?", "c?"]


HEADER = "\ufeffThe Project Gutenberg eBook of Oak Trees, by A. Writer\r\n\r\nTitle: Oak Trees\r\n\r\nLanguage: English\r\n\r\n"
BODY = "CHAPTER I\r\n\r\nOaks grow.\r\n\r\n     *****\r\n\r\nThe end of it."
FRAMES = {
    "the": (
        "*** START OF THE PROJECT GUTENBERG EBOOK OAK TREES ***\r\n",
        "\r\n*** END OF THE PROJECT GUTENBERG EBOOK OAK TREES ***\r\nLicence",
    ),
    "this": (
        "***START OF THIS PROJECT GUTENBERG EBOOK OAK TREES***\r\n\r\n",
        "\r\nEnd of Project Gutenberg's Oak Trees, by A. Writer\r\n\r\n***END OF THIS PROJECT GUTENBERG EBOOK OAK TREES***\r\nLicence",
    ),
    "two lines": (
        "*** START OF THE PROJECT GUTENBERG EBOOK OAK TREES AND\r\nOTHER TREES ***\r\n",
        "\r\n*** END OF THE PROJECT GUTENBERG EBOOK OAK TREES AND\r\nOTHER TREES ***\r\nLicence",
    ),
    "small print": (
        "**START**THE SMALL PRINT!**\r\nlegal words\r\n*END*THE SMALL PRINT! FOR PUBLIC DOMAIN ETEXTS*Ver.04.29.93*END*\r\n",
        "\r\n\r\nEnd of the Project Gutenberg Etext of Oak Trees\r\n",
    ),
}


@pytest.mark.parametrize("style", FRAMES)
def test_the_frame_of_a_book_is_cut(style: str) -> None:
    start, end = FRAMES[style]
    assert strip_project_gutenberg(HEADER + start + BODY + end) == ("Oak Trees", BODY)


@pytest.mark.parametrize("style", FRAMES)
def test_all_e_texts_of_a_file_are_read(style: str) -> None:
    start, end = FRAMES["the"]
    more = HEADER.replace("Oak", "Elm") + start + "Elms grow." + end
    first = FRAMES[style][0] + BODY + FRAMES[style][1]
    if style == "small print":  # it has no end marker, so the header of the next one stays
        long = "words and words\n" * 2000
        body = strip_project_gutenberg(HEADER + FRAMES[style][0] + long + FRAMES[style][1] + more.replace("Elms", long + "Elms"))[1]
        assert body.startswith(long)
        assert body.endswith("Elms grow.")
    else:
        assert strip_project_gutenberg(HEADER + first + more) == ("Oak Trees; Elm Trees", f"{BODY}\n\nElms grow.")
        assert strip_project_gutenberg(HEADER + first + more + more)[1].count("Elms") == 2
        assert strip_project_gutenberg(HEADER + first + start + end)[1] == BODY


def test_the_end_phrase_counts_only_near_the_end_of_the_book() -> None:
    quoted = "End of the Project Gutenberg sample\n" + "words and words\n" * 2000
    assert strip_project_gutenberg(quoted) == (None, quoted.strip("\n"))
    phrase = "\nEnd of Project Gutenberg's Oak Trees\n"
    assert strip_project_gutenberg(quoted + phrase + "Licence") == (None, quoted.strip("\n"))
    assert strip_project_gutenberg(f"Oaks.\n{phrase}{'words ' * 200}{phrase}")[1].startswith(f"Oaks.\n{phrase}words")


def test_a_start_line_that_is_not_closed_does_not_eat_the_book() -> None:
    start, body = "*** START OF THE PROJECT GUTENBERG EBOOK OAKS\r\n", "Oaks grow.\r\n\r\n***\r\n\r\nThey fall."
    assert strip_project_gutenberg(f"{start}\r\n{body}") == (None, body)
    assert strip_project_gutenberg(f"{start} \r\n{body}") == (None, f" \r\n{body}")


def test_a_book_without_markers_is_kept_whole(tmp_path: Path) -> None:
    (tmp_path / "plain.txt").write_bytes(("\ufeff" + BODY).encode())
    (tmp_path / "framed.txt").write_bytes((HEADER + FRAMES["the"][0] + BODY + FRAMES["the"][1]).encode())
    (tmp_path / "hollow.txt").write_bytes((HEADER + FRAMES["the"][0] + FRAMES["the"][1]).encode())
    books, context = read(Gutenberg(path=str(tmp_path)))
    assert [(book.file, book.title, book.text) for book in books] == [("framed.txt", "Oak Trees", BODY), ("plain.txt", None, BODY)]
    assert context.report.dropped == {"empty": 1}
