"""Fast engines: the proof that their ids are those of the reference, the comparison while a build runs, and builds without an engine."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from niels_cache_assets.artifacts import encoded_again
from niels_cache_assets.artifacts.base import Outcome
from niels_cache_assets.artifacts.builds import build_dataset, build_tokenizer
from niels_cache_assets.build_cache import Resume, build_pretrain_cache, build_sft_cache, resuming
from niels_cache_assets.chats.templates import find_template
from niels_cache_assets.cli import main
from niels_cache_assets.config.registry import Registry, load_registry
from niels_cache_assets.config.tables import TokenizerSettings
from niels_cache_assets.disk.journal import BYTES_VARIABLE, JOURNAL_NAME, Journal, read_journal
from niels_cache_assets.documents import Document, DocumentBatch, SourceReport
from niels_cache_assets.parts.layout import refusals_dir
from niels_cache_assets.streaming import encode
from niels_cache_assets.streaming.feed import Feed
from niels_cache_assets.tokenizer import checked, engines
from niels_cache_assets.tokenizer.checked import EngineUse
from niels_cache_assets.tokenizer.engines import Fastokens, gpt2_tokenizer_json, prove, proven_engine
from niels_cache_assets.tokenizer.kinds import HuggingFaceTokenizer, TextTokenizer, TiktokenTokenizer, view_tokenizer
from niels_cache_assets.tokenizer.proof import Proof, compare, torture_texts
from niels_cache_assets.tokenizer.tiktoken_ranks import read_ranks
from niels_cache_runtime.errors import NielsCacheError
from tests.test_cache_determinism import digests
from tests.tiny import sentences
from tests.tokenizer_files import write_json

EOT = {"eot": "<|endoftext|>"}
CHATS = {**EOT, "sys": "<|sys|>", "usr": "<|usr|>", "asst": "<|asst|>"}
GPT2_WORDS = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
ODD = "Odd"  # a sentence with this word is encoded differently by the engine that differs
CHATML = {"<|im_start|>": True, "<|im_end|>": True}
DOCUMENTS = 64


def write_ranks(path: Path) -> Path:
    """Write ranks of all bytes, and of the joined beginnings of some words. Each piece is the join of two pieces before it."""
    pieces = [bytes([byte]) for byte in range(256)]
    for word in (" the", " token", " shard", " document", "ing", "tion", " and", "Odd", "12", "  ", "\n\n", "é"):
        coded = word.encode()
        pieces += [coded[:end] for end in range(2, len(coded) + 1) if coded[:end] not in pieces]
    path.write_text("".join(f"{base64.b64encode(piece).decode()} {rank}\n" for rank, piece in enumerate(pieces)), encoding="ascii")
    return path


@pytest.fixture
def ranks(tmp_path: Path) -> Path:
    return write_ranks(tmp_path / "tiny.tiktoken")


@pytest.fixture
def tokenizer(ranks: Path) -> TiktokenTokenizer:
    return TiktokenTokenizer(ranks, special_tokens=CHATS, pattern=GPT2_WORDS)


class Engine:
    """An engine that encodes with the reference, and counts the texts. `differs`: for which texts the last id is wrong."""

    name, version = "hasty", "1.2"
    asked = 0

    def __init__(self, tokenizer: TextTokenizer, differs: Callable[[str], bool]) -> None:
        self._tokenizer, self._differs = tokenizer, differs

    def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        type(self).asked += len(texts)
        ids, lengths = self._tokenizer.encode_flat(texts)
        ids = ids.copy()
        for text, end in zip(texts, np.cumsum(lengths).tolist(), strict=True):
            if self._differs(text):
                ids[end - 1] ^= 1
        return ids, lengths


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that makes an engine the only one, or none. Its proof is left out, unless `proven` is set."""

    def one(differs: Callable[[str], bool] | None, *, proven: bool = False) -> None:
        loaders = {} if differs is None else {Engine.name: lambda tokenizer: Engine(tokenizer, differs)}
        monkeypatch.setattr(engines, "ENGINES", loaders)
        monkeypatch.setattr(engines, "_PROVEN", {})
        monkeypatch.setattr(engines, "_RESULTS", {})
        monkeypatch.setattr(Engine, "asked", 0)
        if not proven:
            monkeypatch.setattr(engines, "prove", lambda tokenizer, engine: Proof(texts=1))

    return one


def equal(text: str) -> bool:
    return False


