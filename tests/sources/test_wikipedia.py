"""Wikipedia from dumps and from the hub; damaged files of every kind of lines; wikitext to text."""

import os
import re
from collections.abc import Iterable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from niels_cache_assets.base.documents import Document
from niels_cache_assets.cleaning.settings import CleaningSettings
from niels_cache_assets.project.registry import load_registry
from niels_cache_assets.sources.jsonl import Jsonl
from niels_cache_assets.sources.reading.compressed import DamagedFileError
from niels_cache_assets.sources.text import Text
from niels_cache_cleaning.chain import Cleaner
from niels_cache_corpora.wikipedia import markup as wikipedia_markup
from niels_cache_corpora.wikipedia.source import Wikipedia
from niels_cache_runtime.errors import NielsCacheError
from tests.helpers.builds import prepare_corpus
from tests.helpers.corpora import articles
from tests.helpers.depth import cases
from tests.helpers.hub_repositories import json_lines
from tests.helpers.read_sources import COMPRESS, one_file, read
from tests.helpers.wiki_text import plain_text

HEADER = '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11"><siteinfo><sitename>W</sitename></siteinfo>\n'
DATA = Path(os.environ.get("NIELS_CACHE_REAL_DATA", "/nonexistent"))


def page(number: int, text: str | None, *, namespace: int = 0, redirect: bool = False, model: str = "wikitext") -> str:
    """A page as MediaWiki writes it; `text` None leaves the element empty, as of a deleted revision."""
    body = '<text deleted="deleted" />' if text is None else f'<text xml:space="preserve">{escape(text)}</text>'
    pointer = '<redirect title="Elsewhere" />' if redirect else ""
    return (
        f"<page><title>Title &amp; {number}</title><ns>{namespace}</ns><id>{100 + number}</id>{pointer}<revision><id>7</id>"
        f"<contributor><username>u</username><id>9</id></contributor><model>{model}</model>{body}</revision></page>\n"
    )


def dump(pages: Iterable[str]) -> bytes:
    return (HEADER + "".join(pages) + "</mediawiki>\n").encode()


@lru_cache(maxsize=1000)
def noise(seed: int, words: int = 400) -> str:
    """Text that does not compress to nothing, so that half of a file holds about half of its lines."""
    letters = torch.randint(26, (words, 6), generator=torch.Generator().manual_seed(seed))
    return " ".join("".join(chr(97 + letter) for letter in word) for word in letters.tolist())


@pytest.mark.parametrize("name", ["w.xml", "w.xml-p1p41242.bz2", "W.XML.GZ"])
def test_the_articles_of_a_dump_are_read_whatever_its_compression(tmp_path: Path, name: str) -> None:
    pages = [page(0, "An '''[[oak|Oak]]''' & < more."), page(1, "Talk.", namespace=1), page(2, "#REDIRECT [[Oak]]", redirect=True)]
    pages += [page(3, None), page(4, "  \n"), page(5, "a {", model="json"), page(6, "{{Stub}}"), page(7, "Elms.")]
    suffix = next(suffix for suffix in (".gz", ".bz2", ".zst", "") if name.lower().endswith(suffix))
    documents, context = read(Wikipedia(files=one_file(tmp_path, name, COMPRESS.get(suffix, bytes)(dump(pages)))))
    assert [(one.text, one.title, one.source_id, one.file, one.row) for one in documents] == [
        ("An Oak & < more.", "Title & 0", "100", name, 0),
        ("Elms.", "Title & 7", "107", name, 7),
    ]
    assert context.report.dropped == {"other_namespace": 1, "null_text": 1, "empty": 2, "other_content_model": 1}


@pytest.mark.parametrize("prepare", [(), ("clean",)])
def test_redirects_are_facts_and_not_documents_even_without_their_element(tmp_path: Path, prepare: tuple[str, ...]) -> None:
    texts = ["#REDIRECT [[Oak]]", "#Weiterleitung: [[Oak]]", "\n#перенаправление [[Oak]]", "#転送[[Oak]]", "#one [[oak]]\n#two", "Oaks."]
    pages = [page(9, "A pointer.", redirect=True), *(page(number, text) for number, text in enumerate(texts))]
    files = one_file(tmp_path, "w.xml", dump(pages))
    documents, context = read(Wikipedia(files=files, prepare=prepare))
    assert [document.text for document in documents] == ["- one oak\n- two", "Oaks."]
    assert context.report.dropped == {}
    assert context.report.facts["redirects"] == 5


