"""WARC and WET: records and their offsets, filters, HTTP, charsets, main text, damage, and passes that begin anywhere."""

import gzip
import io
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

pytest.importorskip("fastwarc", reason="needs the extra web")
pytest.importorskip("resiliparse", reason="needs the extra web")

from fastwarc.stream_io import BrotliWriter

from niels_cache_assets.base.documents import Document, DocumentBatch
from niels_cache_assets.cli.detection import recognize
from niels_cache_assets.corpus.chunks import ChunkWork, CorpusChunk
from niels_cache_assets.sources.reading import rows
from niels_cache_assets.sources.types import CONVERT
from niels_cache_corpora.warc import records, source
from niels_cache_corpora.warc.pages import MAX_NESTED, is_nested_deeply, split_http
from niels_cache_corpora.warc.source import COLUMNS, Warc
from niels_cache_runtime.errors import NielsCacheError
from tests.helpers.places import require_every_place_is_exact
from tests.helpers.read_sources import one_file, read

TEXT = "The weather of the coast is mild and the fields are green, so people come in every season to walk. " * 2
RUSSIAN = "Погода на побережье мягкая, и поля зелёные, поэтому люди приезжают сюда в любое время года. " * 2
JAPANESE = "海岸の天気は穏やかで、野原は緑です。だから人々は一年中ここに来て散歩を楽しみます。" * 3
CHINESE = "海岸的天气温和，田野碧绿，所以人们一年四季都来这里散步，享受自然的风光。" * 3
FRENCH = "Le temps de la c\xf4te est doux et les pr\xe9s sont verts, o\xf9 chacun vient se promener en toute saison. " * 2


def record(
    kind: str = "response",
    block: bytes = b"",
    *,
    url: str = "http://www.Example.org/a",
    media: str = "application/http; msgtype=response",
    version: str = "1.0",
    more: str = "",
) -> bytes:
    header = (
        f"WARC/{version}\r\nWARC-Type: {kind}\r\nWARC-Record-ID: <urn:uuid:1>\r\nWARC-Date: 2026-11-30T00:00:00Z\r\n"
        f"WARC-Target-URI: {url}\r\nContent-Type: {media}\r\n{more}Content-Length: {len(block)}\r\n\r\n"
    )
    return header.encode() + block + b"\r\n\r\n"


