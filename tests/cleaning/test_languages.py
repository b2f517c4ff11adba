"""The language of a document, stop words by language, and scripts without blanks."""

import pytest

from niels_cache_assets.base.documents import Document
from niels_cache_assets.cleaning.report import RejectedDocument
from niels_cache_assets.cleaning.settings import LANGUAGES, CleaningSettings
from niels_cache_assets.dedup.signatures import Signer, jaccard
from niels_cache_cleaning.chain import Cleaner
from niels_cache_cleaning.filters import DocumentFacts
from niels_cache_cleaning.languages import UNSPACED_LANGUAGES, _detector, identify_language, language_of
from tests.helpers.plain_signatures import shingles_of
from tests.helpers.prose import PARAGRAPHS, unspaced_documents

ENGLISH = (
    "The river rises in the hills to the north of the town and flows past several villages before it reaches the sea. "
    "People have lived along its banks since the last ice age, and many of their tools can be seen in a small museum. "
)
ETYMOLOGY = (
    "[von lateinisch fluvius, aus fluere, fließen; verwandt mit griechisch phlyein, überfließen, und mit althochdeutsch blasan, blasen; "
    "das Wort kam im zwölften Jahrhundert über das Altfranzösische in die Sprache der Kaufleute an der Küste und bezeichnete zuerst nur "
    "das Wasser, das nach der Schmelze des Schnees über die Ufer tritt, und später jeden größeren Strom, auf dem "
    "Schiffe und Flöße fahren können.] "
)


def reason(text: str, *languages: str, **settings: object) -> str | None:
    result = Cleaner(CleaningSettings.model_validate({"languages": languages, **settings})).clean(Document(text))
    return result.reason if isinstance(result, RejectedDocument) else None


@pytest.mark.parametrize("language", PARAGRAPHS)
def test_prose_stays_if_its_language_is_wanted(language: str) -> None:
    text = PARAGRAPHS[language]
    assert len(text) >= 400
    assert reason(text, language) is None
    assert reason(text, "en") == "not_english"
    assert reason(text, "en", language) is None
    skipped = {"skip": ["not_english", "language_error"]}
    assert reason(text, "en", **skipped) == "no_stopwords"
    assert reason(text, language, **skipped) is None


def test_stop_words_are_those_of_the_language_of_the_document() -> None:
    words = "Berge Wälder Straßen Häuser Wiesen Flüsse Felder Gärten Brücken Dörfer Städte Mühlen Höfe Wege Burgen Türme Mauern Tore"
    only_nouns = " ".join(f"{one} {other}" for one in words.split()[:9] for other in words.split()[9:])
    assert identify_language(only_nouns).code == "de"
    assert reason(only_nouns, "de", max_bigram_share=1) == "no_stopwords"
    assert reason(only_nouns, "de", "sw", max_bigram_share=1) == "no_stopwords"
    assert reason(only_nouns, "la", max_bigram_share=1, skip=["not_english"]) is None, "no list for Latin, so nothing is judged"


def test_a_language_that_cannot_be_identified_is_refused_unless_the_filter_is_skipped() -> None:
    assert {code.partition("-")[0] for code in _detector()[0].langs()} == set(LANGUAGES.split())
    with pytest.raises(ValueError, match=r"'la' .*\bsw\b.*skip not_english"):
        CleaningSettings(languages=("en", "la"))
    assert CleaningSettings(languages=("la",), skip=("not_english",)).languages == ("la",)


def test_the_share_of_a_language_does_not_depend_on_packages_and_order() -> None:
    assert identify_language(PARAGRAPHS["de"]) == ("de", 1.0)
    assert sorted(_detector()[0].langs()) == _detector()[0].langs()
    mixed = ENGLISH[:100] + PARAGRAPHS["nl"][:60]
    assert len({identify_language(mixed) for _ in range(20)}) == 1


def test_a_document_is_asked_again_before_it_goes() -> None:
    entry = ETYMOLOGY + ENGLISH * 4
    assert len(ETYMOLOGY) > 400
    assert identify_language(entry[:400]).code == "de"
    assert language_of(entry, characters=400, wanted=("en",)).code == "en"
    assert language_of(entry, characters=400, wanted=("de",)).code == "de"
    assert reason(entry, "en", max_bigram_share=1) is None
    assert language_of(PARAGRAPHS["de"] * 5 + ENGLISH, characters=400, wanted=("en",)).code == "de"
    assert language_of("12 + 34 = 46\n" * 40 + ENGLISH * 4, characters=400, wanted=("en",)).code == "en"
    assert language_of("12 + 34 = 46\n" * 40, characters=400, wanted=("en",)).code is None


@pytest.mark.parametrize("language", sorted(UNSPACED_LANGUAGES))
def test_documents_without_blanks_between_words_are_judged_by_characters(language: str) -> None:
    documents = unspaced_documents(language, 10)
    assert min(map(len, documents)) > 800
    assert [reason(text, language) for text in documents] == [None] * 10
    facts = DocumentFacts(Document(documents[0]), CleaningSettings())
    assert facts.is_unspaced
    assert facts.word_count == len("".join(documents[0].split())) // 2
    assert reason(documents[0][:399], language) == "too_short"
    assert reason(documents[0][:500], language, min_words=300) == "too_short"
    assert reason(documents[0] + "ๆ々々" * 200, language) == "repetitive"
    assert reason(documents[0], "en") == "not_english"
    assert reason(documents[0] + "１２３，" * 900, language, max_bigram_share=1) == "low_alpha_ratio"
    assert not DocumentFacts(Document(ENGLISH * 4 + documents[0][:100]), CleaningSettings()).is_unspaced


@pytest.mark.parametrize("language", sorted(UNSPACED_LANGUAGES))
def test_one_changed_character_changes_few_shingles(language: str) -> None:
    text = unspaced_documents(language, 1)[0]
    changed = text[:500] + "犬" + text[501:]
    assert text != changed
    signer = Signer()
    assert jaccard(shingles_of(signer, text), shingles_of(signer, changed)) > 0.95
    slots = signer.sign([text, changed]).slots
    assert (slots[0] == slots[1]).mean() > 0.9
    one, other = unspaced_documents(language, 2)
    assert jaccard(shingles_of(signer, one), shingles_of(signer, other)) < 0.7, "made of the same phrases"
