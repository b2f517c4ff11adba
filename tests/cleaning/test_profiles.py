"""Profiles: which rule drops which text, what C4 leaves of it, and that datatrove decides the same where it is installed."""

import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from niels_cache_assets.base.documents import Document
from niels_cache_assets.cleaning.report import CleaningReport
from niels_cache_assets.steps.chain import DocumentChain
from niels_cache_assets.steps.step import Drop
from niels_cache_cleaning.entries import PROFILES as NAMES
from niels_cache_cleaning.entries import SPLITTERS as SPLITTER_NAMES
from niels_cache_cleaning.profile_words import SPLITTERS, Words
from niels_cache_cleaning.profiles import MEANINGS, PROFILES, Profile, ProfileText
from niels_cache_runtime.errors import NielsCacheError
from tests.helpers.user_steps import documents_of, source_with

PROSE = """\
The old harbour lies at the end of a narrow road that few visitors find. In the morning, boats come back with herring and cod.
Women from the village sort the catch on long wooden tables, and they don't waste a minute of daylight. Gulls wait on every roof.
By noon the market is empty. A man with a broom sweeps scales into the water, and to him this is the best hour of the day.
Some days a painter sits near the lighthouse. She says that grey has more colours than anybody believes, and nobody argues with her.
When the wind turns north, everything changes: ropes are doubled, shutters are closed, and children have to be home before dusk.
"""
LINES = PROSE.splitlines()
FLAT = " ".join(LINES)
LETTERS = [f"{chr(97 + place % 26)}{chr(97 + place // 26)}" for place in range(600)]

CASES = [
    ("gopher-repetition", PROSE, None),
    ("gopher-repetition", "", "empty"),
    ("gopher-repetition", "\n\n".join([*LINES, *LINES[:3]]), "dup_para_frac"),
    (
        "gopher-repetition",
        "\n\n".join([*LINES, "a b", "c d", LINES[0] + LINES[1], "e f", "g h", LINES[0] + LINES[1]]),
        "dup_para_char_frac",
    ),
    ("gopher-repetition", "\n".join([*LINES, *LINES[:3]]), "dup_line_frac"),
    ("gopher-repetition", "\n".join([*LINES, "a b", "c d", "e f", LINES[0] + LINES[1], "g h", LINES[0] + LINES[1]]), "dup_line_char_frac"),
    ("gopher-repetition", " ".join(f"blue whale {each}" for each in LETTERS[:60]), "top_2_gram"),
    ("gopher-repetition", FLAT + "".join(f" one two six {each}" for each in LETTERS[:14]), "top_3_gram"),
    ("gopher-repetition", FLAT + "".join(f" one two six four {each}" for each in LETTERS[:10]), "top_4_gram"),
    (
        "gopher-repetition",
        " ".join(each if place % 6 == 5 else LETTERS[place % 120] for place, each in enumerate(LETTERS[300:540])),
        "duplicated_5_n_grams",
    ),
    *(
        (
            "gopher-repetition",
            FLAT + "".join(f" {' '.join(LETTERS[:order])} z{place}" for place in range(times)),
            f"duplicated_{order}_n_grams",
        )
        for order, times in ((6, 12), (7, 9), (8, 8), (9, 7), (10, 6))
    ),
    ("gopher", PROSE, None),
    ("gopher", " ".join(FLAT.split()[:40]), "gopher_short_doc"),
    ("gopher", "the of and " * 34_000, "gopher_long_doc"),
    ("gopher", "a be to of and " * 20, "gopher_below_avg_threshold"),
    ("gopher", "incomprehensibilities of the parliamentarians " * 20, "gopher_above_avg_threshold"),
    ("gopher", FLAT + " #" * 20, "gopher_too_many_hashes"),
    ("gopher", FLAT + " ..." * 11 + " …" * 11, "gopher_too_many_ellipsis"),
    ("gopher", "\n".join(f"  - {line}" for line in LINES), "gopher_too_many_bullets"),
    ("gopher", "\n".join([*LINES[:3], *(f"{line} ..." for line in LINES[3:])]), "gopher_too_many_end_ellipsis"),
    ("gopher", FLAT + " 1023" * 40, "gopher_below_alpha_threshold"),
    ("gopher", "Nets dry quickly under strong summer light near white chalk rocks. " * 6, "gopher_enough_stop_words"),
    ("c4", PROSE, None),
    ("c4", PROSE + "Lorem Ipsum is not prose.", "lorem_ipsum"),
    ("c4", PROSE + "if (x) { return it now.", "curly_bracket"),
    ("c4", "\n".join(LINES[:2]) + "\nno mark at its end", "too_few_sentences"),
    ("fineweb", PROSE, None),
    ("fineweb", PROSE.replace(".\n", "\n"), "line_punct_ratio"),
    ("fineweb", FLAT + "\n" + "\n".join(f"{each} is short." for each in ("Cod", "Ice", "Tar", "Oak")), "short_line_ratio"),
    ("fineweb", PROSE + "A line that is here twice.\nAnother one, between.\nA line that is here twice.", "char_dup_ratio"),
    (
        "fineweb",
        "the and of with\n"
        + "\n".join(f"{each * 5} {each[::-1] * 5} {each * 4}z{'.' * (place % 7 == 0)}" for place, each in enumerate(LETTERS[:60])),
        "list_ratio",
    ),
]


