"""Caches whose ids need 32 bits, or that are asked to have 32 bits: from the builders to what is shown of them."""

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from niels_cache_assets import to_hf_dataset
from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.artifacts.state import state_of
from niels_cache_assets.base.documents import Document
from niels_cache_assets.build_cache import Resume, build_pretrain_cache, build_sft_cache
from niels_cache_assets.cli import main
from niels_cache_assets.disk.journal import BYTES_VARIABLE
from niels_cache_assets.project.registry import Registry, load_registry
from niels_cache_assets.sources.reading import rows
from niels_cache_assets.streaming import encode
from niels_cache_assets.tokenizer.kinds import SentencePieceTokenizer
from niels_cache_pages import measures
from niels_cache_pages.measures import measure_cache
from niels_cache_pages.pictures import cache_pictures
from niels_cache_runtime import NielsCacheError, TokenLoader, open_cache, read_meta
from niels_cache_runtime.format.layout import Family, list_shards
from niels_cache_runtime.format.meta import Meta
from niels_cache_runtime.verify import verify_dataset
from tests.build_cache.test_determinism import conversations, digests
from tests.helpers.builds import build_dataset, build_tokenizer
from tests.helpers.exports import WIDE, random_documents, write_documents_cache
from tests.helpers.messages import missing
from tests.helpers.overlaps import overlap_of
from tests.helpers.tiny import WORDS, WideTokenizer, sentences

TOKENIZER = WideTokenizer()
EOT = 99_999
DTYPE = np.dtype("<u4")


def build(folder: Path, texts: Any, tokenizer: object = TOKENIZER, **changes: Any) -> Meta:
    settings = {"max_train_tokens": 10**9, "max_val_tokens": 0, "shard_bytes": 1024, "seed": 1, "shuffle_buffer": None, **changes}
    build_pretrain_cache(texts, str(folder), tokenizer=tokenizer, **settings)
    assert verify_dataset(folder) == []
    return read_meta(str(folder / "meta.json"))


def build_chats(folder: Path, chats: Any, tokenizer: object = TOKENIZER, **changes: Any) -> Meta:
    build_sft_cache(chats, str(folder), tokenizer=tokenizer, **{"val_frac": 0.1, "seed": 1, **changes})
    assert verify_dataset(folder) == []
    return read_meta(str(folder / "meta.json"))


def stream(folder: Path, split: str = "train", dtype: np.dtype = DTYPE) -> np.ndarray:
    return np.concatenate([np.fromfile(path, dtype) for path in list_shards(folder / split)])


def closed(texts: Iterable[str]) -> list[list[int]]:
    return [[*TOKENIZER.encode(text), EOT] for text in texts]


# the builders


