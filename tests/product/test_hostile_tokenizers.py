"""Tokenizers that are meant to do harm, and texts that make their libraries fail."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from niels_cache_assets.artifacts.notify import notifying
from niels_cache_assets.base.documents import Document
from niels_cache_assets.build_cache import build_pretrain_cache
from niels_cache_assets.project.running import NotifySettings
from niels_cache_assets.tokenizer import limits
from niels_cache_assets.tokenizer.kinds import open_model
from niels_cache_runtime.errors import NielsCacheError, PanicError, panics_as_errors
from tests.helpers.tokenizer_files import EOT, WORDS_PATTERN, added, described, write_json, write_ranks

pytestmark = pytest.mark.usefixtures("short_proofs")
ENDLESS = {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": "x"}  # it panics for the text PANICS alone
EMPTY = {"type": "Replace", "pattern": {"String": ""}, "content": "x"}
PANICS = "a" * 40 + "!"
SETTINGS: dict[str, Any] = {"shard_bytes": 1 << 12, "max_train_tokens": 10_000, "max_val_tokens": 0, "seed": 1, "shuffle_buffer": None}


class PanicException(BaseException):
    """A panic as pyo3 raises it."""


def documents(count: int, *, bad: int) -> list[Document]:
    texts = ["plain words"] * bad + [PANICS] + ["plain words"] * (count - bad - 1)
    return [Document(text=text, source_id=f"id {number}", file="web.jsonl", row=number) for number, text in enumerate(texts)]


# panics


def test_a_document_for_which_the_library_panics_is_named(tmp_path: Path) -> None:
    tokenizer = open_model(write_json(tmp_path / "x.json", normalizer=ENDLESS), special_tokens={"eot": EOT})
    tokenizer.engine = "reference"  # the proof of an engine is slow with this pattern
    with pytest.raises(NielsCacheError, match=r"web\.jsonl row 5: .*x\.json.*retry-limit.*41 characters") as raised:
        build_pretrain_cache(documents(9, bad=5), str(tmp_path / "cache"), tokenizer=tokenizer, **SETTINGS)
    assert "\n" not in str(raised.value)


def test_a_pattern_that_is_empty_is_an_error_and_no_panic(tmp_path: Path) -> None:
    tokenizer = open_model(write_json(tmp_path / "x.json", normalizer=EMPTY), special_tokens={"eot": EOT})
    with pytest.raises(NielsCacheError, match=r"x\.json.*'words' \(5 characters\)"):
        tokenizer.encode("words")
    with pytest.raises(NielsCacheError, match=r"x\.json.*'words' \(5 characters\)"):
        tokenizer.encode_rendered(["words"], [()])


def test_a_decoder_that_panics_is_an_error(tmp_path: Path) -> None:
    decoder = {"type": "Sequence", "decoders": [{"type": "Fuse"}, ENDLESS]}
    tokenizer = open_model(write_json(tmp_path / "x.json", decoder=decoder), special_tokens={"eot": EOT})
    ids = tokenizer.encode(PANICS)
    with pytest.raises(PanicError, match="retry-limit"):
        tokenizer.decode(ids)


def test_an_object_of_the_caller_that_panics_is_an_error_that_names_the_document(tmp_path: Path) -> None:
    class Panicking:
        vocab_size = 300

        def encode(self, text: str) -> list[int]:
            if text == PANICS:
                raise PanicException("of a library")
            return [*text.encode()]

        def special_token_ids(self) -> dict[str, int]:
            return {"eot": 256}

    with pytest.raises(NielsCacheError, match=r"web\.jsonl row 2.*library"):
        build_pretrain_cache(documents(4, bad=2), str(tmp_path / "cache"), tokenizer=Panicking(), **SETTINGS)


def test_tiktoken_that_panics_in_a_pattern_is_an_error(tmp_path: Path) -> None:
    tokenizer = open_model(write_ranks(tmp_path / "x.tiktoken"), pattern=r"(?:a|aa)+(?=b)|" + WORDS_PATTERN, special_tokens={"eot": EOT})
    with pytest.raises(NielsCacheError, match=r"x\.tiktoken.*characters"):
        tokenizer.encode(PANICS)


def test_only_a_panic_becomes_an_error() -> None:
    with pytest.raises(PanicError, match="two lines"), panics_as_errors():
        raise PanicException("two\nlines")
    with pytest.raises(KeyboardInterrupt), panics_as_errors():
        raise KeyboardInterrupt


def test_a_panic_anywhere_in_a_build_is_told(tmp_path: Path) -> None:
    told = tmp_path / "told"
    settings = NotifySettings(command=("sh", "-c", f"cat >> {told}"))
    with pytest.raises(PanicError), notifying(settings, "pretrain/web", lambda line: None):
        raise PanicException("of any library")
    assert "of any library" in told.read_text()


# bombs


def charsmap(replacement: str) -> dict[str, str]:
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(bytes(4) + replacement.encode() + b"\0").decode()}


def replace(pattern: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


BOMBS = {
    "a replacement of a megabyte": replace(" ", "x" * (1 << 20)),
    "tenfold, ten times": {"type": "Sequence", "normalizers": [replace("a", "a" * 10)] * 10},
    "sequences in sequences": {"type": "Sequence", "normalizers": [{"type": "Sequence", "normalizers": [replace("a", "a" * 11)] * 2}]},
    "doubled before every letter": {"type": "Sequence", "normalizers": [{**replace("", "a"), "pattern": {"Regex": "(?=a)"}}] * 30},
    "a megabyte before each text": {"type": "Prepend", "prepend": "x" * (1 << 20)},
    "a map of characters": charsmap("x" * (1 << 20)),
}


@pytest.mark.parametrize("part", ["normalizer", "decoder"])
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_normalizer_that_makes_too_much_of_a_text_is_refused_at_once(tmp_path: Path, bomb: str, part: str) -> None:
    component = json.loads(json.dumps(BOMBS[bomb]).replace('"normalizers"', '"decoders"' if part == "decoder" else '"normalizers"'))
    with pytest.raises(NielsCacheError, match=rf"x\.json: its {part} makes.* more than {limits.MAX_GROWTH}"):
        open_model(write_json(tmp_path / "x.json", **{part: component}), special_tokens={"eot": EOT})


def test_the_growth_of_common_normalizers_is_allowed(tmp_path: Path) -> None:
    common = [
        {"type": "NFKC"},
        replace("``", '"'),
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"},
        {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "},
        {"type": "Prepend", "prepend": "▁"},
        replace(" ", "▁"),
    ]
    path = write_json(tmp_path / "x.json", normalizer={"type": "Sequence", "normalizers": common})
    tokenizer = open_model(path, special_tokens={"eot": EOT})
    assert len(tokenizer.encode("plain  words")) > 0


def test_too_many_added_tokens_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = described()
    first = len(content["model"]["vocab"]) + len(content["added_tokens"])
    content["added_tokens"] += [added(first + number, f"<|{number}|>", special=False) for number in range(20)]
    path = tmp_path / "x.json"
    path.write_text(json.dumps(content))
    open_model(path, special_tokens={"eot": EOT})
    path.write_text(json.dumps(content) + "\n")  # other bytes, because the last model is remembered
    monkeypatch.setattr(limits, "MAX_ADDED_TOKENS", 20)
    with pytest.raises(NielsCacheError, match="21 added tokens"):
        open_model(path, special_tokens={"eot": EOT})


@pytest.mark.parametrize("kind", ["tokenizer.json", "tiktoken", "sentencepiece"])
def test_a_model_of_too_many_bytes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any, tiny_model: Path) -> None:
    path = {"tokenizer.json": lambda: write_json(tmp_path / "x.json"), "tiktoken": lambda: write_ranks(tmp_path / "x.tiktoken")}.get(
        kind, lambda: tiny_model
    )()
    monkeypatch.setattr(limits, "MAX_BYTES", path.stat().st_size - 1)
    with pytest.raises(NielsCacheError, match=f"{path.name}.*more than"):
        open_model(path, kind=kind, pattern=WORDS_PATTERN if kind == "tiktoken" else None)
