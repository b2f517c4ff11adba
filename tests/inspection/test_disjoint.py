"""Common documents of train and val in a finished cache. The check finds all of them from the tokens, with their origin."""

import json
from pathlib import Path

import pytest

from niels_cache_assets.base.documents import Document, Message
from niels_cache_assets.build_cache import Provenance, build_pretrain_cache, build_sft_cache, write_unbuilt_cache
from niels_cache_assets.inspection import disjoint
from niels_cache_assets.inspection.disjoint import SplitOverlap, splits_disjoint
from niels_cache_assets.tokenizer.kinds import SentencePieceTokenizer
from niels_cache_runtime.errors import NielsCacheError
from tests.helpers.tiny import sentences


def build(folder: Path, documents: list[Document], tokenizer: object, **changes: object) -> Path:
    settings = {"max_train_tokens": 10**9, "max_val_tokens": 0, "shard_bytes": 1024, "seed": 1, "shuffle_buffer": None, **changes}
    build_pretrain_cache(documents, str(folder), tokenizer=tokenizer, **settings)  # type: ignore[arg-type]
    return folder


def documents_of(texts: list[str], split: str, file: str) -> list[Document]:
    return [Document(text, f"{file}-{row}", file, row, split=split) for row, text in enumerate(texts)]  # type: ignore[arg-type]