def test_a_large_vocabulary_makes_a_pretrain_cache_of_32_bits(tmp_path: Path) -> None:
    texts = [*sentences(60), "", "~ and {}"]
    meta = build(tmp_path / "x", texts, max_val_tokens=500, max_train_tokens=3_001)
    assert (meta["token_dtype"], meta["forms"], meta["vocab_size"]) == ("uint32-le", ["uint32"], 100_000)
    assert (meta["val_tokens"], meta["train_tokens"]) == (500, 3_001)
    found = stream(tmp_path / "x")
    assert found.min() < 1 << 16 < found.max()
    everything = [*chain.from_iterable(closed(texts))]
    assert stream(tmp_path / "x", "val").tolist()[:-1] == everything[:499]
    documents = np.split(found, np.load(tmp_path / "x" / "train_doc_ends.npy")[:-1].astype(np.int64))
    assert all(document[-1] == EOT for document in documents)
    first = len(np.load(tmp_path / "x" / "val_doc_ends.npy"))
    assert [document.tolist() for document in documents[:-1]] == closed(texts[first:])[: len(documents) - 1]
    sizes = [path.stat().st_size for path in list_shards(tmp_path / "x" / "train")]
    assert sizes == [1024] * (3_001 // 256) + [4 * (3_001 % 256)]


def test_a_tokenizer_of_few_ids_may_have_32_bits_with_the_same_ids(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    narrow = build(tmp_path / "narrow", sentences(200), tokenizer)
    assert build(tmp_path / "same", sentences(200), tokenizer, token_dtype="uint16-le") == narrow
    wide = build(tmp_path / "wide", sentences(200), tokenizer, token_dtype="uint32-le")
    assert (narrow["token_dtype"], wide["token_dtype"]) == ("uint16-le", "uint32-le")
    assert narrow["fingerprint"] != wide["fingerprint"]
    assert (stream(tmp_path / "narrow", dtype=np.dtype("<u2")) == stream(tmp_path / "wide")).all()
    for name in ("train_doc_ends.npy", "train_documents.parquet"):
        assert (tmp_path / "narrow" / name).read_bytes() == (tmp_path / "wide" / name).read_bytes()


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"token_dtype": "uint16-le"}, ("token_dtype is 'uint16-le'", "100,000 ids")),
        ({"token_dtype": "int32"}, ("token_dtype is 'int32'", "uint16-le, uint32-le")),
        ({"shard_bytes": 1026}, ("shard_bytes is 1026", "multiple of 4")),
    ],
)
def test_what_cannot_hold_the_ids_is_refused_before_anything_is_read(
    tmp_path: Path, changes: dict[str, Any], parts: tuple[str, ...]
) -> None:
    def never() -> Iterator[str]:
        raise AssertionError
        yield ""

    builds: list[Callable[..., Meta]] = [build, build_chats] if "token_dtype" in changes else [build]
    for made in builds:
        with pytest.raises(NielsCacheError) as refused:
            made(tmp_path / "x", never(), **changes)
        assert missing(refused.value, *parts) == []
    assert not list(tmp_path.iterdir())


# the key of the configuration

LETTERS = """
[pretrain.letters]
source = "text"
files = ["letters.txt"]
sample_by = "line"
val_tokens = 500
[pretrain.mixture]
source = "interleave"
members = { letters = 1.0 }
[sft.chats]
source = "chat_jsonl"
files = ["chats.jsonl"]
"""


@pytest.fixture
def project(tmp_path: Path, tiny_model: Path) -> Callable[[str], Registry]:
    """Makes the registry of a project with these lines in [build]."""
    (tmp_path / "letters.txt").write_text("\n".join(sentences(300)))
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in conversations(60)))

    def registry(build: str) -> Registry:
        config = tmp_path / "niels_cache.toml"
        config.write_text(f'[build]\nshard_bytes = 1024\n{build}\n[tokenizer]\nmodel = "{tiny_model}"\n{LETTERS}')
        return load_registry(config=str(config))

    return registry


def test_the_key_makes_caches_stale_only_if_it_changes_the_dtype(tmp_path: Path, project: Callable[[str], Registry]) -> None:
    root = tmp_path / "cache"
    build_tokenizer(project(""), root=root)

    def built(setting: str) -> tuple[set[str], set[str]]:
        """The states before and after the builds of all data sets, the mixture last."""
        registry = project(setting)
        names = ("letters", "chats", "mixture")
        before = {state_of(graph(registry, root).dataset(name)).state for name in names}
        outcomes = [build_dataset(registry, name, root=root) for name in names]
        assert {outcome.meta["token_dtype"] for outcome in outcomes} == {"uint32-le" if "uint32" in setting else "uint16-le"}
        assert all(verify_dataset(outcome.directory) == [] for outcome in outcomes)
        return before, {outcome.state for outcome in outcomes}

    assert built("") == ({"missing"}, {"built"})
    narrow = {name: digests(root / "pretrain" / name) for name in ("letters", "mixture")}
    tokens = stream(root / "pretrain" / "mixture", dtype=np.dtype("<u2")).tolist()
    assert built('token_dtype = "uint16-le"') == ({"in sync"}, {"cache_hit"})
    assert built('token_dtype = "uint32-le"') == ({"other settings"}, {"built"})
    assert stream(root / "pretrain" / "mixture").tolist() == tokens
    assert built('token_dtype = "uint32-le"') == ({"in sync"}, {"cache_hit"})
    assert built("") == ({"other settings"}, {"built"})
    assert {name: digests(root / "pretrain" / name) for name in narrow} == narrow