def odd(text: str) -> bool:
    return ODD in text


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let batches have four documents. Every second batch is compared."""
    monkeypatch.setattr(encode, "_CHUNK_ITEMS", 4)
    monkeypatch.setattr(encode, "_CHUNKS_PER_TASK", 1)
    monkeypatch.setattr(checked, "FIRST_BATCHES", 1)
    monkeypatch.setattr(checked, "BATCHES_PER_CHECK", 2)
    monkeypatch.setattr(checked, "TEXTS_PER_CHECK", 1)


# ---- the proof


def test_the_difficult_texts_are_the_same_each_time_and_have_every_character_of_two_planes() -> None:
    texts = list(torture_texts(added=["<|one|>"], pieces=["the", " of"]))
    assert texts == list(torture_texts(added=["<|one|>"], pieces=["the", " of"]))
    assert len(texts) > 10_000
    assert set("".join(texts)) >= {chr(code) for code in range(0x20000) if not 0xD800 <= code < 0xE000}
    assert all(text.encode() is not None for text in texts)  # no lone surrogate
    assert max(map(len, texts)) >= 400_000
    assert any("<|one|>" in text for text in texts)


def test_the_proof_finds_one_text_among_all_that_differs(tokenizer: TiktokenTokenizer) -> None:
    (one,) = [text for text in torture_texts() if text == " Ελλάδα"]
    proof = prove(tokenizer, Engine(tokenizer, lambda text: text == one))
    assert proof.differing == 1
    assert proof.texts > 10_000
    assert proof.first is not None
    assert proof.first.text == one
    assert proof.first.expected == tokenizer.encode(one)
    assert proof.first.first == len(proof.first.expected) - 1
    assert prove(tokenizer, Engine(tokenizer, equal)).differing == 0


def test_a_text_that_an_engine_cannot_encode_differs_and_the_others_are_compared(tokenizer: TiktokenTokenizer) -> None:
    def failing(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        if any(odd(text) for text in texts):
            raise RuntimeError("too odd")
        return tokenizer.encode_flat(texts)

    proof = compare(["one", ODD, "two"], reference=tokenizer.encode_flat, engine=failing)
    assert (proof.texts, proof.differing) == (3, 1)
    assert proof.first is not None
    assert (proof.first.text, proof.first.found) == (ODD, [])


class Choking(TiktokenTokenizer):
    """A tokenizer that cannot encode a text with a word twice in a row."""

    def encode_unchecked(self, texts: Sequence[str]) -> list[np.ndarray]:
        if any(f"{ODD} {ODD}" in text for text in texts):
            raise NielsCacheError("tiktoken cannot encode a text")
        return [np.array(self._encode(text), dtype=np.uint32) for text in texts]


def test_a_difficult_text_that_the_reference_cannot_encode_means_the_reference(
    ranks: Path, install: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    choking, sound = (kind(ranks, special_tokens=EOT, pattern=GPT2_WORDS) for kind in (Choking, TiktokenTokenizer))
    proof = compare(["one", f"{ODD} {ODD}", "two"], reference=choking.encode_flat, engine=sound.encode_flat)
    assert (proof.texts, proof.differing, proof.unencodable) == (3, 0, 1)
    install(equal, proven=True)
    monkeypatch.setattr(engines, "torture_texts", lambda **given: iter(["one", f"{ODD} {ODD}", "two"]))
    said: list[str] = []
    assert proven_engine(choking, said.append) is None
    (line,) = said
    assert "hasty 1.2" in line
    assert "cannot encode 1 of 3" in line


def test_an_engine_that_fails_its_proof_is_not_used_and_the_log_says_so(tokenizer: TiktokenTokenizer, install: Callable[..., None]) -> None:
    said: list[str] = []
    install(lambda text: text == "\u180e", proven=True)
    assert proven_engine(tokenizer, said.append) is None
    (line,) = said
    assert "hasty 1.2" in line
    assert "prove" in line
    assert proven_engine(tokenizer, said.append) is None  # proven once only
    assert len(said) == 1


def test_models_in_turns_are_proven_once_each_and_a_refused_engine_stays_refused(
    ranks: Path, install: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = (TiktokenTokenizer(ranks, special_tokens=roles, pattern=GPT2_WORDS) for roles in (EOT, CHATS))
    install(equal)
    proven: list[TextTokenizer] = []
    monkeypatch.setattr(engines, "prove", lambda tokenizer, engine: (proven.append(tokenizer), Proof(texts=1))[1])
    for tokenizer in (one, other, one, other):
        assert proven_engine(tokenizer, lambda message: None) is not None
    assert proven == [one, other]
    engines.refuse_engine(one, Engine.name, Engine.version)
    assert proven_engine(other, lambda message: None) is not None
    assert proven_engine(one, lambda message: None) is None
    assert proven == [one, other]


@pytest.mark.parametrize("remembers", [True, False])
def test_the_words_of_the_proof_are_forgotten_if_the_library_can(
    ranks: Path, tmp_path: Path, install: Callable[..., None], monkeypatch: pytest.MonkeyPatch, remembers: bool
) -> None:
    (tmp_path / "tokenizer.json").write_text(gpt2_tokenizer_json(read_ranks(ranks)[0]), encoding="utf-8")
    tokenizer = HuggingFaceTokenizer(tmp_path / "tokenizer.json", special_tokens={})
    ids = tokenizer.encode(" the token")
    tokenizer.renew_remembered_words()
    assert tokenizer.encode(" the token") == ids
    calls: list[Any] = []
    words = SimpleNamespace(_clear_cache=lambda: calls.append("clear"), _resize_cache=calls.append)
    monkeypatch.setattr(tokenizer, "_tokenizer", SimpleNamespace(model=words if remembers else None))
    install(equal)
    for _ in range(2):
        assert proven_engine(tokenizer, lambda message: None) is not None
    assert calls == (["clear", 1 << 16] if remembers else []), "once, after the proof"


def test_prove_shows_the_text_that_differs_and_fails(
    ranks: Path, tmp_path: Path, install: Callable[..., None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "niels_cache.toml").write_text(
        f"[tokenizer]\nmodel = {json.dumps(str(ranks))}\npattern = '''{GPT2_WORDS}'''\nspecial_tokens = {{ eot = '<|endoftext|>' }}\n",
        encoding="utf-8",
    )
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "one.txt").write_text(f"a quiet line\n\nand an {ODD} one", encoding="utf-8")
    command = ["tokenizer", "prove", str(ranks), "--files", "books"]
    install(equal)
    assert main(command) == 0
    assert "hasty 1.2, files" in capsys.readouterr().out
    install(odd)
    assert main(command) == 1
    assert f"an {ODD} one" in capsys.readouterr().out
    assert main([*command, "--json"]) == 1
    (model,) = json.loads(capsys.readouterr().out)["models"]
    assert model["reference"] == "tiktoken"
    (engine,) = model["engines"]
    assert engine["sources"]["files"]["differing"] == 1
    assert ODD in engine["sources"]["files"]["first"]["text"]


def test_prove_counts_texts_that_the_reference_cannot_encode(
    ranks: Path, tmp_path: Path, install: Callable[..., None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    project(tmp_path, ranks, odd_at=None)
    (tmp_path / "one.txt").write_text(f"a quiet line\n\nan {ODD} {ODD} one", encoding="utf-8")
    install(equal)
    monkeypatch.setattr(TiktokenTokenizer, "encode_unchecked", Choking.encode_unchecked)
    assert main(["tokenizer", "prove", str(ranks), "--files", "one.txt"]) == 0
    assert "cannot encode 1," in capsys.readouterr().out


def test_prove_compares_all_text_and_the_beginning_only_where_it_is_asked_for(
    ranks: Path, tmp_path: Path, install: Callable[..., None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from niels_cache_assets.cli.commands.tokenizer import CHARACTERS

    monkeypatch.chdir(tmp_path)
    project(tmp_path, ranks, odd_at=None)
    (tmp_path / "long.txt").write_text("a quiet line\n" * (CHARACTERS // 12) + f"\n\nan {ODD} one", encoding="utf-8")
    command = ["tokenizer", "prove", str(ranks), "--files", "long.txt"]
    install(odd)
    assert main(command) == 1
    capsys.readouterr()
    assert main([*command, "--characters", str(CHARACTERS)]) == 0


# ---- builds


@pytest.mark.usefixtures("small_batches")
def test_a_record_in_the_cache_shows_the_place_of_the_difference(ranks: Path, tmp_path: Path, install: Callable[..., None]) -> None:
    registry = project(tmp_path, ranks, odd_at=None)
    text = f"{'a quiet word ' * 50}an {ODD} one"
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": each}) + "\n" for each in [text, *sentences(40)]), encoding="utf-8")
    install(odd)
    said: list[str] = []
    built(registry, tmp_path / "cache", said.append)
    (line,) = [line for line in said if "hasty" in line]
    assert ODD not in line, "text stays in the cache"
    (record,) = refusals_dir(tmp_path / "cache").glob("*.json")
    shown = json.loads(record.read_bytes())["text"]
    assert f"an {ODD} one" in shown
    assert len(shown) < 300


def project(folder: Path, ranks: Path, *, odd_at: int | None, engine: str = "auto") -> Registry:
    """Write a project with one data set. Document `odd_at` is encoded differently by the engine that differs."""
    texts = [f"{number} {text}" for number, text in enumerate(sentences(DOCUMENTS, seed=3))]
    if odd_at is not None:
        texts[odd_at] = f"An {ODD} text."
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    config = folder / "niels_cache.toml"
    config.write_text(
        f"[build]\nshard_bytes = 512\n[tokenizer]\nmodel = {json.dumps(str(ranks))}\npattern = '''{GPT2_WORDS}'''\n"
        f'special_tokens = {{ eot = "<|endoftext|>" }}\nengine = "{engine}"\n'
        '[pretrain.texts]\nsource = "jsonl"\nfiles = ["texts.jsonl"]\nval_tokens = 50\nshuffle_buffer = 0\n',
        encoding="utf-8",
    )
    return load_registry(profile=None, config=str(config))


def built(registry: Registry, root: Path, log: Callable[[str], None] = lambda message: None, **settings: Any) -> Outcome:
    if not (root / "tokenizer").exists():
        build_tokenizer(registry, root=root)
    return build_dataset(registry, "texts", root=root, log=log, **settings)


@pytest.mark.usefixtures("small_batches")
def test_an_engine_that_is_equal_changes_no_byte(ranks: Path, tmp_path: Path, install: Callable[..., None]) -> None:
    install(None)
    registry = project(tmp_path, ranks, odd_at=None)
    slow = built(registry, tmp_path / "slow")
    install(equal)
    fast = built(registry, tmp_path / "fast")
    assert Engine.asked >= DOCUMENTS
    assert digests(fast.directory) == digests(slow.directory)
    assert [(use.name, use.version) for use in fast.engines] == [("hasty", "1.2")]
    (use,) = fast.engines
    assert use.texts >= DOCUMENTS
    assert 0.3 < use.checked / use.texts < 0.7
    (use,) = slow.engines
    assert (use.name, use.checked) == ("tiktoken", use.texts)
    assert fast.meta["fingerprint"] == slow.meta["fingerprint"]
    assert built(registry, tmp_path / "slow").state == "cache_hit"


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("odd_at", [0, 41, DOCUMENTS - 1])
def test_a_difference_in_a_build_starts_it_again_with_the_reference(
    odd_at: int, ranks: Path, tmp_path: Path, install: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checked, "BATCHES_PER_CHECK", 1)
    monkeypatch.setenv(BYTES_VARIABLE, "1")
    registry, said = project(tmp_path, ranks, odd_at=odd_at), list[str]()
    install(None)
    expected = digests(built(registry, tmp_path / "slow").directory)
    install(odd)
    outcome = built(registry, tmp_path / "fast", said.append)
    assert digests(outcome.directory) == expected
    assert Engine.asked > 0
    (line,) = [line for line in said if "again" in line]
    assert "hasty 1.2" in line
    assert ODD not in line, "text stays in the cache"
    assert [(use.name, use.differed) for use in outcome.engines] == [("hasty", True), ("tiktoken", False)]
    assert "hasty 1.2 was not used" in outcome.engines[0].said()


@pytest.mark.usefixtures("small_batches")
def test_an_engine_that_differed_encodes_no_later_data_set_of_the_process(
    ranks: Path, tmp_path: Path, install: Callable[..., None]
) -> None:
    install(odd)
    said: list[str] = []
    built(project(tmp_path, ranks, odd_at=0), tmp_path / "one", said.append)
    assert [line for line in said if "hasty" in line and "after this one" in line]
    asked = Engine.asked
    outcome = built(project(tmp_path, ranks, odd_at=None), tmp_path / "two")
    assert Engine.asked == asked > 0
    assert [use.name for use in outcome.engines] == ["tiktoken"]


def test_the_reference_is_used_where_the_configuration_says_so(ranks: Path, tmp_path: Path, install: Callable[..., None]) -> None:
    install(equal)
    outcome = built(project(tmp_path, ranks, odd_at=None, engine="reference"), tmp_path / "cache")
    assert Engine.asked == 0
    assert [use.name for use in outcome.engines] == ["tiktoken"]
    assert built(project(tmp_path, ranks, odd_at=None), tmp_path / "cache").state == "cache_hit"  # the key decides no byte


@pytest.mark.usefixtures("small_batches")
def test_a_batch_that_an_engine_cannot_encode_is_encoded_by_the_reference(
    ranks: Path, tmp_path: Path, install: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Engine, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        raise RuntimeError("no memory")

    registry = project(tmp_path, ranks, odd_at=None)
    install(None)
    expected = digests(built(registry, tmp_path / "slow").directory)
    install(equal)
    monkeypatch.setattr(Engine, "encode_flat", fail)
    said: list[str] = []
    outcome = built(registry, tmp_path / "fast", said.append)
    assert digests(outcome.directory) == expected
    assert [(use.name, use.is_reference) for use in outcome.engines] == [("tiktoken", True)]
    (line,) = [line for line in said if "hasty" in line]  # once for all batches
    assert "RuntimeError" in line
    assert "no memory" not in line, "its message may quote text"
    assert "tiktoken" in line


def test_a_batch_with_too_few_results_is_encoded_by_the_reference(
    ranks: Path, tmp_path: Path, install: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    encode_flat = Engine.encode_flat

    def lose_one(self: Engine, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        return encode_flat(self, texts[1:])

    registry = project(tmp_path, ranks, odd_at=None)
    install(None)
    expected = digests(built(registry, tmp_path / "slow").directory)
    install(equal)
    monkeypatch.setattr(Engine, "encode_flat", lose_one)
    assert digests(built(registry, tmp_path / "fast").directory) == expected


def test_metadata_name_the_engine_and_the_share_that_was_compared(ranks: Path, tmp_path: Path, install: Callable[..., None]) -> None:
    from niels_cache_assets.defs.metadata.builds import family_metadata

    install(equal)
    outcome = built(project(tmp_path, ranks, odd_at=None), tmp_path / "cache")
    shown = family_metadata(outcome, {}, deduplicated=False, draw=False)
    assert shown[None]["encoded_by"] == "; ".join(use.said() for use in outcome.engines)
    assert "hasty 1.2" in shown[None]["encoded_by"]
    hit = built(project(tmp_path, ranks, odd_at=None), tmp_path / "cache")
    assert "encoded_by" not in family_metadata(hit, {}, deduplicated=False, draw=False)[None]
    assert "hasty" not in (outcome.directory / "meta.json").read_text(encoding="utf-8")


@pytest.mark.usefixtures("small_batches")
def test_a_builder_that_cannot_read_again_ends_with_an_error_and_keeps_nothing(
    tokenizer: TiktokenTokenizer, tmp_path: Path, install: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checked, "BATCHES_PER_CHECK", 1)
    monkeypatch.setenv(BYTES_VARIABLE, "1")
    install(odd)
    texts = [*sentences(20), f"An {ODD} text."]
    settings: dict[str, Any] = {"max_train_tokens": 10**6, "max_val_tokens": 0, "shard_bytes": 512, "seed": 1, "shuffle_buffer": None}
    out = tmp_path / "cache"
    with pytest.raises(NielsCacheError) as caught:
        build_pretrain_cache(iter(texts), str(out), tokenizer=tokenizer, resume=Resume(fingerprint="f"), **settings)
    assert "reference" in str(caught.value)
    assert str(out) in str(caught.value)
    assert not out.exists()
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and ".partial" in str(path) and not path.name.endswith(".lock")]
    tokenizer.engine = "reference"
    build_pretrain_cache(iter(texts), str(out), tokenizer=tokenizer, resume=Resume(fingerprint="f"), **settings)
    assert (out / "meta.json").exists()


@pytest.mark.usefixtures("small_batches")
def test_conversations_are_compared_too(
    tokenizer: TiktokenTokenizer, tmp_path: Path, install: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checked, "BATCHES_PER_CHECK", 1)
    examples = [
        [{"role": "user", "content": text}, {"role": "assistant", "content": f"An {ODD} answer."}] for text in sentences(12, seed=5)
    ]
    install(equal)
    build_sft_cache(examples, str(tmp_path / "fast"), tokenizer=tokenizer, val_frac=0.1, seed=1)
    assert Engine.asked == 24
    install(None)
    build_sft_cache(examples, str(tmp_path / "slow"), tokenizer=tokenizer, val_frac=0.1, seed=1)
    assert digests(tmp_path / "fast") == digests(tmp_path / "slow")
    install(odd)
    with pytest.raises(NielsCacheError, match="hasty"):
        build_sft_cache(examples, str(tmp_path / "odd"), tokenizer=tokenizer, val_frac=0.1, seed=1)


def test_a_chat_template_proves_no_engine(tmp_path: Path, install: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    write_json(tmp_path / "tokenizer.json", tokens=CHATML)
    tokenizer = HuggingFaceTokenizer(tmp_path / "tokenizer.json", special_tokens={"eot": "<|im_end|>"})
    install(equal)
    proofs: list[Any] = []
    monkeypatch.setattr(engines, "prove", lambda *given: proofs.append(given) or Proof(texts=1))
    example = [{"role": "user", "content": "the cache"}, {"role": "assistant", "content": "the token"}]
    template = find_template("chatml", TokenizerSettings(model=tokenizer.model_path, special_tokens=tokenizer.special_tokens))
    build_sft_cache([example] * 3, str(tmp_path / "sft"), tokenizer=tokenizer, val_frac=0, seed=1, template=template)
    assert not proofs
    settings: dict[str, Any] = {"max_train_tokens": 10**6, "max_val_tokens": 0, "shard_bytes": 512, "seed": 1, "shuffle_buffer": None}
    build_pretrain_cache(iter(sentences(3)), str(tmp_path / "pretrain"), tokenizer=tokenizer, **settings)
    assert len(proofs) == 1


def encoder_of(tokenizer: TextTokenizer) -> checked.Encoder:
    encoder = checked.Encoder(view_tokenizer(tokenizer), tokenizer)
    encoder.start([], lambda message: None)
    return encoder


def test_all_threads_wait_for_the_engine_before_the_first_text(tokenizer: TiktokenTokenizer, install: Callable[..., None]) -> None:
    install(equal)
    encoder = encoder_of(tokenizer)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda batch: encoder.encode_flat(["one", "two"], batch), range(16)))
    (use,) = encoder.uses
    assert (use.name, use.texts) == ("hasty", 32)


def test_a_text_that_the_reference_cannot_encode_stops_no_build_only_because_it_is_compared(
    ranks: Path, install: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    choking, sound = (kind(ranks, special_tokens=EOT, pattern=GPT2_WORDS) for kind in (Choking, TiktokenTokenizer))
    texts = ["one", f"{ODD} {ODD}", "two", "Odd again"]
    install(equal)
    monkeypatch.setattr(engines, "ENGINES", {"hasty": lambda tokenizer: Engine(sound, lambda text: False)})
    encoder = encoder_of(choking)
    for batch in (0, 9):  # compared, not compared
        ids, _ = encoder.encode_flat(texts, batch)
        assert ids.tolist() == sound.encode_flat(texts)[0].tolist()
    (use,) = encoder.uses
    assert (use.texts, use.checked) == (8, 3)
    install(equal)
    monkeypatch.setattr(engines, "ENGINES", {"hasty": lambda tokenizer: Engine(sound, lambda text: text == "Odd again")})
    with pytest.raises(checked.EngineDiffers) as raised:
        encoder_of(choking).encode_flat(texts, 0)
    assert "Odd again" in raised.value.shown
    assert "Odd again" not in str(raised.value), "the message is logged"


def test_a_batch_that_is_encoded_again_is_not_the_first_of_an_engine(
    tokenizer: TiktokenTokenizer, install: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    install(equal)
    encoder = encoder_of(tokenizer)
    monkeypatch.setattr(encoder, "_worth", 1)  # an engine that is loaded later, as for SentencePiece
    encoder.encode_flat(["a first text"], None)
    assert Engine.asked == 0
    encoder.encode_flat(["a text"], 5)
    encoder.encode_flat(["a first text"], None)
    (engine, reference) = encoder.uses
    assert (engine.name, engine.texts, engine.checked) == ("hasty", 2, 1)
    assert (reference.name, reference.texts) == ("tiktoken", 1)


@pytest.mark.parametrize(("threads", "given", "expected"), [(1, None, "false"), (None, None, None), (1, "true", "true")])
def test_the_threads_of_a_build_limit_those_of_tokenizers(
    threads: int | None, given: str | None, expected: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    if given is not None:
        monkeypatch.setenv("TOKENIZERS_PARALLELISM", given)
    write_json(tmp_path / "tokenizer.json", tokens=CHATML)
    tokenizer = HuggingFaceTokenizer(tmp_path / "tokenizer.json", special_tokens={"eot": "<|im_end|>"})
    tokenizer.engine = "reference"
    seen: list[str | None] = []

    def texts() -> Iterator[str]:
        seen.append(os.environ.get("TOKENIZERS_PARALLELISM"))
        yield "the token"

    settings: dict[str, Any] = {"max_train_tokens": 10**6, "max_val_tokens": 0, "shard_bytes": 512, "seed": 1, "shuffle_buffer": None}
    build_pretrain_cache(texts(), str(tmp_path / "cache"), tokenizer=tokenizer, threads=threads, **settings)
    assert seen == [expected]
    assert os.environ.get("TOKENIZERS_PARALLELISM") == given


# ---- builds that are stopped


class Stopped(BaseException):
    """Ends a build as a kill would."""


def stop_at(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the build stop before it encodes batch `number`."""
    encode_flat = checked.Encoder.encode_flat

    def stopping(self: checked.Encoder, texts: Sequence[str], batch: int | None) -> tuple[np.ndarray, np.ndarray]:
        if batch == number:
            raise Stopped
        return encode_flat(self, texts, batch)

    monkeypatch.setattr(checked.Encoder, "encode_flat", stopping)