def test_of_a_page_with_a_history_the_last_revision_counts(tmp_path: Path) -> None:
    revisions = "".join(f"<revision><id>{number}</id><text>Version {number}.</text></revision>" for number in range(3))
    files = one_file(tmp_path, "w.xml", dump([f"<page><title>T</title><ns>0</ns><id>5</id>{revisions}</page>"]))
    assert [(one.text, one.source_id) for one in read(Wikipedia(files=files))[0]] == [("Version 2.", "5")]


def test_a_file_that_is_no_dump_is_named_with_the_sources_that_read_it(tmp_path: Path) -> None:
    files = one_file(tmp_path, "wiki_00.jsonl", json_lines([{"id": "12", "title": "Oak", "text": "Oaks."}]))
    source = Wikipedia(files=files)
    for read_source in (lambda: source.check_input({}), lambda: read(source)):
        with pytest.raises(NielsCacheError, match=r"wiki_00\.jsonl: .*\.xml.*jsonl"):
            read_source()
    (document,), _ = read(Jsonl(files=files))
    assert (document.text, document.title, document.source_id) == ("Oaks.", "Oak", "12")


def test_files_and_a_hub_data_set_together_or_no_files_at_all_are_refused() -> None:
    with pytest.raises(ValueError, match="files or dataset"):
        Wikipedia(files=["a.xml"], dataset="wikimedia/wikipedia")
    with pytest.raises(ValueError, match="at least 1 item"):
        Wikipedia(files=[])


@pytest.mark.parametrize(
    ("kind", "suffix", "harm"),
    [
        *(("jsonl", suffix, "cut") for suffix in COMPRESS),
        ("dump", ".bz2", "cut"),
        ("text", ".gz", "cut"),
        ("dump", ".bz2", "overwritten"),  # other overwritten bytes may be found only by the checksum, after the data were read
    ],
)
def test_a_damaged_tail_fails_or_is_left_out_and_counted(tmp_path: Path, kind: str, suffix: str, harm: str) -> None:
    texts = [noise(number, words=700) for number in range(60)]
    whole, source = {
        "dump": (dump(page(number, text) for number, text in enumerate(texts)), Wikipedia),
        "text": ("\n".join(texts).encode(), partial(Text, sample_by="line")),
        "jsonl": (json_lines([{"text": text} for text in texts]), Jsonl),
    }[kind]
    content = COMPRESS[suffix](whole)
    middle = len(content) * 9 // 10
    content = content[:middle] if harm == "cut" else content[:middle] + b"\0" * 2000 + content[middle + 2000 :]
    files = one_file(tmp_path, f"w.xml{suffix}", content)
    with pytest.raises(DamagedFileError, match=rf"w\.xml{re.escape(suffix)}: .*byte \d+"):
        read(source(files=files))
    messages: list[str] = []
    documents, context = read(source(files=files, keep_damaged=True), log=messages.append)
    kept = [document.text for document in documents]
    assert kept[:-1] == texts[: len(kept) - 1]
    assert texts[len(kept) - 1].startswith(kept[-1])  # of plain text the last line may be a part
    assert 5 < len(kept) < len(texts), "what came before is kept"
    assert context.report.dropped["damaged_file"] == 1
    assert len(messages) == 1


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (dump([page(0, "Oaks."), page(1, "Elms.")])[:-30], "near byte .*</mediawiki>"),
        (dump([page(0, "Oaks."), "<page></title>"]), "near byte .*mismatched tag"),
        (dump([page(0, "Oaks."), "<page><title>&#xD800;</title></page>"]), "near byte .*invalid character"),
    ],
)
def test_a_dump_that_is_no_whole_xml_is_named_with_the_place(tmp_path: Path, content: bytes, problem: str) -> None:
    files = one_file(tmp_path, "w.xml", content)
    with pytest.raises(NielsCacheError, match=rf"w\.xml: .*{problem}"):
        read(Wikipedia(files=files))
    documents, context = read(Wikipedia(files=files, keep_damaged=True))
    assert documents[0].text == "Oaks."
    assert context.report.dropped == {"damaged_file": 1}


