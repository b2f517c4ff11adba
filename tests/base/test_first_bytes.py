"""Files that are not what their names say: each message names what the first bytes are, and what to do."""

import bz2
import gzip
import io
import json
import lzma
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from niels_cache_assets.base.first_bytes import detect_content
from niels_cache_assets.cli.detection import recognize
from niels_cache_assets.sources import PRETRAIN_SOURCES, SFT_SOURCES
from niels_cache_assets.sources.notes import notes_on_source
from niels_cache_assets.sources.reading.references import questions
from niels_cache_assets.tokenizer.kinds import open_model
from niels_cache_runtime.errors import NielsCacheError
from tests.helpers.messages import missing
from tests.helpers.read_sources import read

LINES = b"".join(json.dumps({"text": f"text {row}", "id": row}).encode() + b"\n" for row in range(50))
POINTER = (
    b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)
PAGE = b"<!DOCTYPE html>\n<html><head><title>Sign in</title></head><body>Please sign in</body></html>\n"
PDF = b"%PDF-1.4\n1 0 obj\n<< /Type /Catalog >>\nendobj\n"


def zipped(content: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("a.jsonl", content)
    return out.getvalue()


def tarred(content: bytes) -> bytes:
    member = tarfile.TarInfo("a.jsonl")
    member.size = len(content)
    return member.tobuf() + content + bytes(-len(content) % 512 + 1024)


def as_parquet(content: bytes) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.table({"text": content.decode().splitlines()}), out)
    return out.getvalue()


def as_arrow(content: bytes) -> bytes:
    out, table = io.BytesIO(), pa.table({"text": content.decode().splitlines()})
    with pa.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


CONTENTS: dict[str, tuple[Callable[[bytes], bytes], tuple[str, ...]]] = {  # how content is made, and what the message has
    "gzip": (gzip.compress, ("gzip", ".gz")),
    "bzip2": (bz2.compress, ("bzip2", ".bz2")),
    "xz": (lzma.compress, ("xz", ".xz")),
    "zstd": (zstandard.compress, ("zstd", ".zst")),
    "zip": (zipped, ("zip", "unpack")),
    "tar": (tarred, ("tar", "unpack")),
    "parquet": (as_parquet, ("Parquet", ".parquet")),
    "arrow": (as_arrow, ("Arrow",)),
    "sqlite": (lambda _: b"SQLite format 3\0" + bytes(84), ("SQLite",)),
    "pdf": (lambda _: PDF, ("PDF",)),
    "pointer": (lambda _: POINTER, ("Git LFS", "git lfs pull")),
    "annex": (lambda _: b"/annex/objects/SHA256E-s1--ab.jsonl\n", ("git-annex", "annex get")),
    "html": (lambda _: PAGE, ("HTML", "download")),
    "utf-16 without mark": (lambda content: content.decode().encode("utf-16-le"), ("UTF-16", "utf-16-le")),
    "utf-16 big-endian": (lambda content: content.decode().encode("utf-16-be"), ("UTF-16", "utf-16-be")),
}


def table(kind: str, path: Path, **keys: Any) -> Any:
    value: Any = str(path) if kind in ("roam", "markdown_folder") else [str(path)]
    place = "path" if kind in ("roam", "markdown_folder") else "files"
    return {**PRETRAIN_SOURCES, **SFT_SOURCES}[kind](source=kind, **{place: value}, **keys)


@pytest.mark.parametrize(
    ("content", "name"),
    [*((content, "a.jsonl") for content in CONTENTS), *((content, "a.parquet") for content in ("gzip", "pointer", "html", "arrow"))],
)
def test_rows_that_are_something_else_say_what_they_are(tmp_path: Path, content: str, name: str) -> None:
    make, facts = CONTENTS[content]
    path = tmp_path / name
    path.write_bytes(make(LINES))
    lines = (lambda: read(table("jsonl", path)), lambda: table("chat_jsonl", path).check_input({}), lambda: [*questions(str(path))])
    parquet = (lambda: read(table("parquet", path)), lambda: read(table("huggingface", path, dataset="a/b")))
    for read_it in (*(lines if name == "a.jsonl" else parquet), lambda: recognize([str(path)])):
        with pytest.raises(NielsCacheError) as raised:
            read_it()
        assert missing(str(raised.value), name, *(facts if name == "a.jsonl" else facts[:1])) == []


