"""Normalizers. They convert markup, a second pass changes nothing, and the time for hostile text grows only with its length."""

import re
import unicodedata
from collections.abc import Collection

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from niels_cache_cleaning import normalizers
from niels_cache_cleaning.brackets import find_marks, match_pairs
from niels_cache_cleaning.normalizers import MARKUP_NORMALIZERS, NORMALIZERS, Normalizer, normalize

BY_NAME = dict(NORMALIZERS)
MARKS = (
    "{{~}}~{~}~{|~|}~\n{|~\n|}~[[~]]~[~]~|~<~>~<b>~</b>~<br/>~<ref>~</ref>~<!--~-->~<ref name=a />~<div class='x'>~&~;~"
    "amp;~&amp;~&lt;~&#59;~&#x26;~&#0;~&#x81;~&nbsp;~File:~:~Category:~https://~//~mailto:~=~== ~\n==~ ~  ~\t~\n~\r~"
    "\u2028~\xa0~\x00~\ud800~\ufffe~\U0001ffff~\x1f~\x85~word~a~\xe9~\u5b57~#REDIRECT~<title>~</title>~<sup>~</sup>~10~{{a~|b~"
    "{{.N}}~\n= a =~<a href='b'~<i ~</~\n{| a=b\n~[[a|"
)
PARTS = MARKS.split("~")
MARKUP = st.lists(st.sampled_from(PARTS), max_size=40).map("".join) | st.text(max_size=60)


@pytest.mark.parametrize(
    ("name", "text", "plain"),
    [
        ("unreadable", "a\0b\x1fc\ufffed\U0001fffee", "a b c d e"),
        ("unreadable", "one \ud83d half", "one \ufffd half"),
        ("unreadable", "tabs\tand\r\nline\x85ends\x0c stay", "tabs\tand\r\nline\x85ends\x0c stay"),
        ("entities", "AT&amp;T &lt;b&gt; &#8212; &#x2014; &nbsp;|", "AT&T <b> — — \xa0|"),
        ("entities", "&amp;amp;lt;", "<"),
        ("entities", "&am&#112;; " + "&" + "amp;" * 50 + "quot; &amp;unknown;", '& " &unknown;'),
        ("entities", "&notit; &unknown; & &amp R&D;", "&notit; &unknown; & &amp R&D;"),
        ("file_links", "a [[File:x.jpg|thumb|of [[b|c]] and [[d]]]] e", "a  e"),
        ("file_links", "[[category: Things]][[Image:y.png]][[:File:z]] [[Filed]]", "[[:File:z]] [[Filed]]"),
        ("templates", "a {{b|{{c|d}}|{{{1|e}}}}} f", "a  f"),
        ("templates", "{{{1}}}{{{{2}}}}{{a|{b} c}} {single} {{unclosed", " {single} {{unclosed"),
        ("templates", "{{#if:x|{{!}}}}{{Infobox <!-- c -->|a}}{{:Page}}{{'}}", ""),
        (
            "templates",
            "{{ user.name }} {{.Name}} {{1, 2}, {3, 4}} {{x}^2} {{" + "no name " * 30 + "}}",
            "{{ user.name }} {{.Name}} {{1, 2}, {3, 4}} {{x}^2} {{" + "no name " * 30 + "}}",
        ),
        ("tables", "a\n{| class=x\n| b\n {|\n| inner\n|}\n|}\nc", "a\n\nc"),
        ("tables", "a closure {|x| x + 1|} stays\n{|y| y\n|}", "a closure {|x| x + 1|} stays\n{|y| y\n|}"),
        ("tags", "H<sub>2</sub>O<br />next <td>cell", "H2O\nnext  cell"),
        ("tags", "fact<ref name='a'>Source <i>b</i></ref><ref name=\"c/d\" />. <!-- not <b> this -->End", "fact. End"),
        (
            "tags",
            "#include <stdio.h> if a < b and c > d <a@b.org> List<String>",
            "#include <stdio.h> if a < b and c > d <a@b.org> List<String>",
        ),
        (
            "tags",
            "x<b && y>c, for (i=0;i <p ;i++) y > 3, a <b is small ... c> d, cp <source> <title line>, List<A>",
            "x<b && y>c, for (i=0;i <p ;i++) y > 3, a <b is small ... c> d, cp <source> <title line>, List<A>",
        ),
        ("tags", "<title>A</title> <title> <Time x='1'>B</b> <input disabled/><a\nhref=b.org/c>d<p>", "\nA\n <title> B  d\n"),
        ("tags", "10<sup>6</sup> and 10<sup>−6</sup>, x<sup>2</sup>, 2<sup>nd</sup>", "10^6 and 10^−6, x2, 2nd"),
        ("links", "[[a]] [[b|c]] [[d#e|f [g] h]] [[:File:i]] [[j|]]", "a c f [g] h File:i j"),
        ("links", "x[0] [[two\nlines]]", "x[0] [[two\nlines]]"),
        (
            "links",
            "[['a', 'b'], [1, 2]] x[[\"name\"]] a[b[0]] f(x)[[i]] [[ -f $x ]] [[ $a == b || $c ]] [[]]",
            "[['a', 'b'], [1, 2]] x[[\"name\"]] a[b[0]] f(x)[[i]] [[ -f $x ]] [[ $a == b || $c ]] [[]]",
        ),
        ("links", "[[a]][[b]]字[[c]] the [['Allo 'Allo!]]", "ab字c the 'Allo 'Allo!"),
        ("external_links", "[https://a.org b c] [//d.org/e] [mailto:f@g h] https://i.org [j]", "b c  h https://i.org [j]"),
        ("headings", "== A ==\n= B = C = \ntext\n=====\nx = y", "A\nB = C\ntext\n=====\nx = y"),
        ("headings", "=== === ===\n == a ==\n== b =\n=> x =\n=AbC==", "=== === ===\n == a ==\n== b =\n=> x =\n=AbC=="),
        ("blanks", " a \t\xa0 b \r\n\r\r\n\n c\u2028d\n", "a b\n\n c\nd"),
    ],
)
def test_each_normalizer_makes_plain_text_of_its_markup(name: str, text: str, plain: str) -> None:
    assert BY_NAME[name](text) == plain