@pytest.fixture
def leaky(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> Path:
    """400 documents of train; of the 30 of val, every third is also in train, in capitals, and every third plus one with a new ending."""
    val, train = sentences(30, words=40), sentences(400, seed=1, words=40)
    train[100:110] = [text.upper() for text in val[::3]]
    train[300:310] = [f"{text}\n\nAnd so on, – 日本語 😀." for text in val[1::3]]
    return build(tmp_path / "leaky", documents_of(train, "train", "a.txt") + documents_of(val, "val", "b.txt"), tokenizer)


def test_every_overlap_is_found_with_where_both_come_from(leaky: Path, tokenizer: SentencePieceTokenizer) -> None:
    overlap = splits_disjoint(leaky, tokenizer)
    assert (overlap.train_documents, overlap.val_documents) == (400, 30)
    assert (overlap.exact, overlap.near, overlap.disjoint) == (10, 10, False)
    assert [pair.kind for pair in overlap.pairs] == ["exact"] * 10 + ["near"] * 10
    assert [pair.train for pair in overlap.pairs] == [(row, f"a.txt-{row}", "a.txt", row) for row in (*range(100, 110), *range(300, 310))]
    assert [pair.val for pair in overlap.pairs] == [(row, f"b.txt-{row}", "b.txt", row) for row in (*range(0, 30, 3), *range(1, 30, 3))]
    assert {pair.similarity for pair in overlap.pairs[:10]} == {1.0}
    assert {round(pair.similarity, 3) for pair in overlap.pairs[10:]} == {
        round(36 / 43, 3)
    }  # seven more words, because each ideograph is one


def test_the_threshold_says_what_near_is_and_none_looks_for_equal_ones_only(leaky: Path, tokenizer: SentencePieceTokenizer) -> None:
    counts = {threshold: splits_disjoint(leaky, tokenizer, threshold=threshold) for threshold in (0.83, 0.84, None)}
    assert {threshold: (overlap.exact, overlap.near) for threshold, overlap in counts.items()} == {
        0.83: (10, 10),
        0.84: (10, 0),
        None: (10, 0),
    }


def test_pairs_are_limited_and_counts_are_not_on_any_number_of_threads(leaky: Path, tokenizer: SentencePieceTokenizer) -> None:
    class Plain:
        decode = staticmethod(tokenizer.decode)

    few = splits_disjoint(leaky, tokenizer, max_pairs=3, threads=5)
    everything = splits_disjoint(leaky, Plain(), threads=1)  # a tokenizer that can only decode
    assert few.pairs == everything.pairs[:3]
    assert (few.exact, few.near) == (everything.exact, everything.near)


def test_each_document_is_compared_once_whatever_the_chunks(
    tmp_path: Path, tokenizer: SentencePieceTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both splits have six documents more than a chunk takes, with copies on both sides of its end."""
    count = disjoint._DOCUMENTS_PER_CHUNK + 6
    val, train = ([f"{name} {number} is one" for number in range(count)] for name in ("val", "train"))
    copies = {0: count - 1, count - 7: count - 6, count - 6: count - 7, count - 1: 0}
    for ordinal, of in copies.items():
        train[ordinal] = val[of].upper()
    folder = build(tmp_path / "x", documents_of(train, "train", "a") + documents_of(val, "val", "b"), tokenizer)
    overlap = splits_disjoint(folder, tokenizer)
    assert (overlap.train_documents, overlap.val_documents, overlap.exact, overlap.near) == (count, count, 4, 0)
    assert {pair.train.ordinal: pair.val.ordinal for pair in overlap.pairs} == copies
    for tokens in (1, 100):  # a document of more tokens is a chunk of its own
        monkeypatch.setattr(disjoint, "_TOKENS_PER_CHUNK", tokens)
        assert splits_disjoint(folder, tokenizer) == overlap


def test_nothing_is_left_to_find_after_decontamination(leaky: Path, tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    texts = sentences(30, words=40) + sentences(400, seed=1, words=40) + sentences(30, words=40)
    room = sum(len(tokenizer.encode(text)) + 1 for text in texts[:30])
    documents = [Document(text) for text in texts]
    off = build(tmp_path / "off", documents, tokenizer, max_val_tokens=room)
    near = build(tmp_path / "near", documents, tokenizer, max_val_tokens=room, decontaminate="near")
    assert splits_disjoint(off, tokenizer).exact == 30
    assert splits_disjoint(near, tokenizer) == SplitOverlap(train_documents=400, val_documents=30, exact=0, near=0, pairs=())


def test_what_a_budget_cut_was_compared_whole_while_the_cache_was_built(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    """The budget leaves the second document of val nothing but its EOT, which equals an empty text."""
    texts = [*sentences(2, words=30), "", sentences(1, seed=5)[0]]
    room = len(tokenizer.encode(texts[0])) + 2
    overlaps = {
        mode: splits_disjoint(
            build(tmp_path / mode, [Document(text) for text in texts], tokenizer, max_val_tokens=room, decontaminate=mode), tokenizer
        )
        for mode in ("off", "near")
    }
    assert (overlaps["off"].exact, overlaps["near"].exact) == (1, 0)
    assert [overlap.val_documents for overlap in overlaps.values()] == [2, 2]


def test_a_cut_document_is_compared_where_the_build_did_not_look_for_that(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    """Val's first document is cut to a half that train has almost as it is; more of val comes after it, so it is not val's last."""
    long, other, late = sentences(3, seed=5, words=120)
    half = " ".join(long.split()[:60])
    room = len(tokenizer.encode(half)) + 1
    documents = [Document(long), Document(late, split="val"), Document(f"{half} and so on", split="train"), Document(other, split="train")]
    overlaps = {
        mode: splits_disjoint(build(tmp_path / mode, documents, tokenizer, max_val_tokens=room, decontaminate=mode), tokenizer)
        for mode in ("off", "exact", "near")
    }
    assert {mode: (overlap.exact, overlap.near) for mode, overlap in overlaps.items()} == {"off": (0, 1), "exact": (0, 1), "near": (0, 0)}
    assert overlaps["exact"].pairs[0].val.ordinal == 0
    assert splits_disjoint(tmp_path / "near", tokenizer, threshold=0.5).near == 1, "nearer than the build looked for"
    assert json.loads((tmp_path / "near" / "meta.json").read_text())["cut_document"] == {"val": 0, "train": None}


@pytest.mark.parametrize("threshold", [0.0, 1.0, -0.5])
def test_a_threshold_that_means_nothing_is_refused(leaky: Path, tokenizer: SentencePieceTokenizer, threshold: float) -> None:
    with pytest.raises(NielsCacheError, match="above 0 and below 1"):
        splits_disjoint(leaky, tokenizer, threshold=threshold)


def test_documents_without_eot_are_compared_whole(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    documents = [*documents_of(["one two"], "val", "v"), *documents_of(["one", "one two"], "train", "t")]
    overlap = splits_disjoint(build(tmp_path / "x", documents, tokenizer, append_eot=False), tokenizer)
    assert [(pair.kind, pair.train.ordinal) for pair in overlap.pairs] == [("exact", 1)]


def test_caches_without_val_or_switched_off_are_disjoint(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    assert splits_disjoint(build(tmp_path / "x", [Document("a b c")], tokenizer), tokenizer).disjoint
    write_unbuilt_cache(str(tmp_path / "off"), family="pretrain", provenance=Provenance(dataset_name="off"))
    assert splits_disjoint(tmp_path / "off", tokenizer) == SplitOverlap(train_documents=0, val_documents=0, exact=0, near=0, pairs=())


def test_what_cannot_be_compared_is_refused(leaky: Path, tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    class Other:
        model_sha256 = "0" * 64
        decode = staticmethod(tokenizer.decode)

    with pytest.raises(NielsCacheError, match="another tokenizer"):
        splits_disjoint(leaky, Other())
    with pytest.raises(NielsCacheError, match=r"meta\.json"):
        splits_disjoint(tmp_path / "nothing", tokenizer)
    chat: list[Message] = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    build_sft_cache([chat] * 3, str(tmp_path / "s"), tokenizer=tokenizer, val_frac=0.5, seed=1)
    with pytest.raises(NielsCacheError, match="a pretrain cache"):
        splits_disjoint(tmp_path / "s", tokenizer)
