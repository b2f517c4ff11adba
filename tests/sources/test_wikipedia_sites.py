"""Dumps of other wikis: what <siteinfo> names, words of redirects and end matter by language; headings and titles as Markdown."""

import bz2
import pickle
from collections.abc import Callable
from pathlib import Path
from xml.sax.saxutils import escape

import pytest

from niels_cache_assets.base.documents import Document
from niels_cache_assets.sources.reading.files import find_files
from niels_cache_assets.sources.types import StreamContext
from niels_cache_corpora.wikipedia.dump import read_site
from niels_cache_corpora.wikipedia.languages import END_MATTER_OF, REDIRECT_WORDS
from niels_cache_corpora.wikipedia.markup import Form
from niels_cache_corpora.wikipedia.site import NO_SITE, Site
from niels_cache_corpora.wikipedia.source import Wikipedia
from tests.helpers.read_sources import read
from tests.helpers.wiki_text import plain_text

XMLNS = "http://www.mediawiki.org/xml/export-0.11/"
# Language, and its namespaces of media, talk, files, templates and categories.
WIKIS = {
    "de": ("Medium", "Diskussion", "Datei", "Vorlage", "Kategorie"),
    "vi": ("Phương tiện", "Thảo luận", "Tập tin", "Bản mẫu", "Thể loại"),
    "cy": ("Media", "Sgwrs", "Delwedd", "Nodyn", "Categori"),
    "sw": ("Media", "Majadiliano", "Picha", "Kigezo", "Jamii"),
}


def page(number: int, text: str, *, title: str | None = None, namespace: int | None = 0) -> str:
    """A page without <redirect/>. `namespace` None leaves <ns> out, as old dumps do."""
    ns = "" if namespace is None else f"<ns>{namespace}</ns>"
    revision = f"<revision><text>{escape(text)}</text></revision>"
    return f"<page><title>{escape(title or f'T{number}')}</title>{ns}<id>{number}</id>{revision}</page>"


def siteinfo(language: str, extra: str = "") -> str:
    names = dict(zip((-2, 1, 6, 10, 14), WIKIS[language], strict=True))
    listed = "".join(f'<namespace key="{key}" case="first-letter">{name}</namespace>' for key, name in names.items())
    return (
        f"<siteinfo><sitename>W</sitename><dbname>{language}wiki</dbname><namespaces>"
        f'<namespace key="0" case="first-letter" />{listed}{extra}</namespaces></siteinfo>'
    )


def dump(pages: list[str], head: str = "", attributes: str = "") -> bytes:
    return f'<mediawiki xmlns="{XMLNS}" {attributes}>{head}{"".join(pages)}</mediawiki>'.encode()


def files(tmp_path: Path, **contents: bytes) -> list[str]:
    for name, content in contents.items():
        (tmp_path / f"{name}.xml").write_bytes(content)
    return [str(tmp_path / "*.xml")]


@pytest.mark.parametrize("language", WIKIS)
def test_links_show_what_the_namespaces_of_the_dump_say(tmp_path: Path, language: str) -> None:
    media, _, image, template, category = WIKIS[language]
    text = (
        f"Oaks[[{image}:a.png|thumb|a picture]] [[{image.upper()} :b.png]] [[{category.replace(' ', '_')}: Oaks]]grow. "
        f"[[File:c.png]][[Category:C]] [[{media}:a.ogg|sound]] [[{media}:a.ogg]] [[{template}:Oak]]"
    )
    source = Wikipedia(files=files(tmp_path, w=dump([page(1, text)], siteinfo(language))))
    (document,), _ = read(source)
    assert document.text.split() == ["Oaks", "grow.", "sound", *f"{template}:Oak".split()]


def test_a_dump_without_siteinfo_is_read_as_before(tmp_path: Path) -> None:
    text = "Oaks [[Delwedd:a.png|text]][[Bild:a.png|text]]"
    (document,), _ = read(Wikipedia(files=files(tmp_path, w=dump([page(1, text)]))))
    assert document.text == "Oaks text"
    assert read_site(find_files([str(tmp_path / "w.xml")])[0]) is NO_SITE


