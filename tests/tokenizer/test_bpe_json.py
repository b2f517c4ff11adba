"""BPE models of SentencePiece, odd rank files and tekken.json: the fast engine gives their ids, and a tokenizer is loaded once."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest

from niels_cache_assets.base.defaults import SPECIAL_TOKENS
from niels_cache_assets.tokenizer import encoder as checked
from niels_cache_assets.tokenizer import engines
from niels_cache_assets.tokenizer.bpe_json import ranks_as_json, sentencepiece_as_json
from niels_cache_assets.tokenizer.engines import Fastokens, prove
from niels_cache_assets.tokenizer.kinds import HuggingFaceTokenizer, SentencePieceTokenizer, TiktokenTokenizer, open_model
from niels_cache_assets.tokenizer.proof import EngineProof, compare, mixtures
from niels_cache_assets.tokenizer.sentencepiece_model import DescribedModel
from niels_cache_assets.tokenizer.settings import infer_model_kind
from niels_cache_assets.tokenizer.tiktoken_ranks import read_ranks
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.commit import hold_lock
from tests.helpers.messages import missing
from tests.helpers.tiny import sentences
from tests.helpers.tokenizer_files import write_json
from tests.tokenizer.test_engines import EOT, encoder_of, write_ranks
from tests.tokenizer.test_unigram_words import OTHERS, TIES, build, hurry, trained

WORDS = r"\w+|[^\w\s]+|\s+"
TEXTS = [*TIES, *OTHERS, "a <0x0A> <unk>", *sentences(200), *mixtures(500, pieces=["the", " of", *SPECIAL_TOKENS.values()], seed=5)]
SPECIALS = {"<unk>": 0, "<s>": 1, "</s>": 2, "[INST]": 3, "[/INST]": 4}


def loaded(tokenizer: Any) -> Fastokens:
    pytest.importorskip("fastokens", reason="fastokens is not installed (the extra fast)")
    engine = Fastokens.load(tokenizer)
    assert not isinstance(engine, str), engine
    return engine


@pytest.mark.parametrize(
    "settings", [{}, {"add_dummy_prefix": False}, {"split_by_whitespace": False}, {"required_chars": "<0x>123456789ABCDEF"}]
)
def test_a_bpe_of_sentencepiece_has_the_ids_of_sentencepiece(tmp_path: Path, settings: dict[str, Any]) -> None:
    (tmp_path / "a.model").write_bytes(trained(model_type="bpe", vocab_size=360, allow_whitespace_only_pieces=True, **settings))
    tokenizer = SentencePieceTokenizer(str(tmp_path / "a.model"))
    assert [*engines.engines_for(tokenizer)] == ["fastokens"]
    proof = compare(TEXTS, reference=tokenizer.encode_flat, engine=loaded(tokenizer).encode_flat)
    assert (proof.texts, proof.first) == (len(TEXTS), None)


@pytest.mark.parametrize(
    "settings",
    [{"model_type": "bpe", "normalization_rule_name": "nmt_nfkc"}, {"model_type": "bpe", "byte_fallback": False}, {"model_type": "char"}],
)
def test_other_models_of_sentencepiece_are_refused_with_the_reason(tmp_path: Path, settings: dict[str, Any]) -> None:
    (tmp_path / "a.model").write_bytes(trained(vocab_size=330, **settings))
    tokenizer = SentencePieceTokenizer(str(tmp_path / "a.model"))
    with pytest.raises(ValueError, match="changes text"):
        sentencepiece_as_json(DescribedModel.of(tokenizer))


def test_a_build_with_a_bpe_of_sentencepiece_has_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)
    monkeypatch.setattr(checked, "BPE_LOAD_CHARACTERS", 800)
    (tmp_path / "a.model").write_bytes(trained(model_type="bpe", vocab_size=330))
    fast, slow = (SentencePieceTokenizer(str(tmp_path / "a.model")) for _ in range(2))
    loaded(fast)
    slow.engine = "reference"
    said: list[str] = []
    assert build(tmp_path / "fast", fast, said.append) == build(tmp_path / "slow", slow, said.append)
    assert [missing(line, "encoding with", *named) for line, named in zip(said, (["800"], ["fastokens"], ["reference"]), strict=True)] == [
        []
    ] * 3


def odd_ranks(path: Path) -> Path:
    """Write ranks with a hole, and with a piece that is no join of two others."""
    ranks = read_ranks(write_ranks(path)).ranks | {b" unreachable piece": 400, b"unre": 401}
    path.write_text("".join(f"{base64.b64encode(piece).decode()} {rank}\n" for piece, rank in ranks.items()), encoding="ascii")
    return path


def test_ranks_with_holes_and_whole_words_have_the_ids_of_tiktoken(tmp_path: Path) -> None:
    tokenizer = TiktokenTokenizer(odd_ranks(tmp_path / "a.tiktoken"), pattern=WORDS, special_tokens=EOT)
    texts = [*TEXTS, "unreachable", " unreachable piece", "the unre of the tokens"]
    assert compare(texts, reference=tokenizer.encode_flat, engine=loaded(tokenizer).encode_flat).first is None
    (tmp_path / "tokenizer.json").write_text(ranks_as_json(read_ranks(tokenizer.ranks_path).ranks, WORDS), encoding="utf-8")
    converted = HuggingFaceTokenizer(tmp_path / "tokenizer.json", special_tokens={})
    assert compare(texts, reference=tokenizer.encode_flat, engine=converted.encode_flat).first is None


def tekken(path: Path, ranks: Path, **other: Any) -> Path:
    vocab = [{"rank": rank, "token_bytes": base64.b64encode(piece).decode()} for piece, rank in read_ranks(ranks).ranks.items()]
    beyond = {"rank": len(vocab), "token_bytes": base64.b64encode(b"never used").decode()}
    config = {"pattern": WORDS, "default_vocab_size": len(vocab) + 10, "default_num_special_tokens": 10}
    path.write_text(json.dumps({"config": config, "vocab": [*vocab, beyond], **other}), encoding="utf-8")
    return path


@pytest.mark.parametrize("is_listed", [False, True])
def test_a_tekken_json_is_a_rank_file_whose_ids_follow_the_special_tokens(tmp_path: Path, is_listed: bool) -> None:
    ranks = write_ranks(tmp_path / "a.tiktoken")
    plain = TiktokenTokenizer(ranks, pattern=WORDS, special_tokens=EOT)
    listed = {"special_tokens": [{"rank": number, "token_str": token} for token, number in SPECIALS.items()]} if is_listed else {}
    tokenizer = open_model(tekken(tmp_path / "tekken_1.json", ranks, **listed), special_tokens={"eot": "</s>", "usr": "[INST]"})
    assert (tokenizer.kind, tokenizer.special_token_ids()) == ("tiktoken", {"eot": 2, "usr": 3})
    assert infer_model_kind(tmp_path / "mistral-tekken-hf.json") == "tokenizer.json"
    assert tokenizer.vocab_size == plain.special_token_ids()["eot"] + 10
    assert [tokenizer.encode(text) for text in TEXTS] == [[token + 10 for token in plain.encode(text)] for text in TEXTS]
    assert compare(TEXTS, reference=tokenizer.encode_flat, engine=loaded(tokenizer).encode_flat).first is None
    (tmp_path / "saved").mkdir()
    tokenizer.save(tmp_path / "saved")
    again = open_model(tmp_path / "saved/tiktoken.json", special_tokens={"eot": "</s>", "usr": "[INST]"})
    assert (again.model_sha256, again.encode("the token")) == (tokenizer.model_sha256, tokenizer.encode("the token"))


def test_a_wrong_tekken_json_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tekken(tmp_path / "tekken.json", write_ranks(tmp_path / "a.tiktoken"))
    with pytest.raises(NielsCacheError, match="its own pattern"):
        open_model(path, pattern=WORDS, special_tokens=EOT)
    with pytest.raises(NielsCacheError, match="did you mean '<s>'"):
        open_model(path, special_tokens={"eot": "<s/>"})
    for content in ("[]", "{", '{"config": {}}', '{"config": {"default_num_special_tokens": "1"}, "vocab": [{}]}'):
        path.write_text(content, encoding="utf-8")
        with pytest.raises(NielsCacheError, match="not a tekken"):
            open_model(path, special_tokens={"eot": "</s>"})


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"default_vocab_size": 300.0}, "config.default_vocab_size: .* integer"),
        ({"default_num_special_tokens": True}, "config.default_num_special_tokens: .* integer"),
        ({"pattern": None}, "config.pattern: .* string"),
        ({"default_vocab_size": 2}, "'</s>' .* 10 special tokens"),
        ({"default_vocab_size": 9}, "256 bytes have no rank"),
        ({"default_num_special_tokens": 2}, "'</s>' .* 2 special tokens"),
    ],
)
def test_wrong_numbers_of_a_tekken_json_are_named(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    path = tekken(tmp_path / "tekken.json", write_ranks(tmp_path / "a.tiktoken"), special_tokens=[{"rank": 2, "token_str": "</s>"}])
    described = json.loads(path.read_bytes())
    path.write_text(json.dumps(described | {"config": described["config"] | changes}), encoding="utf-8")
    with pytest.raises(NielsCacheError, match=problem):
        open_model(path, special_tokens={"eot": "</s>"})


def test_a_model_is_loaded_once_whatever_its_path(tmp_path: Path) -> None:
    first, second = (write_json(tmp_path / name) for name in ("a.json", "b.json"))
    one, two = (HuggingFaceTokenizer(path, special_tokens=EOT) for path in (first, second))
    assert one.library_tokenizer is two.library_tokenizer
    assert all(piece is same for piece, same in zip(one.piece_bytes(), two.piece_bytes(), strict=True))
    assert (one.model_path, two.model_path) == (str(first), str(second))
    ranks = [write_ranks(tmp_path / name) for name in ("a.tiktoken", "b.tiktoken")]
    three, four = map(read_ranks, ranks)
    assert three is four
    (path := tmp_path / "tekken.json").write_bytes(ranks[0].read_bytes())
    with pytest.raises(NielsCacheError, match="of Mistral"):
        read_ranks(path)


def test_the_record_says_which_library_encoded_and_why_no_faster_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_LOADED", {})
    monkeypatch.setattr(engines, "installed_version", lambda package: None)
    tokenizer = TiktokenTokenizer(write_ranks(tmp_path / "a.tiktoken"), pattern=WORDS, special_tokens=EOT)
    tokenizer.proofs = tmp_path / ".tokenizer.engines.json"
    encoder = encoder_of(tokenizer)
    encoder.encode_flat(["a text"], 0)
    ((model, found),) = engines.read_record(tokenizer.proofs)["encoders"].items()
    assert model == tokenizer.model_sha256
    assert missing(found["name"], "tiktoken") == []
    assert missing(found["why_not_faster"], "pip install 'niels-cache[fast]'") == []
    (use,) = encoder.uses
    assert found["why_not_faster"] in use.describe()


def test_a_stopped_process_that_holds_the_record_delays_others_for_a_while_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_LOADED", {})
    monkeypatch.setattr(engines, "_REJECTED", {})
    monkeypatch.setattr(engines, "_WAIT_SECONDS", 0.1)
    monkeypatch.setattr(engines, "prove", lambda tokenizer, engine: EngineProof(texts=1))
    tokenizer = TiktokenTokenizer(write_ranks(tmp_path / "a.tiktoken"), pattern=WORDS, special_tokens=EOT)
    tokenizer.proofs, engine = tmp_path / ".tokenizer.engines.json", loaded(tokenizer)
    lines: list[str] = []
    with hold_lock(tmp_path / "tokenizer.engines"):
        assert not isinstance(engines.proven_engine(tokenizer, lines.append), str)
        engines.record_encoder(tokenizer, "a 1", "", lines.append)
        engines.reject_engine(tokenizer, engine, lines.append)
    assert [missing(line, "waiting", str(os.getpid())) for line in lines] == [[]] * 3
    record = engines.read_record(tokenizer.proofs)
    assert ["other ids" in rejection for rejection in record["proofs"].values()] == [True]
    assert [each["name"] for each in record["encoders"].values()] == ["a 1"]


@pytest.mark.walk
@pytest.mark.real_data
@pytest.mark.skipif("NIELS_CACHE_REAL_DATA" not in os.environ, reason="NIELS_CACHE_REAL_DATA does not name the folder of real samples")
def test_the_model_of_mistral_passes_the_proof() -> None:
    path = Path(os.environ["NIELS_CACHE_REAL_DATA"]) / "sentencepiece/mistral_tokenizer.model.v1"
    tokenizer = SentencePieceTokenizer(str(path), special_tokens={"eot": "</s>"})
    proof = prove(tokenizer, loaded(tokenizer))
    assert (proof.first, proof.texts > 15_000) == (None, True)
