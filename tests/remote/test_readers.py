"""Readers of an address: each gives what it gives for a local cache, or refuses a split that does not fit into the local copy."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from niels_cache_assets.cli import main
from niels_cache_assets.project.registry import load_registry
from niels_cache_assets.publish.push import open_local_build, push
from niels_cache_runtime import (
    Blocks,
    Copy,
    DatasetLoader,
    PreferenceDataset,
    PretrainTokenStreamDataset,
    SFTExampleDataset,
    TokenLoader,
    open_cache,
)
from niels_cache_runtime.catalog import CacheSplit
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.meta import read_meta
from niels_cache_runtime.megatron import MegatronCacheSplit as MegatronSplit
from niels_cache_runtime.megatron import open_blend
from niels_cache_runtime.remote.store import is_address
from tests.helpers.builds import build_dataset, build_tokenizer
from tests.helpers.chat_models import model_folder
from tests.helpers.loopback_s3 import BUCKET, LoopbackS3
from tests.helpers.remote_caches import ADDRESS, Caches, letters
from tests.helpers.tiny import sentences

pytestmark = pytest.mark.remote

CHATS, PAIRS = f"s3://{BUCKET}/at/chats", f"s3://{BUCKET}/at/pairs"
T = 16
Read = Callable[..., list[Any]]  # takes the place of a split and the settings of a local copy


@pytest.fixture
def published(s3: LoopbackS3, caches: Caches) -> Caches:
    """The caches, of which `letters` and `chats` are published."""
    push(letters(caches), ADDRESS)
    push(open_local_build(caches.chats), CHATS)
    return caches


def random_windows(place: str, **copy: Any) -> list[Any]:
    dataset = PretrainTokenStreamDataset(f"{place}/train", T=T, device="cpu", **copy)
    again = pickle.loads(pickle.dumps(dataset))
    return [each.get_batch(B=8, generator=torch.Generator().manual_seed(1)) for each in (dataset, again)]


def sequence(place: str, **copy: Any) -> list[Any]:
    loader = DatasetLoader(2, T, 0, 1, f"{place}/train", "cpu", **copy)
    first = loader.get_batch()
    again = pickle.loads(pickle.dumps(loader))
    return [first, loader.get_batch(), again.get_batch(), loader.steps_per_epoch]


def megatron(place: str, **copy: Any) -> list[Any]:
    split = MegatronSplit(f"{place}/val", **copy)
    blend = open_blend([f"{place}/train", f"{place}/val"], [3, 1], num_samples=20, sequence_length=T, seed=1, **copy)
    samples = [blend[number]["tokens"] for number in range(20)]
    return [len(split), split.fingerprint, pickle.loads(pickle.dumps(split)).fingerprint, split.sequence_lengths.tolist(), *samples]


def documents(place: str, **copy: Any) -> list[Any]:
    split = split_of(place, "pretrain", "letters", **copy)
    return [len(split), split.tokens, split.bytes, split[0], split[-1], split.sampler(T=T).total_windows]


def split_of(place: str, family: str, name: str, **copy: Any) -> CacheSplit:
    cache = open_cache(place if is_address(place) else Path(place).parents[1], **copy)
    assert cache.tokenizer is not None
    assert Path(cache.tokenizer).is_file()
    return getattr(cache, family)[name].train


def same(one: Any, other: Any) -> bool:
    """Return whether two results are equal, tensors and arrays by value."""
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(np.array_equal(one, other)) if isinstance(one, torch.Tensor | np.ndarray) else one == other


@pytest.mark.parametrize("read", [random_windows, sequence, megatron, documents])
def test_a_reader_gives_the_same_for_an_address_and_refuses_what_does_not_fit(read: Read, published: Caches, tmp_path: Path) -> None:
    local = read(str(published.letters))
    assert len(local) > 1
    assert same(read(ADDRESS, remote=Copy(dir=str(tmp_path / "copy"), limit=1e9)), local)
    with pytest.raises(NielsCacheError, match="Blocks"):
        read(ADDRESS, remote=Copy(dir=str(tmp_path / "small"), limit=6_000))
    with pytest.raises(NielsCacheError, match="remote=Copy"):
        read(ADDRESS)


def chats(place: str, **copy: Any) -> list[Any]:
    paths = f"{place}/train_tokens.bin", f"{place}/train_idx.npy"
    ids = read_meta(str(copy.pop("meta")))["special_token_ids"]
    dataset = SFTExampleDataset(*paths, T=64, device="cpu", eot_id=ids["eot"], **copy)
    again = pickle.loads(pickle.dumps(dataset))
    return [each.get_batch(B=4, generator=torch.Generator().manual_seed(1)) for each in (dataset, again)]


def test_examples_of_an_address(published: Caches, tmp_path: Path) -> None:
    copy, meta = {"remote": Copy(dir=str(tmp_path / "copy"), limit=1e9)}, published.chats / "meta.json"
    assert same(chats(CHATS, meta=meta, **copy), chats(str(published.chats), meta=meta))
    split = split_of(CHATS, "sft", "chats", **copy)
    assert same([len(split), split[1]], [len(found := split_of(str(published.chats), "sft", "chats")), found[1]])
    assert split.sampler(T=64).get_batch(B=2, generator=torch.Generator())[0].shape == (2, 64)
    with pytest.raises(NielsCacheError, match=r"train_idx\.npy"):
        SFTExampleDataset(f"{CHATS}/train_tokens.bin", f"{CHATS}/val_idx.npy", T=64, device="cpu", eot_id=1, **copy)


def test_a_catalog_shows_the_address_and_makes_loaders(published: Caches, tmp_path: Path) -> None:
    copy = {"remote": Copy(dir=str(tmp_path / "copy"), limit=1e9)}
    cache = open_cache(ADDRESS, **copy)
    assert list(cache.pretrain) == ["letters"]
    assert ADDRESS in repr(cache)
    assert f"{ADDRESS}/train" == cache.pretrain.letters.train.folder
    found = next(iter(cache.pretrain.letters.train.loader(T=T, B=4, seed=1, order=Blocks(shards=2))))
    expected = next(iter(TokenLoader(str(published.letters / "train"), T=T, B=4, seed=1, order=Blocks(shards=2))))
    assert same([found.x, found.y], [expected.x, expected.y])


def test_the_settings_of_a_copy_belong_to_an_address(caches: Caches, tmp_path: Path) -> None:
    with pytest.raises(NielsCacheError, match="is a path"):
        PretrainTokenStreamDataset(str(caches.letters / "train"), T=T, device="cpu", remote=Copy(dir=str(tmp_path)))
    with pytest.raises(NielsCacheError, match="is a path"):
        open_cache(caches.letters.parents[1], remote=Copy(dir=str(tmp_path), limit=1e9))
    with pytest.raises(NielsCacheError, match="fetch='windows'"):
        PretrainTokenStreamDataset(f"{ADDRESS}/train", T=T, device="cpu", remote=Copy(fetch="windows"))


# commands


def printed(capfd: pytest.CaptureFixture[str], *arguments: object) -> Any:
    capfd.readouterr()
    code = main(list(map(str, arguments)))
    output, errors = capfd.readouterr()
    assert code == 0, errors
    return json.loads(output)


@pytest.mark.parametrize("options", [["letters", "--split", "val"], ["chats"]])
def test_sample_shows_the_same_of_an_address(options: list[str], published: Caches, capfd: pytest.CaptureFixture[str]) -> None:
    name, *others = options
    others += ["--seed", "5", "--json"]
    address = f"s3://{BUCKET}/at/{name}"
    local = printed(capfd, "sample", name, *others, "--cache-dir", published.letters.parents[1])
    assert len(local["samples"]) > 1
    assert printed(capfd, "sample", address, *others) == local


def test_sample_fetches_only_the_shards_that_it_shows(s3: LoopbackS3, published: Caches, capfd: pytest.CaptureFixture[str]) -> None:
    s3.requests.clear()
    assert len(printed(capfd, "sample", ADDRESS, "-n", "1", "--json")["samples"]) == 1
    shards = {key for method, key in s3.requests if method == "GET" and "/train/shard_" in key}
    assert len(shards) == 1 < len(list((published.letters / "train").iterdir()))
    assert len(s3.requests) == len(set(s3.requests))  # also the record is read once


def test_show_prints_the_meta_of_an_address(s3: LoopbackS3, published: Caches, capfd: pytest.CaptureFixture[str]) -> None:
    s3.requests.clear()
    shown = printed(capfd, "show", ADDRESS, "--json")
    assert len(s3.requests) == 2
    assert shown["cache"] == {"directory": ADDRESS, "meta": read_meta(str(published.letters / "meta.json"))}
    assert main(["show", ADDRESS]) == 0
    assert "letters" in capfd.readouterr().out


def test_trace_reads_the_documents_of_an_address(published: Caches, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    settings: dict[str, Any] = {"T": T, "B": 4, "seed": 1, "order": Blocks(shards=2)}
    states = {
        "local": TokenLoader({"letters": str(published.letters / "train")}, **settings).state_dict(),
        "address": TokenLoader(
            {"letters": f"{ADDRESS}/train"}, **settings, remote=Copy(dir=str(tmp_path / "copy"), limit=1e9)
        ).state_dict(),
    }
    found = {}
    for name, state in states.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(state), encoding="utf-8")
        found[name] = printed(capfd, "trace", "--state", tmp_path / f"{name}.json", "--step", 3, "--json")
    assert [segment["source_id"] for row in found["local"]["rows"] for segment in row["segments"]].count(None) == 0
    assert found["address"] == found["local"]


def test_local_copy_shows_trims_and_checks(published: Caches, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "copy"
    copy = {"remote": Copy(dir=str(folder), limit=1e9)}
    dataset = PretrainTokenStreamDataset(f"{ADDRESS}/train", T=T, device="cpu", **copy)
    shown = printed(capfd, "pull", "--copy", folder, "--json")
    (build,) = shown["builds"]
    assert (build["address"], build["name"], build["in_use"], shown["limit"]) == (ADDRESS, "letters", True, 1e9)
    assert shown["bytes"] >= build["bytes"] > 0
    assert printed(capfd, "pull", "--copy", folder, "--trim", "0", "--json")["freed_bytes"] == 0
    shard = Path(dataset.shards_dir) / "shard_00000.bin"
    content = shard.read_bytes()
    shard.write_bytes(bytes(len(content)))
    assert main(["pull", "--copy", str(folder), "--check"]) == 1
    assert "uses it" in capfd.readouterr().out
    assert shard.exists()
    shard.write_bytes(content)
    del dataset
    assert printed(capfd, "pull", "--copy", folder, "--check", "--json")["damaged"] == []
    shard.write_bytes(bytes(shard.stat().st_size))
    assert main(["pull", "--copy", str(folder), "--check"]) == 1
    assert "shard_00000.bin" in capfd.readouterr().out
    assert not shard.exists()
    assert printed(capfd, "pull", "--copy", folder, "--trim", "1kB", "--json")["freed_bytes"] > 0
    assert not any(folder.rglob("shard_*.bin"))
    PretrainTokenStreamDataset(f"{ADDRESS}/train", T=T, device="cpu", **copy)
    assert shard.exists()


@pytest.fixture
def pairs(s3: LoopbackS3, tmp_path: Path) -> Path:
    """A cache of preference pairs, which is published at PAIRS."""
    model = model_folder(tmp_path / "model")
    lines = sentences(60)
    rows = [{"prompt": f"{number} {line}", "chosen": line, "rejected": f"not {line}"} for number, line in enumerate(lines)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    tables = {
        "tokenizer": {"model": str(model), "special_tokens": {"eot": "<|endoftext|>"}},
        "sft": {"pairs": {"source": "chat_jsonl", "kind": "preference", "files": [str(tmp_path / "pairs.jsonl")], "template": "chatml"}},
    }
    registry = load_registry(profile="quickstart", overrides=tables)
    build_tokenizer(registry, root=tmp_path / "root")
    folder = build_dataset(registry, "pairs", root=tmp_path / "root").directory
    assert push(open_local_build(folder), PAIRS).state == "published"
    return folder


def test_readers_of_pairs_give_the_same_for_an_address(pairs: Path, tmp_path: Path) -> None:
    copy: dict[str, Any] = {"remote": Copy(dir=str(tmp_path / "copy"), limit=1e9)}

    def batches(place: str, **copy: Any) -> list[Any]:
        loader = TokenLoader(f"{place}/train", T=64, B=2, seed=1, epochs=1, **copy)
        dataset = PreferenceDataset(f"{place}/train", T=64, **copy)
        drawn = dataset.get_batch(B=4, generator=torch.Generator().manual_seed(1))
        again = pickle.loads(pickle.dumps(dataset)).get_batch(B=4, generator=torch.Generator().manual_seed(1))
        return [[*batch.tensors()] for batch in [*loader, drawn, again]]  # type: ignore[attr-defined]

    local = batches(str(pairs))
    assert len(local) > 4
    assert same(batches(PAIRS, **copy), local)
    assert next(iter(open_cache(PAIRS, **copy).sft.pairs.train.loader(T=64, B=2, seed=1))).chosen.x.shape == (2, 64)
    with pytest.raises(NielsCacheError, match="remote=Copy"):
        TokenLoader(f"{PAIRS}/train", T=64, B=2, seed=1)
