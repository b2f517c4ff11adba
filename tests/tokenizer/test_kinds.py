"""Tokenizers of other projects: tokenizer.json and ranks of tiktoken. No text becomes a special token."""

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import torch

from niels_cache_assets.base.documents import Document
from niels_cache_assets.build_cache import build_pretrain_cache
from niels_cache_assets.tokenizer import tiktoken_ranks
from niels_cache_assets.tokenizer.base import TextTokenizer
from niels_cache_assets.tokenizer.byte_level import byte_characters
from niels_cache_assets.tokenizer.kinds import TiktokenTokenizer, find_fim_tokens, open_model
from niels_cache_runtime import FIM, TokenLoader
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import list_shards, token_dtype_of
from niels_cache_runtime.format.meta import Meta, read_meta
from niels_cache_runtime.verify import verify_dataset
from tests.helpers.tiny import sentences
from tests.helpers.tokenizer_files import EOT, REAL, WORDS_PATTERN, added, described, needs_real, pieces, write_json, write_ranks

pytestmark = pytest.mark.usefixtures("short_proofs")
TEXTS = [*sentences(40), "naïve café 中文 😀 \x00\t\n\n  x", "", "\n", "a" * 5_000, f"before {EOT} after"]
DEEPSEEK_EOT = "<｜end▁of▁sentence｜>"
SETTINGS: dict[str, Any] = {"max_val_tokens": 0, "shard_bytes": 1 << 12, "seed": 1, "shuffle_buffer": None}


