"""Fast engines: the proof that their ids are those of the reference, the comparison while a build runs, and builds without an engine."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shlex
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from threading import current_thread
from threading import enumerate as enumerate_threads
from types import SimpleNamespace
from typing import Any, ClassVar

import dagster as dg
import numpy as np
import pytest

from niels_cache_assets.artifacts.base import Outcome
from niels_cache_assets.artifacts.graph import Graph, graph
from niels_cache_assets.artifacts.state import state_of
from niels_cache_assets.artifacts.unfinished import unfinished_build
from niels_cache_assets.base.documents import Document, DocumentBatch, SourceReport
from niels_cache_assets.build_cache import Resume, build_pretrain_cache, build_sft_cache
from niels_cache_assets.build_cache import resume as resuming
from niels_cache_assets.cli import main
from niels_cache_assets.cli.commands.tokenizer import CHARACTERS
from niels_cache_assets.cli.overrides import collect_overrides
from niels_cache_assets.cli.parser import parse_arguments
from niels_cache_assets.defs.launcher import launch_builds
from niels_cache_assets.defs.metadata.builds import family_metadata
from niels_cache_assets.disk.journal import BYTES_VARIABLE, read_journal
from niels_cache_assets.project.registry import Registry, load_registry
from niels_cache_assets.streaming import encode
from niels_cache_assets.streaming.feed import Feed
from niels_cache_assets.tokenizer import encoder as checked
from niels_cache_assets.tokenizer import engines
from niels_cache_assets.tokenizer.bpe_json import ranks_as_json
from niels_cache_assets.tokenizer.encoder import EngineUse
from niels_cache_assets.tokenizer.engines import Fastokens, prove, proven_engine
from niels_cache_assets.tokenizer.kinds import HuggingFaceTokenizer, TextTokenizer, TiktokenTokenizer, load_tokenizer, view_tokenizer
from niels_cache_assets.tokenizer.proof import EngineProof, compare, difficult_texts
from niels_cache_assets.tokenizer.tiktoken_ranks import read_ranks
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.verify import verify_cache
from tests.build_cache.test_determinism import digests
from tests.helpers.builds import build_dataset, build_tokenizer
from tests.helpers.launches import Recorder, launch_in_memory
from tests.helpers.messages import missing
from tests.helpers.parts_project import PartsProject, build, parts_of
from tests.helpers.tiny import sentences
from tests.helpers.tokenizer_files import write_json

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
    """An engine that encodes with the reference. `differs`: for which texts the last id is wrong.

    `Engine.counts` counts the texts since the last `install`. A build that failed may still encode, so each engine keeps its own counter.
    """

    name, version = "hasty", "1.2"
    counts: ClassVar[Counter[str]] = Counter()

    def __init__(self, tokenizer: TextTokenizer, differs: Callable[[str], bool]) -> None:
        self._tokenizer, self._differs, self._counts = tokenizer, differs, Engine.counts

    def encode_flat(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        self._counts["texts"] += len(texts)
        ids, lengths = self._tokenizer.encode_flat(texts)
        ids = ids.copy()
        for text, end in zip(texts, np.cumsum(lengths).tolist(), strict=True):
            if self._differs(text):
                ids[end - 1] ^= 1
        return ids, lengths


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Let a test make an engine the only one, or none. Its proof is left out, unless `proven` is set."""

    def one(differs: Callable[[str], bool] | None, *, proven: bool = False) -> None:
        loaders = {} if differs is None else {Engine.name: lambda tokenizer: Engine(tokenizer, differs)}
        monkeypatch.setattr(engines, "ENGINES", loaders)
        monkeypatch.setattr(engines, "_LOADED", {})
        monkeypatch.setattr(engines, "_REJECTED", {})
        monkeypatch.setattr(Engine, "counts", Counter())
        if not proven:
            monkeypatch.setattr(engines, "prove", lambda tokenizer, engine: EngineProof(texts=1))

    yield one
    for thread in enumerate_threads():  # of a build that failed: one may still reject the engine, which would count in the next test
        if thread.name.startswith("encode"):
            thread.join(60)


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