@pytest.fixture
def stopped(
    ranks: Path, tmp_path: Path, install: Callable[..., None], small_batches: None, monkeypatch: pytest.MonkeyPatch
) -> tuple[Registry, dict[str, str]]:
    """A build in tmp_path/cache that an engine has half done, and the bytes of the whole cache. Document 57 is odd."""
    monkeypatch.setenv(BYTES_VARIABLE, "1")
    registry = project(tmp_path, ranks, odd_at=57)
    install(None)
    expected = digests(built(registry, tmp_path / "slow").directory)
    install(odd)
    with monkeypatch.context() as patched:
        stop_at(9, patched)
        with pytest.raises(Stopped):
            built(registry, tmp_path / "cache")
    recorded = read_journal(tmp_path / "cache" / "pretrain" / ".texts.partial")
    assert recorded is not None
    assert recorded.notes is not None
    (use,) = EngineUse.recorded(recorded.notes)
    assert (use.name, use.version, use.differed) == ("hasty", "1.2", False)
    assert 0 < use.checked < use.texts
    return registry, expected


def test_a_resume_without_the_engine_goes_on_with_the_reference(
    stopped: tuple[Registry, dict[str, str]], tmp_path: Path, install: Callable[..., None]
) -> None:
    registry, expected = stopped
    install(None)
    outcome = built(registry, tmp_path / "cache")
    assert outcome.resumed > 0
    assert digests(outcome.directory) == expected
    assert [use.name for use in outcome.engines] == ["hasty", "tiktoken"]