@pytest.fixture(scope="module", params=["tokenizer.json", "tiktoken"])
def tokenizer_of_others(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    if request.param == "tiktoken":
        return open_model(write_ranks(folder / "x.tiktoken"), pattern=WORDS_PATTERN, special_tokens={"eot": EOT})
    return open_model(write_json(folder / "x.json"), special_tokens={"eot": EOT})


def tokens_of(folder: Path) -> np.ndarray:
    dtype = token_dtype_of(read_meta(str(folder / "meta.json")))
    return np.concatenate([np.fromfile(shard, dtype) for shard in list_shards(folder / "train")])


def build(folder: Path, texts: list[Document] | list[str], tokenizer: TextTokenizer, *, budget: int = 1 << 20, **changes: Any) -> Meta:
    build_pretrain_cache(texts, str(folder), tokenizer=tokenizer, max_train_tokens=budget, **{**SETTINGS, **changes})
    assert verify_dataset(str(folder)) == []
    return read_meta(str(folder / "meta.json"))


def test_every_text_survives_decode_of_encode(tokenizer_of_others: TextTokenizer) -> None:
    for text in TEXTS:
        ids = tokenizer_of_others.encode(text)
        assert tokenizer_of_others.decode(ids) == text
        table = tokenizer_of_others.piece_bytes()
        assert b"".join(table[token] for token in ids).decode() == text
    words = sentences(1)[0]
    assert len(tokenizer_of_others.encode(words)) < len(words) / 2, "words are pieces"


def test_threads_batches_tensors_and_pickles_give_the_same_ids(tokenizer_of_others: TextTokenizer) -> None:
    texts = TEXTS * 5
    expected = [tokenizer_of_others.encode(text) for text in texts]
    for threads in (1, 3):
        batch = tokenizer_of_others.encode_batch(texts, threads)
        assert {ids.dtype for ids in batch} == {np.dtype("<u2")}
        assert [ids.tolist() for ids in batch] == expected
    ids, lengths = tokenizer_of_others.encode_flat(texts)
    assert ids.tolist() == np.concatenate(expected).tolist()
    assert lengths.tolist() == [len(each) for each in expected]
    assert tokenizer_of_others.count_tokens(texts, 2) == len(ids)
    assert tokenizer_of_others.encode_torch(texts[0]).tolist() == expected[0]
    again = pickle.loads(pickle.dumps(tokenizer_of_others))
    assert again.encode(texts[0]) == expected[0]
    assert again.model_sha256 == tokenizer_of_others.model_sha256
    assert len(pickle.dumps(tokenizer_of_others)) < 20_000, "the path is pickled, and not the model"


def test_a_cut_run_of_ids_decodes_and_an_unknown_id_or_surrogate_is_one_line(tokenizer_of_others: TextTokenizer) -> None:
    ids = tokenizer_of_others.encode("😀中文")
    for end in range(len(ids)):
        assert isinstance(tokenizer_of_others.decode(ids[:end]), str)
        assert isinstance(tokenizer_of_others.decode_continued(ids[end:]), str)
    assert "\ufffd" in tokenizer_of_others.decode(ids[:1])
    for wrong in (tokenizer_of_others.vocab_size, -1):
        with pytest.raises(NielsCacheError, match="not in 0"):
            tokenizer_of_others.decode([wrong])
    with pytest.raises(NielsCacheError, match="lone surrogate"):
        tokenizer_of_others.encode("a\ud800b")


def test_the_string_of_a_special_token_is_text(tokenizer_of_others: TextTokenizer) -> None:
    eot = tokenizer_of_others.special_token_ids()["eot"]
    ids = tokenizer_of_others.encode(f"a{EOT}b")
    assert eot not in ids
    assert tokenizer_of_others.decode([*ids, eot]) == f"a{EOT}b{EOT}"


def test_truncation_padding_and_dropout_of_a_file_change_nothing(tmp_path: Path) -> None:
    plain = open_model(write_json(tmp_path / "plain.json"), special_tokens={"eot": EOT})
    padding = {"direction": "Right", "pad_to_multiple_of": None, "pad_id": 1, "pad_type_id": 0, "pad_token": "x"}
    truncation = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    content = described(truncation=truncation, padding={"strategy": {"Fixed": 64}, **padding})
    content["model"]["dropout"] = 0.9
    (tmp_path / "odd.json").write_text(json.dumps(content))
    odd = open_model(tmp_path / "odd.json", special_tokens={"eot": EOT})
    for text in TEXTS:
        assert odd.encode(text) == plain.encode(text)


def test_added_tokens_that_are_not_special_are_found_in_text_and_one_that_is_a_role_drops_its_document(tmp_path: Path) -> None:
    tokens = {EOT: True, "<|pad|>": True, "<|user|>": False, "<|tool|>": False}
    path = write_json(tmp_path / "x.json", tokens=tokens)
    first = len(pieces())
    tokenizer = open_model(path, special_tokens={"eot": EOT})
    assert tokenizer.reserved_ids() == [first, first + 1]
    assert first + 2 in tokenizer.encode("a<|user|>b"), "a model was trained so"
    documents = [Document(f"a {token} b", token) for token in tokens]
    assert build(tmp_path / "plain", documents, tokenizer)["dropped"] == {}
    with_role = open_model(path, special_tokens={"eot": EOT, "usr": "<|user|>"})
    meta = build(tmp_path / "role", documents, with_role)
    assert meta["dropped"] == {"special_token_collision": 1}
    assert meta["documents"]["train"] == len(documents) - 1
    assert not np.isin(tokens_of(tmp_path / "role"), [first + 1, first + 2]).any()


def test_a_special_token_that_the_model_itself_finds_in_text_drops_its_document(tmp_path: Path) -> None:
    """A vocabulary may hold the string of a special token as a piece, and merges lead to it."""
    content = described()
    content["model"]["ignore_merges"] = True  # a word that is a piece becomes it
    content["added_tokens"].append(added(content["model"]["vocab"]["cache"], "cache"))
    (tmp_path / "x.json").write_text(json.dumps(content))
    tokenizer = open_model(tmp_path / "x.json", special_tokens={"eot": EOT})
    assert build(tmp_path / "x", ["cache", "the token"], tokenizer)["dropped"] == {"special_token_collision": 1}
    with pytest.raises(NielsCacheError, match="special token"):
        tokenizer.encode("cache")


def test_the_token_for_unknown_characters_is_not_reserved(tmp_path: Path) -> None:
    content = described()
    content["model"] |= {"unk_token": "<unk>", "vocab": {"<unk>": 0, "a": 1, "b": 2}, "merges": []}
    content |= {"pre_tokenizer": None, "decoder": None, "added_tokens": [added(0, "<unk>"), added(3, EOT)]}
    (tmp_path / "x.json").write_text(json.dumps(content))
    tokenizer = open_model(tmp_path / "x.json", special_tokens={"eot": EOT})
    assert tokenizer.encode("aZb") == [1, 0, 2]
    assert tokenizer.reserved_ids() == [3]


def test_a_hole_in_the_ids_counts_and_has_no_bytes(tmp_path: Path) -> None:
    content = described()
    word = "Ġcache"
    content["model"]["vocab"][word] = 60_000
    (tmp_path / "x.json").write_text(json.dumps(content))
    tokenizer = open_model(tmp_path / "x.json", special_tokens={"eot": EOT})
    assert tokenizer.vocab_size == 60_001
    assert tokenizer.encode(" cache") == [60_000]
    assert tokenizer.piece_bytes()[59_999] == b""
    assert tokenizer.decode([60_000, 59_999]) == " cache"


@pytest.mark.parametrize("append_eot", [True, False])
def test_bos_begins_each_document_and_counts(tmp_path: Path, append_eot: bool) -> None:
    path = write_json(tmp_path / "x.json", tokens={EOT: True, "<|begin|>": True})
    plain, with_bos = (open_model(path, special_tokens={"eot": EOT, **more}) for more in ({}, {"bos": "<|begin|>"}))
    bos = with_bos.special_token_ids()["bos"]
    texts = [text for text in TEXTS if text]
    build(tmp_path / "plain", texts, plain, append_eot=append_eot)
    meta = build(tmp_path / "bos", texts, with_bos, append_eot=append_eot)
    assert meta["special_token_ids"]["bos"] == bos
    tokens, ends = tokens_of(tmp_path / "bos"), np.load(tmp_path / "bos/train_doc_ends.npy").astype(np.int64)
    assert (np.flatnonzero(tokens == bos) == [0, *ends[:-1]]).all()
    assert meta["train_tokens"] == ends[-1] == len(tokens)
    assert tokens[tokens != bos].tolist() == tokens_of(tmp_path / "plain").tolist()
    assert "bos" not in read_meta(str(tmp_path / "plain/meta.json"))["special_token_ids"]


def test_a_cache_records_the_tokens_for_fill_in_the_middle_that_its_tokenizer_has(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"]
    of_file = open_model(write_json(tmp_path / "x.json", tokens=dict.fromkeys([EOT, *names], True)), special_tokens={"eot": EOT})
    of_llama, free = tmp_path / "llama.model", len(pieces())
    with open(of_llama, "wb") as file:
        pieces_of_llama = {"unk_surface": " ", "user_defined_symbols": ["\u2581<PRE>", "\u2581<MID>", "\u2581<SUF>", "\u2581<EOT>"]}
        lines = iter((tiny_model.parents[2] / "sample.txt").read_text().splitlines())
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=lines, model_writer=file, vocab_size=80, hard_vocab_limit=False, minloglevel=2, **pieces_of_llama
        )
    monkeypatch.setattr(tiktoken_ranks, "ENCODINGS", {"cl100k_base": free, "p50k_edit": 3})
    of_ranks = open_model(write_ranks(tmp_path / "x.tiktoken"), encoding="cl100k_base", special_tokens={"eot": EOT})
    (tmp_path / "tokenizer").mkdir()
    of_ranks.save(tmp_path / "tokenizer")
    built = open_model(tmp_path / "tokenizer" / "tiktoken.json", special_tokens={"eot": EOT})
    expected = {of_file: (free + 1, free + 2, free + 3), of_ranks: (100_258, 100_260, 100_259), built: (100_258, 100_260, 100_259)}
    for tokenizer, ids in expected.items():
        assert find_fim_tokens(tokenizer) == dict(zip(("pre", "suf", "mid"), ids, strict=True))
    assert find_fim_tokens(open_model(tiny_model)) == find_fim_tokens(object()) == {}
    llama, texts = open_model(of_llama, special_tokens={"eot": "</s>"}), [f"{text} " * 20 for text in TEXTS[:9]]
    assert build(tmp_path / "notes", texts, llama)["fim_tokens"] == {"pre": 3, "suf": 5, "mid": 4}
    loader = TokenLoader(str(tmp_path / "notes" / "train"), T=64, B=1, seed=0, packing="best_fit", fim=FIM(rate=1))
    tokens = torch.cat([batch.x.flatten() for batch, _ in zip(loader, range(8), strict=False)])
    assert {3, 4, 5} < {*tokens.tolist()}


def test_a_budget_may_leave_a_document_without_its_bos_and_verify_finds_other_ones(tmp_path: Path) -> None:
    path = write_json(tmp_path / "x.json", tokens={EOT: True, "<|begin|>": True})
    tokenizer = open_model(path, special_tokens={"eot": EOT, "bos": "<|begin|>"})
    texts = ["the cache", "the token", "a shard of the cache"]
    whole = build(tmp_path / "whole", texts, tokenizer)["train_tokens"]
    for budget in range(1, whole + 1):
        assert build(tmp_path / "x", texts, tokenizer, budget=budget)["train_tokens"] == budget
    shard = tmp_path / "whole/train/shard_00000.bin"
    for place, problem in ((0, "do not begin"), (1, "inside documents")):
        tokens = np.fromfile(shard, "<u2")
        tokens[place] = tokenizer.special_token_ids()["bos"] if place else 5
        kept = shard.read_bytes()
        tokens.tofile(shard)
        assert any(problem in str(finding) for finding in _content_findings(tmp_path / "whole"))
        shard.write_bytes(kept)


def _content_findings(folder: Path) -> list[Any]:
    """Return the findings of verify about the content. Sizes and hashes in meta.json are those on disk."""
    from niels_cache_runtime.format.meta import content_sha256, sha256_file, write_meta

    meta = read_meta(str(folder / "meta.json"))
    for name, entry in meta["files"].items():
        entry["sha256"] = sha256_file(str(folder / name))
    meta["content_sha256"] = content_sha256(meta["files"])
    write_meta(str(folder / "meta.json"), meta)
    return verify_dataset(str(folder))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"not JSON", "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (b"[1, 2]", "no model"),
        (b'{"messages": []}', "no model"),
        ("merge", "damaged"),
        ("pre_tokenizer", "pre_tokenizer"),
        ("normalizer", "normalizer"),
        ("model", "model"),
        ("beyond", "beyond the vocabulary"),
        ("far", "far beyond"),
        ("twice", "share an id"),
    ],
)
def test_a_bad_tokenizer_json_is_one_line(tmp_path: Path, content: bytes | str, said: str) -> None:
    path = tmp_path / "tokenizer.json"
    if isinstance(content, str):
        table = described()
        if content == "merge":
            table["model"]["merges"].append(["no", "such"])
        elif content == "beyond":
            table["added_tokens"].append(added(90_000, "<|late|>"))
        elif content == "far":
            table["model"]["vocab"]["far"], table["added_tokens"] = 2**31 + 5, []
        elif content == "twice":
            table["model"]["vocab"]["twin"], table["added_tokens"] = 7, []
        else:
            table[content] = {**(table[content] or {}), "type": "FromTheFuture"}
        content = json.dumps(table).encode()
    path.write_bytes(content)
    with pytest.raises(NielsCacheError, match=said) as caught:
        open_model(path, special_tokens={"eot": EOT})
    assert str(caught.value).startswith(f"{path}: ")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("nested", [False, True])