@pytest.mark.parametrize("content", [b"<html><body/></html>", b'<!DOCTYPE a [<!ENTITY b "c">]><mediawiki/>'])
def test_other_xml_is_refused_even_where_damage_is_kept(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(NielsCacheError, match=r"w\.xml: .*MediaWiki.*pages-articles\.xml"):
        read(Wikipedia(files=one_file(tmp_path, "w.xml", content), keep_damaged=True))


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        ("'''''Bold''''' l'''Anarchie''' it''s'' x''''y'''", "Bold lAnarchie its x'y"),
        ("[[A b]], [[A b|c]], [[:Category:D]], [[#Part|see]], [[E|]]s", "A b, c, Category:D, see, s"),
        ("a [[two\nlines]] b", "a two lines b"),
        ("[http://x.org a label] and [http://x.org] and http://y.org.", "a label and and http://y.org."),
        ("x[[File:a.png|thumb|A [[link]] and {{t}}<ref>r</ref>]]y [[Category:Z]]\n[[de:Eiche]] [[simple:Oak]]", "xy"),
        ("[[de:Eiche]], [[wp:Manual]], [[it: the film]]\n[[xx:Unknown]]", "de:Eiche, wp:Manual, it: the film\nxx:Unknown"),
        ("[[media:x.ogg|listen]], [[Media:x.ogg]]", "listen,"),
        ("[http://x foo [bar]] [x] [[A|b [//y c]]] a[1]", "foo [bar] [x] b c a[1]"),
        ("f() and print( x , y ) (), ({{IPA|x}}), (<ref>r</ref>; from {{x}}) , z", "f() and print( x , y ) (), (from) , z"),
        ("__FILE__ and __INIT__ __NOINDEX__", "__FILE__ and __INIT__"),
        ("vector<int> map<K,V> <T> <b>x</b> <stdio.h>", "vector<int> map<K,V> <T> x <stdio.h>"),
        ("---- after\n|x| is\n! and\n{|\n|row\n|}\n|y|", "after\n|x| is\n! and\n\n|y|"),
        ("{{Infobox\n| name = never closed\n== H ==\n|x|", "Infobox\n\nH\n\n|x|"),
        ("a {{{{x}}}} {{{{{x}}}}} b {{{x|y}}}", "a b"),
        ("{<b>{a [<i>[a [{{nowrap|[}}b", "{{a [[a [[b"),
        ("x<ref name=a>{{cite|a}} b</ref> y<ref name=a />, z<REF>\nc</Ref>.", "x y, z."),
        ("a<!-- [[x {{ -->b <!-- never closed", "ab never closed"),
        ("{{Infobox|a={{b|{{{c|d}}}}}|e=[[f]]}}Oak ({{IPA|x}}; from {{lang|la|quercus}})", "Oak (from quercus)"),
        ("5 {{nowrap|a [[b|c]]}} {{convert|5|-|10|km}} {{convert|7|mi|km|abbr=on}} {{transl|ru|Moskva}}", "5 a c 5–10 km 7 mi Moskva"),
        ("before\n{| class=a\n! h\n|-\n| a || {{b|}}\n{|\n| inner\n|}\n|}\nafter", "before\n\nafter"),
        ("before\n{| class=a\n|-\n| never closed\nafter", "before\nclass=a\n\nafter"),
        ("<table><tr><td>x</td></tr></table>y", "y"),
        ("* a\n** b\n# c\n; t\n: d\n----\n*", "- a\n  - b\n- c\nt\nd"),
        ("== H ==\n=== I ===\nx\n== Empty ==\n\n=== Deeper ===\n{{reflist}}\n==J==\ny", "H\n\nI\n\nx\n\nJ\n\ny"),
        ("a &amp; &lt;b&gt; &eacute;&#233;&nbsp;x &#xD800;&#0;&#2;&#x110000; &unknown;", None),
        ("<math>\\frac{{a}}{b}</math> for <code>x = y</code> <nowiki>[[raw]]</nowiki>", "$\\frac{ {a} }{b}$ for x = y [[raw]]"),
        ("a<br>b<br />c<div class='x'>d</div>CO<sub>2</sub> 1 < 2 <x", "a\nb\nc\nd\nCO2 1 < 2 <x"),
        ("__NOTOC__\nx\n\n\n\ny\r\nz", "x\n\ny\nz"),
        ("{{ open\n\n[[link and }} ]] end", "end"),
        ("nul\x00, mark \x020\x02 \x03\x04\x05\x06\x07\x08\x0e", "nul, mark 0"),
        ("", ""),
    ],
)
def test_wikitext_becomes_text(wikitext: str, text: str | None) -> None:
    made = plain_text(wikitext)
    if text is not None:
        assert made == text
    made.encode()
    assert not any(character in made for character in "\x00\x02\x03\x04\x05\x06\x07\x08\x0e\x0f")


