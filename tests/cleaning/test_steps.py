"""Parts of the cleaning as single steps: what their entries mean, that they decide as the cleaning does, and how they are counted."""

import json
from pathlib import Path
from typing import Any

import pytest

from niels_cache_assets.base.documents import Document
from niels_cache_assets.base.reasons import explain
from niels_cache_assets.cleaning.report import CleaningReport, RejectedDocument
from niels_cache_assets.cleaning.settings import MASKS, NORMALIZERS, REASONS, CleaningSettings
from niels_cache_assets.steps.chain import DocumentChain, Outcome
from niels_cache_assets.steps.identity import steps_identity
from niels_cache_cleaning.entries import SHIPPED, keys_of, limits_in
from niels_cache_cleaning.profiles import PROFILES, Profile
from tests.helpers.user_steps import documents_of, source_with

PROSE = "The old harbour lies at the end of a narrow road that few visitors find, and the boats come back to it with herring. "
GERMAN = "Der alte Hafen liegt am Ende einer schmalen Straße, und die Boote kommen mit Heringen und Dorschen von der See zurück. "
TEXTS = [PROSE * 6, "Few words of jo@web.org.", GERMAN * 6, f"&amp; {PROSE * 4} Write to jo@web.org, or +49 30 1234567."]


def run(
    folder: Path, *steps: Any, texts: list[str] = TEXTS, cleaning: CleaningSettings | None = None
) -> tuple[list[Outcome], CleaningReport]:
    report = CleaningReport(seed=0)
    source = source_with(folder, *steps, **({"prepare": ["clean"]} if cleaning is not None else {}))
    return DocumentChain(source=source, cleaning=cleaning).run(documents_of(texts), report), report


