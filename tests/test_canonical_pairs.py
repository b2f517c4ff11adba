"""Texts that differ in signs stay different, and copies of prose are found. The pairs are in
canonical_pairs.py.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from niels_cache_assets.dedup.signatures import Signer, jaccard
from niels_cache_assets.streaming.decontaminate import ReferencePlace, ReferenceTexts, open_references
from tests.canonical_pairs import DIFFERENT, EQUAL_ALL_THE_SAME, ONLY_NEAR, SAME
from tests.tiny import sentences


def is_same(one: str, other: str) -> bool:
    digests = Signer().sign([one, other]).digests
    return digests[0].tobytes() == digests[1].tobytes()


def surrounded(text: str) -> list[str]:
    """Return the text alone, between words, in a line of its own, and twice."""
    return [text, f"before {text} after", f"before\n{text}\nafter", f"{text}, {text}"]


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_texts_that_differ_in_signs_are_different(one: str, other: str) -> None:
    assert not is_same(one, other)
    assert jaccard(*map(Signer().shingle_hashes, (one, other))) < 0.7
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
    ours, theirs = (signer.shingle_hashes(f"{words[0]} {text} {words[1]}") for text in (one, other))
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
    wanted = ReferenceTexts(identity={}, texts=lambda: iter([(ReferencePlace("", "quiz", 0), formula)]), threshold=0.8, share=0.5, run=50)
    with open_references(wanted, folder=tmp_path) as screen:
        (found,) = screen.find([f"{before} {changed(formula)} {after}"])
    assert (found is not None) == dropped
