"""Copies of train for fill-in-the-middle: each rebuilds every text, an epoch reads one of them, and nothing else changes."""

import json
import pickle
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from niels_cache_assets.base.documents import Document
from niels_cache_assets.build_cache.base import Progress
from niels_cache_assets.build_cache.pretrain import PretrainBuild
from niels_cache_assets.build_cache.resume import Resume
from niels_cache_assets.publish.pull import only_split
from niels_cache_assets.sources.jsonl import Jsonl
from niels_cache_assets.tokenizer.base import TextTokenizer
from niels_cache_assets.tokenizer.kinds import open_model
from niels_cache_corpora.fim import CopyMaker
from niels_cache_inspection.erasure.tombstone import strike
from niels_cache_runtime import FIM, Blocks, NielsCacheError, Phase, PhasedLoader, TokenLoader
from niels_cache_runtime.cache.opening import open_split
from niels_cache_runtime.format.layout import copies_of, is_cache_file
from niels_cache_runtime.format.meta import load_meta
from niels_cache_runtime.verify import verify_dataset
from tests.helpers.parts_project import PartsProject, build
from tests.helpers.tiny import sentences
from tests.helpers.tokenizer_files import EOT, write_json

SENTINELS = ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"]
COPIES = ["train", "train_fim1", "train_fim2"]
SETTINGS: dict[str, Any] = {"T": 16, "B": 4, "seed": 3}
TEXTS = sentences(70, words=9)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    path = write_json(tmp_path_factory.mktemp("tokenizer") / "tokenizer.json", tokens=dict.fromkeys([EOT, *SENTINELS], True))
    return opened(path)


def opened(path: Path) -> TextTokenizer:
    tokenizer = open_model(path, special_tokens={"eot": EOT})
    tokenizer.engine = "reference"  # to prove another one takes seconds
    return tokenizer


def maker(tokenizer: TextTokenizer, **fim: Any) -> CopyMaker:
    source = Jsonl(source="jsonl", files=["a"], fim={"level": "character", "copies": 3, **fim})
    return CopyMaker(source, tokenizer, seed=1)


def build_cache(folder: Path, tokenizer: TextTokenizer, *, items: Any = None, resume: Resume | None = None, **changes: Any) -> Path:
    items = [Document(text, f"d{number}") for number, text in enumerate(TEXTS)] if items is None else items
    settings: dict[str, Any] = {
        "max_train_tokens": 10**6,
        "max_val_tokens": 100,
        "shard_bytes": 512,
        "seed": 1,
        "shuffle_buffer": 20,
        "threads": 1,
    }
    settings["fim"] = changes.pop("fim") if "fim" in changes else maker(tokenizer)
    PretrainBuild(items=items, out_dir=str(folder), tokenizer=tokenizer, **{**settings, **changes}).build(resume)
    return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory, tokenizer: TextTokenizer) -> Path:
    return build_cache(tmp_path_factory.mktemp("cache") / "code", tokenizer)


def documents_of(folder: Path) -> list[list[int]]:
    split = open_split(folder, doc_ends=True)
    ends = np.asarray(split.doc_ends).astype(np.int64)
    return [each.tolist() for each in np.split(np.concatenate([*map(np.asarray, split.tokens.shards)]), ends[:-1])]


def restored(tokens: list[int], tokenizer: TextTokenizer) -> tuple[str, str]:
    """Return the order of a document, and its text."""
    pre, suf, mid = (tokenizer.token_id(each) for each in SENTINELS)
    *content, end = tokens
    assert end == tokenizer.special_token_ids()["eot"]
    if pre not in content:
        return "plain", tokenizer.decode(content)
    at_suf, at_mid = content.index(suf), content.index(mid)
    prefix, suffix, middle = content[1:at_suf], content[at_suf + 1 : at_mid], content[at_mid + 1 :]
    assert content[0] == pre
    assert [content.count(each) for each in (pre, suf, mid)] == [1, 1, 1]
    return "psm" if prefix else "spm", tokenizer.decode(prefix) + tokenizer.decode_continued(middle) + tokenizer.decode_continued(suffix)


