"""Texts that differ in signs stay different for everything that compares texts, and copies of prose are found. The pairs are in
canonical_pairs.py.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from niels_cache_assets.artifacts.builds import build_dataset, build_tokenizer, find_duplicates, prepare_corpus
from niels_cache_assets.config.registry import load_registry
from niels_cache_assets.corpus.reading import open_prepared
from niels_cache_assets.dedup.signatures import Signer, jaccard
from niels_cache_assets.streaming.decontaminate import ReferencePlace, ReferenceTexts, open_references
from niels_cache_assets.streaming.disjoint import splits_disjoint
from niels_cache_assets.tokenizer.kinds import SentencePieceTokenizer
from niels_cache_runtime.format.meta import Meta, read_meta
from tests.canonical_pairs import DIFFERENT, DOCUMENTS, EQUAL_ALL_THE_SAME, ONLY_NEAR, QUESTIONS, SAME
from tests.corpora import corpus_registry
from tests.plain_signatures import PlainSigner, canonical_text
from tests.test_disjoint import build, documents_of
from tests.tiny import sentences

SIGNERS = pytest.mark.parametrize("signer", [Signer(), PlainSigner()], ids=["compiled", "plain Python"])
TEXTS = pytest.mark.parametrize("texts", [DOCUMENTS, QUESTIONS], ids=["documents", "questions"])


def test_the_lists_are_whole() -> None:
    assert len(DIFFERENT) >= 38
    assert len(SAME) >= 18
    assert (len(set(DOCUMENTS)), len(set(QUESTIONS))) == (18, 30)


def is_same(one: str, other: str, signer: Signer) -> bool:
    digests = signer.sign([one, other]).digests
    return digests[0].tobytes() == digests[1].tobytes()


def surrounded(text: str) -> list[str]:
    """Return the text alone, between words, in a line of its own, and twice."""
    return [text, f"before {text} after", f"before\n{text}\nafter", f"{text}, {text}"]


@SIGNERS
@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_texts_that_differ_in_signs_are_different(one: str, other: str, signer: Signer) -> None:
    assert not is_same(one, other, signer)
    if canonical_text(one) or canonical_text(other):  # otherwise only identical texts are the same
        assert [is_same(*pair, signer) for pair in zip(surrounded(one), surrounded(other), strict=True)] == [False] * 4


@SIGNERS
@pytest.mark.parametrize(("one", "other"), SAME + EQUAL_ALL_THE_SAME)
def test_copies_of_the_same_text_are_the_same(one: str, other: str, signer: Signer) -> None:
    assert one != other
    assert [is_same(*pair, signer) for pair in zip(surrounded(one)[:3], surrounded(other)[:3], strict=True)] == [True] * 3


@pytest.mark.parametrize(("one", "other"), ONLY_NEAR)
def test_copies_with_other_punctuation_inside_are_near_in_a_longer_text(one: str, other: str) -> None:
    signer, words = Signer(), sentences(2, words=60)
    assert not is_same(one, other, signer)
    ours, theirs = (signer.shingle_hashes(f"{words[0]} {text} {words[1]}") for text in (one, other))
    assert 0.85 <= jaccard(ours, theirs) < 1


def prepared(folder: Path, texts: list[str], *, settings: str = "", val_frac: float = 0.0) -> tuple[list[str], set[str]]:
    """Return the texts that are left by `prepare = ["dedup"]`, and their splits."""
    table = f'prepare = ["dedup"]\nval_frac = {val_frac}\n'
    registry = corpus_registry(folder, {"texts": texts}, settings=settings, table=table)
    prepare_corpus(registry, "texts", root=folder, processes=1)
    find_duplicates(registry, root=folder)
    left = [document for batch in open_prepared(registry, "texts", root=folder).documents() for document in batch]
    return [document.text for document in left], {document.split or "none" for document in left}


@TEXTS
@pytest.mark.parametrize("settings", ["", '[dedup]\nverify = "jaccard"\nthreshold = 0.7\n'], ids=["default", "verified"])
def test_dedup_drops_no_document_that_differs_in_signs(tmp_path: Path, texts: list[str], settings: str) -> None:
    left, _ = prepared(tmp_path, [*texts, texts[0].upper() + "\n"], settings=settings)
    assert left == texts  # and the copy is dropped


@TEXTS
def test_the_search_of_train_against_val_drops_none_either(tmp_path: Path, texts: list[str]) -> None:
    left, splits = prepared(tmp_path, [*texts, *(text.upper() for text in texts)], val_frac=0.5)
    assert splits == {"train", "val"}
    assert sorted(text.lower() for text in left) == sorted(text.lower() for text in texts)


def halves(texts: list[str]) -> tuple[list[str], list[str]]:
    """Return val and train: every third text, and the others."""
    return texts[::3], [text for place, text in enumerate(texts) if place % 3]


@TEXTS
@pytest.mark.parametrize(("kind", "reason"), [("exact", "in_val"), ("near", "in_val")])
def test_decontaminate_drops_none(tmp_path: Path, tokenizer: SentencePieceTokenizer, texts: list[str], kind: str, reason: str) -> None:
    val, train = halves(texts)
    documents = documents_of(val, "val", "v") + documents_of([*train, val[0].upper()], "train", "t")
    folder = build(tmp_path / "x", documents, tokenizer, decontaminate=kind, decontaminate_threshold=0.7)
    meta: Meta = read_meta(str(folder / "meta.json"))
    assert meta["documents"] == {"val": len(val), "train": len(train)}
    assert meta["dropped"] == {reason: 1}


@TEXTS
def test_the_check_of_splits_reports_none(tmp_path: Path, tokenizer: SentencePieceTokenizer, texts: list[str]) -> None:
    val, train = halves(texts)

    def overlap(more: list[str]) -> tuple[int, int]:
        documents = documents_of([*train, *more], "train", "t") + documents_of(val, "val", "v")
        found = splits_disjoint(build(tmp_path / "x", documents, tokenizer), tokenizer)
        return found.exact, found.near

    assert overlap([]) == (0, 0)
    assert overlap([val[0]]) == (1, 0)


@TEXTS
def test_decontaminate_against_drops_none(tmp_path: Path, tiny_model: Path, texts: list[str]) -> None:
    questions, train = halves(texts)
    shutil.copy(tiny_model, tmp_path / "spm.model")
    for name, rows in (("rows", [*train, questions[0].upper()]), ("quiz", questions)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in rows), encoding="utf-8")
    (tmp_path / "niels_cache.toml").write_text(
        '[tokenizer]\nmodel = "spm.model"\n[pretrain.rows]\nsource = "jsonl"\nfiles = ["rows.jsonl"]\nval_frac = 0\n'
        'decontaminate_against = ["./quiz.jsonl"]\n',
        encoding="utf-8",
    )
    registry = load_registry(profile="quickstart", config=str(tmp_path / "niels_cache.toml"))
    build_tokenizer(registry, root=tmp_path / "cache")
    meta = build_dataset(registry, "rows", root=tmp_path / "cache").meta
    assert meta["documents"]["train"] == len(train)
    assert meta["dropped"] == {"in_held_out": 1}


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