@cache
def profile(name: str, splitter: str = "words") -> Profile:
    return Profile(name, splitter)


def decide(step: Profile, text: str) -> tuple[str | None, str | None]:
    """Return the reason, or the text that is kept."""
    result = step(Document(text))
    if isinstance(result, Drop):
        return result.reason, None
    return None, result["text"] if isinstance(result, dict) else result.text


@pytest.mark.parametrize(("name", "text", "reason"), CASES)
def test_the_first_rule_that_fails_is_the_reason(name: str, text: str, reason: str | None) -> None:
    assert decide(profile(name), text)[0] == reason


def test_the_cases_have_every_rule_and_the_pages_name_it() -> None:
    assert {reason for _, _, reason in CASES if reason} == MEANINGS.keys()
    assert (tuple(PROFILES), tuple(SPLITTERS)) == (NAMES, SPLITTER_NAMES)


C4_TEXT = """\
  The harbour is old.[12][edit] And small.\t
A line without its end
Too short.
Enable JavaScript, please, to read this.
We have a new Privacy Policy for you.
He waited and waited...
{word} is not a word.
Is anybody here? Nobody was there!
It ends with a citation needed.[citation needed]
One more sentence is here."""


def test_c4_drops_lines_and_counts_them() -> None:
    text = C4_TEXT.format(word="x" * 1001)
    kept = [
        "The harbour is old. And small.",
        "Is anybody here? Nobody was there!",
        "It ends with a citation needed.",
        "One more sentence is here.",
    ]
    assert profile("c4")(Document(text)) == {"text": "\n".join(kept), "dropped_lines": 6}
    assert decide(profile("c4"), text.replace(" And small.", "").replace("anybody here? N", "anybody here, n")) == (
        "too_few_sentences",
        None,
    )


@pytest.mark.parametrize(
    ("piece", "words"),
    [
        ("word", "word"),
        ("don't", "do n't"),
        ("Cannot", "Can not"),
        ("(she\u2019ll,", "( she \u2019ll ,"),
        ("'quoted'...", "' quoted ' ..."),
        ("harbour's", "harbour 's"),
        ("well-known", "well - known"),
        ("end.Next", "end . Next"),
        ("one,two", "one , two"),
        ("U.S.", "U.S."),
        ("U.S.,", "U.S. ,"),
        ("Mr.", "Mr."),
        ("10am", "10 am"),
        ("5km", "5 km"),
        ("$20%", "$ 20 %"),
        ("(http://a.org/b-c?d=e).", "( http://a.org/b-c?d=e ) ."),
        ("a/b", "a / b"),
        ("end):", "end ):"),
        ("...", "..."),
        ("--", "--"),
    ],
)
def test_the_default_splitter(piece: str, words: str) -> None:
    assert Words().words(f" {piece}\u00a0\n{piece}") == words.split() * 2


@pytest.mark.parametrize("piece", ["(" * 50_000, "." * 50_000 + "x", "a." * 25_000, "x@" * 25_000, "\u2019s" * 25_000])
def test_a_long_piece_takes_a_moment_and_is_not_remembered(piece: str) -> None:
    splitter = Words()
    assert "".join(splitter.words(piece)) == piece
    assert not splitter._pieces


