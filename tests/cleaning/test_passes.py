"""The compiled passes of cleaning: they change no decision and no text, and prove nothing about texts that they cannot judge."""

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from niels_cache_assets.base.documents import Document
from niels_cache_assets.cleaning.report import CleaningReport, RejectedDocument
from niels_cache_assets.cleaning.settings import CleaningSettings
from niels_cache_cleaning import quick_checks as proofs
from niels_cache_cleaning.chain import Cleaner
from niels_cache_cleaning.filters import BULLETS
from tests.helpers.depth import cases
from tests.helpers.prose import PARAGRAPHS, UNSPACED, unspaced_documents

WORDS = (
    "the be to of and that have with Oak elm RIVER it's 1900 12,5 -- … ... .... # * • - – a-b Ünïcode Straße ΣΑΣ İzmir été ﬁ 東京 ไทย 🌳 𝔄"
)
MARKS = "- ~* ~ ~  ~ \n~\n~\n\n~\n\n\n~\t~\r\n~\r~\v~\x1c~\x85~\xa0~\u2009~\u2028~\u3000~\x00~\x7f~\x9f~\ud800~\ufdd0~\uffff~\U0001ffff"
MARKS += "~&amp;~<b>~</b>~[[a|b]]~{{c}}~== h ==~="
PIECES = st.sampled_from([*WORDS.split(), *MARKS.split("~")])
TEXTS = st.lists(PIECES, max_size=60).map(" ".join) | st.lists(PIECES, max_size=60).map("".join)
SMALL = {"min_characters": 20, "min_words": 3, "min_stopwords": 1}


def both(settings: CleaningSettings, *, plain_text: bool = False) -> tuple[Cleaner, Cleaner]:
    return tuple(Cleaner(settings, plain_text=plain_text, compiled=compiled) for compiled in (False, True))  # type: ignore[return-value]


@cases(300)
@given(TEXTS, st.sampled_from([0.05, 0.3]), st.booleans())
def test_compiled_cleaning_gives_the_same_result(text: str, share: float, plain_text: bool) -> None:
    slow, quick = both(CleaningSettings(**SMALL, max_bigram_share=share, max_bullet_share=share), plain_text=plain_text)
    assert slow.clean(Document(text)) == quick.clean(Document(text))


OTHER_SETTINGS: list[dict[str, Any]] = [
    {},
    {"mask": ("email", "ip", "phone", "key")},
    {"languages": ("de",), "min_stopwords": 8, "max_mean_word_length": 6, "mask": ("email",)},
    {"languages": ("zh",), "min_stopwords": 8},
    {"languages": ("th", "ja", "en"), "max_bigram_share": 0.01, "max_symbols_per_word": 0.01},
    {"languages": ("ru",), "language_characters": 60, "max_bullet_share": 0.05, "min_alpha_word_share": 0.97},
    {"languages": ("de", "fr", "pl"), "skip": ("not_english", "blanks", "entities"), "min_words": 150},
    {"skip": ("not_english", "language_error"), "max_duplicate_lines": 0.1, "min_alpha_word_share": 0.95},
]
SOMETIMES = ["- a\n", "• c\n", "– d\n", "・e\n", "...", "…", "# ", "\u3000", "\xa0", "\r\n", "🌳"]
SOMETIMES += ["a@web.org ", "+1 212 555 0123 ", "8.8.8.8 "]
SOMETIMES += ["İ", "ΑΣ ", "&amp;lt;b>", "== h ==\n", "\x00", "1900 12,5 ", "\n\n", "the the the ", "die die ", "的的的", "\U00010400", "Ａ"]


@pytest.mark.parametrize("number", range(len(OTHER_SETTINGS)))
def test_texts_of_every_language_get_the_same_result_with_other_settings(number: int) -> None:
    """The texts are in scripts with and without blanks, cut, mixed, in capitals, and hold what masks and filters look for."""
    chance = random.Random(number)
    by_language = {language: unspaced_documents(language, 3) for language in UNSPACED} | {code: [text] for code, text in PARAGRAPHS.items()}
    by_language["en"] = [
        "The river rises in the hills to the north of the town and flows past several villages, and people be with it. " * 4
    ]
    by_language["el"] = ["Ο ΠΟΤΑΜΟΣ πηγάζει στους λόφους βόρεια της ΠΟΛΗΣ. " * 15]
    wanted = OTHER_SETTINGS[number].get("languages", ("en",))
    texts = [text for language, found in by_language.items() for text in found * (12 if language in wanted else 1)]
    reasons: Counter[str] = Counter()
    for plain_text in (False, True):
        reports = [CleaningReport(number), CleaningReport(number)]
        cleaners = both(CleaningSettings(**OTHER_SETTINGS[number]), plain_text=plain_text)
        for _ in range(100):
            pieces = list(chance.choice(texts) + chance.choice([*texts, "", ""]))
            for _ in range(chance.choice([0, 0, 2, 9, 60])):
                pieces.insert(chance.randrange(len(pieces)), chance.choice(SOMETIMES))
            text = "".join(pieces[: chance.choice([len(pieces), 450])])
            document = Document(text.upper() if chance.random() < 0.1 else text)
            slow, quick = (cleaner.clean(document, report) for cleaner, report in zip(cleaners, reports, strict=True))
            assert slow == quick
            reasons[slow.reason if isinstance(slow, RejectedDocument) else "kept"] += 1
        assert reports[0].state() == reports[1].state()
    assert reasons["kept"] > 20
    assert reasons.total() - reasons["kept"] > 20


@cases(100)
@given(TEXTS)
def test_counts_equal_those_of_the_filters(text: str) -> None:
    found = proofs.counts(text)
    words = text.split()
    if found is None:
        assert any(ord(character) > 0x7F for character in text)
        return
    lines = [line for line in map(str.strip, text.split("\n")) if line]
    pairs = Counter(zip(text.lower().split(), text.lower().split()[1:], strict=False))
    assert found[:6] == (
        len(words),
        sum(map(len, words)),
        sum(any(map(str.isalpha, word)) for word in words),
        len(lines),
        sum(line.startswith(BULLETS) for line in lines),
        text.count("#") + text.count("...") + text.count("…"),
    )
    assert found.most >= max(pairs.values(), default=0)


@pytest.mark.parametrize("character", ["東", "ไ", "İ", "Σ", "\U00010400", "\U00020000"])
def test_a_text_with_a_character_that_the_loop_cannot_judge_is_left_to_the_filters(character: str) -> None:
    assert proofs.counts(f"The river {character} flows") is None


@pytest.mark.parametrize(
    "limits",
    [
        {"max_top_2gram_characters": 0.2},
        {"max_top_3gram_characters": 0.2},
        {"max_top_4gram_characters": 0.2},
        {"max_duplicate_lines": 0.2},
        {"max_duplicate_paragraphs": 0.2},
        {"languages": ("en", "de"), "max_bigram_share": 0.0},
    ],
)
def test_limits_that_the_loop_does_not_measure_are_left_to_the_filters(limits: dict[str, float]) -> None:
    settings = CleaningSettings(**limits)  # type: ignore[arg-type]
    text = "The river flows to the sea, and people have lived with it.\n\n" * 30
    assert not {"repetitive", *(["no_stopwords"] if "languages" in limits else [])} & proofs.passing_filters(text, settings)
    slow, quick = both(settings)
    assert slow.clean(Document(text)) == quick.clean(Document(text))