@pytest.mark.parametrize("compress", [bytes, bz2.compress], ids=["plain", "bz2"])
def test_only_the_first_file_of_a_dump_needs_siteinfo_even_for_a_pass_that_resumes(
    tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    suffix = "" if compress is bytes else ".bz2"
    pages = [page(number, f"Coed {number}[[Delwedd:a.png|text]]") for number in range(300)]
    (tmp_path / f"w1.xml{suffix}").write_bytes(compress(dump(pages[:20], siteinfo("cy"))))
    (tmp_path / f"w2.xml{suffix}").write_bytes(compress(dump(pages[20:])))
    source = Wikipedia(files=[str(tmp_path / "w*")])
    documents, _ = read(source)
    assert [document.text for document in documents] == [f"Coed {number}" for number in range(300)]
    context = StreamContext(seed=1)
    stream = source.unconverted(context)
    next(stream)
    place = context.report.position
    assert place is not None
    assert place["number"] == 1
    resumed = Wikipedia(files=source.files).documents(StreamContext(seed=1, start=place))
    rest = [document.text for batch in resumed for document in batch]
    assert 0 < len(rest) < 300
    assert rest == [f"Coed {number}" for number in range(300 - len(rest), 300)]


def test_workers_learn_the_site_from_the_files_alone(tmp_path: Path) -> None:
    source = pickle.loads(pickle.dumps(Wikipedia(files=files(tmp_path, w=dump([page(1, "x")], siteinfo("cy"))))))
    document = Document("Coed [[Categori:Coed]]", file="w.xml")
    assert source.convert([document])[0][0].text == "Coed"
    (tmp_path / "w.xml").write_bytes(dump([page(1, "xyz")], siteinfo("sw")))
    assert source.convert([document])[0][0].text == "Coed Categori:Coed", "the file has changed"


@pytest.mark.parametrize(
    ("attributes", "head", "language"),
    [
        ('xml:lang="de"', "", "de"),
        ('xml:lang="zh-Hant-TW"', "<siteinfo><dbname>enwiki</dbname></siteinfo>", "zh-hant-tw"),
        ("", "<siteinfo><dbname>pt_brwiktionary</dbname></siteinfo>", "pt-br"),
        ("", "<siteinfo><dbname>x</dbname><base>https://nl.m.wikipedia.org/wiki/H</base></siteinfo>", "nl"),
        ("", "<siteinfo><dbname>oaks</dbname><base>https://oaks.example/</base></siteinfo>", ""),
    ],
)
def test_the_head_of_a_dump_names_the_language(tmp_path: Path, attributes: str, head: str, language: str) -> None:
    (pattern,) = files(tmp_path, w=dump([page(1, "x")], head, attributes))
    assert read_site(find_files([pattern])[0]).language == language


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<html/>",
        b"<mediawiki><siteinfo><dbname></base>",
        b'<!DOCTYPE a [<!ENTITY b "c">]><mediawiki><siteinfo/></mediawiki>',
        dump([page(1, "x" * (3 << 20))]),
        dump([page(1, "x")], "<siteinfo>" + "<namespaces><namespace key='x'>A</namespace></namespaces>" * 9 + "</siteinfo>"),
        bz2.compress(dump([page(1, "x")], siteinfo("de")))[:40],
    ],
)
def test_a_broken_head_names_nothing_and_is_left_to_the_reader_of_pages(tmp_path: Path, content: bytes) -> None:
    name = "w.xml.bz2" if content.startswith(b"BZh") else "w.xml"
    (tmp_path / name).write_bytes(content)
    assert read_site(find_files([str(tmp_path / name)])[0]) == NO_SITE


def test_a_head_of_a_million_namespaces_is_bounded(tmp_path: Path) -> None:
    extra = "".join(f'<namespace key="{key}">N{key}</namespace>' for key in range(100, 5000))
    (pattern,) = files(tmp_path, w=dump([page(1, "x")], siteinfo("de", extra)))
    assert len(read_site(find_files([pattern])[0]).namespaces) == 1000