@pytest.mark.parametrize(
    ("wikitext", "text"),
    [
        ("10<sup>6</sup> 10<sup>-7</sup> ''x''<sup>2</sup> 2<sup>''n''</sup>", "10^6 10^-7 x^2 2^n"),
        ("1<sup>st</sup> Ca<sup>2+</sup> CO<sub>2</sub> 6–7<sup>(2–7)</sup>", "1st Ca2+ CO2 6–7(2–7)"),
        (
            "He said {{quote|One [[a|two]].\n\nThree, {{lang|la|quattuor}}.|Cato|''Works''}} so.",
            "He said\n\nOne two.\n\nThree, quattuor.\n\n— Cato, Works\n\nso.",
        ),
        ("{{cquote|a|50px|50px|B|C}}", "a\n\n— B, C"),
        ("{{blockquote|text=" + "word " * 500 + "}}", ("word " * 500).strip()),
        ("{{chem|C|''n''|H|2''n''+2}} {{chem2|H2O}} {{angbr|a}} {{angbr|{{IPA|x}}}}", "CnH2n+2 H2O ⟨a⟩"),
        (
            "{{HMS|Ajax|22|6}} {{USS|Hornet|CV-12}} {{ship|RMS|Titanic}} {{sclass|Nimitz|carrier}}",
            "HMS Ajax USS Hornet RMS Titanic Nimitz-class carrier",
        ),
        ("{{keypress|Ctrl|[[C]]}} {{val|5|u=m}} {{val|1.2|0.1|e=3}} {{val|1.00794|(7)}}", "Ctrl+C 5 m 1.2±0.1×10^3 1.00794(7)"),
        ("{{as of|2014|5|lc=y}}, {{As of|2010|1|2}}; {{As of|2010|alt=in 2010}}", "as of May 2014, As of 2 January 2010; in 2010"),
        ("24{{nbsp}}August{{mdash}}x{{spaced ndash}}y{{ndash}}z ''A''{{'}}s ''B''{{'s}}", "24 August—x – y–z A's B's"),
        ("({{lang-la|{{big|Opus}}}}) {{rtl-lang|ar|x}} ({{IPA-el|x}}) {{script|Copt|y}}", "(Opus) x y"),
        (
            "{{convert|5|ft|6|in}} {{convert|5|ft|6|in|m|2}} {{convert|100|sqmi|km2|0}} {{convert|3|x|4|m}}",
            "5 ft 6 in 5 ft 6 in 100 sq mi 3 × 4 m",
        ),
        ("({{frac|3}}) 1{{sfrac|1|4}} {{frac|2|3|4}} 5.9{{e|24}} 10{{sup|6}}", "(1/3) 1 1/4 2 3/4 5.9×10^24 10^6"),
        ("${{formatnum:3003}} {{circa|1900}} {{lang|la|1=a=b}} {{age|1969|7|20}}x", "$3003 c. 1900 a=b x"),
        ("{{math|E {{=}} mc<sup>2</sup>}} ~ {{math|{{nowrap|1=a=b}} c}} ~ {{=}}", "E = mc2 ~ a=b c ~ ="),
        ("{{langx|de|Eiche|lit=oak}} ~ {{lang-de|Eiche}} ~ {{wikt-lang|en|oak}}", "Eiche ~ Eiche ~ oak"),
        ("{{nihongo|Tokyo|東京|Tōkyō|capital}} ~ {{nihongo|Oak||Ōku}} ~ {{nihongo|Oak}}", "Tokyo (東京, Tōkyō, capital) ~ Oak (Ōku) ~ Oak"),
        ("{{nihongo3|capital|東京|Tōkyō}} ~ {{nihongo2|東京}}", "Tōkyō (東京, capital) ~ 東京"),
        ("{{zh|s=汉|t=漢|p=hàn}} ~ {{zh|c=京|labels=no}}", "simplified Chinese: 汉; traditional Chinese: 漢; pinyin: hàn ~ 京"),
        ("{{korean|hangul=서울|rr=Seoul}}", "Korean: 서울; RR: Seoul"),
        ("{{IAST|ātman}} ~ {{linktext|兼|六|園}} ~ {{script/Hebrew|אל}} ~ {{unicode|ǣ}}", "ātman ~ 兼六園 ~ אל ~ ǣ"),
        ("{{lit|big oak}} ~ {{gloss|oak}}", "lit. 'big oak' ~ 'oak'"),
        (
            "{{fl.|1200|1210}} ~ {{reign|1066|1087}} ~ {{circa|1900|1910}} ~ {{born|1900}}",
            "fl. 1200–1210 ~ r. 1066–1087 ~ c. 1900 – c. 1910 ~ b. 1900",
        ),
        ("2{{pi}}r ~ {{sqrt|2}} ~ {{radic|x + 1|3}} ~ {{overline|AB}} ~ {{prime|x}}", "2πr ~ √2 ~ 3√(x + 1) ~ AB ~ x′"),
        ("{{tmath|1=a^2 = b}} ~ {{abs|x}} ~ {{floor|x}}", "$a^2 = b$ ~ |x| ~ ⌊x⌋"),
        ("{{£|5}} ~ {{¥|5}} ~ {{INR|5}} ~ {{euro|5}} ~ {{US$|5}} ~ {{A$|5}} ~ {{pound sterling}}5", "£5 ~ ¥5 ~ ₹5 ~ €5 ~ US$5 ~ A$5 ~ £5"),
        ("{{ordinal|1}} {{ordinal|2}} {{ordinal|3}} {{ordinal|11}} {{ordinal|24}}", "1st 2nd 3rd 11th 24th"),
        ("{{birth date|1950|1|02}} ~ {{bda|1950|1|2|df=y}} ~ {{start date|1950|3}}", "January 2, 1950 ~ 2 January 1950 ~ March 1950"),
        ("{{sortname|Jane|Oak}} ~ {{height|ft=6|in=1}} ~ {{height|m=1.85}} ~ Hawai{{okina}}i", "Jane Oak ~ 6 ft 1 in ~ 1.85 m ~ Hawaiʻi"),
        ("{{ubl|a|[[b]]}} ~ {{plainlist|\n* a\n* b\n}} ~ {{hlist|a|b}} ~ {{flatlist|\n* a\n* b}}", "a, b ~ a, b ~ a, b ~ a, b"),
        ("{{poem|One\ntwo}}", "One\ntwo"),
        ("{{USA}} ~ {{FRA}} ~ {{flag|Peru}} ~ {{flagicon|Peru}}x", "United States ~ France ~ Peru ~ x"),
        ("{{citation needed span|text=Oaks grow.|date=May}} ~ {{interp|sic}}", "Oaks grow. ~ [sic]"),
        ("{{unknown|x}}a {{usa|x}}b {{pi|x}} {{ordinal|}}c", "a b π c"),
    ],
)
def test_templates_that_are_prose_show_their_text(wikitext: str, text: str) -> None:
    assert plain_text(wikitext) == text