def test_a_byte_level_bpe_without_a_byte_of_text_is_one_line(tmp_path: Path, nested: bool) -> None:
    whole = described()
    cut = whole["pre_tokenizer"]
    words = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, cut]} if nested else cut

    def without(byte: int, **changes: Any) -> Path:
        character = next(character for character, each in byte_characters().items() if each == byte)
        vocabulary = {piece: number for piece, number in whole["model"]["vocab"].items() if character not in piece}
        merges = [pair for pair in whole["model"]["merges"] if character not in "".join(pair)]
        model = {**whole["model"], "vocab": vocabulary, "merges": merges, **changes}
        return write_json(tmp_path / "tokenizer.json", model=model, pre_tokenizer=words, added_tokens=[])

    with pytest.raises(NielsCacheError, match="0x2b") as caught:
        open_model(without(ord("+")), special_tokens={})
    assert len(str(caught.value).splitlines()) == 1
    assert open_model(without(0xFF), special_tokens={}).encode("+")  # no text has this byte
    assert open_model(without(ord("+"), unk_token="-"), special_tokens={}).encode("+")


def test_an_eot_that_is_not_named_or_not_there_says_which_there_is(tmp_path: Path) -> None:
    path = write_json(tmp_path / "x.json", tokens={"<|start|>": True, EOT: True})
    with pytest.raises(NielsCacheError, match=r'special_tokens = \{ eot = "<\|endoftext\|>" \}'):
        open_model(path)
    with pytest.raises(NielsCacheError, match=r"<\|endoftxt\|>.*did you mean '<\|endoftext\|>'"):
        open_model(path, special_tokens={"eot": "<|endoftxt|>"})
    with pytest.raises(NielsCacheError, match="share an id"):
        open_model(path, special_tokens={"eot": EOT, "usr": EOT})


