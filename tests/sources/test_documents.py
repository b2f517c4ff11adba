"""HTML and EPUB: the text of pages in their order, and files that are damaged, encrypted or far too large."""

import io
import time
import zipfile
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("resiliparse", reason="needs the extra documents")

from niels_cache_assets.sources.epub import Epub
from niels_cache_assets.sources.html import Html
from niels_cache_runtime.errors import NielsCacheError
from tests.helpers.places import require_every_place_is_exact
from tests.helpers.read_sources import one_file, read

PAGE = (
    "<html><head><meta charset={}><title>No text</title><script>no()</script></head><body><nav>Home</nav><p>Caf\xe9 &amp; bar.<p>Two</body>"
)
XHTML = (
    '<?xml version="1.0" encoding="utf-8"?><html xmlns="http://www.w3.org/1999/xhtml"><head><title/></head><body><p>{}</p></body></html>'
)
CONTAINER = '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfile full-path="OPS/book.opf"/></container>'
ENCRYPTED = '<encryption xmlns="urn:x" xmlns:e="http://www.w3.org/2001/04/xmlenc#"><e:CipherReference URI="{}"/></encryption>'


def book(pages: dict[str, str], order: list[str] | None = None, items: str = "", **more: str) -> bytes:
    """Return a book whose spine has these pages, or the pages in `order`. `items` are more of the manifest, `more` of META-INF."""
    items += "".join(f'<item id="{name}" href="text/{name}.xhtml" media-type="application/xhtml+xml"/>' for name in pages)
    spine = "".join(f'<itemref idref="{name}"/>' for name in order or pages)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("mimetype", "application/epub+zip")
        archive.writestr("META-INF/container.xml", CONTAINER)
        archive.writestr(
            "OPS/book.opf", f'<package xmlns="http://www.idpf.org/2007/opf"><manifest>{items}</manifest><spine>{spine}</spine></package>'
        )
        for name, text in pages.items():
            archive.writestr(f"OPS/text/{name}.xhtml", XHTML.format(text))
        for name, text in more.items():
            archive.writestr(f"META-INF/{name}.xml", text)
    return out.getvalue()


def texts(source: Any) -> list[str]:
    return [document.text for document in read(source)[0]]


@pytest.mark.parametrize(("declared", "encoding"), [("utf-8", "utf-8"), ("windows-1252", "windows-1252"), ("utf-16", "utf-8")])
def test_the_text_of_a_page_is_read_in_the_encoding_that_it_declares(tmp_path: Path, declared: str, encoding: str) -> None:
    files = one_file(tmp_path, "a.html", PAGE.format(declared).encode(encoding))
    source = Html(files=files)
    assert texts(source) == ["Caf\xe9 & bar.\n\nTwo"]
    assert source.identity()["extractor"] == [f"resiliparse {metadata.version('resiliparse')}"]


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ('<meta charset="iso-8859-1"><p>“Quoted”'.encode("cp1252"), "“Quoted”"),
        ('<meta http-equiv="Content-Type" content="text/html; charset=gb2312"><p>朱镕基'.encode("gbk"), "朱镕基"),
        ('<meta charset="shift_jis"><p>①～'.encode("cp932"), "①～"),
        ('<meta charset="KS_C_5601-1987"><p>똠방'.encode("cp949"), "똠방"),
        ('<?xml version="1.0" encoding="x-mac-cyrillic"?><p>Да'.encode("mac-cyrillic"), "Да"),
        ('<meta charset="hz-gb-2312"><p>中文'.encode("hz"), "中文"),  # browsers refuse it
        ('<!-- <meta charset="koi8-r"> --><meta charset="big5"><p>中文'.encode("big5"), "中文"),
        (b'<meta charset="utf-16"><p>ASCII', "ASCII"),
        (b"<p>a&nbsp;b&eacute;&hellip;&#x2014; &unknown;", "a\xa0bé…— &unknown;"),
        (
            b"""<?xml version="1.0"?><!-- <!DOCTYPE no --><!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.1//EN" "a.dtd" [
            <!-- don't: <!ENTITY a "wrong"> --><!ENTITY a 'A > "b"]'><!ENTITY lt "&#38;#60;"><!ENTITY amp "no"><!ENTITY % p "p">
            <!ENTITY both "&a; &amp; &later;"><!ENTITY a "second"><!ENTITY later "L"> ]><html><p>&both;, &lt;<![CDATA[&a;]]>&c;""",
            'A > "b"] & &later;, <&a;&c;',
        ),
        ('<script>var encoding="koi8-r"</script><p>Café'.encode(), "Café"),
        ("\ufeff<p>Café".encode(), "Café"),
        ("\ufeff<p>Café".encode("utf-16-le"), "Café"),
        (b'<form id="aspnetForm"><p>A page</form>', "A page"),
        (b"<script>//<![CDATA[\nno()\n//]]></script><p>a<![CDATA[ < b/> & ]]>c<p><![CDATA[<p>d", "a < b/> & c\n\nd"),
    ],
)
def test_a_page_is_read_as_browsers_read_it(tmp_path: Path, page: bytes, text: str) -> None:
    documents, context = read(Html(files=one_file(tmp_path, "a.html", page)))
    assert [document.text for document in documents] == [text]
    assert not context.report.dropped
    assert not context.report.facts


