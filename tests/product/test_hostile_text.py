"""Text that is meant to do harm, with huge sizes, names that leave their folder, and special tokens in every place."""

import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from niels_cache_assets.sources.chat_jsonl import ChatJsonl
from niels_cache_assets.sources.huggingface import Huggingface
from niels_cache_assets.sources.jsonl import Jsonl
from niels_cache_assets.sources.markdown_folder import MarkdownFolder
from niels_cache_assets.sources.parquet import Parquet
from niels_cache_assets.sources.text import Text
from niels_cache_assets.sources.types import Source
from niels_cache_corpora.dolly15k import Dolly15k
from niels_cache_corpora.gutenberg import Gutenberg
from niels_cache_corpora.oasst1 import Oasst1
from niels_cache_corpora.roam import Roam
from niels_cache_corpora.wikipedia.source import Wikipedia
from niels_cache_corpora.wikitext import Wikitext
from niels_cache_runtime.errors import NielsCacheError
from tests.helpers.read_sources import COMPRESS, read

BOMB = b"x" * (32 << 20)
MEMORY = 24 << 20  # of a reader that takes 1 MiB: the line, its text, blocks; 512 bytes of Zstandard may become 16 MiB


def require_refused(source: Source, where: str) -> None:
    """The source is refused in a line that names `where`, without more memory than a few of its documents."""
    tracemalloc.start()
    try:
        with pytest.raises(NielsCacheError, match=rf"{where}.* 1 MiB.*(raise max_document_mib|any dump)"):
            read(source)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MEMORY


def write_raw(path: Path, content: bytes) -> list[str]:
    path.write_bytes(content)
    return [str(path)]


def write(path: Path, content: bytes, suffix: str = "") -> list[str]:
    return write_raw(path.with_name(path.name + suffix), COMPRESS[suffix](content) if suffix else content)


@pytest.fixture(scope="module")
def bombs() -> dict[str, bytes]:
    """Small files that become one line of 32 MB."""
    return {suffix: compress(BOMB) for suffix, compress in COMPRESS.items()}


LINE_READERS: dict[str, Callable[[list[str]], Source]] = {
    "jsonl": lambda files: Jsonl(files=files, max_document_mib=1),
    "chat": lambda files: ChatJsonl(files=files, max_document_mib=1),
    "trees": lambda files: Oasst1(files=files, max_document_mib=1),
    "line": lambda files: Text(files=files, sample_by="line", max_document_mib=1),
    "paragraph": lambda files: Text(files=files, sample_by="paragraph", max_document_mib=1),
    "document": lambda files: Text(files=files, max_document_mib=1),
}


@pytest.mark.parametrize(
    ("kind", "suffix"), [*((kind, ".gz") for kind in LINE_READERS), *(("jsonl", suffix) for suffix in (".bz2", ".xz", ".zst"))]
)
def test_a_small_file_that_becomes_one_huge_line_is_refused(tmp_path: Path, bombs: dict[str, bytes], kind: str, suffix: str) -> None:
    path = tmp_path / f"bomb.jsonl{suffix}"
    path.write_bytes(bombs[suffix])
    assert path.stat().st_size < len(BOMB) / 500
    require_refused(LINE_READERS[kind]([str(path)]), r"bomb\.jsonl")


def test_a_paragraph_without_an_end_is_refused(tmp_path: Path) -> None:
    files = write(tmp_path / "a.txt", b"first\n\n" + b"fifteen letters\n" * (1 << 17))
    require_refused(Text(files=files, sample_by="paragraph", max_document_mib=1), r"a\.txt: the paragraph at line 65539")


@pytest.mark.parametrize("kind", ["notes", "roam", "export", "books"])
def test_files_that_are_read_whole_are_refused_when_they_are_huge(tmp_path: Path, kind: str) -> None:
    name = {"notes": "a.md", "roam": "a.json", "export": "a.json", "books": "a.txt"}[kind]
    with open(tmp_path / name, "wb") as stream:
        stream.truncate(2 << 30)
    source: dict[str, Callable[[], Source]] = {
        "notes": lambda: MarkdownFolder(path=str(tmp_path), max_document_mib=1),
        "roam": lambda: Roam(path=str(tmp_path), max_document_mib=1),
        "export": lambda: Roam(path=str(tmp_path / name), max_document_mib=1),
        "books": lambda: Gutenberg(path=str(tmp_path), max_document_mib=1),
    }
    require_refused(source[kind](), name)