def test_each_copy_rebuilds_every_text_and_cuts_inside_tokens(cache: Path, tmp_path: Path, tokenizer: TextTokenizer) -> None:
    plain = documents_of(build_cache(tmp_path / "code", tokenizer, fim=None) / "train")
    meta, texts = load_meta(cache / "meta.json"), [tokenizer.decode(each[:-1]) for each in plain]
    assert copies_of(meta) == COPIES[1:]
    assert meta["forms"] == ["fim_copies"]
    assert sum("val" in name and name.endswith(".bin") for name in meta["files"]) == 1
    found = []
    for name in COPIES:
        copy = documents_of(cache / name)
        orders, rebuilt = zip(*(restored(each, tokenizer) for each in copy), strict=True)
        assert list(rebuilt) == texts
        assert meta[f"{name}_tokens"] == sum(map(len, copy))
        found.append(Counter(orders))
        assert [each == own for each, own in zip(copy, plain, strict=True) if restored(each, tokenizer)[0] == "plain"].count(False) == 0
        longer = [len(each) - len(own) - 3 for each, own, order in zip(copy, plain, orders, strict=True) if order != "plain"]
        assert min(longer) >= 0
        assert np.mean(longer) > 0.5
    assert meta["fim"]["rearranged"] == [each["psm"] + each["spm"] for each in found]
    assert all(15 < each["psm"] + each["spm"] < 50 and min(each.values()) > 3 for each in found)
    assert len({json.dumps(documents_of(cache / name)) for name in COPIES}) == 3
    assert not [*verify_dataset(cache)]


def test_parts_after_a_blank_that_a_tokenizer_adds_have_none(tiny_model: Path, tmp_path: Path) -> None:
    tokenizer = open_model(tiny_model)
    names = {name: tokenizer.token_id(token) for name, token in zip(("pre", "suf", "mid"), ("<0x02>", "<0x03>", "<0x04>"), strict=True)}
    folder = build_cache(tmp_path / "code", tokenizer, fim=maker(tokenizer, rate=1, **names), shuffle_buffer=None, max_val_tokens=0)
    copies, whole = [documents_of(folder / name) for name in COPIES], 0
    for copy in copies:
        for tokens, text in zip(copy, TEXTS, strict=True):
            content = [*tokens[:-1]]
            if not {*names.values()} & {*tokens}:
                continue
            pre, suf, mid = (content.index(names[each]) for each in ("pre", "suf", "mid"))
            prefix, suffix, middle = content[pre + 1 : suf], content[suf + 1 : mid], content[mid + 1 :]
            assert tokenizer.decode(prefix + middle + suffix) == text if suf > 1 else tokenizer.decode(middle + suffix) == text
            whole += 1
    assert whole > 100


