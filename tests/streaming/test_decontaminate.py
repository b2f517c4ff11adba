"""Decontamination. No document of train equals or is near a document of val. The tests compare with brute force, on any number of threads,
for every way to split.
"""

import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from niels_cache_assets.base.defaults import SPECIAL_TOKENS
from niels_cache_assets.base.documents import Document
from niels_cache_assets.build_cache import build_pretrain_cache
from niels_cache_assets.dedup import text_set
from niels_cache_assets.dedup.text_set import TextMatch, TextSet
from niels_cache_assets.project.registry import Registry, load_registry
from niels_cache_assets.tokenizer.kinds import SentencePieceTokenizer
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.meta import Meta, read_meta
from niels_cache_runtime.verify import verify_dataset
from tests.build_cache.test_determinism import digests
from tests.helpers.builds import build_dataset, build_tokenizer
from tests.helpers.depth import sized
from tests.helpers.plain_signatures import canonical_text
from tests.helpers.tiny import sentences

PLENTY = 10**9
BUDGETS: dict[str, object] = {"max_train_tokens": PLENTY, "max_val_tokens": 0, "shard_bytes": 1 << 20, "seed": 7, "shuffle_buffer": None}


def build(folder: Path, texts: object, tokenizer: object, **changes: object) -> Meta:
    build_pretrain_cache(texts, str(folder), tokenizer=tokenizer, **{**BUDGETS, **changes})  # type: ignore[arg-type]
    assert verify_dataset(folder) == []
    return read_meta(str(folder / "meta.json"))


def sources_of(folder: Path, split: str) -> list[str]:
    ids: list[str] = pyarrow.parquet.read_table(folder / f"{split}_documents.parquet", columns=["source_id"])["source_id"].to_pylist()
    return ids


def naive_words(text: str) -> list[str]:
    """Return the words of a text of letters, and of marks at the end of words or alone."""
    words: list[str] = []
    for word in text.lower().split():
        letters, glued = word.rstrip(".,!?"), bool(words) and not words[-1].strip(".")  # no blank follows a sign
        if not letters and glued:
            words[-1] += word
        elif glued:
            words[-1] += letters
        else:
            words.append(letters or word)
    return words


def naive_shingles(text: str) -> set[tuple[str, ...]]:
    words = naive_words(text)
    size = min(5, len(words))
    return {tuple(words[start : start + size]) for start in range(len(words) - size + 1)} if words else set()


def naive_match(text: str, val: list[str], threshold: float) -> TextMatch | None:
    """Return the match by definition, from all documents: the earliest equal document, or else the earliest near document."""
    canonical = [" ".join(naive_words(one)) or one for one in [text, *val]]  # nothing is left of blanks alone
    if canonical[0] in canonical[1:]:
        return TextMatch("exact", canonical[1:].index(canonical[0]), 1.0)
    ours = naive_shingles(text)
    for ordinal, other in enumerate(map(naive_shingles, val)):
        similarity = len(ours & other) / len(ours | other) if ours | other else 0.0
        if similarity >= threshold:
            return TextMatch("near", ordinal, similarity)
    return None