def test_a_resume_with_the_engine_goes_on_with_it(
    stopped: tuple[Registry, dict[str, str]], tmp_path: Path, install: Callable[..., None]
) -> None:
    registry, expected = stopped
    install(equal)
    outcome = built(registry, tmp_path / "cache")
    assert outcome.resumed > 0
    assert digests(outcome.directory) == expected
    (use,) = outcome.engines
    assert use.name == "hasty"
    assert use.texts >= DOCUMENTS


@pytest.mark.parametrize("library", ["tiktoken", "tokenizers"])
def test_another_version_of_the_reference_alone_starts_afresh(
    stopped: tuple[Registry, dict[str, str]], tmp_path: Path, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, _ = stopped
    installed = resuming._version
    monkeypatch.setattr(resuming, "_version", lambda name: "99" if name == library else installed(name))
    said: list[str] = []
    outcome = built(registry, tmp_path / "cache", said.append)
    assert (outcome.resumed == 0) == (library == "tiktoken")
    assert any("tiktoken" in line and "99" in line for line in said) == (library == "tiktoken")


def test_a_difference_after_a_resume_discards_what_the_engine_had_written(
    stopped: tuple[Registry, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, expected = stopped
    monkeypatch.setattr(checked, "BATCHES_PER_CHECK", 1)
    outcome = built(registry, tmp_path / "cache")
    assert outcome.resumed == 0
    assert digests(outcome.directory) == expected
    assert [use.differed for use in outcome.engines] == [True, False]


def test_an_engine_that_differed_does_not_come_back_after_a_kill(
    stopped: tuple[Registry, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, install: Callable[..., None]
) -> None:
    registry, expected = stopped
    with monkeypatch.context() as patched:
        patched.setattr(checked, "BATCHES_PER_CHECK", 1)
        start = checked.Encoder.start

        def started(self: checked.Encoder, before: Sequence[EngineUse], log: Callable[[str], None]) -> None:
            start(self, before, log)
            if any(use.differed for use in self.uses):
                stop_at(0, patched)  # the second attempt is killed before it has written anything

        patched.setattr(checked.Encoder, "start", started)
        with pytest.raises(Stopped):
            built(registry, tmp_path / "cache")
    assert (tmp_path / "cache" / "pretrain" / ".texts.partial" / JOURNAL_NAME).exists()
    install(odd)
    outcome = built(registry, tmp_path / "cache")
    assert Engine.asked == 0
    assert digests(outcome.directory) == expected
    assert [(use.name, use.differed) for use in outcome.engines] == [("hasty", True), ("tiktoken", False)]


@pytest.mark.parametrize("killed", ["in the log", "at its restart"])
def test_a_difference_is_noted_before_anything_else_happens(
    killed: str, stopped: tuple[Registry, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, install: Callable[..., None]
) -> None:
    registry, expected = stopped

    def log(message: str) -> None:
        if "again" in message:
            raise Stopped

    with monkeypatch.context() as patched:
        patched.setattr(checked, "BATCHES_PER_CHECK", 1)
        if killed == "at its restart":
            patched.setattr("niels_cache_assets.disk.journal._restore", _stop_without_state)
        with pytest.raises(Stopped):
            built(registry, tmp_path / "cache", log if killed == "in the log" else lambda message: None)
    install(odd)
    outcome = built(registry, tmp_path / "cache")
    assert Engine.asked == 0
    assert digests(outcome.directory) == expected
    assert [(use.name, use.differed) for use in outcome.engines] == [("hasty", True), ("tiktoken", False)]


def _stop_without_state(directory: Path, files: dict[str, int]) -> None:
    if not files:
        raise Stopped


@pytest.mark.parametrize("version", ["1.2", "1.3"])
def test_force_forgets_what_was_built_and_not_which_engine_differed(
    version: str, stopped: tuple[Registry, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, install: Callable[..., None]
) -> None:
    registry, expected = stopped
    with monkeypatch.context() as patched:
        patched.setattr(checked, "BATCHES_PER_CHECK", 1)
        record = Journal.record

        def recorded(self: Journal, state: dict[str, Any], **settings: Any) -> None:
            record(self, state, **settings)
            if state and any(use.differed for use in EngineUse.recorded(self.take_notes() if self.take_notes else {})):
                raise Stopped  # the reference has written a part

        patched.setattr(Journal, "record", recorded)
        with pytest.raises(Stopped):
            built(registry, tmp_path / "cache")
    install(equal)
    monkeypatch.setattr(Engine, "version", version)
    outcome = built(registry, tmp_path / "cache", force=True)
    assert outcome.resumed == 0
    assert (Engine.asked == 0) == (version == "1.2")
    assert digests(outcome.directory) == expected
    names = [(use.name, use.version, use.differed) for use in outcome.engines]
    assert names[0] == ("hasty", "1.2", True)
    assert names[1][0] == ("tiktoken" if version == "1.2" else "hasty")


# ---- finished caches


@pytest.fixture
def in_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NIELS_CACHE_PROFILE", raising=False)


@pytest.mark.usefixtures("in_project", "small_batches")
def test_verify_encodes_documents_again(
    ranks: Path, tmp_path: Path, install: Callable[..., None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checked, "BATCHES_PER_CHECK", 10**6)  # only the first batch is compared
    install(odd)
    registry = project(tmp_path, ranks, odd_at=41)
    root = tmp_path / "cache"
    built(registry, root)
    assert main(["verify"]) == 0  # the hashes are those of the wrong tokens
    capsys.readouterr()
    assert main(["verify", "--tokens", "2000", "--json"]) == 1
    (finding,) = json.loads(capsys.readouterr().out)["findings"]
    assert "row 41" in finding["problem"]
    install(equal)
    built(registry, root, force=True)
    assert main(["verify", "--tokens", "2000", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["findings"] == []
    (note,) = [note for note in said["notes"] if "pretrain/texts" in note]
    assert "again" in note


@pytest.mark.usefixtures("in_project")
def test_verify_says_where_documents_cannot_be_encoded_again(
    ranks: Path, tmp_path: Path, install: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    install(None)
    built(project(tmp_path, ranks, odd_at=None), tmp_path / "cache")
    project(tmp_path, ranks, odd_at=3)  # the source changes
    assert main(["verify", "--tokens", "5"]) == 0
    assert "not encoded again" in capsys.readouterr().out
    (tmp_path / "texts.jsonl").unlink()
    assert main(["verify", "--tokens", "5"]) == 0
    assert "not encoded again" in capsys.readouterr().out


@pytest.mark.usefixtures("in_project")
def test_an_error_of_one_data_set_keeps_the_findings_of_verify(
    ranks: Path, tmp_path: Path, install: Callable[..., None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    install(None)
    project(tmp_path, ranks, odd_at=None)
    config = tmp_path / "niels_cache.toml"
    more = '[pretrain.broken]\nsource = "jsonl"\nfiles = ["texts.jsonl"]\nval_frac = 0\n'
    config.write_text(config.read_text(encoding="utf-8") + more, encoding="utf-8")
    registry = load_registry(profile=None, config=str(config))
    texts = built(registry, tmp_path / "cache").directory
    build_dataset(registry, "broken", root=tmp_path / "cache")
    shard = next((texts / "train").glob("*.bin"))
    shard.write_bytes(shard.read_bytes()[:-2])

    def failing(dataset: Any, *given: Any, **settings: Any) -> Any:
        if dataset.name == "broken":
            raise NielsCacheError("a damaged source")
        return encoded_again.EncodedAgain(compared=1)

    monkeypatch.setattr(encoded_again, "encode_again", failing)
    assert main(["verify", "--tokens", "5", "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert {Path(finding["folder"]).name for finding in said["findings"]} == {"texts", "broken"}
    assert any("a damaged source" in finding["problem"] for finding in said["findings"])
    assert any("pretrain/texts" in note for note in said["notes"])


@pytest.mark.usefixtures("in_project")
def test_verify_encodes_conversations_again(tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chats = [
        {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": f"{text} {number}"}]}
        for number, text in enumerate(sentences(30))
    ]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats), encoding="utf-8")
    (tmp_path / "niels_cache.toml").write_text(
        f'[tokenizer]\nmodel = {json.dumps(str(tiny_model))}\n[sft.chats]\nsource = "chat_jsonl"\nfiles = ["chats.jsonl"]\n',
        encoding="utf-8",
    )
    registry = load_registry(profile=None, config=str(tmp_path / "niels_cache.toml"))
    build_tokenizer(registry, root=tmp_path / "cache")
    folder = build_dataset(registry, "chats", root=tmp_path / "cache").directory
    assert main(["verify", "--tokens", "1000"]) == 0
    assert "sft/chats: 30" in capsys.readouterr().out
    tokens = np.fromfile(folder / "train_tokens.bin", np.uint16)
    tokens[1] ^= 1
    tokens.tofile(folder / "train_tokens.bin")
    assert main(["verify", "--tokens", "1000"]) == 1
    assert "from token 1 on" in capsys.readouterr().out


# ---- the engine that is installed


def test_a_missing_package_means_the_reference(
    tokenizer: TiktokenTokenizer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ranks: Path
) -> None:
    monkeypatch.setattr(engines, "_PROVEN", {})
    monkeypatch.setattr(engines, "installed_version", lambda package: None)
    assert Fastokens.load(tokenizer) is None
    outcome = built(project(tmp_path, ranks, odd_at=None), tmp_path / "cache")
    assert [use.name for use in outcome.engines] == ["tiktoken"]


def test_the_merges_of_ranks_give_the_ids_of_tiktoken(tokenizer: TiktokenTokenizer, ranks: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(gpt2_tokenizer_json(read_ranks(ranks)[0]), encoding="utf-8")
    converted = HuggingFaceTokenizer(tmp_path / "tokenizer.json", special_tokens={})
    texts = [*sentences(50), "the tokening of 1212 documents, and  two\n\n\nshards é", " the", ""]
    assert compare(texts, reference=tokenizer.encode_flat, engine=converted.encode_flat).differing == 0


@pytest.mark.walk
@pytest.mark.parametrize("name", ["deepseek_tokenizer.json", "anthropic_tokenizer.json", "gpt2.tiktoken", "qwen.tiktoken"])
@pytest.mark.real_data
@pytest.mark.skipif("NIELS_CACHE_REAL_DATA" not in os.environ, reason="NIELS_CACHE_REAL_DATA does not name the folder of real samples")
def test_fastokens_gives_the_ids_of_the_reference_or_refuses(name: str) -> None:
    pytest.importorskip("fastokens", reason="fastokens is not installed (the extra fast)")
    path = Path(os.environ["NIELS_CACHE_REAL_DATA"]) / "tokenizers" / name
    if path.suffix == ".json":
        model: TextTokenizer = HuggingFaceTokenizer(path, special_tokens={})
    else:
        model = TiktokenTokenizer(path, special_tokens=EOT)
    engine = Fastokens.load(model)
    if name == "anthropic_tokenizer.json":  # NFKC is unknown to fastokens
        assert engine is None
        return
    assert engine is not None
    proof = prove(model, engine)
    assert proof.first is None
    assert proof.texts > 15_000


def test_fastokens_takes_no_mongolian_separator_for_a_blank(tokenizer: TiktokenTokenizer) -> None:
    pytest.importorskip("fastokens", reason="fastokens is not installed (the extra fast)")
    texts = ["a\n\n\u180eb", " \u180e ", "\u180e\u180e"]
    engine = Fastokens.load(tokenizer)
    assert engine is not None
    assert compare(texts, reference=tokenizer.encode_flat, engine=engine.encode_flat).differing == 0
    other = TiktokenTokenizer(tokenizer.ranks_path, special_tokens=EOT, pattern=rf"{GPT2_WORDS}|\s")  # of no known encoding
    engine = Fastokens.load(other)
    assert engine is not None
    assert compare(texts, reference=other.encode_flat, engine=engine.encode_flat).differing > 0  # what its proof finds


@pytest.mark.parametrize("size", [1, 3, 8, 100, 2_048])
def test_one_text_of_512_is_compared_whatever_the_size_of_batches(size: int) -> None:
    batches = 64 * 8 * 3
    places = [(batch, place) for batch in range(64, 64 + batches) for place in range(size)[checked._compared(batch, 400 * size)]]
    assert len(places) == batches * size // 512
    assert len({place for _, place in places}) == size
    assert not range(size)[checked._compared(None, 400 * size)]


def test_the_first_batches_are_compared_whole_up_to_about_a_megabyte() -> None:
    whole = {
        size: [batch for batch in range(20) if len(range(256)[checked._compared(batch, 256 * size)]) == 256]
        for size in (1, 390, 2_000, 4_100, 100_000)
    }
    assert whole == {1: [*range(8)], 390: [*range(8)], 2_000: [0, 1], 4_100: [0], 100_000: [0]}


def test_the_first_tasks_have_one_chunk_so_that_all_cores_compare_them() -> None:
    batches = [DocumentBatch.of([Document("some text")] * 256)] * 40
    assert [task.size for task in encode._tasks(batches, Feed.of((), SourceReport()), 0)] == [256] * 8 + [2_048] * 4


def test_uses_are_told_in_words() -> None:
    use = EngineUse(name="hasty", version="1.2", texts=2_000, checked=5)
    assert "0.25%" in use.said()
    assert "(the reference)" not in replace(use, checked=2_000).said()  # an engine whose whole text was checked
    assert "(the reference)" not in replace(use, texts=0, checked=0).said()
    assert "(the reference)" in replace(use, name="tiktoken", is_reference=True).said()
    notes = {"engines": [{"name": "a", "version": "1", "later": 3}, {"name": "b", "version": "2"}, {"name": "tiktoken", "version": "3"}]}
    assert EngineUse.recorded(notes) == [
        EngineUse(name="b", version="2"),
        EngineUse(name="tiktoken", version="3", is_reference=True),
    ]


@pytest.mark.usefixtures("small_batches")
def test_a_data_set_that_one_batch_holds_is_still_encoded_by_the_engine(ranks: Path, tmp_path: Path, install: Callable[..., None]) -> None:
    registry = project(tmp_path, ranks, odd_at=None)
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in sentences(4)), encoding="utf-8")
    config = tmp_path / "niels_cache.toml"
    config.write_text(config.read_text(encoding="utf-8").replace("val_tokens = 50", "val_tokens = 0"), encoding="utf-8")
    registry = load_registry(profile=None, config=str(config))
    install(equal)
    (use,) = built(registry, tmp_path / "cache").engines
    assert (use.name, use.texts, use.checked, use.is_reference) == ("hasty", 4, 4, False)
    assert "(the reference)" not in use.said()


@pytest.mark.parametrize("library", [SimpleNamespace(), None, "missing"])
def test_a_c_library_that_cannot_free_memory_is_no_error(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    freed = []

    def opened(name: str | None) -> Any:
        if library == "missing":
            raise OSError("no such library")
        return SimpleNamespace(malloc_trim=freed.append) if library is None else library

    monkeypatch.setattr(engines.ctypes, "CDLL", opened)
    engines._free_memory()
    assert freed == ([0] if library is None else [])
