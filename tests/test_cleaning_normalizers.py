"""Normalizers: what markup becomes, that nothing is left to do a second time, and that hostile text costs no more than its length."""

import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from niels_cache_assets.cleaning.normalizers import NORMALIZERS, Normalizer, normalize
from tests import naive_cleaning

BY_NAME = dict(NORMALIZERS)
PARTS = (
    *(
        "{{",
        "}}",
        "{",
        "}",
        "{|",
        "|}",
        "\n{|",
        "\n|}",
        "[[",
        "]]",
        "[",
        "]",
        "|",
        "<",
        ">",
        "<b>",
        "</b>",
        "<br/>",
        "<ref>",
        "</ref>",
        "<!--",
    ),
    *(
        "-->",
        "<ref name=a />",
        "<div class='x'>",
        "&",
        ";",
        "amp;",
        "&amp;",
        "&lt;",
        "&#59;",
        "&#x26;",
        "&#0;",
        "&#x81;",
        "&nbsp;",
        "File:",
        ":",
    ),
    *(
        "Category:",
        "https://",
        "//",
        "mailto:",
        "=",
        "== ",
        "\n==",
        " ",
        "  ",
        "\t",
        "\n",
        "\r",
        "\u2028",
        "\xa0",
        "\0",
        "\ud800",
        "\ufffe",
    ),
    *("\U0001ffff", "\x1f", "\x85", "word", "a", "é", "字", "#REDIRECT"),
)
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
        ("templates", "{{{1}}}{{{{2}}}}{{a {b} c}} {single} {{unclosed", " {single} {{unclosed"),
        ("tables", "a\n{| class=x\n| b\n {|\n| inner\n|}\n|}\nc", "a\n\nc"),
        ("tables", "a closure {|x| x + 1|} stays", "a closure {|x| x + 1|} stays"),
        ("tags", "H<sub>2</sub>O<br />next <td>cell", "H2O\nnext  cell"),
        ("tags", "fact<ref name='a'>Source <i>b</i></ref><ref name=\"c/d\" />. <!-- not <b> this -->End", "fact. End"),
        (
            "tags",
            "#include <stdio.h> if a < b and c > d <a@b.org> List<String>",
            "#include <stdio.h> if a < b and c > d <a@b.org> List<String>",
        ),
        ("links", "[[a]] [[b|c]] [[d#e|f [g] h]] [[:File:i]] [[j|]]", "a c f [g] h File:i j"),
        ("links", "x[0] [[two\nlines]]", "x[0] [[two\nlines]]"),
        ("external_links", "[https://a.org b c] [//d.org/e] [mailto:f@g h] https://i.org [j]", "b c  h https://i.org [j]"),
        ("headings", "== A ==\n = B = C = \ntext\n=====\nx = y", "A\nB = C\ntext\n=====\nx = y"),
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
    assert normalize(page) == "'''Rome''' – the capital of Italy.\n\nHistory\n\nSee the site."


@pytest.mark.parametrize("normalizer", [function for _, function in NORMALIZERS], ids=[name for name, _ in NORMALIZERS])
@given(text=MARKUP)
@settings(max_examples=100, deadline=None)
def test_a_normalizer_leaves_its_own_output_alone(normalizer: Normalizer, text: str) -> None:
    once = normalizer(text)
    assert normalizer(once) == once


@given(text=MARKUP)
@example(text="&l<b></b>t;" * 3)
@example(text="&l&l&l&l&l&l<b></b>t;b></b>t;b></b>t;b></b>t;b></b>t;b></b>t;b>")
@example(text="[[a|{]]{b}}")
@settings(max_examples=500, deadline=None)
def test_the_chain_leaves_its_own_output_alone_and_writes_valid_text(text: str) -> None:
    once = normalize(text)
    assert normalize(once) == once
    assert once.encode("utf-8").decode("utf-8") == once
    assert "\0" not in once


@given(text=st.text(alphabet="abc .,;:!?()'\"-\n#*0123456789éß字", max_size=200))
def test_a_text_without_markup_only_loses_blanks(text: str) -> None:
    assert normalize(text) == naive_cleaning.blanks(text)


def test_every_character_may_come_in_and_none_that_cannot_be_written_comes_out() -> None:
    planes = (0, 1, 2, 14, 16)  # the others have nothing assigned but the same two noncharacters
    made = "".join(normalize("".join(map(chr, range(plane * 0x10000, (plane + 1) * 0x10000)))) for plane in planes)
    assert len(made) > 300_000
    assert all(naive_cleaning.readable(character) == character for character in set(made))


HOSTILE = {
    **{
        f"only {part!r}": (part, "") for part in (*PARTS, "&l<b></b>t;", "= x", "[[a|", "{{a|", "[http://a ", "<ref a", "<i ", "&#1", " \n")
    },
    "nested templates": ("{{", "}}"),
    "nested links": ("[[a|", "]]"),
    "nested file links": ("[[File:a|", "]]"),
    "nested tables": ("\n{|\n", "\n|}\n"),
    "nested parameters": ("{{{", "}}}"),
    "nested references": ("<ref>", "</ref>"),
    "nested comments": ("<!--", "-->"),
    "tags in tags": ("<b", ">"),
    "brackets in brackets": ("[http://a ", "]"),
    "entities in entities": ("&amp;", "amp;"),
    "entities that hide entities": ("&am&#112", ";"),
    "tags that hide entities": ("&l<b>", "</b>t;"),
}


@pytest.mark.parametrize("parts", HOSTILE.values(), ids=HOSTILE)
def test_time_grows_with_the_text_and_no_faster(parts: tuple[str, str]) -> None:
    """Eight times the text: quadratic code would take 64 times as long. The best of three tries, so that a busy machine does not matter."""

    def seconds(repetitions: int) -> float:
        text = parts[0] * repetitions + parts[1] * repetitions
        started = time.process_time()
        assert len(normalize(text)) <= len(text)
        return time.process_time() - started

    small = 20_000 // len("".join(parts))
    ratios = (seconds(8 * small) / max(seconds(small), 2e-3) for _ in range(3))
    assert any(ratio < 28 for ratio in ratios)