@pytest.mark.parametrize("damage", ["words", "half", "twice", "byte", "far", "empty", "missing"])
def test_a_damaged_rank_file_is_one_line(tmp_path: Path, damage: str) -> None:
    path = write_ranks(tmp_path / "x.tiktoken")
    lines = path.read_bytes().splitlines(keepends=True)
    contents = {
        "words": b"any text\n",
        "half": b"".join(lines)[:-9],
        "twice": b"".join([*lines, b"enp6eg== 5\n"]),
        "byte": b"".join(lines[1:]),
        "far": b"".join([*lines, b"enp6eg== 4000000000\n"]),
        "empty": b"",
    }
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(contents[damage])
    with pytest.raises(NielsCacheError, match=r"x\.tiktoken: .*(rank|no such)") as caught:
        open_model(path, pattern=WORDS_PATTERN, special_tokens={"eot": EOT})
    assert len(str(caught.value).splitlines()) == 1


def test_ranks_need_a_pattern_that_fits(tmp_path: Path) -> None:
    path = write_ranks(tmp_path / "x.tiktoken")
    named: dict[str, Any] = {"special_tokens": {"eot": EOT}}
    with pytest.raises(NielsCacheError, match=r"encoding .*or pattern"):
        open_model(path, **named)
    with pytest.raises(NielsCacheError, match=r"cl100k_base has 100,256 ranks"):
        open_model(path, encoding="cl100k_base", **named)
    with pytest.raises(NielsCacheError, match=r"did you mean 'gpt2'"):
        open_model(path, encoding="gpt-2", **named)
    with pytest.raises(NielsCacheError, match="pattern"):
        open_model(path, pattern="(", **named)
    with pytest.raises(NielsCacheError, match="no eot"):
        open_model(path, pattern=WORDS_PATTERN)