def test_pages_of_an_old_dump_without_ns_get_the_namespace_of_their_title(tmp_path: Path) -> None:
    titles = ["Eiche", "Diskussion:Eiche", "Datei:Eiche.png", "Vorlage: Eiche", "template:Oak", "Category talk:Oak", "Star Trek: Picard"]
    pages = [page(number, "Text.", title=title, namespace=None) for number, title in enumerate(titles)]
    documents, context = read(Wikipedia(files=files(tmp_path, w=dump(pages, siteinfo("de")))))
    assert [document.title for document in documents] == ["Eiche", "Star Trek: Picard"]
    assert context.report.dropped == {"other_namespace": 5}
    documents, context = read(Wikipedia(files=files(tmp_path, w=dump(pages))))
    assert len(documents) == 7, "without siteinfo, as before"


def test_redirects_of_every_language_are_known_by_their_text(tmp_path: Path) -> None:
    words = sorted(REDIRECT_WORDS)
    assert len(words) > 70
    spellings = [*words, *(word.upper() for word in words), *(word.capitalize() for word in words)]
    pages = [page(number, f"#{word}{' :'[number % 2]}[[Oak]]") for number, word in enumerate(spellings)]
    documents, context = read(Wikipedia(files=files(tmp_path, w=dump([*pages, page(999, "#item [[Oak]]")]))))
    assert [document.text for document in documents] == ["- item Oak"]
    assert context.report.facts["redirects"] == len(spellings)
    assert context.report.dropped == {}


def test_a_heading_is_end_matter_only_in_its_language() -> None:
    wikitext = "Prose.\n== Noten ==\nThe notes are c, d and e, in this piece of music.\n== 参考文献 ==\nA book of some kind."
    assert plain_text(wikitext, Form(Site("nl"))).endswith("kind.")
    assert "music" not in plain_text(wikitext, Form(Site("nl")))
    assert plain_text(wikitext, Form(Site("ja"))).endswith("music.")
    assert plain_text(wikitext, Form(Site("de"))) == plain_text(wikitext)
    assert plain_text(wikitext, Form(Site("zh-hant"))).endswith("music.")
    assert plain_text("A.\n== Referansar ==\nB.", Form(Site("nn"))) == "A."


@pytest.mark.parametrize("language", END_MATTER_OF)
def test_end_matter_of_every_language_shows_no_text(language: str) -> None:
    headings = sorted(END_MATTER_OF[language])
    assert len(headings) > 2
    assert all(heading == heading.strip().lower() for heading in headings)
    page_text = "Prose.\n" + "".join(f"== {heading[0].upper()}{heading[1:]} ==\nA source, {heading}.\n" for heading in headings)
    assert plain_text(page_text, Form(Site(language))) == "Prose."


def test_headings_keep_their_level_and_the_title_is_in_front(tmp_path: Path) -> None:
    text = "Start.\n== A ==\n=== ''B'' ===\nx\n= C =\ny"
    source = files(tmp_path, w=dump([page(1, text, title="Oak & Elm"), page(2, "{{only}}")]))
    texts = {}
    for settings in ({}, {"headings": "markdown"}, {"title": True}, {"headings": "markdown", "title": True}):
        (document,), context = read(Wikipedia(files=source, **settings))
        texts[str(settings)] = document.text
        assert context.report.dropped == {"empty": 1}
    plain, marked, titled, both = texts.values()
    assert plain == "Start.\n\nA\n\nB\n\nx\n\nC\n\ny"
    assert marked == "Start.\n\n## A\n\n### B\n\nx\n\n# C\n\ny"
    assert titled == f"Oak & Elm\n\n{plain}"
    assert both == f"# Oak & Elm\n\n{marked}"


def test_levels_of_headings_are_refused_for_texts_without_markup() -> None:
    with pytest.raises(ValueError, match=r"headings.*files"):
        Wikipedia(headings="markdown")
