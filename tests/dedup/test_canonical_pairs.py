"""Texts that differ in signs stay different, and copies of prose are found."""

from collections.abc import Callable
from pathlib import Path

import pytest

from niels_cache_assets.dedup.signatures import Signer, jaccard
from niels_cache_assets.streaming.decontaminate import ReferenceOrigin, ReferenceTexts, open_references
from tests.helpers.plain_signatures import shingles_of
from tests.helpers.tiny import sentences

# Other numbers, formulas and programs, which differ only in signs. No two are one text.
DIFFERENT = [
    ("1.5", "15"),
    (".5", "5"),
    ("12+3", "1+23"),
    ("12-3", "12+3"),
    ("\u22125", "5"),
    ("1,000", "1.000"),
    ("12:30", "1230"),
    ("$5", "5"),
    ("50%", "50"),
    ("5'10\"", "510"),
    ("1|2|300", "12|300"),
    ("2^10", "210"),
    ("a/b", "ab"),
    ("10\u00b2", "102"),
    ("x\u00b2", "x2"),
    ("x\u2081", "x1"),
    ("x\u0304", "x"),
    ("v\u20d7", "v"),
    ("a \u2264 b", "a \u2265 b"),
    ("a.b", "a,b"),
    ("a..b", "a.b"),
    ("a != b", "a = b"),
    ("a->b", "a<-b"),
    ("if a < b: return a", "if a > b: return a"),
    ("x = y * z", "x = y + z"),
    ("~x", "x"),
    ("i--", "i++"),
    ("lst[1:]", "lst[1]"),
    ("x[1:, 0]", "x[1, 0]"),
    ("f(x)", "f[x]"),
    ("C++", "C"),
    ("<b>", "b"),
    ("stop_now", "stopnow"),
    ("#include", "include"),
    ("http://a.b/c", "http://ab/c"),
    ("| a | b |", "| a b |"),
    ("\\frac{1}{23}", "\\frac{12}{3}"),
    ("!!!", "???"),
    ('"""', "'''"),
    ("\u200b", ""),
]

# Copies of the same prose or program, which differ as typewriters, editors and browsers do.
SAME = [
    ("\u201cDon\u2019t,\u201d she said.", '"Don\'t," she said.'),
    ("\u201eNein\u201c, sagte er.", '"Nein", sagte er.'),
    ("``Don\u00b4t''", '"Don\'t"'),
    ("it \u2014 was", "it--was"),
    ("it \u2014 was", "it - was"),
    ("1990\u20131995", "1990-1995"),
    ("re\u2011open", "re-open"),
    ("3 \u2212 1", "3 - 1"),
    ("cafe\u0301", "caf\u00e9"),
    ("Wait...", "Wait\u2026"),
    ("\u4f60\u597d\uff0c\u4e16\u754c\u3002", "\u4f60\u597d,\u4e16\u754c."),
    ("\u4e2d\u6587\u3001\u4e2d\u6587", "\u4e2d\u6587 \u4e2d\u6587"),
    ("THE END", "the end"),
    ("one\r\ntwo", " one  two\n"),
    ("a\u00a0b", "a b"),
    ("soft\u00adhyphen", "softhyphen"),
    ("R&amp;D and &lt;b&gt;", "R&D and <b>"),
    ("\uff21\uff22\uff11\uff12", "ab12"),
    ("o\ufb03ce", "office"),
    ("Hello, world.", "Hello world"),
    ("No!!!", "No!"),
    ("\u00bfQu\u00e9?", "Qu\u00e9"),
    ("\u0646\u0639\u0645\u060c \u0644\u0627\u061f", "\u0646\u0639\u0645 \u0644\u0627"),
    ("x=y+z", "x = y + z"),
]

# Equal although they may mean different things: quotes and the marks at the end of a word are those of prose. docs/cleaning.md names them.
EQUAL_ALL_THE_SAME = [
    ("5! = 120", "5 = 120"),
    ("6'", '6"'),
    ('x="a"', "x=a"),
    ("foo(1, 2)", "foo(1 2)"),
    ("1--2", "1-2"),
    ("we're", "were"),
]

# Copies that an earlier rule merged, which removed all punctuation. They are near in a longer text.
ONLY_NEAR = [
    ("re-open", "reopen"),
    ("**bold**", "bold"),
    ("(see x)", "see x"),
    ("etc., and", "etc. and"),
    ("Bonjour !", "Bonjour!"),
    ("- item", "* item"),
]


def is_same(one: str, other: str) -> bool:
    digests = Signer().sign([one, other]).digests
    return digests[0].tobytes() == digests[1].tobytes()


def surrounded(text: str) -> list[str]:
    """Return the text alone, between words, in a line of its own, and twice."""
    return [text, f"before {text} after", f"before\n{text}\nafter", f"{text}, {text}"]


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_texts_that_differ_in_signs_are_different(one: str, other: str) -> None:
    assert not is_same(one, other)
    assert jaccard(*(shingles_of(Signer(), text) for text in (one, other))) < 0.7
    if any(character.isprintable() and character not in "\"'" for character in one + other):  # otherwise only identical texts are the same
        assert [is_same(*pair) for pair in zip(surrounded(one), surrounded(other), strict=True)] == [False] * 4


@pytest.mark.parametrize(("one", "other"), SAME + EQUAL_ALL_THE_SAME)
def test_copies_of_the_same_text_are_the_same(one: str, other: str) -> None:
    assert one != other
    assert [is_same(*pair) for pair in zip(surrounded(one)[:3], surrounded(other)[:3], strict=True)] == [True] * 3


@pytest.mark.parametrize(("one", "other"), ONLY_NEAR)
def test_copies_with_other_punctuation_inside_are_near_in_a_longer_text(one: str, other: str) -> None:
    signer, words = Signer(), sentences(2, words=60)
    assert not is_same(one, other)
    ours, theirs = (shingles_of(signer, f"{words[0]} {text} {words[1]}") for text in (one, other))
    assert 0.85 <= jaccard(ours, theirs) < 1


@pytest.mark.parametrize(
    ("changed", "dropped"),
    [
        (lambda formula: formula, True),
        (lambda formula: formula.replace("+", " + ").upper(), True),
        (lambda formula: formula.replace("+", "-"), False),
        (lambda formula: formula.replace("+", " "), False),
    ],
    ids=["equal", "blanks and case", "another sign", "no sign"],
)
def test_ngrams_of_references_keep_signs(tmp_path: Path, changed: Callable[[str], str], dropped: bool) -> None:
    """A formula of more than 13 words inside a long document."""
    formula = "+".join(f"x{number}" for number in range(20))
    before, after = sentences(2, words=60)
    wanted = ReferenceTexts(identity={}, texts=lambda: iter([(ReferenceOrigin("", "quiz", 0), formula)]), threshold=0.8, share=0.5, run=50)
    with open_references(wanted, folder=tmp_path) as screen:
        (found,) = screen.find([f"{before} {changed(formula)} {after}"])
    assert (found is not None) == dropped