@pytest.fixture
def every_batch(small_batches: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every batch be compared and recorded."""
    monkeypatch.setattr(checked, "BATCHES_PER_CHECK", 1)
    monkeypatch.setenv(BYTES_VARIABLE, "1")


BUDGETS: dict[str, Any] = {"max_train_tokens": 10**6, "max_val_tokens": 0, "shard_bytes": 512, "seed": 1, "shuffle_buffer": None}


# ---- the proof


def test_the_difficult_texts_are_the_same_each_time_and_have_every_character_of_two_planes() -> None:
    texts = list(difficult_texts(added=["<|one|>"], pieces=["the", " of"]))
    assert texts == list(difficult_texts(added=["<|one|>"], pieces=["the", " of"]))
    digest = hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]
    assert (engines._PROOF_VERSION, digest) == (1, "6c6b7118e40e9ad0"), "other texts need another version of the proof"
    assert len(texts) > 10_000
    assert set("".join(texts)) >= {chr(code) for code in range(0x20000) if not 0xD800 <= code < 0xE000}
    assert all(text.encode() is not None for text in texts)  # no lone surrogate
    assert max(map(len, texts)) >= 400_000
    assert any("<|one|>" in text for text in texts)


def test_the_proof_finds_one_text_among_all_that_differs(tokenizer: TiktokenTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = cache(lambda *texts: TiktokenTokenizer.encode_flat(tokenizer, texts))  # two proofs ask four times for the same texts
    monkeypatch.setattr(tokenizer, "encode_flat", lambda texts: encode(*texts))
    (one,) = [text for text in difficult_texts() if text == " Ελλάδα"]
    proof = prove(tokenizer, Engine(tokenizer, lambda text: text == one))
    assert (proof.differing, proof.texts > 10_000) == (1, True)
    assert proof.first is not None
    assert (proof.first.text, proof.first.expected) == (one, tokenizer.encode(one))
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
    monkeypatch.setattr(engines, "difficult_texts", lambda **given: iter(["one", f"{ODD} {ODD}", "two"]))
    assert missing(proven_engine(choking, print), "hasty 1.2", "cannot encode 1 of 3") == []


def test_an_engine_that_fails_its_proof_or_is_not_installed_is_not_used(
    tokenizer: TiktokenTokenizer, install: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    install(lambda text: text == "\u180e", proven=True)
    monkeypatch.setattr(engines, "difficult_texts", lambda **given: iter(["one", "\u180e", "two"]))
    for _ in range(2):
        assert missing(proven_engine(tokenizer, print), "hasty 1.2", "prove") == []
    monkeypatch.setattr(engines, "installed_version", lambda package: None)
    assert missing(Fastokens.load(tokenizer), "not installed", "pip install 'niels-cache[fast]'") == []


def test_prove_shows_the_text_that_differs_and_fails(
    ranks: Path, tmp_path: Path, install: Callable[..., None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It compares all text, and only the beginning if --characters says so. Texts that the reference cannot encode are counted."""
    monkeypatch.chdir(tmp_path)
    project(tmp_path, ranks, odd_at=None)
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "one.txt").write_text("a quiet line\n" * (CHARACTERS // 12) + f"\n\nand an {ODD} one", encoding="utf-8")
    (tmp_path / "choking.txt").write_text(f"a quiet line\n\nan {ODD} {ODD} one", encoding="utf-8")
    command = ["tokenizer", "prove", str(ranks), "--files", "books"]
    install(equal)
    assert main(command) == 0
    assert "hasty 1.2, files" in capsys.readouterr().out
    with monkeypatch.context() as patched:
        patched.setattr(TiktokenTokenizer, "encode_unchecked", Choking.encode_unchecked)
        assert main(["tokenizer", "prove", str(ranks), "--files", "choking.txt"]) == 0
    assert "cannot encode 1," in capsys.readouterr().out
    install(odd)
    assert main(command) == 1
    assert f"an {ODD} one" in capsys.readouterr().out
    assert main([*command, "--characters", str(CHARACTERS)]) == 0
    capsys.readouterr()
    assert main([*command, "--json"]) == 1
    (model,) = json.loads(capsys.readouterr().out)["models"]
    assert model["reference"] == "tiktoken"
    (engine,) = model["engines"]
    assert engine["sources"]["files"]["differing"] == 1
    assert ODD in engine["sources"]["files"]["first"]["text"]


# ---- builds


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
    assert Engine.counts["texts"] >= DOCUMENTS
    assert digests(fast.directory) == digests(slow.directory)
    assert [(use.name, use.version) for use in fast.engines] == [("hasty", "1.2")]
    (use,) = fast.engines
    assert use.texts >= DOCUMENTS
    assert 0.3 < use.checked / use.texts < 0.7
    (use,) = slow.engines
    assert (use.name, use.checked) == ("tiktoken", use.texts)
    assert fast.meta["fingerprint"] == slow.meta["fingerprint"]
    assert built(registry, tmp_path / "slow").state == "cache_hit"
    shown = family_metadata(registry, fast, registry.pretrain["texts"], draw=False)
    assert shown[None]["encoded_by"] == "; ".join(use.describe() for use in fast.engines)
    assert "hasty" not in (fast.directory / "meta.json").read_text(encoding="utf-8")
    install(equal)
    reference = built(project(tmp_path, ranks, odd_at=None, engine="reference"), tmp_path / "reference")
    assert (Engine.counts["texts"], [use.name for use in reference.engines]) == (0, ["tiktoken"])
    assert built(registry, tmp_path / "reference").state == "cache_hit", "the key decides no byte"


@pytest.mark.usefixtures("every_batch")
@pytest.mark.parametrize("odd_at", [0, 41])
def test_a_difference_fails_the_build_with_its_place_and_the_command_that_goes_on(
    odd_at: int, ranks: Path, tmp_path: Path, install: Callable[..., None]
) -> None:
    registry, root = project(tmp_path / "a project", ranks, odd_at=odd_at), tmp_path / "cache"
    install(None)
    expected = digests(built(registry, tmp_path / "slow").directory)
    install(odd)
    with pytest.raises(NielsCacheError) as caught:
        built(registry, root)
    assert f"texts.jsonl row {odd_at}:" in str(caught.value)
    assert "hasty 1.2" in str(caught.value)
    assert ODD not in str(caught.value), "text stays in the cache"
    assert not (root / "pretrain/texts").exists()
    assert Engine.counts["texts"] > 0
    install(odd)  # as in another process: the result of the proof is kept in the root
    said: list[str] = []
    config = str(tmp_path / "a project/niels_cache.toml")
    again = built(load_registry(config=config), Path(shutil.copytree(root, tmp_path / "again")), said.append)
    assert [line for line in said if "hasty 1.2 is not used" in line]
    assert (Engine.counts["texts"], digests(again.directory)) == (0, expected)
    outcome = go_on(str(caught.value), root)
    assert digests(outcome.directory) == expected
    assert (outcome.resumed > 0) == (odd_at > 0), "every text before the record was compared"
    assert [use.name for use in outcome.engines if not use.is_reference] == (["hasty"] if odd_at else [])


def go_on(message: str, root: Path) -> Outcome:
    """Build the data set that the command at the end of a message names, with the options of this command."""
    arguments, registry = read_command(message[message.index("niels-cache build-all") :])
    assert arguments.cache_dir == str(root)
    (name,) = arguments.only
    return build_dataset(registry, name, root=root)


def read_command(command: str) -> tuple[Any, Registry]:
    arguments = parse_arguments(shlex.split(command)[1:])
    configured = load_registry(profile=arguments.profile, config=arguments.config)
    said = collect_overrides(arguments, configured).tables
    registry = load_registry(profile=arguments.profile, config=arguments.config, overrides=said)
    assert registry.tokenizer.engine == "reference"
    return arguments, registry


def test_the_command_that_goes_on_has_the_options_of_the_build(ranks: Path, tmp_path: Path) -> None:
    project(tmp_path, ranks, odd_at=None)
    said = {"build": {"seed": 7}, "pretrain": {"texts": {"val_tokens": 60, "prepare": ["clean"], "cleaning": {"min_words": 2}}}}
    registry = load_registry(config=str(tmp_path / "niels_cache.toml"), overrides=said)
    arguments, again = read_command(registry.build_command("texts", tmp_path / "a b", "tokenizer.engine=reference"))
    assert (arguments.command, arguments.only, arguments.cache_dir) == ("build-all", ["texts"], str(tmp_path / "a b"))
    assert (again.build, again.pretrain) == (registry.build, registry.pretrain)


@pytest.mark.usefixtures("small_batches")
def test_a_version_of_an_engine_is_proven_once_in_a_root(
    ranks: Path, tmp_path: Path, install: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, root = project(tmp_path, ranks, odd_at=None), tmp_path / "cache"
    proofs: list[str] = []

    def build(version: str = "1.2") -> None:
        install(equal)  # as in another process
        monkeypatch.setattr(engines, "prove", lambda tokenizer, engine: proofs.append(engine.version) or EngineProof(texts=1))
        monkeypatch.setattr(Engine, "version", version)
        (use,) = built(registry, root, force=True).engines
        assert use.version == version

    build()
    build()
    assert proofs == ["1.2"]
    build("1.3")
    build()
    assert proofs == ["1.2", "1.3"]
    monkeypatch.setattr(engines, "describe_reference", lambda tokenizer: "tiktoken 99")
    build()
    assert proofs == ["1.2", "1.3", "1.2"], "a proof is against one version of the reference"
    (root / ".tokenizer.engines.json").write_text("[", encoding="utf-8")
    build()
    assert len(proofs) == 4


@pytest.mark.usefixtures("small_batches")
def test_a_proof_counts_in_all_roots_of_a_user(
    ranks: Path,
    tmp_path: Path,
    install: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    user_record: Callable[[], Path | None],
) -> None:
    monkeypatch.setattr(engines, "_user_record", user_record)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    registry, record = project(tmp_path, ranks, odd_at=None), tmp_path / "home/niels-cache/engines.json"
    proofs: list[str] = []

    def build(root: str) -> EngineUse:
        install(equal)  # as in another process
        monkeypatch.setattr(engines, "prove", lambda tokenizer, engine: proofs.append(root) or EngineProof(texts=1))
        (use,) = built(registry, tmp_path / root, force=True).engines
        return use

    assert [build(root).name for root in ("a", "b")] == ["hasty", "hasty"]
    assert proofs == ["a"]
    record.unlink()
    build("b")
    assert proofs == ["a"], "what the user's record knew is in the record of the root"
    record.write_text("[", encoding="utf-8")
    build("c")
    build("d")
    assert proofs == ["a", "c"], "a damaged record is replaced"
    tokenizer = load_tokenizer(registry.tokenizer, tmp_path / "d")
    engines.reject_engine(tokenizer, Engine(tokenizer, equal), print)
    assert build("a").name == "tiktoken", "a rejection counts in each root"
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    build("e")
    assert proofs == ["a", "c", "e"], "nothing can be written there"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert user_record() is None


def test_build_all_loads_the_engine_of_an_imported_model_beside_its_start(
    ranks: Path, tmp_path: Path, install: Callable[..., None], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    registry, root = project(tmp_path, ranks, odd_at=None), tmp_path / "cache"
    launch_in_memory(SimpleNamespace(folder=tmp_path, instance=dg.DagsterInstance.ephemeral()), monkeypatch)
    threads: list[str] = []

    def launch() -> tuple[list[str], list[str]]:
        recorder = Recorder()
        results = launch_builds(registry, root=root, listener=recorder)
        return [result.state for result in results], recorder.told

    install(equal)
    monkeypatch.setattr(engines, "prove", lambda tokenizer, engine: threads.append(current_thread().name) or EngineProof(texts=1))
    states, told = launch()
    assert (states, [line for line in told if "encod" in line]) == (["built", "built"], [])
    assert [missing(name, "load") for name in threads] == [[]], "once, in a thread of its own"
    assert Engine.counts["texts"] >= DOCUMENTS
    install(equal)
    assert launch()[0] == ["cache_hit", "cache_hit"]
    assert engines._LOADED == {}, "a hit loads nothing"
    shutil.rmtree(root)
    monkeypatch.setattr(engines, "ENGINES", {"hasty": lambda tokenizer: "hasty is not installed"})
    states, told = launch()
    assert states == ["built", "built"]
    (line,) = [line for line in told if "encod" in line]
    assert missing(line, "tokenizer:", "tiktoken", "hasty is not installed") == []
    shutil.rmtree(root)
    ranks.write_text("!", encoding="utf-8")
    monkeypatch.setattr(engines, "_LOADED", {})
    assert launch()[0] == ["failed", "skipped"]
    output = capfd.readouterr()
    assert (output.out, output.err) == ("", "")


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("loses_one", [False, True])
def test_a_batch_that_an_engine_cannot_encode_is_encoded_by_the_reference(
    ranks: Path, tmp_path: Path, install: Callable[..., None], monkeypatch: pytest.MonkeyPatch, loses_one: bool
) -> None:
    encode_flat = Engine.encode_flat

    def fail(self: Engine, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        if loses_one:
            return encode_flat(self, texts[1:])
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
    (line,) = [line for line in said if "hasty" in line and "failed" in line]  # once for all batches
    assert "RuntimeError" in line or loses_one
    assert "no memory" not in line, "its message may quote text"
    assert "tiktoken" in line


@pytest.mark.usefixtures("every_batch")
def test_a_builder_names_the_text_and_goes_on_with_the_reference(
    tokenizer: TiktokenTokenizer, tmp_path: Path, install: Callable[..., None]
) -> None:
    install(odd)
    texts, out, resume = [*sentences(20), f"An {ODD}\r\ntext."], tmp_path / "cache", Resume(fingerprint="f")
    with pytest.raises(NielsCacheError) as caught:
        build_pretrain_cache(iter(texts), str(out), tokenizer=tokenizer, resume=resume, **BUDGETS)
    assert missing(caught.value, "reference", "document 20:", str(out)) == []
    assert not out.exists()
    tokenizer.engine = "reference"
    build_pretrain_cache(iter(texts), str(out), tokenizer=tokenizer, resume=resume, **BUDGETS)
    assert resume.resumed_tokens > 0, "each text before was compared"
    build_pretrain_cache(iter(texts), str(tmp_path / "whole"), tokenizer=tokenizer, **BUDGETS)
    assert digests(out) == digests(tmp_path / "whole")


@pytest.mark.usefixtures("every_batch")
def test_conversations_are_compared_too(tokenizer: TiktokenTokenizer, tmp_path: Path, install: Callable[..., None]) -> None:
    def answered(answer: str, count: int, seed: int) -> list[Any]:
        return [[{"role": "user", "content": text}, {"role": "assistant", "content": answer}] for text in sentences(count, seed=seed)]

    examples = answered(f"An {ODD} answer.", 12, seed=5)
    install(equal)
    build_sft_cache(examples, str(tmp_path / "fast"), tokenizer=tokenizer, val_frac=0.1, seed=1)
    assert Engine.counts["texts"] == 24
    install(None)
    build_sft_cache(examples, str(tmp_path / "slow"), tokenizer=tokenizer, val_frac=0.1, seed=1)
    assert digests(tmp_path / "fast") == digests(tmp_path / "slow")
    install(odd)
    examples[:3] = answered("\r\nyes", 3, seed=6)
    with pytest.raises(NielsCacheError, match="example 3: hasty"):
        build_sft_cache(examples, str(tmp_path / "odd"), tokenizer=tokenizer, val_frac=0.1, seed=1)


def encoder_of(tokenizer: TextTokenizer) -> checked.BuildEncoder:
    encoder = checked.BuildEncoder(view_tokenizer(tokenizer), tokenizer)
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
    with pytest.raises(checked.EngineMismatchError) as raised:
        encoder_of(choking).encode_flat(texts, 0)
    assert raised.value.text == "Odd again"
    assert "Odd again" not in str(raised.value), "the message is logged"


def test_a_batch_that_is_encoded_again_is_not_the_first_of_an_engine(
    tokenizer: TiktokenTokenizer, install: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    install(equal)
    encoder = encoder_of(tokenizer)
    monkeypatch.setattr(encoder, "_load_after", 1)  # an engine that is loaded later, as for SentencePiece
    encoder.encode_flat(["a first text"], None)
    assert Engine.counts["texts"] == 0
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

    build_pretrain_cache(texts(), str(tmp_path / "cache"), tokenizer=tokenizer, threads=threads, **BUDGETS)
    assert seen == [expected]
    assert os.environ.get("TOKENIZERS_PARALLELISM") == given


# ---- builds that are stopped


class Stopped(BaseException):
    """Ends a build as a kill would."""


def stop_at(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the build stop before it encodes batch `number`."""
    encode_flat = checked.BuildEncoder.encode_flat

    def stopping(self: checked.BuildEncoder, texts: Sequence[str], batch: int | None) -> tuple[np.ndarray, np.ndarray]:
        if batch == number:
            raise Stopped
        return encode_flat(self, texts, batch)

    monkeypatch.setattr(checked.BuildEncoder, "encode_flat", stopping)


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
    assert (use.name, use.version) == ("hasty", "1.2")
    assert 0 < use.checked < use.texts
    return registry, expected


@pytest.mark.parametrize("has_engine", [False, True])
def test_a_resume_goes_on_with_the_engine_or_without_it(
    stopped: tuple[Registry, dict[str, str]], tmp_path: Path, install: Callable[..., None], has_engine: bool
) -> None:
    registry, expected = stopped
    install(equal if has_engine else None)
    outcome = built(registry, tmp_path / "cache")
    assert outcome.resumed > 0
    assert digests(outcome.directory) == expected
    assert [use.name for use in outcome.engines] == (["hasty"] if has_engine else ["hasty", "tiktoken"])
    assert sum(use.texts for use in outcome.engines) >= DOCUMENTS


@pytest.mark.parametrize("library", ["tiktoken", "tokenizers"])
def test_another_version_of_the_reference_alone_starts_afresh(
    stopped: tuple[Registry, dict[str, str]], tmp_path: Path, library: str, install: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, _ = stopped
    install(equal)
    installed = resuming.installed_version
    monkeypatch.setattr(resuming, "installed_version", lambda name: "99" if name == library else installed(name))
    said: list[str] = []
    outcome = built(registry, tmp_path / "cache", said.append)
    assert (outcome.resumed == 0) == (library == "tiktoken")
    assert any("tiktoken" in line and "99" in line for line in said) == (library == "tiktoken")


def test_a_build_with_texts_that_were_not_compared_starts_again_with_the_reference(
    stopped: tuple[Registry, dict[str, str]], ranks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, expected = stopped
    root = tmp_path / "cache"
    with monkeypatch.context() as patched:
        patched.setattr(checked, "BATCHES_PER_CHECK", 1)
        with pytest.raises(NielsCacheError, match="row 57: hasty"):
            built(registry, root)
    judged = state_of(graph(registry, root)["pretrain/texts"])
    told = unfinished_build(project(tmp_path, ranks, odd_at=57, engine="reference"), judged, root=root)
    assert told is not None
    assert "hasty 1.2" in str(told.stale)
    said: list[str] = []
    outcome = built(project(tmp_path, ranks, odd_at=57, engine="reference"), root, said.append)
    (line,) = [line for line in said if "afresh" in line]
    assert "hasty 1.2" in line
    assert outcome.resumed == 0
    assert digests(outcome.directory) == expected
    assert [use.name for use in outcome.engines] == ["tiktoken"]


# ---- data sets in parts


@pytest.mark.usefixtures("small_batches")
def test_a_difference_in_a_part_fails_this_part_and_the_others_stay(tmp_path: Path, tiny_model: Path, install: Callable[..., None]) -> None:
    parts = PartsProject(tmp_path, tiny_model)
    parts.write([8, 8, 8])
    path = parts.folder / "texts/f002.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([lines[0], json.dumps({"text": f"An {ODD} text."}), *lines[2:]]) + "\n", encoding="utf-8")
    ranks = write_ranks(tmp_path / "tiny.tiktoken")
    given = f"model = {json.dumps(str(ranks))}\npattern = '''{GPT2_WORDS}'''\nspecial_tokens = {{ eot = '<|endoftext|>' }}"

    def graph_of(root: str = "cache", engine: str = "auto") -> Graph:
        return parts.graph(3, "val_frac = 0.0", root=root, tokenizer=f"{given}\nengine = '{engine}'")

    install(None)
    build(graph_of("slow"))
    install(odd)
    with pytest.raises(NielsCacheError, match=r"part-00002: .*f002.jsonl row 1: hasty 1.2.*--only"):
        build(graph_of())
    outcomes = build(graph_of(engine="reference"))
    assert [outcomes[key].state for key in parts_of(graph_of())] == ["cache_hit", "cache_hit", "built"]
    assert digests(parts.cache()) == digests(parts.cache("slow"))
    assert verify_cache(tmp_path / "cache") == []


def test_the_merges_of_ranks_give_the_ids_of_tiktoken(tokenizer: TiktokenTokenizer, ranks: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(ranks_as_json(read_ranks(ranks).ranks, None), encoding="utf-8")
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
        assert missing(engine, "fastokens", "cannot load the model") == []
        return
    assert not isinstance(engine, str)
    proof = prove(model, engine)
    assert proof.first is None
    assert proof.texts > 15_000


def test_fastokens_takes_no_mongolian_separator_for_a_blank(tokenizer: TiktokenTokenizer) -> None:
    pytest.importorskip("fastokens", reason="fastokens is not installed (the extra fast)")
    texts = ["a\n\n\u180eb", " \u180e ", "\u180e\u180e"]
    engine = Fastokens.load(tokenizer)
    assert not isinstance(engine, str)
    assert compare(texts, reference=tokenizer.encode_flat, engine=engine.encode_flat).differing == 0


@pytest.mark.parametrize("size", [1, 3, 8, 100, 2_048])
def test_one_text_of_512_is_compared_whatever_the_size_of_batches(size: int) -> None:
    batches = 64 * 8 * 3
    places = [(batch, place) for batch in range(64, 64 + batches) for place in range(size)[checked._texts_to_compare(batch, 400 * size)]]
    assert len(places) == batches * size // 512
    assert len({place for _, place in places}) == size
    assert not range(size)[checked._texts_to_compare(None, 400 * size)]


def test_the_first_batches_are_compared_whole_up_to_about_a_megabyte() -> None:
    whole = {
        size: [batch for batch in range(20) if len(range(256)[checked._texts_to_compare(batch, 256 * size)]) == 256]
        for size in (1, 390, 2_000, 4_100, 100_000)
    }
    assert whole == {1: [*range(8)], 390: [*range(8)], 2_000: [0, 1], 4_100: [0], 100_000: [0]}


def test_the_first_tasks_have_one_chunk_so_that_all_cores_compare_them() -> None:
    batches = [DocumentBatch.of([Document("some text")] * 256)] * 40
    assert [task.size for task in encode._tasks(batches, Feed.of((), SourceReport()), 0)] == [256] * 8 + [2_048] * 4


def test_uses_are_told_in_words() -> None:
    use = EngineUse(name="hasty", version="1.2", texts=2_000, checked=5)
    assert "0.25%" in use.describe()
    assert "(the reference)" not in replace(use, checked=2_000).describe()  # an engine whose whole text was checked
    assert "(the reference)" in replace(use, name="tiktoken", is_reference=True).describe()
    notes = {"engines": [{"name": "a", "version": "1", "later": 3}, {"name": "b", "version": "2"}]}
    assert EngineUse.recorded(notes) == [EngineUse(name="b", version="2")]