@pytest.mark.parametrize("packing", [None, "best_fit"])
def test_an_epoch_reads_each_document_once_from_its_own_copy(cache: Path, packing: Any) -> None:
    loader = TokenLoader(str(cache), **SETTINGS, packing=packing, epochs=1)
    documents = {name: documents_of(cache / name) for name in COPIES}
    lengths, states = [], []
    for epoch in range(4):
        seen: dict[str, Counter[tuple[int, int]]] = {name: Counter() for name in COPIES}
        for step, batch in enumerate(loader, first := loader.step):
            states += [loader.state_dict()] if step == first + 2 else []
            trace: Any = loader.trace(step)
            assert np.array_equal(trace.tokens[:, :-1], batch.x.numpy())
            assert {*trace.epochs.tolist()} == {epoch}
            for file, document, offset, token in zip(
                *(each.ravel().tolist() for each in (trace.files, trace.documents, trace.document_offsets, trace.tokens)), strict=True
            ):
                if file >= 0:
                    name = Path(trace.file_names[0][file]).parent.name
                    assert documents[name][document][offset] == token
                    seen[name][document, offset] += 1
        chosen = COPIES[epoch % 3]
        assert {name for name, places in seen.items() if places} == {chosen}
        every = {(number, place) for number, tokens in enumerate(documents[chosen]) for place in range(len(tokens))}
        missing = every - seen[chosen].keys()
        assert len(missing) < (16 if packing is None else 1)  # the last tokens, which are less than a window
        lengths.append(loader.step - first)
    assert lengths[0] == lengths[3]
    for epoch, state in enumerate(states):
        again, resumed = TokenLoader.from_state(json.loads(json.dumps(state)), epochs=None), pickle.loads(pickle.dumps(loader))
        resumed.load_state_dict(state)
        for each in (again, resumed):
            assert each.report(1).sources[0].epochs > epoch
            batches, step = iter(each), each.step
            for number in range(step, step + 9):
                assert np.array_equal(next(batches).x.numpy(), loader.trace(number).tokens[:, :-1])
    assert len(loader.as_dataset()) == loader.samples_per_epoch["code"]
    if packing:
        [(sample, column)] = loader.find(5, epoch=1)[:1]
        step = next(step for step in range(loader.step) if sample in loader.trace(step).samples)  # type: ignore[union-attr]
        origin: Any = loader.trace(step, int(np.flatnonzero(loader.trace(step).samples == sample)[0]), column)  # type: ignore[union-attr]
        assert (origin.document, origin.epoch, Path(origin.file).parent.name) == (5, 1, "train_fim1")


def test_a_state_does_not_go_with_other_copies(cache: Path, tmp_path: Path, tokenizer: TextTokenizer) -> None:
    state = TokenLoader(str(cache), **SETTINGS).state_dict()
    other = build_cache(tmp_path / "code", tokenizer, fim=maker(tokenizer, copies=2))
    assert (other / "train" / "shard_00000.bin").read_bytes() == (cache / "train" / "shard_00000.bin").read_bytes()
    with pytest.raises(NielsCacheError, match="not the cache"):
        TokenLoader(str(other), **SETTINGS).load_state_dict(state)


def test_other_orders_and_fim_are_refused_and_a_copy_can_be_read_alone(cache: Path) -> None:
    for settings in ({"order": Blocks()}, {"packing": "best_fit", "fim": FIM()}):
        with pytest.raises(NielsCacheError, match=r"train_fim1|already"):
            TokenLoader(str(cache), **SETTINGS, **settings)
    phases = [Phase(T=16, B=2, tokens=200)]
    with pytest.raises(NielsCacheError, match="train_fim1"):
        PhasedLoader(str(cache), phases=phases, seed=1, lot_tokens=100)
    assert len(PhasedLoader(str(cache / "train_fim1"), phases=phases, seed=1, lot_tokens=100))
    with pytest.raises(NielsCacheError, match="already"):
        TokenLoader(str(cache / "train_fim1"), **SETTINGS, packing="best_fit", fim=FIM())
    assert TokenLoader(str(cache), **SETTINGS, split="val", order=Blocks()).samples_per_epoch


