"""Rank files whose models normalize text (Qwen), and rank files with an empty piece (Whisper)."""

import base64
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.project.registry import load_registry
from niels_cache_assets.tokenizer.engines import Fastokens, prove
from niels_cache_assets.tokenizer.kinds import load_tokenizer, open_built_model, open_model
from niels_cache_assets.tokenizer.normalizing import nfc, nfc_with_spans
from niels_cache_assets.tokenizer.settings import TokenizerSettings
from niels_cache_assets.tokenizer.tiktoken_ranks import TiktokenTokenizer
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.meta import read_meta
from tests.helpers.tokenizer_files import EOT, WORDS_PATTERN, pieces, write_ranks

PIECES = [  # what composes, reorders, decomposes, or does none of these
    *"ae\u0301\u0323\u0302>\u00e9\u212b\u212a\u037e\u0344\u0f73\u1100\u1161\u11a8\uac00\u09c7\u09be\u0958\u2adc\U0001d15e中😀 \n",
    *("x\u0338", "=\u0338", "\U00011099\U000110ba"),
]
TEXTS = [
    "",
    "plain",
    "cafe\u0301 and cafe\u0301s",
    "\u212bngstro\u0308m \u212a",
    "\u1112\u1161\u11ab\u1100\u1173\u11af",
    "q\u0307\u0323 \u0301x",
]


def mixtures(count: int) -> list[str]:
    """Texts of random pieces."""
    generator = torch.Generator().manual_seed(50)
    lengths = torch.randint(1, 12, (count,), generator=generator).tolist()
    return ["".join(PIECES[number] for number in torch.randint(len(PIECES), (length,), generator=generator)) for length in lengths]


def opened(folder: Path, **keys: Any) -> TiktokenTokenizer:
    tokenizer = open_model(write_ranks(folder / "x.tiktoken"), pattern=WORDS_PATTERN, special_tokens={"eot": EOT}, **keys)
    assert isinstance(tokenizer, TiktokenTokenizer)
    return tokenizer


def test_every_way_to_encode_gives_the_ids_of_the_normalized_text(tmp_path: Path) -> None:
    plain, normalizing = opened(tmp_path), opened(tmp_path, normalize="nfc")
    texts = [*TEXTS, *mixtures(300)]
    forms = [unicodedata.normalize("NFC", text) for text in texts]
    assert sum(map(str.__ne__, texts, forms)) > 100
    expected = [plain.encode(form) for form in forms]
    assert [normalizing.encode(text) for text in texts] == expected
    assert [ids.tolist() for ids in normalizing.encode_batch(texts, threads=2)] == expected
    assert normalizing.encode_flat(texts)[0].tolist() == [token for ids in expected for token in ids]
    assert normalizing.count_tokens(texts) == sum(map(len, expected))
    assert [ids.tolist() for ids, _ in normalizing.encode_rendered(texts, [()] * len(texts))] == expected
    assert [normalizing.decode(ids) for ids in expected] == forms
    assert [plain.encode(text) for text in texts] != expected


def test_the_fast_engine_gives_the_ids_of_the_normalized_text(tmp_path: Path) -> None:
    pytest.importorskip("fastokens", reason="fastokens is not installed (the extra fast)")
    normalizing = opened(tmp_path, normalize="nfc")
    engine = Fastokens.load(normalizing)
    assert not isinstance(engine, str)
    texts = [*TEXTS, *mixtures(300)]
    for found, expected in zip(engine.encode_flat(texts), normalizing.encode_flat(texts), strict=True):
        assert found.tolist() == expected.tolist()
    proof = prove(normalizing, engine)
    assert proof.texts > 10_000
    assert proof.differing == 0


def test_places_in_a_normalized_text_are_those_of_the_same_characters() -> None:
    moved = 0
    for text in [*TEXTS, *mixtures(400)]:
        spans = [(start, end) for start in range(len(text) + 1) for end in range(start, len(text) + 1)]
        normalized, found = nfc_with_spans(text, spans)
        assert normalized == unicodedata.normalize("NFC", text) == nfc(text)
        moved += normalized != text
        for (start, end), (begin, stop) in zip(spans, found, strict=True):
            assert 0 <= begin <= stop <= len(normalized)
            before, inside, after = (unicodedata.normalize("NFC", part) for part in (text[:start], text[start:end], text[end:]))
            if before + inside + after == normalized and start < end:  # nothing crosses the ends of the span
                assert normalized[begin:stop] == inside, (text, start, end)
            elif start < end:
                assert begin <= len(before)
                assert len(normalized) - stop <= len(after)
    assert moved > 100


def test_the_spans_of_a_rendered_text_are_those_of_its_normalized_form(tmp_path: Path) -> None:
    plain, normalizing = opened(tmp_path), opened(tmp_path, normalize="nfc")
    parts = ["user: ", "cafe\u0301 \u212b\n", "assistant: ", "nai\u0308ve A\u030a", EOT, "e\u0301\n"]
    text, ends = "".join(parts), np.cumsum([0, *map(len, parts)]).tolist()
    forms = [unicodedata.normalize("NFC", part) for part in parts]
    form_ends = np.cumsum([0, *map(len, forms)]).tolist()
    spans = [(ends[1], ends[2]), (ends[3], ends[4]), (ends[4], ends[6])]
    ((ids, places),) = normalizing.encode_rendered([text], [spans])
    wanted = [(form_ends[1], form_ends[2]), (form_ends[3], form_ends[4]), (form_ends[4], form_ends[6])]
    ((expected, expected_places),) = plain.encode_rendered(["".join(forms)], [wanted])
    assert ids.tolist() == expected.tolist()
    assert places.tolist() == expected_places.tolist()
    assert plain.decode(ids[slice(*places[1])]).strip() == "na\u00efve \u00c5"
    assert normalizing.token_id(EOT) in ids