HEADER = b"<mediawiki><page><title>T</title><ns>0</ns><id>1</id><revision>"
DUMPS = {
    "text": HEADER + b"<text>" + BOMB,
    "comments in a text": HEADER + b"<text>" + b"some letters<!---->" * (1 << 18),
    "a tag": HEADER + b"<" + BOMB,
    "an attribute": HEADER + b'<text a="' + BOMB,
    "a comment": HEADER + b"<!-- " + BOMB,
    "an instruction": HEADER + b"<?" + BOMB,
}


@pytest.mark.parametrize("suffix", ["", ".bz2"])
@pytest.mark.parametrize("what", DUMPS)
def test_huge_parts_of_dumps_are_refused(tmp_path: Path, what: str, suffix: str) -> None:
    files = write(tmp_path / "a.xml", DUMPS[what], suffix)
    require_refused(Wikipedia(files=files, max_document_mib=1), r"a\.xml")


@pytest.mark.parametrize("content", [b"<a>" * (1 << 20), b"<" + b"a" * (1 << 18) + b">"])
def test_elements_that_no_dump_has_are_refused(tmp_path: Path, content: bytes) -> None:
    files = write(tmp_path / "a.xml", HEADER + content)
    with pytest.raises(NielsCacheError, match=r"a\.xml: .*MediaWiki dump: .*nested deeper, or .*longer names"):
        read(Wikipedia(files=files))


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_the_loaders_of_the_hub_get_no_local_file_with_a_huge_line(tmp_path: Path, suffix: str) -> None:
    import datasets  # noqa: F401  (its import takes memory too)

    row = json.dumps({"instruction": "a", "response": "b", "context": "", "category": "c"}).encode() + b"\n"
    files = write(tmp_path / "a.jsonl", row * 3 + b'{"instruction": "' + BOMB, suffix)
    require_refused(Dolly15k(files=files, max_document_mib=1), r"a\.jsonl.*: line 4")
    files = write(tmp_path / "a.txt", b" = Title = \n" + BOMB, suffix)
    require_refused(Wikitext(files=files, max_document_mib=1), r"a\.txt.*: line 2")


def test_an_article_without_an_end_is_refused(tmp_path: Path) -> None:
    files = write(tmp_path / "a.txt", b" \n = Title = \n \n" + (b" words of it" * 500 + b"\n") * 200)
    with pytest.raises(NielsCacheError, match=r"a\.txt: .*row 1: .* 1 MiB"):
        read(Wikitext(files=files, max_document_mib=1))


ROW_READERS: dict[str, Callable[[list[str], int], Source]] = {
    "parquet": lambda files, limit: Parquet(files=files, max_document_mib=limit),
    "messages": lambda files, limit: ChatJsonl(files=files, max_document_mib=limit),
    "instructions": lambda files, limit: Dolly15k(files=files, max_document_mib=limit),
    "flat messages": lambda files, limit: Oasst1(files=files, max_document_mib=limit),
    "any": lambda files, limit: Huggingface(dataset="a/b", files=files, shuffle_buffer=0, max_document_mib=limit),
}


@pytest.mark.parametrize("kind", ROW_READERS)
def test_a_row_of_parquet_above_the_limit_is_refused_and_one_below_it_is_read(kind: str, tmp_path: Path) -> None:
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
        read(ROW_READERS[kind](files, 1))
    read(ROW_READERS[kind](files, 5))


def test_documents_up_to_the_limit_are_read(tmp_path: Path) -> None:
    """A mebibyte in all, its line end included, is no more than a mebibyte."""
    files = write(tmp_path / "a.txt", b"x" * ((1 << 20) - 1) + b"\ny" + b"z" * ((1 << 20) - 1))
    assert [len(document.text) for document in read(Text(files=files, sample_by="line", max_document_mib=1))[0]] == [(1 << 20) - 1, 1 << 20]
    files = write(tmp_path / "b.txt", b"x" * (1 << 20))
    assert len(read(Text(files=files, max_document_mib=1))[0][0].text) == 1 << 20


@pytest.mark.parametrize("kind", ["device", "pipe", "dangling"])
def test_what_is_no_file_is_refused_before_it_is_read(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "a.md"
    if kind == "pipe":
        os.mkfifo(target)
    else:
        target.symlink_to("/dev/zero" if kind == "device" else tmp_path / "nothing")
    message = r"a\.md: cannot be read" if kind == "dangling" else r"a\.md: not a regular file"
    with pytest.raises(NielsCacheError, match=message):
        MarkdownFolder(path=str(tmp_path)).revision({})