def find(texts: list[str], val: list[str], folder: Path, *, threshold: float, kind: str = "near") -> list[TextMatch | None]:
    with TextSet(near=threshold if kind == "near" else None, folder=folder) as index:
        index.add(val[: len(val) // 2])
        index.add(val[len(val) // 2 :])
        index.seal()
        return index.find(texts)


word = st.sampled_from(["a", "B", "to", "Tokens!", "shard,", "é", "...", "x" * 30, "\n\n", "  "])
text = sized(word, 40).map(" ".join)
WIDE = "\u3000".join(f"v{number}" for number in range(60))  # longer than the first part of a text, which is compared first


@given(
    val=st.lists(text, max_size=6),
    others=st.lists(text, max_size=6),
    cut=st.integers(0, 12),
    threshold=st.sampled_from([0.2, 0.5, 0.8, 0.95]),
)
@example(val=[WIDE], others=[" ".join(f"q{number}" for number in range(12)) + " " + WIDE], cut=0, threshold=0.5)
def test_what_is_found_is_what_comparing_with_all_of_val_finds(
    tmp_path_factory: pytest.TempPathFactory, val: list[str], others: list[str], cut: int, threshold: float
) -> None:
    changed = [f"{' '.join(one.split(' ')[cut:])} More." for one in val] + [one.upper() for one in val]
    texts = [*others, *changed]
    found = find(texts, val, tmp_path_factory.getbasetemp(), threshold=threshold)
    assert found == [naive_match(one, val, threshold) for one in texts]


@pytest.mark.parametrize(("threshold", "sorted_at_once"), [(0.3, 1 << 21), (0.8, 1 << 21), (0.3, 50), (0.8, 7)])
def test_long_texts_at_every_similarity_are_found_from_the_threshold_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threshold: float, sorted_at_once: int
) -> None:
    """Long enough that the first part of a text decides: what has nothing in common, starts or ends alike, or is alike all over."""
    monkeypatch.setattr(text_set, "_SORTED_AT_ONCE", sorted_at_once)
    if sorted_at_once == 7:  # all digests begin alike
        monkeypatch.setattr(text_set, "_first_words", lambda digests: np.zeros(len(digests), np.uint64))
    val = [" ".join(sentences(20, seed=seed, words=10)) for seed in range(4)]
    strange = [" ".join(sentences(20, seed=seed, words=10)) for seed in range(100, 104)]
    texts = [*strange]
    for one, other in zip(val, strange, strict=True):
        words, others = one.split(), other.split()
        for share in (0, 4, 10, 25, 50, 75, 90, 96, 100):
            at = len(words) * share // 100
            texts += [" ".join(words[:at] + others[at:]), " ".join(others[:at] + words[at:]), " ".join(words[:at]), " ".join(words[at:])]
    found = find(texts, val, tmp_path, threshold=threshold)
    assert found == [naive_match(one, val, threshold) for one in texts]
    assert 15 < sum(match is None for match in found) < len(found) - 15
    assert {match.kind for match in found if match is not None} == {"exact", "near"}


@pytest.mark.parametrize("mode", ["exact", "near"])
def test_copies_of_val_never_enter_train_and_use_no_budget(tmp_path: Path, tokenizer: SentencePieceTokenizer, mode: str) -> None:
    val, train = sentences(20, words=40), sentences(40, seed=1, words=40)
    copies = [text.upper().replace(" ", "  ") for text in val]
    near = [f"{text} And so on." for text in val]
    size = sum(len(tokenizer.encode(text)) + 1 for text in val)
    mixed = [text for trio in zip(train, copies * 2, near * 2, strict=True) for text in trio]
    room = sum(len(tokenizer.encode(text)) + 1 for text in (train if mode == "near" else train + near + near))
    changes = {"max_val_tokens": size, "max_train_tokens": room, "decontaminate": mode}
    meta = build(tmp_path / "x", [*val, *mixed], tokenizer, **changes)
    assert meta["dropped"] == {"in_val": 40} | ({"near_val": 40} if mode == "near" else {})
    assert meta["documents"] == {"val": 20, "train": 40 if mode == "near" else 80}
    assert (meta["train_tokens"], meta["cut"]) == (room, {"train": 0, "val": 0})
    positions = [int(source) - 20 for source in sources_of(tmp_path / "x", "train")]
    assert positions == [position for position in range(120) if position % 3 != 1 and (mode == "exact" or position % 3 == 0)]


def test_the_threshold_decides_what_is_near(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    words = sentences(1, words=104)[0].split()  # 100 shingles, 80 of them in the first 84 words
    texts = [Document(" ".join(words), split="val"), Document(" ".join(words[:84]), split="train"), Document("other", split="train")]
    near = {
        threshold: build(tmp_path / "x", texts, tokenizer, decontaminate="near", decontaminate_threshold=threshold)["dropped"]
        for threshold in (0.79, 0.8, 0.81)
    }
    assert near == {0.79: {"near_val": 1}, 0.8: {"near_val": 1}, 0.81: {}}


def test_the_number_of_threads_does_not_show_in_the_bytes(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    """Val ends in the second of many chunks, so that some are compared by the threads and some were encoded too early for that."""
    special = SPECIAL_TOKENS["eot"]
    texts = sentences(600, words=8) + [f"{text} {special}" for text in sentences(10, words=8)]
    texts = [texts[position * 7 % len(texts)] for position in range(4_000)]
    changes = {"max_val_tokens": 6_000, "max_train_tokens": 9_000, "decontaminate": "near"}
    for threads in (1, 2, 7):
        meta = build(tmp_path / str(threads), texts, tokenizer, threads=threads, **changes)
        assert meta["dropped"]["in_val"] > 100
        assert meta["dropped"]["special_token_collision"] > 10
        assert meta["documents"]["val"] > 256
    assert digests(tmp_path / "1") == digests(tmp_path / "2") == digests(tmp_path / "7")


def test_val_that_comes_after_train_is_refused_unless_it_is_known(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    lines = sentences(600, words=30)
    train, val = [Document(text, split="train") for text in lines], [Document(text, split="val") for text in lines[:30]]
    for late in ([*train, *val], [*val[:3], *train[40:42], *val[3:]]):
        with pytest.raises(NielsCacheError, match=r"document of train.*val_texts"):
            build(tmp_path / "x", late, tokenizer, decontaminate="near")
        assert not (tmp_path / "x").exists()
        meta = build(tmp_path / "y", iter(late), tokenizer, decontaminate="near", val_texts=iter(val))
        assert meta["documents"] == {"val": 30, "train": 570 if len(late) == 630 else 2}
    assert build(tmp_path / "z", [*val, *train], tokenizer, decontaminate="exact")["dropped"] == {"in_val": 30}


@pytest.mark.parametrize("threads", [1, 4])
def test_a_train_document_before_val_is_full_gives_the_same_on_any_number_of_threads(
    tmp_path: Path, tokenizer: SentencePieceTokenizer, threads: int
) -> None:
    """The index is complete after the first chunk. Documents without a split that are in the index still go to val until the budget is
    met.
    """
    val = [Document(text, split="val") for text in sentences(256, words=8)]
    train = [Document("another", split="train"), *(Document(text, split="train") for text in sentences(255, seed=3, words=8))]
    again = [Document(text.text) for text in val]
    room = 6 * sum(len(tokenizer.encode(text.text)) + 1 for text in val)
    meta = build(tmp_path / "x", [*val, *train, *again * 8], tokenizer, max_val_tokens=room, decontaminate="exact", threads=threads)
    assert meta["documents"] == {"val": 256 * 7, "train": 256}
    assert meta["dropped"] == {"in_val": 256 * 2}


def test_what_is_given_as_val_and_cannot_be_encoded_keeps_nothing_out(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    """Canonical text is in lower case: the text with the special token in it equals one without."""
    special = SPECIAL_TOKENS["eot"]
    bare = special.upper()
    assert bare != special
    val = [Document(f"one two {special}", split="val"), Document("three four five", split="val")]
    train = [Document(f"one two {bare}", split="train"), Document("three four five", split="train"), Document("six", split="train")]
    metas = [build(tmp_path / "x", [*val, *train], tokenizer, decontaminate="exact", val_texts=given) for given in (None, iter(val))]
    assert canonical_text(val[0].text) == canonical_text(train[0].text)
    for meta in metas:
        assert meta["documents"] == {"val": 1, "train": 2}
        assert meta["dropped"] == {"special_token_collision": 1, "in_val": 1}
    assert metas[0]["fingerprint"] != metas[1]["fingerprint"]
    assert "val_is_given" not in metas[0]["decontaminate"]


def test_every_setting_that_counts_is_in_the_fingerprint(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    def fingerprint(mode: str, threshold: float) -> str:
        return str(build(tmp_path / "x", sentences(5), tokenizer, decontaminate=mode, decontaminate_threshold=threshold)["fingerprint"])

    assert len({fingerprint("off", 0.8), fingerprint("exact", 0.8), fingerprint("near", 0.8), fingerprint("near", 0.7)}) == 4
    assert fingerprint("exact", 0.8) == fingerprint("exact", 0.7)


@pytest.mark.parametrize(("mode", "threshold", "problem"), [("fuzzy", 0.8, "off, exact, near"), ("near", 1.0, "below 1")])
def test_settings_that_mean_nothing_are_refused(
    tmp_path: Path, tokenizer: SentencePieceTokenizer, mode: str, threshold: float, problem: str
) -> None:
    with pytest.raises(NielsCacheError, match=problem):
        build(tmp_path / "x", sentences(5), tokenizer, decontaminate=mode, decontaminate_threshold=threshold)
    assert not (tmp_path / "x").exists()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """200 lines and 40 of them again, as the rows of all.parquet; and a tokenizer."""
    folder = tmp_path_factory.mktemp("tables")
    lines = sentences(200, words=30)
    pyarrow.parquet.write_table(pyarrow.table({"text": [*lines, *(line.upper() for line in lines[::5])]}), folder / "all.parquet")
    shutil.copy(tiny_model, folder / "spm.model")
    build_tokenizer(registry_of(folder, ""), root=folder / "cache")
    return folder


def registry_of(folder: Path, table: str) -> Registry:
    config = folder / "niels_cache.toml"
    tokenizer = '[tokenizer]\nmodel = "spm.model"\n'
    config.write_text(f'{tokenizer}[pretrain.rows]\nsource = "parquet"\nfiles = ["all.parquet"]\n{table}', encoding="utf-8")
    return load_registry(profile="quickstart", config=str(config))


def test_seeded_splits_know_all_of_val_before_train_begins(root: Path) -> None:
    """val_frac puts the earlier or the later one of two copies into val: the other one must go in both cases."""
    outcome = build_dataset(registry_of(root, 'val_frac = 0.3\ndecontaminate = "exact"\n'), "rows", root=root / "cache")
    documents, dropped = outcome.meta["documents"], outcome.meta["dropped"]["in_val"]
    assert documents["val"] == 72
    assert documents["train"] + dropped == 168
    assert 5 < dropped < 30
    canonical = [number if number < 200 else (number - 200) * 5 for number in range(240)]
    places = {
        split: {canonical[int(source.rsplit("#", 1)[1])] for source in sources_of(outcome.directory, split)} for split in ("train", "val")
    }
    assert places["val"]
    assert not places["train"] & places["val"]