def test_the_chain_makes_prose_of_a_page() -> None:
    page = (
        "{{Infobox|a={{b}}}}\n[[File:x.png|thumb|A [[map]]]]\n'''Rome''' &ndash; the [[capital city|capital]] of [[Italy]]."
        "<ref>[http://a b]</ref>\n\n\n\n==  History ==\n{| class=wikitable\n|-\n| 1\n|}\n"
        "See [https://rome.example the  site].\n[[Category:Cities]]"
    )
    prose = "'''Rome''' – the capital of Italy.\n\nHistory\n\nSee the site."
    assert normalize(page) == prose


PARAGRAPH = "Water turns the wheel of a mill by day and by night, and what it grinds is sold in the town.\n\n"
STRAY_MARKS = {
    "less than": ("if a <b is small", "and c> d"),
    "comment": ("it begins with <!--", "and ends with -->"),
    **{name: (f"put <{name}> at the top", f"and </{name}> below") for name in ("script", "style", "ref", "math", "title", "pre", "b")},
    "tag that is never closed": ("write <a href='", "and then the address' >"),
    "template": ("Jinja and Go write {{ for", "a value }}"),
    "template with a name": ("a {{stub|", "with an end }}"),
    "parameter": ("a {{{name|", "that is a parameter}}}"),
    "link": ("a [[link|", "to another page]]"),
    "file": ("[[File: x|", "and ]]"),
    "table": ("as in\n{|\n", "that ends\n|}\n"),
    "address": ("see [https://example.org", "for more]"),
    "heading": ("\n==", "==\n"),
    "entity": ("R&D", "is; one of"),
}


@pytest.mark.parametrize("marks", STRAY_MARKS.values(), ids=STRAY_MARKS)
def test_a_stray_mark_takes_no_prose_with_it(marks: tuple[str, str]) -> None:
    """The text has two unrelated marks with 200 kB between them, or the first mark alone."""
    for text in (
        PARAGRAPH * 10 + marks[0] + " " + PARAGRAPH * 2_000 + marks[1] + " " + PARAGRAPH * 10,
        PARAGRAPH * 10 + marks[0] + " " + PARAGRAPH * 300,
    ):
        assert len(normalize(text).split()) > 0.99 * len(text.split())


