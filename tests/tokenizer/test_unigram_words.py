"""The engine for unigram models: its ids are those of SentencePiece for any text, and a build with it has the same bytes."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece

from niels_cache_assets.base.defaults import SPECIAL_TOKENS
from niels_cache_assets.build_cache import Resume, build_pretrain_cache
from niels_cache_assets.streaming import encode
from niels_cache_assets.tokenizer import encoder as checked
from niels_cache_assets.tokenizer import engines, unigram_words
from niels_cache_assets.tokenizer.kinds import SentencePieceTokenizer
from niels_cache_assets.tokenizer.proof import EngineProof, compare, mixtures
from niels_cache_assets.tokenizer.unigram_words import UnigramWords
from niels_cache_runtime.errors import NielsCacheError
from tests.build_cache.test_determinism import digests
from tests.helpers.messages import missing
from tests.helpers.tiny import sentences

EOT = SPECIAL_TOKENS["eot"]
TIES = [  # ways with equal scores: which one SentencePiece takes depends on the rounding of all scores before
    "abababababababababab" * 4,
    " " * 70 + "token",
    "a" * 300,
    "token" + "=" * 90,
    "\n\n\n \n  \n",
    " ".join(["document" * 3, "ab" * 9, "x" * 17] * 90),
]
OTHERS = ["", " ", "  ", "\n", "é", "日本語" * 40, "\u2581a b", "a\0b", f"a {EOT} b", "😀 token", "x" * 5_000, "a\u00a0b\tc\r\nd"]
OTHERS += ["a" * 40, "a" * 41]


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> UnigramWords:
    loaded = UnigramWords.load(SentencePieceTokenizer(str(tiny_model)))
    assert isinstance(loaded, UnigramWords)
    return loaded


def proof_of(engine: UnigramWords, tokenizer: SentencePieceTokenizer, texts: list[str]) -> EngineProof:
    return compare(texts, reference=tokenizer.encode_flat, engine=engine.encode_flat)


def test_the_ids_are_those_of_sentencepiece(engine: UnigramWords, tokenizer: SentencePieceTokenizer) -> None:
    pieces = [text for piece in tokenizer.piece_bytes() if (text := piece.decode(errors="ignore"))]
    words = [word for word in " ".join(TIES).split(" ") if word]
    texts = [*TIES, *OTHERS, *sentences(300), *mixtures(2_000, pieces=pieces, seed=4)]
    texts += [" ".join(words[(start * 7 + each * 3) % len(words)] for each in range(start)) for start in range(1, 400)]
    texts += [("\n".join(sentences(2_000)) * 8)[:length] for length in (60_000, 600_000)] + [" ".join(TIES) * 100]
    proof = proof_of(engine, tokenizer, texts)
    assert (proof.texts, proof.first) == (len(texts), None)


def hand_made(pieces: dict[str, float]) -> bytes:
    """Return a unigram model with these pieces and their scores, and with all bytes. See sentencepiece_model.proto."""

    def field(number: int, content: bytes) -> bytes:
        return bytes([number << 3 | 2, len(content)]) + content

    def piece(text: str, score: float, kind: int) -> bytes:
        return field(1, field(1, text.encode()) + struct.pack("<Bf", 2 << 3 | 5, score) + bytes([3 << 3, kind]))

    every = [piece("<unk>", 0.0, 2), *(piece(f"<0x{byte:02X}>", 0.0, 6) for byte in range(256))]
    every += [piece(text, score, 1) for text, score in pieces.items()]
    # the settings: unigram, byte fallback, the id of <unk>
    trainer = bytes([3 << 3, 1, 35 << 3 & 0x7F | 0x80, 35 << 3 >> 7, 1, 40 << 3 & 0x7F | 0x80, 40 << 3 >> 7, 0])
    return b"".join([*every, field(2, trainer), field(3, field(1, b"identity") + bytes([4 << 3, 0]))])


def test_a_document_whose_sum_of_scores_is_large_has_the_ids_of_sentencepiece(tmp_path: Path) -> None:
    (tmp_path / "a.model").write_bytes(hand_made({"\u2581": -1, "x": -50, "a": -1, "b": -0.999, "ab": -2}))
    tokenizer = SentencePieceTokenizer(str(tmp_path / "a.model"), special_tokens={})
    engine = UnigramWords.load(tokenizer)
    assert isinstance(engine, UnigramWords)
    texts = ["x " * count + "ab" for count in (100, 1_000, 1_900, *range(1_950, 1_970), 2_100, 5_000)]
    texts += ["x" * count + " ab" for count in (1_900, 1_999, 2_000, 2_001, 2_100, 3_900)]  # the sum grows inside a word
    assert len({tuple(tokenizer.encode(text)[-2:]) for text in texts}) == 2  # SentencePiece rounds in two ways
    assert proof_of(engine, tokenizer, texts).first is None
    assert tokenizer.decode_continued(tokenizer.encode("a ab")[1:])  # it has no end-of-text token to decode behind


def test_a_table_that_is_often_emptied_changes_no_id(
    engine: UnigramWords, tokenizer: SentencePieceTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unigram_words, "_TABLE_ROWS", 64)
    monkeypatch.setattr(unigram_words, "_POOL", 200)
    monkeypatch.setattr(engine, "_tables", type(engine._tables)())
    assert proof_of(engine, tokenizer, [*TIES, *sentences(400)]).first is None
    (table,) = engine._tables
    assert 0 < table.filled[0] <= 32
    assert table.filled[1] <= 200


def trained(**settings: Any) -> bytes:
    model = io.BytesIO()
    given = {
        "vocab_size": 400,
        "hard_vocab_limit": False,
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        **settings,
    }
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences(800)),
        model_writer=model,
        user_defined_symbols=list(SPECIAL_TOKENS.values()),
        minloglevel=2,
        **given,
    )
    return model.getvalue()


@pytest.mark.parametrize(
    ("settings", "is_supported"),
    [
        ({"model_type": "unigram"}, True),
        ({"model_type": "unigram", "allow_whitespace_only_pieces": True}, True),
        ({"model_type": "bpe", "vocab_size": 330}, False),
        ({"model_type": "unigram", "normalization_rule_name": "nmt_nfkc"}, False),
        ({"model_type": "unigram", "remove_extra_whitespaces": True}, False),
        ({"model_type": "unigram", "split_by_whitespace": False}, False),
        ({"model_type": "unigram", "treat_whitespace_as_suffix": True}, False),
        ({"model_type": "unigram", "add_dummy_prefix": False}, False),
        ({"model_type": "unigram", "byte_fallback": False, "vocab_size": 200}, False),
    ],
)
def test_only_models_whose_words_are_independent_have_the_engine(
    tmp_path: Path, settings: dict[str, Any], is_supported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.model").write_bytes(trained(**settings))
    tokenizer = SentencePieceTokenizer(str(tmp_path / "a.model"))
    engine = UnigramWords.load(tokenizer)
    assert isinstance(engine, UnigramWords) is is_supported
    if isinstance(engine, UnigramWords):
        assert proof_of(engine, tokenizer, [*TIES, *OTHERS, *sentences(100)]).first is None
        monkeypatch.setattr(unigram_words, "find_spec", lambda name: None)
        assert missing(UnigramWords.load(tokenizer), "numba") == []


@pytest.fixture(name="soon")
def hurry_fixture(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a build load the engine after some hundred characters, without the proof, and compare every second batch of four documents."""
    monkeypatch.setattr(checked, "UNIGRAM_LOAD_CHARACTERS", 800)
    monkeypatch.setattr(checked, "FIRST_BATCHES", 1)
    monkeypatch.setattr(checked, "BATCHES_PER_CHECK", 2)
    monkeypatch.setattr(checked, "TEXTS_PER_CHECK", 1)
    monkeypatch.setattr(encode, "_CHUNK_ITEMS", 4)
    monkeypatch.setattr(encode, "_CHUNKS_PER_TASK", 1)
    monkeypatch.setattr(engines, "_LOADED", {})
    monkeypatch.setattr(engines, "_REJECTED", {})
    monkeypatch.setattr(engines, "prove", lambda tokenizer, engine: EngineProof(texts=1))