def http(body: bytes, media: str = "text/html", *, status: str = "200 OK", more: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Type: {media}\r\n{more}\r\n".encode() + body


def page(text: str = TEXT, head: str = "<title>A  title</title>") -> str:
    return f"<html><head>{head}</head><body><nav>Home | About</nav><p>{text}</p><footer>Imprint</footer></body></html>"


def response(text: str = TEXT, **more: Any) -> bytes:
    return record(block=http(page(text).encode()), **more)


def read_one(folder: Path, content: bytes, name: str = "a.warc", **keys: Any) -> tuple[list[Any], Any]:
    documents, context = read(Warc(files=one_file(folder, name, content), **keys))
    return documents, context.report


PAGES = [response(f"{number}: {TEXT}", url=f"http://example.org/{number}", version=f"1.{number % 2}") for number in range(5)]
MEMBERS = [gzip.compress(each, mtime=0) for each in PAGES]
OFFSETS = [sum(map(len, MEMBERS[:number])) for number in range(6)]
WHOLE = b"".join(PAGES)
LOWER = re.sub(rb"(?m)^(?:WARC-\w+(?:-\w+)*|Content-\w+)(?=: )", lambda name: name[0].lower(), WHOLE)  # also in the blocks
FORMS: dict[str, Callable[[], tuple[str, bytes]]] = {
    "plain": lambda: ("a.warc", WHOLE),
    "members": lambda: ("a.warc.gz", b"".join(MEMBERS)),
    "one member": lambda: ("a.warc.gz", gzip.compress(WHOLE)),
    "blocks": lambda: ("a.warc.gz", b"".join(gzip.compress(WHOLE[start : start + 301]) for start in range(0, len(WHOLE), 301))),
    "names in lower case": lambda: ("a.warc", LOWER),
    "blocks, lower case": lambda: ("a.warc.gz", b"".join(gzip.compress(LOWER[at : at + 301]) for at in range(0, len(LOWER), 301))),
    "frames": lambda: ("a.warc.zst", b"".join(map(zstandard.compress, PAGES))),
}


@pytest.mark.parametrize("form", FORMS)
def test_pages_are_read_in_every_form_and_their_offsets_cut_them_from_the_file(tmp_path: Path, form: str) -> None:
    name, content = FORMS[form]()
    documents, report = read_one(tmp_path, content, name, keep=["offset"])
    assert [(each.text[:2], each.title, each.row) for each in documents] == [(f"{row}:", "A title", row) for row in range(5)]
    assert report.facts["records"] == {"response": 5}
    assert report.dropped == {}
    for row, document in enumerate(documents):
        start, _, inside = document.source_id.rpartition("@")[2].partition("+")
        cut = content[int(start) :]
        if name.endswith(".gz"):  # all members after the start
            cut = gzip.decompress(cut)
        elif name.endswith(".zst"):
            cut = zstandard.ZstdDecompressor().decompressobj().decompress(cut)
        assert cut[int(inside or 0) :].lower().startswith(PAGES[row].lower())
    assert all(each.kept == f'{{"offset":"{each.source_id.rpartition("@")[2]}"}}' for each in documents)
    if form in ("members", "frames"):
        assert "+" not in "".join(each.source_id for each in documents)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("damaged", [False, True])
def test_a_pass_begins_at_every_place(tmp_path: Path, form: str, damaged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "BATCH_DOCUMENTS", 1)
    name, content = FORMS[form]()
    if damaged and form == "members":
        content = content[: OFFSETS[2] + 30] + content[OFFSETS[2] + 40 :]
    (tmp_path / f"b{name}").write_bytes(content)
    require_every_place_is_exact(
        Warc(files=[*one_file(tmp_path, name, content), str(tmp_path / f"b{name}")], keep_damaged=damaged), at_least=8
    )


def test_only_pages_become_documents_and_all_other_records_are_counted(tmp_path: Path) -> None:
    long = http(page(TEXT * 6000).encode())
    content = b"".join(
        [
            record("warcinfo", b"software: x"),
            record("request", b"GET / HTTP/1.1\r\n\r\n"),
            response(),
            record("revisit", http(b"")),
            record("metadata", b"fetchTimeMs: 1"),
            record(block=http(b"")),
            record(block=b"20261130\nexample.org. 1 IN A 1.2.3.4", url="dns:example.org", media="text/dns"),
            record(block=http(b"User-agent: *", "text/plain"), url="http://example.org/robots.txt?a"),
            record(block=http(page().encode(), status="404 Not Found")),
            record(block=http(b"%PDF-1.4", "application/pdf")),
            record(block=http(page().encode(), "text/plain"), more="WARC-Identified-Payload-Type: text/html\r\n"),
            record(block=http(page().encode()), more="WARC-Identified-Payload-Type: application/zip\r\n"),
            record(block=long),
            record(block=b"<html>no HTTP"),
            record("resource", page("R " + TEXT).encode(), media="text/html"),
            record("resource", b"Plain text.", media="text/plain"),
            record(block=http(b"<html><title>Nothing</title><body><nav><a href=x>Home</a></nav></body></html>")),
            record(block=http(page().encode(), "")),
        ]
    )
    documents, report = read_one(tmp_path, content, max_document_mib=1, keep=["status", "mime", "domain"])
    assert [each.row for each in documents] == [2, 10, 14, 15, 17]
    assert documents[0].kept == '{"status":200,"mime":"text/html","domain":"example.org"}'
    assert documents[3][:2] == (
        "Plain text.",
        "a.warc#15@" + str(content.index(b"Plain text.") - len(record("resource", b"", media="text/plain")) + 3),
    )
    assert report.dropped == {"other_status": 1, "other_mime": 2, "record_too_large": 1, "unreadable_http": 1, "no_main_text": 1}
    assert report.facts["records"] == {
        **{"warcinfo": 1, "request": 1, "response": 9, "revisit": 1, "metadata": 1, "without_body": 1, "dns": 1, "robots": 1},
        "resource": 2,
    }
    others, report = read_one(tmp_path, content, statuses=[404], where='domain == "example.org" and offset != "0"')
    assert [each.row for each in others] == [8, 14, 15]
    assert report.dropped["other_status"] == 8


def test_wet_files_hold_text_and_what_the_crawler_has_recorded(tmp_path: Path) -> None:
    texts = {"eng": "English.\nA < b.", "deu": "Gr\xfc\xdfe."}
    content = b"".join(
        gzip.compress(record("conversion", text.encode(), media="text/plain", more=f"WARC-Identified-Content-Language: {language}\r\n"))
        for language, text in texts.items()
    )
    name = "x.warc.wet.gz"
    documents, report = read_one(tmp_path, content, name, keep=["language"], where='language == "deu" and status is None')
    assert [(each.text, each.title, each.kept) for each in documents] == [(texts["deu"], None, '{"language":"deu"}')]
    assert (report.dropped, report.facts["records"]) == ({"where": 1}, {"conversion": 2})
    assert [(each.kind.source, each.paths) for each in recognize([str(tmp_path)])] == [("warc", [str(tmp_path / "**" / "*.wet.gz")])]


@pytest.mark.parametrize(
    ("text", "encoding", "header", "meta", "found"),
    [
        (RUSSIAN, "cp1251", "windows-1251", "", {"header": {"cp1251": 1}}),
        (RUSSIAN, "cp1251", "", "windows-1251", {"meta": {"cp1251": 1}}),
        (RUSSIAN, "cp1251", "", "", {"detected": {"cp1251": 1}}),
        (RUSSIAN, "cp1251", "utf-8", "", {"detected": {"cp1251": 1}}),
        (RUSSIAN, "cp1251", "ISO-8859-1", "windows-1251", {"meta": {"cp1251": 1}}),
        (JAPANESE, "cp932", '"Shift_JIS"', "", {"header": {"cp932": 1}}),
        (JAPANESE, "iso2022_jp", "iso-2022-jp", "", {"header": {"iso2022_jp": 1}}),
        (CHINESE, "gbk", "gb2312", "", {"header": {"gb18030": 1}}),
        (FRENCH, "latin-1", "utf-8", "", {"detected": {"cp1252": 1}}),
        (FRENCH, "utf-8", "ISO-8859-1", "ISO-8859-1", {"utf-8": {"utf-8": 1}}),
        (FRENCH, "utf-16", "utf-8", "utf-8", {"bom": {"utf-16-le": 1}}),
        (FRENCH, "utf-8", "x-unknown", "", {"utf-8": {"utf-8": 1}}),
        (TEXT, "ascii", "", "", {"default": {"utf-8": 1}}),
    ],
)
def test_the_charset_is_that_in_which_the_bytes_are_valid(
    tmp_path: Path, text: str, encoding: str, header: str, meta: str, found: dict[str, Any]
) -> None:
    body = page(text, f'<meta charset="{meta}">' if meta else "").encode(encoding)
    documents, report = read_one(tmp_path, record(block=http(body, f"text/html; charset={header}")))
    assert [each.text for each in documents] == [text.strip()]
    assert report.facts["charsets"] == found
    assert "replaced" not in report.facts


def test_replaced_bytes_are_counted_and_pages_with_too_many_are_dropped(tmp_path: Path) -> None:
    few = page(FRENCH).encode().replace(b"doux", b"do\xffux\0")
    content = record(block=http(few, "text/html; charset=utf-8")) + record(block=http(b"<p>" + b"\x81\0" * 99, "text/html; charset=utf-8"))
    documents, report = read_one(tmp_path, content, encoding="ascii", max_replaced_share=0.02)
    assert [each.text for each in documents] == [FRENCH.replace("doux", "do\ufffdux").strip()]
    assert report.dropped == {"not_text": 1}
    assert report.facts["replaced"]["bytes"] == 2 * 2 + 2 * 99


def chunked(body: bytes) -> bytes:
    return (
        b"".join(b"%x;ext=1\r\n%s\r\n" % (len(body[start : start + 40]), body[start : start + 40]) for start in range(0, len(body), 40))
        + b"0\r\n\r\n"
    )


def raw_deflate(body: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(body) + stream.flush()


def brotli(body: bytes) -> bytes:
    out = io.BytesIO()
    writer = BrotliWriter(out)
    writer.write(body)
    writer.close()
    return out.getvalue()


@pytest.mark.parametrize(
    ("encode", "headers"),
    [
        (gzip.compress, "Content-Encoding: gzip"),
        (lambda body: gzip.compress(body[:50]) + gzip.compress(body[50:]), "content-encoding : X-GZIP"),
        (zlib.compress, "Content-Encoding: deflate"),
        (raw_deflate, "Content-Encoding: deflate"),
        (zstandard.compress, "Content-Encoding: zstd"),
        (brotli, "Content-Encoding: br"),
        (chunked, "Transfer-Encoding: chunked"),
        (lambda body: chunked(gzip.compress(body)), "Transfer-Encoding: chunked\r\nContent-Encoding: gzip"),
        (lambda body: gzip.compress(zlib.compress(body)), "Content-Encoding: deflate, gzip"),
        (bytes, "Content-Encoding: gzip\r\nTransfer-Encoding: chunked"),  # the archive has decoded the body
        (bytes, "X: a\r\n folded\r\nno colon\r\nContent-Encoding: identity"),
    ],
)
def test_bodies_are_decoded(tmp_path: Path, encode: Callable[[bytes], bytes], headers: str) -> None:
    documents, report = read_one(tmp_path, record(block=http(encode(page(RUSSIAN).encode()), more=f"{headers}\r\n")))
    assert ([each.text for each in documents], report.dropped) == ([RUSSIAN.strip()], {})


@pytest.mark.parametrize(
    ("body", "headers", "reason"),
    [
        (gzip.compress(page().encode())[:-20], "Content-Encoding: gzip", "unreadable_http"),
        (b"\x0b\x02\x80no brotli", "Content-Encoding: br", "unreadable_http"),
        (b"x", "Content-Encoding: unheard-of", "unreadable_http"),
        (chunked(page().encode())[:-60], "Transfer-Encoding: chunked", "unreadable_http"),
        (gzip.compress(b"<p>" + b" " * (2 << 20)), "Content-Encoding: gzip", "record_too_large"),
        (zstandard.compress(b"<p>" + b" " * (2 << 20)), "Content-Encoding: zstd", "record_too_large"),
        (
            b'<?xml version="1.0"?><!DOCTYPE html [<!ENTITY a "%s"><!ENTITY b "%s">]><p>&b;</p>' % (b"x" * 50_000, b"&a;" * 50),
            "",
            "record_too_large",
        ),
    ],
)
def test_a_body_that_cannot_be_decoded_or_is_too_large_is_counted(tmp_path: Path, body: bytes, headers: str, reason: str) -> None:
    content = record(block=http(body, more=f"{headers}\r\n" if headers else "")) + PAGES[0]
    documents, report = read_one(tmp_path, content, max_document_mib=1)
    assert ([each.row for each in documents], report.dropped) == ([1], {reason: 1})


def test_a_page_that_the_crawler_has_cut_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    body = gzip.compress(page(RUSSIAN * 50).encode())
    content = record(block=http(body[: len(body) // 2], more="Content-Encoding: gzip\r\n"), more="WARC-Truncated: length\r\n")
    documents, report = read_one(tmp_path, content)
    assert documents[0].text.startswith(RUSSIAN[:20])
    assert (report.facts["cut_by_crawler"], report.dropped) == (1, {})


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :]


BAD_LENGTH = PAGES[1].replace(b"Content-Length", b"Content-Lxngth")
DAMAGED: dict[str, tuple[str, bytes, int, list[int]]] = {  # name, content, the offset of the damage, and the rows that are left
    "flipped": ("a.warc.gz", b"".join([MEMBERS[0], flipped(MEMBERS[1], 100), *MEMBERS[2:]]), OFFSETS[1], [0, 2, 3, 4]),
    "check": ("a.warc.gz", b"".join([MEMBERS[0], flipped(MEMBERS[1], len(MEMBERS[1]) - 6), *MEMBERS[2:]]), OFFSETS[1], [0, 2, 3, 4]),
    "garbage": ("a.warc.gz", b"".join([MEMBERS[0], b"garbage\r\n", *MEMBERS[1:]]), OFFSETS[1], [0, 2, 3, 4, 5]),
    "cut member": ("a.warc.gz", b"".join([MEMBERS[0], MEMBERS[1][:40], *MEMBERS[2:]]), OFFSETS[1], [0, 2, 3, 4]),
    "cut": ("a.warc.gz", b"".join(MEMBERS)[:-20], OFFSETS[4], [0, 1, 2, 3]),
    "cut record": ("a.warc.gz", b"".join([MEMBERS[0], gzip.compress(PAGES[1][:-99]), *MEMBERS[2:]]), OFFSETS[1], [0, 2, 3, 4]),
    "no length": ("a.warc.gz", b"".join([MEMBERS[0], gzip.compress(BAD_LENGTH), *MEMBERS[2:]]), OFFSETS[1], [0, 2, 3, 4]),
    "frames": (
        "a.warc.zst",
        zstandard.compress(PAGES[0]) + b"garbage" + zstandard.compress(PAGES[1]),
        len(zstandard.compress(PAGES[0])),
        [0, 2],
    ),
    "plain garbage": ("a.warc", PAGES[0] + b"garbage\r\n" + PAGES[1] + PAGES[2], len(PAGES[0]), [0, 2, 3]),
    "plain no length": ("a.warc", PAGES[0] + BAD_LENGTH + PAGES[2] + PAGES[3], len(PAGES[0]), [0, 2, 3]),
    "plain cut": ("a.warc", WHOLE[:-99], len(WHOLE) - len(PAGES[4]), [0, 1, 2, 3]),
    "plain cut header": ("a.warc", PAGES[0] + PAGES[1][:50], len(PAGES[0]), [0]),
    "no WARC": ("a.warc", b'{"text": "a"}\n', 0, []),
    "line feeds": ("a.warc", PAGES[0].replace(b"\r\n", b"\n") + PAGES[1], 0, [1]),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damage_is_an_error_with_the_offset_or_is_left_out_and_counted(
    tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, content, offset, left = DAMAGED[damage]
    with pytest.raises(NielsCacheError, match=rf"{name}: damaged near byte {offset} \(record \d.*keep_damaged = true"):
        read_one(tmp_path, content, name)
    monkeypatch.setattr(records, "_BLOCK", 64)  # so that places of records are found across blocks
    documents, report = read_one(tmp_path, content, name, keep_damaged=True)
    assert [each.row for each in documents] == left
    assert report.dropped == {"damaged_record": 1}


def test_a_page_that_is_nested_deeply_is_read_without_the_search_for_main_text(tmp_path: Path) -> None:
    deep = "<div>" * 5_000
    assert is_nested_deeply(deep)
    assert not is_nested_deeply("<p><br><td>" * 5_000 + "<b>x</b>" * 5_000)
    assert MAX_NESTED < 5_000
    documents, _ = read_one(tmp_path, record(block=http(f"{deep}{TEXT}".encode())))
    assert documents[0].text == TEXT.strip()


def test_trafilatura_gives_a_page_the_same_text_however_often_it_comes(tmp_path: Path) -> None:
    pytest.importorskip("trafilatura", reason="needs the extra web")
    documents, _ = read_one(tmp_path, WHOLE + PAGES[0] * 4, extractor="trafilatura")
    assert [each.text for each in documents] == [f"{row}: {TEXT.strip()}" for row in (*range(5), 0, 0, 0, 0)]
    identities = [Warc(files=["a"], extractor=name).identity()["extractor"] for name in ("resiliparse", "trafilatura")]
    assert [len(each) for each in identities] == [1, 2]


@pytest.mark.parametrize(
    ("keys", "named"), [({"keep": ["link"]}, "url"), ({"where": "score > 1"}, "score"), ({"mimes": ["application/pdf"]}, "text/html")]
)
def test_a_wrong_column_or_media_type_is_refused(keys: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Warc(files=["a.warc"], **keys)
    assert len(COLUMNS) == 8


def test_the_first_header_of_a_name_counts_and_a_block_without_status_line_is_no_response() -> None:
    found = split_http(b"HTTP/2 404\nA: b\n c\nA: d\n\n\nx")
    assert found is not None
    assert (found.status, found.headers, found.body) == (404, {"a": "b c"}, b"\nx")
    assert split_http(b"<html>") is None


def test_a_line_of_a_block_that_looks_like_a_header_stays(tmp_path: Path) -> None:
    lines = "WARC/1.0\ncontent-length: 5\nwarc-type: x\n\ncontent-length: 7\n\nWARC-type: y\n"
    block = record("conversion", (lines + TEXT).encode(), media="text/plain")
    (document, _), _ = read_one(tmp_path, (block + block).replace(b"Content-Length", b"CONTENT-length"), "a.warc.wet")
    assert document.text == lines + TEXT


def test_a_page_on_which_the_extractor_fails_hangs_or_dies_is_counted_or_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def extract(page: str, mime: str) -> tuple[str, str]:
        if page.startswith("bad"):
            raise ValueError("a bad page")
        return "A title", page

    monkeypatch.setattr(source, "Extractor", lambda name, limit: extract)
    marks = list[tuple[int, int, float]]()
    given = [Document(text, text, "a.warc", row, "text/html") for row, text in enumerate(("good", "bad", "slow", "end"))]
    warc = Warc(files=["*.warc"], seconds_per_page=9)
    work = ChunkWork(source=warc, seed=1, cleaning=None, signer=None)
    chunk = work.skip_call(CorpusChunk(0, DocumentBatch.of(given)), 2, CONVERT, has_ended=False)
    converted, dropped, examples = warc.convert_watched(given, chunk.skipped, lambda *call: marks.append(call))
    assert warc.is_watched
    assert [each.text for each in converted] == ["good", "end"]
    assert dropped.dropped == {"extractor_failed": 1, "page_too_slow": 1}
    assert dropped.facts["first_dropped"] == {"extractor_failed": "a.warc: row 1", "page_too_slow": "a.warc: row 2"}
    assert [(reason, each.title) for reason, each in examples] == [("extractor_failed", "ValueError: a bad page"), ("page_too_slow", None)]
    assert marks == [(0, CONVERT, 9), (1, CONVERT, 9), (3, CONVERT, 9), (0, 0, 0)]
    with pytest.raises(NielsCacheError, match=r"a.warc: row 3: .*process.*where"):
        work.skip_call(chunk, 3, CONVERT, has_ended=True)