def test_a_dtype_that_no_cache_has_is_one_line(project: Callable[[str], Registry]) -> None:
    with pytest.raises(NielsCacheError) as refused:
        project('token_dtype = "uint8"')
    assert missing(refused.value, "[build]", "token_dtype", "uint32-le") == []
    assert "\n" not in str(refused.value)


def test_commands_read_a_cache_that_was_widened(
    tmp_path: Path, project: Callable[[str], Registry], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "nowhere"))
    registry, roots = project('token_dtype = "uint32-le"'), [tmp_path / "cache", tmp_path / "narrow"]

    def printed(*command: object, code: int = 0) -> str:
        given = ["--config", str(tmp_path / "niels_cache.toml")] if command[0] not in ("diff", "trace") else []
        assert main([*map(str, command), *given]) == code, capsys.readouterr().err
        return capsys.readouterr().out

    for root, setting in zip(roots, ('token_dtype = "uint32-le"', ""), strict=True):
        registry = project(setting)
        build_tokenizer(registry, root=root)
        for name in ("letters", "chats"):
            build_dataset(registry, name, root=root)
    wide = ["--cache-dir", roots[0]]
    assert "uint32-le" in printed("show", "letters", *wide)
    printed("verify", *wide)
    chats = [printed("sample", "chats", "--seed", "3", "--cache-dir", root) for root in roots]
    assert chats[0] == chats[1]
    for command in (["sample", "letters"], ["sample", "letters", "--notable"]):
        shown = printed(*command, *wide)
        assert sum(word in shown for word in WORDS) > 20
    printed("report", *wide)
    assert "cannot be drawn" not in (roots[0] / "reports/cache.html").read_text(encoding="utf-8")
    found = json.loads(printed("diff", *(root / "pretrain/letters" for root in roots), "--json", code=1))["datasets"][0]
    assert [each["key"] for each in found["settings"]] == ["token_dtype"]
    assert found["tokens"]["train"]["first_difference"] is None
    loader = TokenLoader(str(roots[0] / "pretrain/letters/train"), T=16, B=2, seed=1)
    (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    assert "letters.txt" in printed("trace", "--state", tmp_path / "state.json", "--step", "0")
    model = roots[0] / "tokenizer/spm.model"
    assert "letters" in printed("tokenizer", "compare", "cache", model, "--only", "letters", *wide)


# interrupted builds


class Stopped(Exception):
    pass


def until(stop_at: int, items: Iterable[Any]) -> Iterator[Any]:
    for number, item in enumerate(items):
        if number == stop_at:
            raise Stopped
        yield item


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record after every chunk, and small chunks."""
    monkeypatch.setenv(BYTES_VARIABLE, "0")
    monkeypatch.setattr(encode, "_CHUNK_ITEMS", 30)
    monkeypatch.setattr(encode, "_CHUNKS_PER_TASK", 1)
    monkeypatch.setattr(rows, "BATCH_DOCUMENTS", 30)


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("family", ["pretrain", "sft"])
def test_an_interrupted_build_goes_on_with_the_same_dtype_only(tmp_path: Path, tokenizer: SentencePieceTokenizer, family: Family) -> None:
    items: list[Any] = sentences(600) if family == "pretrain" else conversations(400)

    def made(name: str, given: Iterable[Any], tokenizer: object, **changes: Any) -> tuple[dict[str, str], list[str]]:
        told: list[str] = []
        resume = Resume(fingerprint="texts", log=told.append)
        make: Callable[..., Meta] = build if family == "pretrain" else build_chats
        budgets = {"max_val_tokens": 700} if family == "pretrain" else {}
        make(tmp_path / name / "x", given, tokenizer, resume=resume, threads=1, **budgets, **changes)
        return digests(tmp_path / name / "x"), told

    for name, given, changes in (("own", TOKENIZER, {}), ("wide", tokenizer, {"token_dtype": "uint32-le"})):
        whole, _ = made(f"{name}_whole", items, given, **changes)
        for stop_at in (200, 350):
            with pytest.raises(Stopped):
                made(name, until(stop_at, items), given, **changes)
        found, told = made(name, items, given, **changes)
        assert found == whole
        assert sum("resuming x" in line for line in told) == 1
    narrow, _ = made("narrow", items, tokenizer)
    with pytest.raises(Stopped):
        made("changed", until(350, items), tokenizer, token_dtype="uint32-le")
    found, told = made("changed", items, tokenizer)
    assert found == narrow
    assert any("starting afresh" in line for line in told)


# decontamination


def test_copies_of_val_are_found_among_tokens_of_32_bits(tmp_path: Path) -> None:
    val, train = sentences(30, words=40), sentences(200, seed=1, words=40)
    train[100:110] = [text.upper() for text in val[::3]]
    rows = [("train", text) for text in train] + [("val", text) for text in val]
    documents = [Document(text, str(row), "a", row, split=split) for row, (split, text) in enumerate(rows)]  # type: ignore[arg-type]
    build(tmp_path / "leaky", documents)
    overlap = overlap_of(tmp_path / "leaky", TOKENIZER)
    assert (overlap.documents, overlap.record["exact"]) == (200, 10)
    assert [pair["train"]["row"] for pair in overlap.record["pairs"]] == [*range(100, 110)]
    meta = build(tmp_path / "clean", documents, decontaminate="near", val_texts=documents[200:])
    assert meta["dropped"] == {"in_val": 10}
    assert overlap_of(tmp_path / "clean", TOKENIZER).is_disjoint
    assert len(stream(tmp_path / "clean")) == sum(len(text) + 1 for number, text in enumerate(train) if number not in range(100, 110))


# what reads a cache


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("wide") / "cache"
    build(root / "pretrain" / "notes", sentences(300), max_val_tokens=1_000)
    build_chats(root / "sft" / "chats", conversations(60))
    return root


def test_a_datasets_view_has_rows_of_32_bits_on_the_mapped_files(root: Path) -> None:
    documents, windows = (to_hf_dataset("notes", T=T, cache_dir=root) for T in (None, 50))
    tokens = stream(root / "pretrain" / "notes").tolist()
    assert documents.features["input_ids"].feature.dtype == windows.features["input_ids"].feature.dtype == "uint32"
    assert [*chain.from_iterable(documents["input_ids"][:])] == tokens
    assert [*chain.from_iterable(windows["input_ids"][:])] == tokens[: len(tokens) // 50 * 50]
    opened = open_cache(root).sft["chats"].train
    chats = to_hf_dataset("chats", cache_dir=root)
    assert [row["input_ids"] for row in chats] == [opened[row].tolist() for row in range(opened.rows or 0)]
    assert {label for row in chats for label in row["labels"]} - {-100} > {EOT}


def test_counts_of_ids_follow_the_vocabulary_or_grow_with_the_ids(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = root / "pretrain" / "notes"
    found = measure_cache(notes, "pretrain", read_meta(str(notes / "meta.json")))
    both = np.concatenate([stream(notes), stream(notes, "val")])
    assert found.token_counts.tolist() == np.bincount(both, minlength=100_000).tolist()
    assert found.pieces_used_text == f"{len(np.unique(both)):,} of 100,000 pieces"
    chats = root / "sft" / "chats"
    measured = measure_cache(chats, "sft", read_meta(str(chats / "meta.json")))
    assert measured.conversations is not None
    assert measured.counted == measured.tokens
    assert measured.conversations.target_tokens > 0
    documents = [*random_documents(50, seed=1, vocab_size=100_000), [5], [2**31 - 1], [2**31 - 2]]
    cache = write_documents_cache(tmp_path / "x", {"train": documents}, **{**WIDE, "vocab_size": None})
    monkeypatch.setattr(measures, "_BLOCK_TOKENS", 100)
    monkeypatch.setattr(measures, "MAX_IDS", 200_000)
    unknown = measure_cache(cache, "pretrain", read_meta(str(cache / "meta.json")))
    ids = [min(token, 199_999) for token in chain.from_iterable(documents)]
    assert unknown.token_counts.tolist() == np.bincount(ids).tolist()
    assert unknown.token_counts[199_999] == 2, "ids beyond MAX_IDS count as one"
    assert unknown.pieces_used_text == f"{len(set(ids))} ids"
    assert f"{len(set(ids))} ids" in cache_pictures(unknown, "pretrain", dropped={})[1].title