def build(folder: Path, tokenizer: SentencePieceTokenizer, log: Callable[[str], None] = lambda message: None) -> dict[str, str]:
    settings: dict[str, Any] = {"max_train_tokens": 10**9, "max_val_tokens": 100, "shard_bytes": 4_096, "seed": 1, "shuffle_buffer": 30}
    build_pretrain_cache(sentences(400), str(folder), tokenizer=tokenizer, threads=2, resume=Resume(fingerprint="x", log=log), **settings)
    return digests(folder)


@pytest.mark.usefixtures("soon")
def test_a_build_with_the_engine_has_the_same_bytes(
    tmp_path: Path, tokenizer: SentencePieceTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    encode_flat = UnigramWords.encode_flat
    monkeypatch.setattr(UnigramWords, "encode_flat", lambda self, texts: (asked.append(len(texts)), encode_flat(self, texts))[1])
    fast = build(tmp_path / "fast", tokenizer)
    assert 300 < sum(asked) < 400  # the first documents were encoded before it was loaded
    assert engines.is_engine_loaded(tokenizer)
    build(tmp_path / "again", tokenizer)
    assert 700 < sum(asked) <= 800  # now it was there from the first document on
    reference = SentencePieceTokenizer(tokenizer.model_path)
    reference.engine = "reference"
    assert build(tmp_path / "slow", reference) == fast
    assert sum(asked) <= 800


@pytest.mark.usefixtures("soon")
def test_the_reference_encodes_a_batch_with_a_very_long_text(
    tmp_path: Path, tokenizer: SentencePieceTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its ids would be in memory twice."""
    longest: list[int] = []
    encode_flat = UnigramWords.encode_flat
    monkeypatch.setattr(UnigramWords, "encode_flat", lambda self, texts: (longest.extend(map(len, texts)), encode_flat(self, texts))[1])
    most = sorted(map(len, sentences(400)))[-5]
    monkeypatch.setattr(checked, "MAX_ENGINE_CHARACTERS", most)
    some = build(tmp_path / "some", tokenizer)
    assert 100 < len(longest) < 390
    assert max(longest) <= most
    monkeypatch.setattr(checked, "MAX_ENGINE_CHARACTERS", 10**9)
    assert build(tmp_path / "all", tokenizer) == some


@pytest.mark.usefixtures("soon")
def test_a_difference_ends_the_build(tmp_path: Path, tokenizer: SentencePieceTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    def differing(self: UnigramWords, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        ids, lengths = tokenizer.encode_flat(texts)
        return ids ^ 1, lengths

    monkeypatch.setattr(UnigramWords, "encode_flat", differing)
    with pytest.raises(NielsCacheError, match="unigram-words"):
        build(tmp_path / "x", tokenizer)
    assert not (tmp_path / "x").exists()


def test_a_small_build_does_not_load_the_engine(tmp_path: Path, tokenizer: SentencePieceTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(engines, "_LOADED", {})
    monkeypatch.setattr(engines, "_first_proven", lambda *given: asked.append(given))
    build(tmp_path / "x", tokenizer)
    assert asked == []