@pytest.mark.parametrize(
    "page",
    [
        "<p>text<p><" + "a" * 50_000,
        "<p>text<p>" + "<![CDATA[" * 20_000,
        "<!DOCTYPE html [" + "<!-- ] '<" * 20_000,
        "<!DOCTYPE html [" + "<!--" * 90_000,
        "<!DOCTYPE html [" + '"<!--"' * 90_000 + "]>",
        "<!--" * 20_000,
    ],
)
def test_a_page_of_what_never_ends_is_read_at_once(tmp_path: Path, page: str) -> None:
    files = one_file(tmp_path, "a.html", page.encode())
    before = time.process_time()
    texts(Html(files=files))
    assert time.process_time() - before < 5


def test_pages_begin_at_every_place_and_those_without_text_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("niels_cache_assets.sources.reading.rows.BATCH_DOCUMENTS", 2)
    for number in range(9):
        (tmp_path / f"{number}.html").write_text(f"<p>page {number}" if number != 4 else "<nav>menu</nav>")
    source = Html(files=[str(tmp_path)])
    documents, context = read(source)
    assert [document.file for document in documents] == [f"{number}.html" for number in range(9) if number != 4]
    assert context.report.dropped == {"empty": 1}
    require_every_place_is_exact(source, at_least=3)


def test_a_page_that_is_nested_deeply_takes_no_longer_than_others(tmp_path: Path) -> None:
    files = one_file(tmp_path, "a.html", b"<div>" * 200_000 + b"deep")
    before = time.process_time()
    assert texts(Html(files=files)) == ["deep"]
    assert time.process_time() - before < 20


def test_a_book_is_one_document_in_the_order_of_its_spine(tmp_path: Path) -> None:
    files = one_file(
        tmp_path, "a.epub", book({"one": "First<br/>line", "two": "<aside>Second</aside>", "three": ""}, ["two", "one", "three"])
    )
    assert texts(Epub(files=files)) == ["Second\n\nFirst\nline"]
    fonts = one_file(tmp_path, "b.epub", book({"one": "Text"}, encryption=ENCRYPTED.format("OPS/font.otf")))
    assert texts(Epub(files=fonts)) == ["Text"]