@pytest.mark.parametrize(
    ("entry", "title", "dropped"),
    [
        ({"filter": "too_short", "min_words": 5}, "too_short", {"step:too_short:min_words": 1}),
        ({"filter": "too_short", "min_words": 4}, "too_short", {}),
        ({"filter": "too_short"}, "too_short", {"step:too_short:min_characters": 1}),
        ({"filter": "not_english", "languages": ["de"]}, "not_english", {"step:not_english": 3}),
        ({"filter": "redirect", "name": "wiki"}, "wiki", {}),
        ({"languages": ["en"]}, "languages", {"step:languages:other_language": 1, "step:languages:unknown_language": 1}),
        ({"code": ["generated", "long_line"], "max_line_length": 50}, "code", {"step:code:long_line": 3}),
        ({"mask": ["email"]}, "mask", {}),
        ({"normalize": ["entities"]}, "normalize", {}),
        ({"profile": "c4"}, "c4", {"step:c4:too_few_sentences": 1}),
    ],
)
def test_each_form_is_a_step_with_its_name_and_reasons(tmp_path: Path, entry: dict[str, Any], title: str, dropped: dict[str, int]) -> None:
    texts = [*TEXTS[:1], "One. Two words here. Three of them." if "languages" not in entry else "12 34 56", *TEXTS[2:]]
    texts = TEXTS if "filter" in entry else texts
    _, report = run(tmp_path, entry, texts=texts)
    [use] = source_with(tmp_path, entry).steps
    assert use.title == title
    assert report.dropped == dropped


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"filter": "to_short"}, "did you mean 'too_short'"),
        ({"filter": ["too_short"]}, "filter is .'too_short'"),
        ({"filter": "too_short", "min_word": 3}, "the filter 'too_short' has no key 'min_word'; did you mean 'min_words'"),
        ({"filter": "too_short", "min_words": -1}, "min_words: "),
        ({"filter": "redirect", "min_words": 3}, "it has none"),
        ({"fliter": "too_short"}, "did you mean 'filter'"),
        ({"code": ["generate"]}, "did you mean 'generated'"),
        ({"code": ["data"], "max_line": 5}, "code has no key 'max_line'; did you mean 'max_line_length'"),
        ({"code": ["data"], "max_line_length": 0}, "lengths are above 0"),
        ({"code": ["data"], "max_line_length": "9"}, "set it to a number"),
        ({"mask": "email"}, "write a list of email, ip"),
        ({"mask": ["emial"]}, "did you mean 'email'"),
        ({"mask": ["email"], "profile": "c4"}, "mask has no key 'profile'"),
        ({"languages": ["eng"]}, "languages is 'eng'; did you mean 'en'"),
        ({"languages": []}, "write a list"),
        ({"normalize": ["tag"]}, "did you mean 'tags'"),
        ({"score": "a.bin"}, "add the label"),
        ({"score": {"label": "x"}}, "score has no model"),
        ({"score": {"model": "a.bin", "lable": "x"}}, "did you mean 'label'"),
        ({"name": "x"}, "one of code, filter, languages, mask, normalize, profile, score"),
    ],
)
def test_wrong_entries_are_refused(tmp_path: Path, entry: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        source_with(tmp_path, entry)


def test_both_forms_of_a_score_are_the_step(tmp_path: Path) -> None:
    forms = ({"score": "a.bin", "label": "x"}, {"score": {"model": "a.bin", "label": "x"}})
    one, other = (source_with(tmp_path, form).steps[0] for form in forms)
    assert one == other
    assert (one.use, one.settings, one.title) == ("niels_cache_cleaning.scores:FastText", {"model": "a.bin", "label": "x"}, "score")


def test_the_filters_as_steps_decide_as_the_cleaning_does(tmp_path: Path) -> None:
    texts = [
        *TEXTS,
        "#REDIRECT [[a]]",
        " ",
        "It may refer to:\n* a\n",
        "- a b\n" * 200,
        f"{PROSE * 4}{'#x ' * 20}",
        f"{PROSE * 4}{'1234 ' * 40}",
        f"{PROSE} {'find boats ' * 30}",
        "\n".join(f"- {PROSE[place : place + 60]}" for place in range(50)),
        "a b " * 200,
        "the of to " * 200,
    ]
    texts += ["incomprehensibilities " * 60, "12 34 56 " * 90, "Nets dry quickly under summer light near white rocks. " * 9]
    settings = CleaningSettings(skip=NORMALIZERS[1:])
    cleaned, report = run(tmp_path, cleaning=settings, texts=texts)
    keys = settings.model_dump()
    filters = [
        {"filter": reason, **{key: keys[key] for key in keys_of(reason) if keys[key] is not None and key not in limits_in(reason)}}
        for reason in REASONS
    ]
    outcomes, by_steps = run(tmp_path, *filters, texts=texts)
    of_cleaning = [each.reason if isinstance(each, RejectedDocument) else None for each in cleaned]
    of_steps = [each.reason.split(":")[1] if isinstance(each, RejectedDocument) and each.reason != "empty" else None for each in outcomes]
    assert of_steps == of_cleaning
    assert len(report.dropped) > 8
    assert "no_stopwords" in report.dropped
    assert by_steps.dropped.total() == report.dropped.total()


def test_masks_count_kept_documents_and_hide_all_examples(tmp_path: Path) -> None:
    outcomes, report = run(
        tmp_path,
        {"filter": "too_short", "min_words": 10},
        {"mask": ["email"]},
        {"languages": ["en"]},
        {"mask": ["phone"], "name": "phones"},
    )
    assert [row["excerpt"] for row in report.rows() if row["reason"].startswith("step:too_short")] == ["Few words of [email]."]
    assert isinstance(outcomes[3], Document)
    assert outcomes[3].text.endswith("Write to [email], or [phone].")
    assert (report.masked, report.masked_documents) == ({"email": 1, "phone": 1}, 1)
    assert {row["kind"]: row["after"] for row in report.mask_examples()} == {"email": ", or ", "phone": "."}
    assert report.languages == {"en": 2, "de": 1}
    _, report = run(tmp_path, {"mask": [*MASKS]}, {"filter": "too_short", "min_words": 1_000})
    assert (report.kept, report.masked) == (0, {})
    steps = [{"normalize": ["entities"]}, {"mask": ["email"]}, {"filter": "too_short", "min_words": 10}]
    texts = [*TEXTS, f"{PROSE * 4} ed@web.org and ann&#64;web.org", "Short ed@web.org"]
    lenient = CleaningSettings(mask=("email",), skip=tuple({*REASONS, *NORMALIZERS} - {"empty", "unreadable"}))
    _, report = run(tmp_path, "cleaning", *steps, texts=texts, cleaning=lenient)
    assert (report.masked, report.masked_documents) == ({"email": 3}, 2), "without dropped documents, and each document once"
    assert len(report.mask_examples()) == 2


def test_steps_stand_on_both_sides_of_the_cleaning_and_repeat(tmp_path: Path) -> None:
    steps = [{"normalize": ["entities"]}, {"filter": "too_short", "min_words": 3}, "cleaning", {"filter": "too_short", "name": "again"}]
    outcomes, report = run(tmp_path, *steps, cleaning=CleaningSettings(mask=("email",)), texts=[*TEXTS, "two words"])
    assert report.dropped == {"step:too_short:min_words": 1, "too_short": 1, "not_english": 1}
    assert isinstance(outcomes[3], Document)
    assert outcomes[3].text.startswith("& The old")


def test_only_the_version_identifies_a_shipped_step(tmp_path: Path) -> None:
    found = steps_identity(source_with(tmp_path, {"filter": "too_short", "min_words": 20}, {"mask": ["email"]}, {"profile": "c4"}))
    assert found == {  # changes make data sets stale
        "1 too_short": {
            "use": "niels_cache_cleaning.steps:Filter",
            "settings": {"filter": "too_short", "min_words": 20},
            "version": "1",
            "name": "too_short",
        },
        "2 mask": {"use": "niels_cache_cleaning.steps:Mask", "settings": {"mask": ["email"]}, "version": "1", "name": "mask"},
        "3 c4": {"use": "niels_cache_cleaning.profiles:Profile", "settings": {"profile": "c4"}, "version": "1", "name": "c4"},
    }


def test_the_values_of_rules_are_in_the_report(tmp_path: Path) -> None:
    steps = [{"filter": "too_short", "min_words": 5}, {"profile": "c4"}]
    texts = [*TEXTS, "No end\n" + PROSE * 6, PROSE * 5 + "{ is here."]
    _, report = run(tmp_path, *steps, texts=texts)
    _, later = run(tmp_path, *steps, texts=texts)
    report.join(later)
    report = CleaningReport.from_state(json.loads(json.dumps(report.state())))
    assert {step: found.documents for step, found in report.step_measures.items()} == {"too_short": 12, "c4": 10}
    assert report.step_measures["too_short"].steps["min_words"]["alone"].total() == 12
    braces = report.step_measures["c4"].steps["curly_bracket"]
    assert (braces["alone"], braces["anyway"]) == ({0: 8, 1: 2}, {})
    assert report.cut_lines == {"c4": 2}


@pytest.mark.parametrize("name", PROFILES)
def test_the_measures_of_a_profile_are_those_of_its_decisions(name: str) -> None:
    profile = Profile(name)
    for text in (*TEXTS, "", "a b {", "lorem ipsum dolor\n" * 9, "\n\n".join([PROSE] * 3)):
        measured, result = profile.measure(text), profile(Document(text))
        dropping = [key for key, value in measured.items() if (limit := profile._limits[key]).is_dropped(limit.step_of(value))]
        assert (result.reason if hasattr(result, "reason") else None) == next(iter(dropping), None)


def test_reasons_of_shipped_steps_have_a_meaning() -> None:
    assert "fewer than 50 words" in explain("step:fineweb:gopher_short_doc")
    assert explain("step:too_short:min_words") == explain("too_short")
    assert "language" in explain("step:languages:other_language")
    assert "longer than" in explain("step:code:long_line")
    assert explain("step:mine:few words") == explain("step")
    assert all(row.use.partition(":")[0].startswith("niels_cache_cleaning.") for row in SHIPPED.values())