@pytest.mark.parametrize("kind", ["text", "gutenberg", "markdown_folder", "roam", "huggingface", "wikipedia", "jsonl"])
@pytest.mark.parametrize("content", ["pointer", "annex", "pdf"])
def test_pointers_and_pdfs_are_never_read_as_text(tmp_path: Path, kind: str, content: str) -> None:
    name = {"markdown_folder": "a.md", "roam": "a.md", "wikipedia": "a.xml", "jsonl": "a.jsonl"}.get(kind, "a.txt")
    make, facts = CONTENTS[content]
    for suffix in ("", ".gz") if kind in ("text", "jsonl", "wikipedia") else ("",):
        (tmp_path / kind).mkdir(exist_ok=True)
        path = tmp_path / kind / f"{name}{suffix}"
        for inside in {make(b""), gzip.compress(make(b"")) if suffix else make(b"")}:
            path.write_bytes(inside)
            keys = {"dataset": "a/b"} if kind == "huggingface" else {"keep_damaged": True} if kind in ("text", "jsonl", "wikipedia") else {}
            with pytest.raises(NielsCacheError) as raised:
                read(table(kind, path.parent if kind in ("roam", "markdown_folder") else path, **keys))
            assert missing(str(raised.value), name, *facts) == []


def test_text_files_that_hold_no_text_are_named_before_a_build_and_html_is_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(gzip.compress(b"text"))
    (tmp_path / "b.txt").write_bytes(PAGE)
    (tmp_path / "c.txt").write_bytes(b"")
    (tmp_path / "d.txt.gz").write_bytes(gzip.compress(b"text"))
    source = table("text", tmp_path / "*.txt*")
    nothing, strange = notes_on_source(source)
    assert missing(nothing, "1 file", "empty", "c.txt") == []
    assert missing(strange, "warning", "1 file", "a.txt", "gzip", ".gz") == []
    assert [document.text for document in read(source)[0]] == [PAGE.decode(), "text"]


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
@pytest.mark.parametrize(("inside", "what"), [(LINES, "JSON"), (PAGE, "HTML"), (zipped(LINES), "zip")], ids=["lines", "html", "zip"])
def test_a_suffix_of_a_compression_without_it_is_no_damage_that_keep_damaged_hides(
    tmp_path: Path, suffix: str, inside: bytes, what: str
) -> None:
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(inside)
    for keep_damaged in (False, True):
        with pytest.raises(NielsCacheError) as raised:
            read(table("jsonl", path, keep_damaged=keep_damaged))
        assert missing(str(raised.value), "a.jsonl", what, f"ends in {suffix}") == []


@pytest.mark.parametrize(("content", "what"), [(PAGE, "HTML"), (LINES, "JSON"), (gzip.compress(LINES), "gzip"), (b"plain", None)])
def test_a_dump_that_is_something_else_says_what_it_is(tmp_path: Path, content: bytes, what: str | None) -> None:
    (tmp_path / "a.xml").write_bytes(content)
    with pytest.raises(NielsCacheError) as raised:
        read(table("wikipedia", tmp_path / "a.xml"))
    assert missing(str(raised.value), "a.xml", *([what] if what else [])) == []


@pytest.mark.parametrize("name", ["tokenizer.json", "gpt2.tiktoken", "spm.model"])
@pytest.mark.parametrize("content", ["pointer", "html", "gzip"])
def test_files_of_tokenizers_say_what_they_are(tmp_path: Path, name: str, content: str) -> None:
    make, facts = CONTENTS[content]
    (tmp_path / name).write_bytes(make(LINES))
    with pytest.raises(NielsCacheError) as raised:
        open_model(tmp_path / name, special_tokens={"eot": "<|endoftext|>"})
    assert missing(str(raised.value), name, *facts) == []


@pytest.mark.parametrize(
    "text", [b"PK is a band", b"BZh9 is a header", b"PAR1 is text", b"version 1 of https://git-lfs", b"\xc3", "é中".encode()]
)
def test_text_that_looks_a_little_like_something_else_is_text(text: bytes) -> None:
    found = detect_content(text)
    assert found is None or found.what == "plain text"


def test_an_office_document_is_no_archive_to_unpack(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.docx", "w") as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
    with pytest.raises(NielsCacheError, match=r"a\.docx: .*pandoc"):
        recognize([str(tmp_path)])


@pytest.mark.parametrize("name", ["z.txt", "z.jsonl", "z.md"])
def test_a_pointer_among_many_files_is_found_before_a_build_and_by_init(tmp_path: Path, name: str) -> None:
    kind, good = {"z.txt": ("text", b"text"), "z.jsonl": ("jsonl", LINES), "z.md": ("markdown_folder", b"text")}[name]
    (tmp_path / f"a{name[1:]}").write_bytes(good)
    source = table(kind, tmp_path if kind == "markdown_folder" else tmp_path / f"*{name[1:]}")
    assert notes_on_source(source) == []
    (tmp_path / name).write_bytes(POINTER)
    for look in (lambda: notes_on_source(source), lambda: recognize([str(tmp_path / name)])):
        with pytest.raises(NielsCacheError) as raised:
            look()
        assert missing(str(raised.value), name, "Git LFS", "git lfs pull") == []