def test_a_month_of_thousands_of_digits_ends_no_build() -> None:
    number = "1" * 5_000
    assert number in plain_text(f"{{{{as of|2020|{number}}}}} oak")
    assert number in plain_text(f"{{{{birth date|2000|{number}|3}}}} oak")


def test_end_matter_and_sections_that_only_list_names_are_left_out() -> None:
    wikitext = """An article.
* One, which belongs to it.
== Life ==
It was long.
=== See also ===
* [[B]]
=== Works ===
* ''C''
** ''D''
=== Views ===
* "That a list of what somebody said in whole sentences, at some length, is prose as well, and stays where it was."
== Notes and references ==
Some words.
=== Works cited ===
* E
== Notes on life ==
More.
== External links ==
* F
[[Category:G]]"""
    sections = plain_text(wikitext).split("\n\n")
    assert [section[:5] for section in sections] == ["An ar", "Life", "It wa", "Views", '- "Th', "Notes", "More."]


WORDS = st.sampled_from(["oak ", "elm", "\n", "\n\n", "|", "=", " ", "a=b"])


def test_a_tag_ends_at_its_own_closing_tag_only() -> None:
    assert plain_text("Oaks<ref>a book</references> or</ref> grow.") == "Oaks grow."
    assert plain_text("In <ce>H2O</center> + x</ce> oaks grow.") == "In $H2O</center> + x$ oaks grow."
    assert plain_text("Oaks<REF>a book</Ref > grow.") == "Oaks grow."
    assert plain_text("Oaks<ref>a book</ref") == "Oaks"


