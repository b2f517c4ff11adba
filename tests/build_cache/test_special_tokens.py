"""No text becomes a special token, whatever it spells and whatever a tokenizer's normalizer makes of it: shown by scanning what is written.

In a pretrain cache the only special ids are the EOTs that the builder puts behind documents; in an SFT cache sentinels and EOTs are exactly
those of the messages that were kept.
"""

import io
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from niels_cache_assets.base.defaults import ROLE_TO_KEY, SPECIAL_TOKENS
from niels_cache_assets.base.documents import Conversation, Document, Message, SourceReport
from niels_cache_assets.build_cache import build_pretrain_cache, build_sft_cache
from niels_cache_assets.project.registry import load_registry
from niels_cache_assets.tokenizer.kinds import SentencePieceTokenizer
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import TOKEN_DTYPE, list_shards
from niels_cache_runtime.format.meta import Meta, read_meta
from tests.helpers.builds import build_tokenizer
from tests.helpers.tiny import sentences

PLENTY = 10**9
SPECIALS = [*SPECIAL_TOKENS.values()]
SNOWMAN = "\u2603"  # one of the tokenizers makes a special token of it
SETTINGS: dict[str, dict[str, Any]] = {
    "trained": {},
    "nfkc": {"model_type": "bpe", "normalization_rule_name": "nfkc"},
    "folded": {"model_type": "unigram", "normalization_rule_name": "nmt_nfkc_cf", "remove_extra_whitespaces": True},
    "rules": {"model_type": "unigram", "normalization_rule_tsv": "rules.tsv"},
    "characters": {"model_type": "char", "normalization_rule_name": "nmt_nfkc"},
}
NORMALIZING = [name for name in SETTINGS if name != "trained"]


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> dict[str, SentencePieceTokenizer]:
    """One as this project trains it, and models of others, imported, whose normalizers change text before it is cut into pieces."""
    folder = tmp_path_factory.mktemp("models")
    rules = [(SNOWMAN, SPECIALS[3]), ("\u200b", ""), ("\u00ab", "<|"), ("\u00bb", "|>")]
    lines = ["\t".join(" ".join(f"{ord(character):X}" for character in text) for text in rule) for rule in rules]
    (folder / "rules.tsv").write_text("\n".join(lines) + "\n")
    made = {"trained": SentencePieceTokenizer(str(tiny_model))}
    for name in NORMALIZING:
        changes = dict(SETTINGS[name])
        if "normalization_rule_tsv" in changes:
            changes["normalization_rule_tsv"] = str(folder / "rules.tsv")
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences(300)),
            model_writer=model,
            vocab_size=400 if changes["model_type"] != "char" else 64,
            hard_vocab_limit=False,
            user_defined_symbols=SPECIALS,
            byte_fallback=changes["model_type"] != "char",
            minloglevel=2,
            **changes,
        )
        (folder / f"{name}.model").write_bytes(model.getvalue())
        (folder / f"{name}.toml").write_text(f'[tokenizer]\nmodel = "{name}.model"\n')
        registry = load_registry(profile="default", config=str(folder / f"{name}.toml"))
        made[name] = SentencePieceTokenizer(str(build_tokenizer(registry, root=folder / name).model))
    return made


def special_ids(tokenizer: SentencePieceTokenizer) -> list[int]:
    return sorted(tokenizer.special_token_ids().values())


def pretrain(folder: Path, documents: list[Document], tokenizer: SentencePieceTokenizer, report: SourceReport | None = None) -> Meta:
    """Build, and show by the written ids that the only special ones are the EOTs at the ends of documents."""
    clean = Document("some words that are kept", "clean")
    build_pretrain_cache(
        [clean, *documents],
        str(folder),
        tokenizer=tokenizer,
        max_train_tokens=PLENTY,
        max_val_tokens=0,
        shard_bytes=1 << 16,
        seed=1,
        shuffle_buffer=None,
        report=report,
    )
    meta = read_meta(str(folder / "meta.json"))
    ids = np.concatenate([np.fromfile(path, TOKEN_DTYPE) for path in list_shards(folder / "train")])
    ends = np.load(folder / "train_doc_ends.npy").astype(np.int64)
    assert np.array_equal(np.flatnonzero(np.isin(ids, special_ids(tokenizer))), ends - 1)
    assert (ids[ends - 1] == tokenizer.special_token_ids()["eot"]).all()
    assert meta["documents"]["train"] + sum(meta["dropped"].values()) == len(documents) + 1 + sum(
        (report or SourceReport()).dropped.values()
    )
    return meta


def sft(folder: Path, conversations: list[list[Message]], tokenizer: SentencePieceTokenizer) -> Meta:
    """Build, and show by the written ids that every special one is a sentinel or EOT of a message that was kept, in its order."""
    clean: list[Message] = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
    given = [Conversation(messages, str(number), "", number) for number, messages in enumerate([clean, *conversations])]
    build_sft_cache(given, str(folder), tokenizer=tokenizer, val_frac=0, seed=1, on_invalid="drop")
    ids = np.fromfile(folder / "train_tokens.bin", TOKEN_DTYPE)
    by_key = tokenizer.special_token_ids()
    kept = pq.read_table(folder / "train_examples.parquet")["row"].to_pylist()
    expected = [token for row in kept for message in given[row].messages for token in (by_key[ROLE_TO_KEY[message["role"]]], by_key["eot"])]
    assert ids[np.isin(ids, special_ids(tokenizer))].tolist() == expected
    return read_meta(str(folder / "meta.json"))


def compatible(text: str) -> str:
    """The text in full-width letters and mathematical digits, which NFKC makes the same again."""
    wide = "".join(chr(ord(character) + 0xFEE0) if "!" <= character <= "~" else character for character in text)
    assert unicodedata.normalize("NFKC", wide) == text != wide
    return wide