def test_the_words_do_not_depend_on_what_was_split_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("niels_cache_cleaning.profile_words.CACHED_PIECES", 10)
    splitter = Words()
    assert [splitter.words(text) for text in (PROSE, FLAT, PROSE)] == [Words().words(text) for text in (PROSE, FLAT, PROSE)]


def repetition_of(words: list[str], order: int) -> tuple[int, int]:
    """Return the characters of the most frequent n-gram and of those that repeat an earlier one, plainly counted."""
    ngrams = [tuple(words[start : start + order]) for start in range(len(words) - order + 1)]
    counts = Counter(ngrams)
    top = max(counts, key=lambda each: counts[each], default=())
    seen, repeated, place = set[str](), 0, 0
    while place < len(ngrams):
        joined = "".join(ngrams[place])
        is_new = joined not in seen
        seen.add(joined)
        repeated += 0 if is_new else len(joined)
        place += 1 if is_new else order
    return len(" ".join(top)) * counts[top], repeated


@pytest.mark.parametrize(
    "text",
    ["", "one", "aa a aaa aa a a aaaa a aa " * 9, "a ab abc b bc c " * 7 + "abc", FLAT + FLAT[50:300] + FLAT, "\U0001d400b \u00e9 " * 8],
)
def test_the_compiled_counts_are_the_plain_ones(text: str) -> None:
    from niels_cache_cleaning.profile_kernels import repetition

    given, orders = ProfileText(text, Words()), np.arange(2, 11)
    tops, repeats = np.zeros((2, len(orders)), np.int64)
    repetition(given.points, given.starts, orders, tops, repeats)
    plain = [repetition_of(given.words, int(order)) for order in orders]
    assert tops.tolist() == [top for top, _ in plain[:3]] + [0] * 6
    assert repeats.tolist() == [0] * 3 + [repeated for _, repeated in plain[3:]]


def test_a_profile_is_an_entry_of_steps(tmp_path: Path) -> None:
    source = source_with(tmp_path, {"profile": "c4", "keep": ["dropped_lines"]}, {"profile": "gopher", "name": "quality"})
    assert [each.title for each in source.steps] == ["c4", "quality"]
    report = CleaningReport(seed=0)
    outcomes = DocumentChain(source=source, cleaning=None).run(documents_of([PROSE + "More", "Few words.", PROSE[:300]]), report)
    [kept] = [each for each in outcomes if isinstance(each, Document)]
    assert (kept.text, kept.kept) == (PROSE.strip(), '{"dropped_lines":1}')
    assert report.dropped == {"step:c4:too_few_sentences": 2}


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"profile": "c5"}, "profile is 'c5'.*gopher-repetition"),
        ({"profile": ["c4"]}, "profile is .*gopher-repetition"),
        ({"profile": "c4", "splitter": "nltk"}, "splitter is 'nltk'.*spacy"),
        ({"profile": "c4", "spliter": "words"}, "profile 'c4' has no key 'spliter'; did you mean 'splitter'"),
        ({"profile": "c4", "splitter": "spacy"}, "needs spaCy.*pip install"),
    ],
)
def test_a_wrong_profile_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: dict[str, Any], words: str) -> None:
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises((NielsCacheError, ValueError), match=words):
        DocumentChain(source=source_with(tmp_path, entry), cleaning=None).run(documents_of([PROSE]), CleaningReport(seed=0))


def test_decisions_equal_those_of_datatrove() -> None:
    pytest.importorskip("datatrove")
    pytest.importorskip("spacy", reason="datatrove splits words with spaCy")
    from benchmarks.profiles import datatrove_profile

    pieces = [
        *LINES,
        C4_TEXT.format(word="y" * 1001),
        'He said "no". (She didn\'t.) [3] :) U.S. #1 ...',
        "\u2022 5km  at 10am\u2028- \u00bd \u0e01 \x85x\x1c",
    ]
    texts = {text for _, text, _ in CASES if len(text) < 10_000} | {"\n".join(pieces[place:] + pieces[:4]) for place in range(len(pieces))}
    for name in NAMES:
        theirs = datatrove_profile(name)
        expected = {text: theirs(text) for text in texts}
        assert len({reason for reason, _ in expected.values()}) > 3
        assert {text: decide(profile(name, "spacy"), text) for text in texts} == expected
        assert {text: decide(profile(name), text) for text in texts} == expected
