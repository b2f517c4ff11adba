"""Each filter at its threshold, and the order of the filters. A filter is a function of the document alone."""

import re
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from niels_cache_assets.base.documents import Document
from niels_cache_assets.cleaning.report import RejectedDocument
from niels_cache_assets.cleaning.settings import REASONS, CleaningSettings
from niels_cache_cleaning.chain import Cleaner
from niels_cache_cleaning.filters import FILTERS, JUDGED_CHARACTERS, DocumentFacts, Filter, Rejection
from niels_cache_cleaning.languages import identify_language
from tests.helpers.messages import missing

BY_REASON: dict[str, Filter] = dict(FILTERS)
DEFAULTS = CleaningSettings()
ENGLISH = (
    "The river rises in the hills to the north of the town and flows past several villages before it reaches the sea. "
    "People have lived along its banks since the last ice age, and many of their tools can be seen in a small museum."
)
GERMAN = "Der Fluss entspringt in den Hügeln nördlich der Stadt und fließt an mehreren Dörfern vorbei, bevor er das Meer erreicht."


def distinct(count: int, length: int = 5) -> list[str]:
    """So many different words of letters."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    return ["".join(letters[number // 26**place % 26] for place in range(length)) for number in range(count)]


def judged(reason: str, text: str, *, title: str | None = None, **thresholds: object) -> Rejection | None:
    return BY_REASON[reason](DocumentFacts(Document(text, title=title), CleaningSettings.model_validate(thresholds)))


@pytest.mark.parametrize(
    ("reason", "stays", "goes", "value"),
    [
        ("too_short", " ".join(distinct(100)), " ".join(distinct(67))[:399], 399),
        ("too_short", " ".join(distinct(50, 8)), " ".join(distinct(49, 9)), 49),
        ("list_page", "* a\n- b\nc\nd", "* a\n\n• b\n - c\n+ d\ne\n-f\ng", 4 / 7),
        ("list_page", "one two three\n* a", "* abcdefg\n* b\ncd", 2 / 3),
        ("list_page", "* a\n* b\n" + "prose " * 9, "* a\n* b\n" + "prose", 6 / 11),
        ("list_page", "* " + "item " * 20 + "\n* a", "* " + "item " * 19 + "\n* a", 1),
        ("list_page", "-5\n+3\n–\n1. a\n# b", "* a", 1),
        ("low_alpha_ratio", "a b é 1字 -", "a b c d 4 -", 4 / 6),
        ("low_alpha_ratio", "x\xa0y 1 a b", "½ ² Ⅷ a", 1 / 4),
        ("bad_mean_word_len", "aaa aaa", "aa aaa", 2.5),
        ("bad_mean_word_len", "a" * 12, "a" * 13, 13),
        ("high_symbol_ratio", " ".join([*distinct(9), "#a"]), " ".join([*distinct(8), "#a", "b…"]), 0.2),
        ("high_symbol_ratio", " ".join([*distinct(19), "a......"]), " ".join([*distinct(18), "#", "a......"]), 3 / 20),
        ("no_stopwords", "The the of", "the The other, then", 1),
        ("repetitive", " ".join(["a b", *distinct(37), "A B"]), " ".join(["a b", *distinct(36), "A B"]), 2 / 39),
        ("not_english", ENGLISH, GERMAN, None),
    ],
)
def test_a_filter_at_its_threshold(reason: str, stays: str, goes: str, value: float | None) -> None:
    assert judged(reason, stays) is None
    rejection = judged(reason, goes)
    assert rejection is not None
    if value is not None:
        assert rejection.value == pytest.approx(value)


@pytest.mark.parametrize(
    ("key", "limit", "stays", "goes", "value"),
    [
        ("max_top_2gram_characters", 0.2, "aa bb cccc aa bb " + "d" * 32, "aa bb cccc aa bb " + "d" * 27, 8 / 39),
        ("max_top_3gram_characters", 0.3, "a b c x a b c " + "d" * 13, "a b c x a b c " + "d" * 12, 6 / 19),
        ("max_top_4gram_characters", 0.5, "a b c d xxxxxxxx a b c d", "a b c d xxxxxxx a b c d", 8 / 15),
        ("max_duplicate_lines", 0.25, "a\nb\n\n c\na", "a\nb\na", 1 / 3),
        ("max_duplicate_paragraphs", 0.25, "a\nb\n\nc\n\nd\n\na\nb", "a\nb\n\nc\n\n a\nb", 1 / 3),
    ],
)
def test_the_gopher_family_at_its_thresholds_where_it_is_asked_for(key: str, limit: float, stays: str, goes: str, value: float) -> None:
    assert judged("repetitive", goes, max_bigram_share=1) is None
    assert judged("repetitive", stays, max_bigram_share=1, **{key: limit}) is None
    rejection = judged("repetitive", goes, max_bigram_share=1, **{key: limit})
    assert rejection is not None
    assert rejection.value == pytest.approx(value)


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (Document("#Redirect [[River]]"), "redirect"),
        (Document("#redirection is a word"), "too_short"),
        (Document(" \n&nbsp;{{stub}}\0"), "empty"),
        (Document(ENGLISH * 3, title="Mercury (Disambiguation)"), "disambiguation"),
        (Document("Mercury may refer to:\n* a planet\n* a metal"), "disambiguation"),
        (Document("'''Ada''' can also stand for any of these people:\n\nWriters\n\n" + ENGLISH * 3), "disambiguation"),
        (Document((ENGLISH + " ") * 2 + "Austin may also refer to:"), "disambiguation"),
        (Document("The word bank can refer to any of these places:\n" + ENGLISH * 3), None),
        (Document("ordinary words " + ENGLISH * 3 + " It may refer to: nothing.\n" + ENGLISH), None),
        (Document("1234 5678 " * 60), "low_alpha_ratio"),
        (Document(" ".join(distinct(200)) + " the of"), "not_english"),
        (
            Document(" ".join("ᚠᚢᚦᚨ" + "ᚱᚲᚷᚹ"[: number % 4] + chr(0x16A0 + number % 75) for number in range(150)) + " the of"),
            "language_error",
        ),
        (Document((GERMAN + " the of ") * 4), "not_english"),
        (Document((ENGLISH + " ") * 2 + "of the river " * 6), "repetitive"),
        (Document((ENGLISH + " ") * 2), None),
    ],
)
def test_the_first_reason_wins(document: Document, reason: str | None) -> None:
    result = Cleaner(DEFAULTS).clean(document)
    assert (result.reason if isinstance(result, RejectedDocument) else None) == reason


def test_a_long_document_is_judged_by_its_first_million_characters_and_kept_whole() -> None:
    book = (ENGLISH + "\n") * (JUDGED_CHARACTERS // len(ENGLISH) + 1) + "* the bullet of a list\n" * 120_000 + "end"
    skipping = Cleaner(CleaningSettings(skip=("repetitive",)))
    assert len(book) > 3 * JUDGED_CHARACTERS
    assert skipping.clean(Document(book)) == Document(book)
    result = skipping.clean(Document("* the bullet of a list\n" * 120_000 + book))
    assert isinstance(result, RejectedDocument)
    assert (result.reason, result.value) == ("list_page", 1.0)


def test_a_skipped_reason_is_not_looked_for() -> None:
    cleaner = Cleaner(CleaningSettings(skip=("too_short", "not_english")))
    assert isinstance(Cleaner(DEFAULTS).clean(Document(GERMAN)), RejectedDocument)
    result = cleaner.clean(Document(GERMAN + " of the"))
    assert result == Document(GERMAN + " of the")


def test_languages_that_stay_are_configured() -> None:
    assert judged("not_english", GERMAN, languages=["en", "de"]) is None
    assert judged("not_english", ENGLISH, languages=["de"]) == Rejection(value=pytest.approx(0.99, abs=0.02))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (ENGLISH, "en"),
        (GERMAN, "de"),
        ("吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。", "ja"),
        ("人人生而自由，在尊严和权利上一律平等。他们赋有理性和良心，并应以兄弟关系的精神相对待。", "zh"),
        ("人人生而自由，在尊嚴和權利上一律平等。他們賦有理性和良心，並應以兄弟關係的精神相對待。", "zh"),
        ("כל בני האדם נולדו בני חורין ושווים בערכם ובזכויותיהם. כולם חוננו בתבונה ובמצפון", "he"),
        ("", None),
        ("12 + 34 = 46", None),
        ("ᚠᚢᚦᚨᚱᚲ ᚷᚹᚺᚾᛁᛃ ᛇᛈᛉᛊᛏᛒ ᛖᛗᛚᛜᛞᛟ", None),
        ("\0\ud800\x1f\ufffe\U0010ffff", None),
    ],
)
def test_languages_are_told_or_it_is_said_that_they_cannot_be(text: str, code: str | None) -> None:
    assert identify_language(text)[0] == code


@given(
    words=st.lists(st.sampled_from(["a", "b", "c", "the", *distinct(30)]), min_size=2, max_size=120),
    limit=st.sampled_from([0.0, 0.03, 0.05, 0.2, 0.5]),
)
def test_pairs_of_frequent_words_are_all_the_pairs_that_count(words: list[str], limit: float) -> None:
    pairs = list(pairwise(words))
    most = max(pairs.count(pair) for pair in pairs)
    rejection = judged("repetitive", " ".join(words), max_bigram_share=limit)
    assert (rejection is not None) == (most > 1 and most / len(pairs) > limit)
    if rejection:
        assert rejection.value == most / len(pairs)


@given(text=st.text(alphabet="aé字½²1-# \n\xa0\u3000", max_size=40))
@example(text="字字字-1")
def test_counting_ascii_letters_first_changes_no_answer(text: str) -> None:
    words = re.findall(r"\w+", text) if DocumentFacts(Document(text), DEFAULTS).is_unspaced else text.split()
    with_letter = sum(any(map(str.isalpha, word)) for word in words)
    rejection = judged("low_alpha_ratio", text)
    assert (rejection is not None) == (words != [] and with_letter / len(words) < 0.8)


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        ({"skip": ["not_englsh"]}, ["'not_englsh'", "did you mean 'not_english'?"]),
        ({"skip": ["zzz"]}, ["'zzz'", "redirect, disambiguation, too_short", "headings, blanks"]),
        ({"skip": ["tag"]}, ["did you mean 'tags'?"]),
        ({"skip": ["unreadable"]}, ["'unreadable'", "skipped", "surrogates"]),
        ({"skip": ["empty"]}, ["'empty'", "skipped"]),
        ({"languages": ["english"]}, ["'english'", "language", "'en'"]),
        ({"min_mean_word_length": 20}, ["min_mean_word_length", "above max_mean_word_length"]),
    ],
)
def test_a_mistake_in_the_settings_is_named(settings: dict[str, object], parts: list[str]) -> None:
    with pytest.raises(ValidationError) as caught:
        CleaningSettings.model_validate(settings)
    assert missing(caught.value, *parts) == []


def test_reasons_are_those_of_the_filters_and_can_all_but_one_be_skipped() -> None:
    assert len(set(REASONS)) == len(REASONS) == 12
    assert [reason for reason, _ in FILTERS] == list(REASONS)
    assert REASONS.index("not_english") < REASONS.index("no_stopwords"), "the language decides the stop words"
    CleaningSettings(skip=tuple(reason for reason in REASONS if reason != "empty"))