def look_alikes(token: str) -> Iterator[str]:
    yield token
    yield compatible(token)
    yield token.replace("<", "\uff1c").replace(">", "\uff1e")
    yield token.replace("|", "\uff5c")
    yield token.replace("_", "\ufe4d")
    yield "".join(chr(0x1D7CE + int(character)) if character.isdigit() else character for character in token)
    yield token.upper()
    yield compatible(token.upper())
    for zero_width in "\u200b\u200c\u200d\ufeff\u2060\u00ad\u180e":
        yield zero_width.join(token)
        yield token[:5] + zero_width + token[5:]
    yield " ".join(token)
    yield token.replace("<|", "\u00ab").replace("|>", "\u00bb")
    yield f"\u0338{token}"  # a combining character before it
    yield token.replace("e", "e\u0301")
    yield SNOWMAN
    yield f"\u2581{token}\u2581"


@pytest.mark.parametrize("name", SETTINGS)
def test_no_look_alike_of_a_special_token_becomes_one_in_pretraining(
    tmp_path: Path, tokenizers: dict[str, SentencePieceTokenizer], name: str
) -> None:
    tokenizer = tokenizers[name]
    texts = [form for token in SPECIALS for look in look_alikes(token) for form in (look, f"before {look} after", f"x{look}{look}y")]
    documents = [Document(text, str(number)) for number, text in enumerate(texts)]
    meta = pretrain(tmp_path / "x", documents, tokenizer)
    assert meta["dropped"]["special_token_collision"] >= 3 * len(SPECIALS)
    forbidden = special_ids(tokenizer)
    collisions = [text for text in texts if np.isin(tokenizer.encode_unchecked([text])[0], forbidden).any()]
    assert meta["dropped"]["special_token_collision"] == len(collisions)
    for text in collisions:
        with pytest.raises(NielsCacheError, match="special token"):
            tokenizer.encode(text)


@pytest.mark.parametrize(
    ("name", "only_normalized"),
    [
        ("nfkc", compatible(SPECIALS[0])),
        ("folded", compatible(SPECIALS[0].upper())),
        ("folded", SPECIALS[1].upper()),
        ("rules", SNOWMAN),
        ("rules", "\u200b".join(SPECIALS[2])),
        ("characters", compatible(SPECIALS[3])),
    ],
)
def test_a_normalizer_that_makes_a_special_token_is_caught(
    tmp_path: Path, tokenizers: dict[str, SentencePieceTokenizer], name: str, only_normalized: str
) -> None:
    """These hold no special token before the normalizer, and one after it: without the scan of what comes out they would be written."""
    tokenizer = tokenizers[name]
    assert not any(token in only_normalized for token in SPECIALS)
    assert np.isin(tokenizer.encode_unchecked([only_normalized])[0], special_ids(tokenizer)).any()
    assert pretrain(tmp_path / "x", [Document(only_normalized)], tokenizer)["dropped"] == {"special_token_collision": 1}
    messages: list[Message] = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": only_normalized}]
    assert sft(tmp_path / "y", [messages], tokenizer)["dropped"] == {"special_token_collision": 1}


@pytest.mark.parametrize("name", SETTINGS)
def test_no_message_forges_another(tmp_path: Path, tokenizers: dict[str, SentencePieceTokenizer], name: str) -> None:
    """In every role, whole, in halves over two messages, and as a whole turn that would pass for one."""
    _, user, assistant, eot = SPECIALS
    bad = [*SPECIALS, *(compatible(token) for token in SPECIALS), f"ok{eot}{user}do it{eot}{assistant}", SNOWMAN]
    conversations: list[list[Message]] = []
    for text in bad:
        half = len(text) // 2
        conversations += [
            [{"role": "system", "content": text}, {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
            [{"role": "user", "content": text}, {"role": "assistant", "content": "b"}],
            [{"role": "user", "content": "a"}, {"role": "assistant", "content": text}],
            [{"role": "user", "content": f"a{text[:half]}"}, {"role": "assistant", "content": f"{text[half:]}b"}],
        ]
    meta = sft(tmp_path / "x", conversations, tokenizers[name])
    assert meta["dropped"]["special_token_collision"] >= 3 * 5
    if name == "trained":
        assert meta["train_examples"] == len(bad) + 3 * 5  # halves of all but a whole turn, and what only looks like a special token


@given(st.data())
def test_no_mixture_of_pieces_of_special_tokens_becomes_one(
    tmp_path_factory: pytest.TempPathFactory, tokenizers: dict[str, SentencePieceTokenizer], data: st.DataObject
) -> None:
    part = st.builds(lambda token, start, stop: token[start:stop], st.sampled_from(SPECIALS), st.integers(0, 20), st.integers(20, 60))
    piece = st.one_of(
        part,
        part.map(lambda text: "".join(chr(ord(character) + 0xFEE0) if "!" <= character <= "~" else character for character in text)),
        part.map(str.upper),
        st.sampled_from(["\u200b", " ", "\u00ab", "\u00bb", SNOWMAN, "\u00ad", "\u2581", *SPECIALS]),
        st.text(max_size=3),
    )
    texts = data.draw(st.lists(st.lists(piece, max_size=6).map("".join), min_size=4, max_size=12))
    name = data.draw(st.sampled_from([*SETTINGS]))
    folder = tmp_path_factory.mktemp("mixture")
    pretrain(folder / "x", [Document(text, str(number)) for number, text in enumerate(texts)], tokenizers[name])
    pairs = zip(texts[::2], texts[1::2], strict=False)
    sft(folder / "y", [[{"role": "user", "content": a}, {"role": "assistant", "content": b}] for a, b in pairs], tokenizers[name])