MARKED_LINKS = [" ", "|", "\x05d\x06", "\x05 e \x06", "\x05f#g|h\x06", "\x05i|\x06", "\x05j", "\x05", "\x06", "\x02", "\x03"]
LINE_PIECES = st.sampled_from([*MARKED_LINKS, *list("ab]}'&;=!*:-_é東"), "&amp;", "&nbsp;", "&foo;", "#65;", "//", "http://x.y"])


@cases(300)
@given(st.lists(LINE_PIECES, max_size=14).map("".join))
@example("&amp\x05i|\x06;")  # no entity, because of the link in it
def test_plain_links_and_entities_give_without_the_parser_what_it_gives(line: str) -> None:
    shown = wikipedia_markup.simple_text(line)
    parsed = wikipedia_markup.nodes_text(line.replace("\x05", "[[").replace("\x06", "]]"))
    shown, parsed = (None if text is None else re.sub(r"\[\[|\]\]", "", text) for text in (shown, parsed))
    assert shown in (None, parsed)


HOSTILE = """{{ [[ < {{a| <b> <ref> <ref~name= {|; <table> [http://a~ [[a| <!-- <nowiki> {{{ }} ]] ''' & ( ~ = ==a==; *~ {{lang|de|
{{[[<ref> <a~href=' http:// <math> -{ [[File: |};{|;"""  # ~ is a blank, ; a new line