def test_special_tokens_of_ranks_get_the_next_free_ids_in_a_fixed_order(tmp_path: Path) -> None:
    path, free = write_ranks(tmp_path / "x.tiktoken"), len(pieces())
    roles = {"bos": "<|b|>", "usr": "<|u|>", "eot": EOT, "sys": "<|s|>", "asst": "<|a|>"}
    tokenizer = open_model(path, pattern=WORDS_PATTERN, special_tokens=roles)
    assert tokenizer.special_token_ids() == {"eot": free, "sys": free + 1, "usr": free + 2, "asst": free + 3, "bos": free + 4}
    other = open_model(path, pattern=WORDS_PATTERN.removeprefix("'s|"), special_tokens=roles)
    assert other.model_sha256 != tokenizer.model_sha256, "the pattern decides ids"


def test_ranks_that_were_exchanged_below_their_description_are_refused(tmp_path: Path) -> None:
    open_model(write_ranks(tmp_path / "x.tiktoken"), pattern=WORDS_PATTERN, special_tokens={"eot": EOT}).save(tmp_path)
    lines = (tmp_path / "ranks.tiktoken").read_bytes().splitlines(keepends=True)
    (tmp_path / "ranks.tiktoken").write_bytes(b"".join(lines[:-1]))
    with pytest.raises(NielsCacheError, match="not the ranks"):
        open_model(tmp_path / "tiktoken.json", special_tokens={"eot": EOT})
    (tmp_path / "tiktoken.json").write_text("{}")
    with pytest.raises(NielsCacheError, match="not the description"):
        open_model(tmp_path / "tiktoken.json", special_tokens={"eot": EOT})