@pytest.mark.parametrize(
    ("name", "opening", "closing", "most"),
    [
        ("file_links", "[[File:", "]]", normalizers.LONGEST_FILE_LINK),
        ("templates", "{{a|", "}}", normalizers.LONGEST_TEMPLATE),
        ("tables", "{|\n", "\n|}", normalizers.LONGEST_TABLE),
        ("tags", "<!--", "-->", normalizers.LONGEST_COMMENT),
        ("tags", "<math>", "</math>", normalizers.LONGEST_ELEMENT),
    ],
)
def test_a_pair_of_marks_takes_so_many_characters_at_most(name: str, opening: str, closing: str, most: int) -> None:
    inside = "x" * (most - len(opening + closing))
    assert BY_NAME[name](opening + inside + closing) == ""
    assert inside in BY_NAME[name](f"{opening}{inside}x{closing}")


def test_what_a_pair_of_marks_takes_is_counted_without_what_went_before_it() -> None:
    inner = "{{a|" + "x" * 9_000 + "}}"
    assert normalize("b {{c|" + inner * 5 + "}} d") == "b d"
    assert normalize("b {{c|" + "x " * 6_000 + "}} d").startswith("b {{c|x x")
    assert normalize("b {{c|" + "x " * 6_000 + inner + "}} d {{e}}").endswith("x }} d")


def test_marks_that_unfold_too_often_leave_the_rest_of_the_text_alone() -> None:
    code = "int a[3] = {1}; if (a == b && c) R&D x=y; d[b[0]] = List<T>; {{1}, {2}}; "
    for unfolding in ("[[a|" * 9 + "b" + "]]" * 9, "&l" * 9 + "<i/>t;i/>" * 9, "<i" * 9 + "/>" * 9):
        for text in (code + unfolding, unfolding + code):
            made = normalize(text)
            assert code.strip() in made
            assert normalize(made) == made


def test_what_is_named_does_not_run() -> None:
    page = "== A ==\n\n\n{{b}} &lt; <i>c</i>\n    [[d|e]]"
    assert normalize(page) == "A\n\n < c\n e"
    assert normalize(page, {"headings", "templates", "entities", "tags", "links", "blanks"}) == page
    assert normalize(page, MARKUP_NORMALIZERS) == "== A ==\n\n{{b}} &lt; <i>c</i>\n [[d|e]]"
    assert {name for name, _ in NORMALIZERS} - MARKUP_NORMALIZERS == {"unreadable", "blanks"}


@pytest.mark.parametrize("normalizer", [function for _, function in NORMALIZERS], ids=[name for name, _ in NORMALIZERS])
@given(text=MARKUP)
def test_a_normalizer_leaves_its_own_output_alone(normalizer: Normalizer, text: str) -> None:
    once = normalizer(text)
    assert normalizer(once) == once


@given(text=MARKUP, skip=st.just(()) | st.sets(st.sampled_from([name for name in BY_NAME if name != "unreadable"])))
@example(text="&l<b></b>t;" * 3, skip=())
@example(text="&l&l&l&l&l&l<b></b>t;b></b>t;b></b>t;b></b>t;b></b>t;b></b>t;b>", skip=())
@example(text="[[a|{]]{b}}", skip=())
def test_the_chain_leaves_its_own_output_alone_and_writes_valid_text(text: str, skip: Collection[str]) -> None:
    once = normalize(text, skip)
    assert normalize(once, skip) == once
    assert once.encode("utf-8").decode("utf-8") == once
    assert "\0" not in once


@given(text=st.text(alphabet="abc .,;:!?()'\"-\n#*0123456789éß字", max_size=200))
def test_a_text_without_markup_only_loses_blanks(text: str) -> None:
    lines = re.sub(" *\n", "\n", re.sub(r"[^\S\n]+", " ", text))
    assert normalize(text) == re.sub("\n\n+", "\n\n", lines).strip()