@pytest.mark.parametrize("unit", HOSTILE.split())
def test_hostile_pages_cost_the_parser_no_more_than_their_length(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scan is linear by design (bounded repeats, a bounded stack). This test counts the text that the parser gets."""
    given_to_parser = []
    parse = wikipedia_markup._parse

    def counting(text: str) -> Any:
        given_to_parser.append(len(text))
        assert "{{" not in text
        assert text.count("[[") == text.count("]]"), "only what closes"
        return parse(text)

    monkeypatch.setattr(wikipedia_markup, "_parse", counting)
    hostile = (unit.replace("~", " ").replace(";", "\n") * 30_000)[:60_000]
    made = plain_text(hostile)
    assert sum(given_to_parser) <= len(hostile)
    assert len(made) <= len(hostile)


def test_a_line_that_is_a_book_is_parsed_in_parts_without_a_trace() -> None:
    made = plain_text("Some [[oak tree|oak]]s grow. " * 6_000)
    assert made.count("oaks grow.") >= 5_990
    assert "[[" not in made
    assert "]]" not in made


def test_deep_nesting_is_bounded() -> None:
    deep = plain_text("{{a|" * 20_000 + "inner" + "}}" * 20_000 + " outer")
    assert deep.endswith("outer")
    assert "{{" not in deep
    assert plain_text("{{a|" * 30 + "inner" + "}}" * 30 + " outer") == "outer"


@pytest.mark.real_data
@pytest.mark.skipif("NIELS_CACHE_REAL_DATA" not in os.environ, reason="NIELS_CACHE_REAL_DATA does not name the folder of real samples")
def test_the_text_of_a_real_dump_holds_what_wikiextractor_made_of_it() -> None:
    extracted, _ = read(Jsonl(files=[str(DATA / "wikipedia/*.jsonl")]))
    articles, context = read(Wikipedia(files=[str(DATA / "wikipedia/*.xml.bz2")]))
    assert (context.report.dropped, context.report.facts["redirects"]) == ({}, 84)
    assert [document.title for document in articles] == [document.title for document in extracted]
    assert len(articles) == 63
    cleaner = Cleaner(CleaningSettings())
    differ = {}
    shares = []
    for ours, theirs in zip(articles, extracted, strict=True):
        assert not re.search(r"\{\{|\}\}|\[\[|\]\]|'''|</?(?:ref|div|span|small|br)\b|^\||^=+.*=+$", ours.text, re.MULTILINE), ours.title
        reasons = [getattr(cleaner.clean(document), "reason", None) for document in (ours, theirs)]
        if reasons[0] != reasons[1]:
            differ[ours.title] = reasons
        if reasons[0] == "disambiguation":  # lists of names, which go
            continue
        words = set(re.findall(r"\w+", theirs.text))
        shares.append(len(words & set(re.findall(r"\w+", ours.text))) / len(words))
    assert differ == {}, "articles with prose stay, although theirs has lost all lists"
    kept = {document.title for document in articles if isinstance(cleaner.clean(document), Document)}
    # More than half of their lines are items among sentences: a tree of languages, activities.
    names = ("Austroasiatic languages", "American National Standards Institute")
    assert kept.issuperset(names)
    assert len(shares) > 55
    assert min(shares) > 0.94  # of mathematics: theirs numbers the formulas that ours holds
    assert sorted(shares)[6] > 0.99


LIST_ONLY = "== Mills ==\n" + "".join(f"* [[Mill {number}]]\n" for number in range(40)) + "== References ==\n* a book\n"


def test_an_article_of_lists_is_a_list_page_with_an_example(tmp_path: Path) -> None:
    pages = {"Mills": LIST_ONLY, "Templates": "{{only|a template}}", "Prose": "\n\n".join(articles(4))}
    body = "".join(
        f"<page><title>{title}</title><ns>0</ns><id>{number}</id><revision><text>{escape(text)}</text></revision></page>"
        for number, (title, text) in enumerate(pages.items())
    )
    (tmp_path / "pages.xml").write_text(f"<mediawiki>{body}</mediawiki>")
    assert plain_text(LIST_ONLY) == ""
    source = Wikipedia(files=[str(tmp_path / "pages.xml")])
    documents, context = read(source)
    assert [document.title for document in documents] == ["Prose"]
    assert context.report.dropped == {"list_page": 1, "empty": 1}
    table = 'source = "wikipedia"\nfiles = ["pages.xml"]\nprepare = ["clean"]\n'
    (tmp_path / "niels_cache.toml").write_text(f'[cleaning]\nskip = ["not_english", "language_error"]\n[pretrain.wiki]\n{table}')
    meta = prepare_corpus(load_registry(config=str(tmp_path / "niels_cache.toml")), "wiki", root=tmp_path / "cache", processes=1).meta
    assert meta["dropped_by_source"] == {"list_page": 1, "empty": 1}
    rejected = pq.read_table(tmp_path / "cache" / "corpus" / "wiki" / "rejected.parquet").to_pylist()
    assert [(row["reason"], row["title"]) for row in rejected] == [("list_page", "Mills")]
    assert rejected[0]["excerpt"].startswith("- Mill 0\n- Mill 1")