def test_a_text_that_becomes_a_special_token_by_its_form_is_found(tmp_path: Path) -> None:
    tokenizer = open_model(write_ranks(tmp_path / "x.tiktoken"), pattern=WORDS_PATTERN, special_tokens={"eot": "<|K|>"}, normalize="nfc")
    assert tokenizer.yields_special(["<|\u212a|>", "<|k|>", "<|K|>"]) == [True, False, True]


def test_the_key_is_in_the_identity_of_the_tokenizer_only_if_it_is_set(tmp_path: Path) -> None:
    plain, normalizing = opened(tmp_path), opened(tmp_path, normalize="nfc")
    assert "normalize" not in plain.description
    assert plain.model_sha256 != normalizing.model_sha256
    for tokenizer, form in ((plain, None), (normalizing, "nfc")):
        tokenizer.save(tmp_path)
        again = open_model(tmp_path / "tiktoken.json", special_tokens={"eot": EOT})
        assert isinstance(again, TiktokenTokenizer)
        assert (again.normalize, again.model_sha256) == (form, tokenizer.model_sha256)
        assert again.encode("e\u0301") == tokenizer.encode("e\u0301")


@pytest.mark.parametrize("model", ["x.json", "x.model"])
def test_the_key_is_for_rank_files_only(model: str) -> None:
    with pytest.raises(ValueError, match="normalize is for rank files"):
        TokenizerSettings(model=model, normalize="nfc")
    with pytest.raises(ValueError, match="normalize describes an imported model"):
        TokenizerSettings(normalize="nfc")


def test_a_project_encodes_normalized_text_and_builds_again_when_the_key_changes(tmp_path: Path) -> None:
    write_ranks(tmp_path / "x.tiktoken")
    (tmp_path / "a.jsonl").write_text("".join(f'{{"text": "cafe\u0301 {row}"}}\n' for row in range(30)), encoding="utf-8")
    shas = []
    for key in ("", 'normalize = "nfc"\n'):
        (tmp_path / "niels_cache.toml").write_text(
            f"[tokenizer]\nmodel = 'x.tiktoken'\npattern = '''{WORDS_PATTERN}'''\n{key}"
            f"special_tokens = {{ eot = '{EOT}' }}\n[pretrain.a]\nsource = 'jsonl'\nfiles = ['a.jsonl']\nval_frac = 0.1\n",
            encoding="utf-8",
        )
        registry = load_registry(config=str(tmp_path / "niels_cache.toml"))
        found = graph(registry, tmp_path / "cache")
        assert materialize(found["tokenizer"]).state == "built"
        meta = materialize(graph(registry, tmp_path / "cache")["pretrain/a"]).meta
        shas.append(meta["content_sha256"])
        loaded, built = load_tokenizer(registry.tokenizer, tmp_path / "cache"), open_built_model(tmp_path / "cache/tokenizer")
        assert loaded.encode("e\u0301") == built.encode("e\u0301")
        assert (loaded.encode("e\u0301") == loaded.encode("\u00e9")) == bool(key)
        assert ("normalize" in (tmp_path / "cache/tokenizer/tiktoken.json").read_text()) == bool(key)
        assert materialize(graph(registry, tmp_path / "cache")["tokenizer"]).state == "cache_hit"
    assert shas[0] != shas[1]
    assert read_meta(str(tmp_path / "cache/tokenizer/meta.json"))["model_kind"] == "tiktoken"


def whisper_ranks(path: Path, count: int | None = None) -> Path:
    """Write ranks as Whisper's multilingual file has them: the last line is an empty piece."""
    write_ranks(path)
    path.write_bytes(path.read_bytes() + f"= {count or len(pieces())}\n".encode())
    return path


def test_the_empty_piece_of_whisper_takes_an_id_that_no_text_yields(tmp_path: Path) -> None:
    import tiktoken

    path, empty = whisper_ranks(tmp_path / "multilingual.tiktoken"), len(pieces())
    tokenizer = open_model(path, pattern=WORDS_PATTERN, special_tokens={"eot": EOT})
    assert isinstance(tokenizer, TiktokenTokenizer)
    assert (tokenizer.special_token_ids(), tokenizer.vocab_size) == ({"eot": empty + 1}, empty + 2)
    assert (tokenizer.piece_bytes()[empty], tokenizer.decode([empty])) == (b"", "")
    ranks = {
        base64.b64decode(piece): int(rank) for piece, rank in (line.split() for line in path.read_bytes().splitlines())
    }  # as Whisper does
    theirs = tiktoken.Encoding("whisper", pat_str=WORDS_PATTERN, mergeable_ranks=ranks, special_tokens={EOT: empty + 1})
    texts = [*TEXTS, *mixtures(100), "many words and  blanks\n\n"]
    assert [tokenizer.encode(text) for text in texts] == [theirs.encode_ordinary(text) for text in texts]
    tokenizer.save(tmp_path)
    assert open_model(tmp_path / "tiktoken.json", special_tokens={"eot": EOT}).encode("many words") == theirs.encode("many words")


@pytest.mark.parametrize("line", ["== 700", "=a 700", "= x", "=", " 700"])
def test_no_other_padding_is_an_empty_piece(tmp_path: Path, line: str) -> None:
    path = write_ranks(tmp_path / "x.tiktoken")
    path.write_bytes(path.read_bytes() + line.encode() + b"\n")
    with pytest.raises(NielsCacheError, match="damaged rank file"):
        open_model(path, pattern=WORDS_PATTERN, special_tokens={"eot": EOT})