def test_every_character_may_come_in_and_none_that_cannot_be_written_comes_out() -> None:
    planes = (0, 1, 2, 14, 16)  # the others have nothing assigned but the same two noncharacters
    made = "".join(normalize("".join(map(chr, range(plane * 0x10000, (plane + 1) * 0x10000)))) for plane in planes)
    assert len(made) > 300_000
    kept = "\t\n\v\f\r\x85"
    assert not [each for each in set(made) if unicodedata.category(each) in ("Cs", "Cc") and each not in kept]
    assert not [each for each in set(made) if ord(each) & 0xFFFE == 0xFFFE or 0xFDD0 <= ord(each) <= 0xFDEF]


HOSTILE = {
    **{f"only {part!r}": (part, "") for part in (*PARTS, "&l<b></b>t;", "= x", "[http://a ", "<ref a", "&#1", " \n")},
    "nested templates": ("{{", "}}"),
    "nested links": ("[[a|", "]]"),
    "nested file links": ("[[File:a|", "]]"),
    "nested tables": ("\n{|\n", "\n|}\n"),
    "nested references": ("<ref>", "</ref>"),
    "tags in tags": ("<b", ">"),
    "brackets in brackets": ("[http://a ", "]"),
    "entities in entities": ("&amp;", "amp;"),
    "tags that hide entities": ("&l<b>", "</b>t;"),
}


@pytest.mark.parametrize("marks", HOSTILE.values(), ids=HOSTILE)
def test_hostile_text_takes_time_for_its_length_only(marks: tuple[str, str]) -> None:
    """A quadratic step would not end here."""
    count = 100_000 // len("".join(marks))
    text = marks[0] * count + marks[1] * count
    assert len(normalize(text)) <= len(text)


@given(
    st.lists(st.sampled_from(["[[", "]]", "[", "]", "[[File:", "[[image :a|", "x", "<!--", "-->", "<!-->", "-"]), max_size=40).map("".join)
)
@example("[[[File:a]] [[[[File:a]]]] [[x")
def test_marks_are_found_as_a_pattern_finds_them(text: str) -> None:
    for opening, closing in (("[[", "]]"), ("<!--", "-->")):
        pattern = re.compile(f"{re.escape(opening)}|{re.escape(closing)}")
        assert [mark[:2] for mark in find_marks(text, opening, closing)] == [found.span() for found in pattern.finditer(text)]
    of_files = (text, normalizers._brackets_of_files(text)), (text, find_marks(text, "[[", "]]"))
    some, every = ([*match_pairs(*marks, normalizers.LONGEST_FILE_LINK, normalizers._FILE_LINK)] for marks in of_files)
    assert some == every, "brackets between two links to files decide nothing"


@pytest.mark.parametrize(
    "text",
    [
        "a <b and c> d",
        "if a <b> d then",
        "vector<int> and vector<b>, Option<i>, Map<input, output>, List<a>",
        "if (a<b || c>d) for (i=0; i<n; i++) a[i]>b",
        "template<class T> f<s>(x)",
        r"\frac{a}{b} \left\{ x_{i} \right\} $a_{ij}<b$ $\{|x|\}$ $$\sum_{i=1}^{n} x_i^{2}$$",
        "\\begin{tabular}{|l|}\n a & b \\\\ \\hline\n\\end{tabular}",
        "| a | b |\n|---|:-:|\n| 1 | <2 |",
        "f = lambda {|x| x}\nfoo {|y|\n y}",
        "10\u00b2 and 102, x\u0304 and x, 1.5 and 15, #include <stdio.h>",
    ],
)
def test_signs_of_formulas_code_and_tables_are_no_markup(text: str) -> None:
    assert normalize(text) == text


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("&lt;b&gt;bold&lt;/b&gt;", "<b>bold</b>"),
        ("x<sup>2</sup>", "x2"),
        ("H<sub>2</sub>O", "H2O"),
        (r"\frac{{a}}{{b}}", r"\frac{{c}}{{d}}"),
        ("Box<p> x", "Box\n x"),
        ("w <b c=d> e", "w e"),
    ],
)
def test_what_looks_like_markup_is_lost_as_the_page_says(text: str, other: str) -> None:
    """docs/cleaning.md, "What do normalizers remove by mistake?"; `skip` keeps it."""
    assert normalize(text) == normalize(other) != text
    kept = [normalize(one, ["entities", "tags", "templates"]) for one in (text, other)]
    assert kept == [text, other]