def test_a_model_of_another_kind_says_what_it_is_not(tmp_path: Path, tiny_model: Path) -> None:
    with pytest.raises(NielsCacheError, match="did you mean '</s>'"):
        open_model(tiny_model, special_tokens={"eot": "</s!>"})
    for kind in ("tokenizer.json", "tiktoken"):
        with pytest.raises(NielsCacheError, match=f"not a.* {kind}|{kind}: |rank file"):
            open_model(tiny_model, kind=kind, encoding="gpt2" if kind == "tiktoken" else None)
    with pytest.raises(NielsCacheError, match=r"no tokenizer\.json"):
        open_model(tmp_path)


def test_a_rank_file_with_the_name_of_a_sentencepiece_model_says_which_kind_it_is(tmp_path: Path) -> None:
    ranks = write_ranks(tmp_path / "tokenizer.model")
    with pytest.raises(NielsCacheError, match='kind = "tiktoken"'):
        open_model(ranks, special_tokens={"eot": EOT})
    assert open_model(ranks, kind="tiktoken", pattern=WORDS_PATTERN, special_tokens={"eot": EOT}).kind == "tiktoken"
    ranks.write_bytes(b"neither 1 nor 2\n")
    with pytest.raises(NielsCacheError, match="SentencePiece model") as caught:
        open_model(ranks, special_tokens={"eot": EOT})
    assert "tiktoken" not in str(caught.value)


@pytest.mark.parametrize("library", ["tokenizers", "tiktoken"])
def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    path = write_json(tmp_path / "x.json") if library == "tokenizers" else write_ranks(tmp_path / "x.tiktoken")
    with pytest.raises(NielsCacheError, match=f"pip install {library}"):
        open_model(path, pattern=f"{WORDS_PATTERN}|never loaded before", special_tokens={"eot": EOT})


@needs_real
@pytest.mark.parametrize(
    ("name", "eot", "token", "size"),
    [
        ("gpt2.tiktoken", EOT, 50_256, 50_257),
        ("qwen.tiktoken", EOT, 151_643, 151_644),
        ("deepseek_tokenizer.json", DEEPSEEK_EOT, 1, 129_280),
        ("anthropic_tokenizer.json", "<EOT>", 0, 65_000),
    ],
)
def test_real_models_give_the_ids_of_their_libraries(name: str, eot: str, token: int, size: int) -> None:
    tokenizer = open_model(REAL / name, special_tokens={"eot": eot})
    assert (tokenizer.special_token_ids(), tokenizer.vocab_size) == ({"eot": token}, size)
    for text in TEXTS:
        ids = tokenizer.encode(text)
        if isinstance(tokenizer, TiktokenTokenizer):
            assert ids == tokenizer.library_encoding.encode(text, disallowed_special=())
        assert (tokenizer.decode(ids) == text) or name.startswith("anthropic"), "its normalizer changes characters"
    shown = tokenizer.decode([token, *tokenizer.encode("x"), token])
    assert shown == f"{eot}x{eot}"