def test_the_spine_of_a_book_may_name_pictures_and_items_that_are_not_there(tmp_path: Path) -> None:
    pictures = {
        "cover": '<item id="cover" href="a.jpg" media-type="image/jpeg"/>',
        "plate": '<item id="plate" href="b.jpg" media-type="image/jpeg" fallback="two"/>',
        "circle": '<item id="circle" href="c.jpg" media-type="image/jpeg" fallback="circle"/>',
    }
    pages = {"one": "One <![CDATA[a < b]]>", "two": "Two"}
    files = one_file(tmp_path, "a.epub", book(pages, [*pictures, "one"], items="".join(pictures.values())))
    assert texts(Epub(files=files)) == ["Two\n\nOne a < b"]
    files = one_file(tmp_path, "b.epub", book(pages, ["one", "none", "two"]))
    with pytest.raises(NielsCacheError, match=r"b\.epub.*none"):
        texts(Epub(files=files))
    documents, context = read(Epub(files=files, keep_damaged=True))
    assert [document.text for document in documents] == ["One a < b\n\nTwo"]
    assert context.report.dropped["damaged_file"] == 1


def test_a_book_that_cannot_be_read_is_one_line_or_is_left_out(tmp_path: Path) -> None:
    whole = book({"one": "Text"})
    broken = {
        "drm.epub": (book({"one": "Text"}, encryption=ENCRYPTED.format("OPS/text/one.xhtml")), "DRM"),
        "cut.epub": (whole[:-40], "damaged"),
        "flip.epub": (whole.replace(b"OPS/book.opf", b"OPS/bo0k.opf"), "damaged"),
        "spine.epub": (book({"one": "Text"}, ["none"]), "damaged"),
        "text.epub": (b"plain text", "not an EPUB"),
    }
    for name, (content, word) in broken.items():
        files = one_file(tmp_path, name, content)
        with pytest.raises(NielsCacheError, match=f"^{name}: .*{word}[^\n]*$"):
            texts(Epub(files=files))
        documents, context = read(Epub(files=[*files, *one_file(tmp_path, "whole.epub", whole)], keep_damaged=True))
        assert [document.text for document in documents] == ["Text"]
        assert context.report.dropped["damaged_file"] == 1


@pytest.mark.parametrize("order", [1, -1])
def test_entities_that_would_fill_the_memory_end_at_the_limit_of_a_document(tmp_path: Path, order: int) -> None:
    names = "abcdefghi"
    declared = [f'<!ENTITY {name} "{f"&{before};" * 10}">' for before, name in pairwise(names)]
    page = f'<!DOCTYPE html [<!ENTITY a "{"x" * 100}">{"".join(declared[::order])}]><p>&i;'
    source = Html(files=one_file(tmp_path, "a.html", page.encode()), max_document_mib=1)
    if order == -1:  # an entity may name only those before it
        assert len(texts(source)[0]) < 100
        return
    with pytest.raises(NielsCacheError, match=r"a\.html.*entities.*1 MiB.*max_document_mib"):
        texts(source)


def test_the_package_of_a_book_may_name_entities_without_declaring_them(tmp_path: Path) -> None:
    item = '<item id="caf&eacute;" href="text/two.xhtml" media-type="application/xhtml+xml" title="a&nbsp;b &amp; c"/>'
    files = one_file(tmp_path, "a.epub", book({"two": "Two &mdash;"}, ["café"], items=item))
    assert texts(Epub(files=files)) == ["Two —"]
    with pytest.raises(NielsCacheError, match=r"a\.epub.*undefined entity"):
        texts(Epub(files=one_file(tmp_path, "a.epub", book({"two": "Two"}, items=item.replace("nbsp", "none")))))


def test_a_zip_bomb_ends_at_the_limit_of_a_document(tmp_path: Path) -> None:
    content = book({f"p{number}": "a" * 600_000 for number in range(2)})
    assert len(content) < 10_000
    with pytest.raises(NielsCacheError, match=r"unpacked book.*1 MiB.*max_document_mib"):
        texts(Epub(files=one_file(tmp_path, "a.epub", content), max_document_mib=1))