def test_a_build_that_ends_early_resumes_to_the_same_bytes(
    tmp_path: Path, tokenizer: TextTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("niels_cache_assets.streaming.encode._CHUNK_ITEMS", 8)

    def stop(progress: Progress) -> None:
        if progress.documents > stops[0]:
            raise NielsCacheError("stop")

    resume, stops, resumed = Resume(fingerprint="texts", record_seconds=0), [20, 45], []
    while stops:
        with pytest.raises(NielsCacheError, match="stop"):
            build_cache(tmp_path / "code", tokenizer, resume=resume, progress=stop)
        resumed.append(resume.resumed_tokens)
        del stops[0]
    build_cache(tmp_path / "code", tokenizer, resume=resume)
    assert 0 == resumed[0] < resumed[1] < resume.resumed_tokens
    whole = build_cache(tmp_path / "whole", tokenizer, threads=2)
    for name in load_meta(whole / "meta.json")["files"]:
        if not name.endswith(".parquet"):
            assert (tmp_path / "code" / name).read_bytes() == (whole / name).read_bytes(), name
    assert load_meta(tmp_path / "code" / "meta.json") == load_meta(whole / "meta.json")


def test_a_budget_counts_documents_as_they_are_and_its_cut_document_is_in_all_copies(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    settings: dict[str, Any] = {"max_train_tokens": 700, "shuffle_buffer": None}
    plain = documents_of(build_cache(tmp_path / "plain", tokenizer, fim=None, **settings) / "train")
    folder = build_cache(tmp_path / "code", tokenizer, **settings)
    assert sum(map(len, plain)) == 700
    for name in COPIES:
        copy = documents_of(folder / name)
        assert copy[-1] == plain[-1]
        assert len(copy) == len(plain)
        assert sum(map(len, copy)) > 700
    assert not [*verify_dataset(folder)]


def test_documents_that_spell_a_token_stay_as_they_are(tmp_path: Path) -> None:
    path = write_json(tmp_path / "tokenizer.json", tokens={EOT: True, **dict.fromkeys(SENTINELS, False)})
    tokenizer = opened(path)
    texts = [f"{text} {SENTINELS[number % 4 % 3]} end" if number % 4 else text for number, text in enumerate(TEXTS)]
    items = [Document(text, str(number)) for number, text in enumerate(texts)]
    folder = build_cache(tmp_path / "code", tokenizer, items=items, fim=maker(tokenizer, rate=1), shuffle_buffer=None, max_val_tokens=0)
    for name in COPIES:
        copy = documents_of(folder / name)
        assert [tokenizer.decode(tokens[:-1]) == text for tokens, text in zip(copy, texts, strict=True)] == [
            bool(number % 4) for number in range(len(texts))
        ]


def test_both_cuts_are_in_one_file_of_a_repository(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    files = {f"f{number}.py": f"{number} " * 30 for number in range(4)}
    text = "".join(f"# {path}\n{content}\n" for path, content in files.items())
    items = [Document(text, f"r{number}", kept=json.dumps({"files": [*files]})) for number in range(40)]
    own = maker(tokenizer, rate=1)
    own._file_start = "# {path}\n"
    folder, middles = build_cache(tmp_path / "code", tokenizer, items=items, fim=own, max_val_tokens=0), set()
    mid, pre = tokenizer.token_id(SENTINELS[2]), tokenizer.token_id(SENTINELS[0])
    for tokens in documents_of(folder / "train"):
        order, rebuilt = restored(tokens, tokenizer)
        assert rebuilt == text
        if order == "psm":
            middle = tokenizer.decode(tokens[tokens.index(mid) + 1 : -1])
            assert "#" not in middle
            assert tokens[0] == pre
            middles |= {*middle.split()}
    assert len(middles & {*"0123"}) == 4


def test_parts_are_joined_copy_by_copy_and_one_split_can_be_pulled(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    project = PartsProject(tmp_path, Path(tokenizer.model_path))
    project.write([20, 15, 18])
    settings = 'val_frac = 0.1\nfim = { level = "character", copies = 3 }'
    named = f'model = {json.dumps(tokenizer.model_path)}\nspecial_tokens = {{ eot = {json.dumps(EOT)} }}\nengine = "reference"'
    build(project.graph(2, settings, tokenizer=named))
    cache, meta = project.cache(), load_meta(project.cache() / "meta.json")
    assert not [*verify_dataset(cache)]
    texts = [[restored(each, tokenizer)[1] for each in documents_of(cache / name)] for name in COPIES]
    assert texts[0] == texts[1] == texts[2]
    assert len(texts[0]) == meta["documents"]["train"]
    rearranged = [sum(restored(each, tokenizer)[0] != "plain" for each in documents_of(cache / name)) for name in COPIES]
    assert meta["fim"]["rearranged"] == rearranged
    assert TokenLoader(str(cache), **SETTINGS).samples_per_epoch
    of_val, _ = only_split(meta, "val")
    assert not copies_of(of_val)
    assert not any("train_fim" in name for name in (*of_val, *of_val["files"]))
    assert {*of_val["files"]} == {name for name in meta["files"] if "val" in name}
    of_train, _ = only_split(meta, "train")
    assert copies_of(of_train) == COPIES[1:]
    assert {*of_train["files"]} == {name for name in meta["files"] if "val" not in name}


@pytest.mark.parametrize(
    ("fim", "told"),
    [
        ({}, "level"),
        ({"level": "token"}, "level"),
        ({"level": "character", "copies": 0}, "copies"),
        ({"level": "character", "rate": 1.5}, "rate"),
        ({"level": "character", "copy": 1}, "copy"),
        ({"level": "character", "pre": 1}, "pre=1"),
        ("character", "must be a table"),
    ],
)
def test_a_wrong_table_gets_one_line(fim: Any, told: str) -> None:
    with pytest.raises(ValidationError) as raised:
        Jsonl(source="jsonl", files=["a"], fim=fim)
    [error] = raised.value.errors()
    assert error["loc"] == ("fim",)
    assert told in error["msg"]
    assert "\n" not in error["msg"]


def test_a_tokenizer_without_the_tokens_is_refused(tmp_path: Path) -> None:
    tokenizer = open_model(write_json(tmp_path / "tokenizer.json"), special_tokens={"eot": EOT})
    for fim, told in (
        ({}, "StarCoder"),
        ({"pre": "<a>", "suf": "<b>", "mid": "<c>"}, "<a>"),
        ({"pre": 1, "suf": 2, "mid": 10**6}, "1000000"),
    ):
        with pytest.raises(NielsCacheError, match=told):
            maker(tokenizer, **fim)
    assert maker(tokenizer, pre=1, suf=2, mid=3).settings["sentinels"] == [1, 2, 3]


def test_names_of_copies_are_files_of_a_cache() -> None:
    assert all(map(is_cache_file, ("train_fim1/shard_00000.bin", "train_fim12_doc_ends.npy")))
    assert not any(
        map(is_cache_file, ("train_fim0/shard_00000.bin", "val_fim1/shard_00000.bin", "train_fim1_documents.parquet", "train_fim1/a"))
    )


def test_a_struck_document_is_struck_in_all_copies(cache: Path, tmp_path: Path) -> None:
    folder = tmp_path / "pretrain" / "code"
    shutil.copytree(cache, folder)
    state = TokenLoader(str(folder), **SETTINGS).state_dict()
    meta = strike(folder, "pretrain", {"train": [4, 9], "val": []})
    for name in COPIES:
        for number, (before, after) in enumerate(zip(documents_of(cache / name), documents_of(folder / name), strict=True)):
            struck = [meta["tombstones"]["token_id"]] * (len(before) - 1) + before[-1:]
            assert after == (struck if number in (4, 9) else before)
    assert not [*verify_dataset(folder)]
    with pytest.warns(UserWarning, match="struck"):
        TokenLoader.from_state(state)


def test_the_steps_of_a_document_are_those_of_its_copies(cache: Path) -> None:
    loader = TokenLoader(str(cache), **SETTINGS, epochs=1)
    list(loader), list(loader)
    reads = [*loader.steps_of([7]).read]
    assert {read.epoch for read in reads} == {0, 1}
    found = set()
    for step in range(loader.step):
        trace: Any = loader.trace(step)
        found |= {(step, row) for row in np.flatnonzero((trace.documents == 7).any(axis=1)).tolist()}
    assert {(read.step, read.row) for read in reads} == found
