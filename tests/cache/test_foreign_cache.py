"""Caches that another program wrote, with a meta.json without hashes. They open, with one warning."""

import json
import pickle
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from niels_cache_assets import to_hf_dataset
from niels_cache_assets.cli import main
from niels_cache_runtime import (
    NielsCacheError,
    PretrainTokenStreamDataset,
    SFTExampleDataset,
    TokenLoader,
    open_cache,
    read_meta,
)
from niels_cache_runtime.format.meta import _warned
from niels_cache_runtime.megatron.cache_split import MegatronCacheSplit
from niels_cache_runtime.samplers.sequential import DatasetLoader
from niels_cache_runtime.verify import verify_cache
from niels_cache_runtime.verify.__main__ import main as verify
from tests.helpers.hand_made import ASST, EOT, IDS, USR, VOCAB_SIZE, write_cache
from tests.helpers.messages import missing

TRAIN = [*range(10, 40), EOT] * 4
NEEDED = {"token_dtype": "uint16-le", "vocab_size": VOCAB_SIZE, "special_token_ids": {"eot": EOT}}
Run = Callable[..., tuple[int, Any]]


@pytest.fixture(autouse=True)
def no_warning_is_forgotten() -> Iterator[None]:
    """Every test is a process of its own, as far as warnings go."""
    _warned.clear()
    yield
    _warned.clear()


def write_json(folder: Path, meta: dict[str, Any]) -> None:
    """`...` is the value of a key that is not there."""
    (folder / "meta.json").write_text(json.dumps({key: value for key, value in meta.items() if value is not ...}, indent=4))


def prepare_pretrain(folder: Path, **fields: Any) -> Path:
    """As a script of another project does: numpy and json."""
    for split, tokens in (("train", TRAIN), ("val", [*range(20, 30), EOT])):
        (folder / split).mkdir(parents=True)
        np.array(tokens, dtype="<u2").tofile(folder / split / "shard_00000.bin")
    counts = {"train_tokens": len(TRAIN), "val_tokens": 11}
    write_json(folder, {**NEEDED, **counts, **fields})
    return folder


def prepare_sft(folder: Path, **fields: Any) -> Path:
    folder.mkdir(parents=True)
    examples = [[USR, 10, EOT, ASST, 11, 12, EOT], [USR, 13, 14, EOT, ASST, 15, EOT]]
    for split in ("train", "val"):
        np.array([token for example in examples for token in example], dtype="<u2").tofile(folder / f"{split}_tokens.bin")
        np.save(folder / f"{split}_idx.npy", np.array([0, 7], dtype=np.int64))
    write_json(folder, {**NEEDED, "special_token_ids": IDS, "train_examples": 2, "val_examples": 2, **fields})
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    prepare_pretrain(tmp_path / "cache/pretrain/theirs")
    prepare_sft(tmp_path / "cache/sft/chats_of_theirs")
    return tmp_path / "cache"


def unverifiable(caught: Any) -> list[str]:
    return [str(warning.message) for warning in caught if "verified" in str(warning.message)]


def test_a_foreign_meta_is_read_as_it_is_with_one_warning_that_nothing_can_be_verified(root: Path) -> None:
    path = root / "pretrain/theirs/meta.json"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        metas = [read_meta(str(path)) for _ in range(3)]
        assert metas[0] == metas[2] == json.loads(path.read_text())
        PretrainTokenStreamDataset(str(path.parent / "train"), T=8, device="cpu")
        PretrainTokenStreamDataset(str(path.parent / "val"), T=8, device="cpu")
        TokenLoader(str(path.parent / "train"), T=8, B=1, seed=1)
        repr(open_cache(root).pretrain)
    (said,) = unverifiable(caught)
    assert said.startswith(str(path))


def test_every_class_reads_a_foreign_pretrain_split(root: Path) -> None:
    train = root / "pretrain/theirs/train"
    with pytest.warns(UserWarning, match="verified"):
        dataset = PretrainTokenStreamDataset(str(train), T=8, device="cpu")
    x, y = dataset.get_batch(B=4, generator=torch.Generator().manual_seed(0))
    assert x.shape == (4, 8)
    assert torch.equal(x[:, 1:], y[:, :-1])
    loader = DatasetLoader(1, 8, 0, 1, str(train), "cpu")
    assert loader.get_batch()[0].tolist() == [TRAIN[:8]]
    tokens = TokenLoader(str(train), T=8, B=1, seed=1, shuffle=False)
    assert next(iter(tokens)).x.tolist() == [TRAIN[:8]]
    split = open_cache(root).pretrain["theirs"].train
    assert (split.tokens, split.rows) == (len(TRAIN), None)
    assert missing(repr(split), f"{len(TRAIN)} tokens", "unknown") == []
    assert split.sampler(T=8).T == 8
    for needs_documents in (
        lambda: split[0],
        lambda: len(split),
        lambda: MegatronCacheSplit(train),
        lambda: TokenLoader(str(train), T=8, B=1, seed=1, fields=("document_ids",)),
    ):
        with pytest.raises(NielsCacheError, match=r"train_doc_ends\.npy"):
            needs_documents()


def test_document_ends_of_another_program_are_taken_where_they_are_there(root: Path) -> None:
    folder = root / "pretrain/theirs"
    np.save(folder / "train_doc_ends.npy", np.arange(31, 125, 31, dtype=np.uint64))
    split = open_cache(root).pretrain["theirs"].train
    assert len(split) == 4
    assert split[1].tolist() == TRAIN[:31]
    assert len(MegatronCacheSplit(folder / "train")) == 4
    assert len(pickle.loads(pickle.dumps(MegatronCacheSplit(folder / "train")))) == 4
    write_json(folder, {**read_meta(str(folder / "meta.json")), "documents": {"train": 7, "val": 3}})  # of their own kind
    assert [len(split) for split in (open_cache(root).pretrain["theirs"].train, open_cache(root).pretrain["theirs"].val)] == [4, 3]
    np.save(folder / "train_doc_ends.npy", np.array([[31, 62]], dtype=np.uint64))
    with pytest.raises(NielsCacheError, match="dimension of uint64"):
        repr(open_cache(root).pretrain["theirs"].train)
    np.save(folder / "train_doc_ends.npy", np.array([31, 62], dtype=np.uint64))
    with pytest.raises(NielsCacheError, match="ends at 62"):
        TokenLoader(str(folder / "train"), T=8, B=1, seed=1)


def test_every_class_reads_a_foreign_sft_split(root: Path) -> None:
    folder = root / "sft/chats_of_theirs"
    with pytest.warns(UserWarning, match="verified"):
        pairs = SFTExampleDataset(str(folder / "train_tokens.bin"), str(folder / "train_idx.npy"), T=8, device="cpu", eot_id=EOT)
    assert pairs.asst_id == ASST
    assert pairs.get_batch(B=2, generator=torch.Generator().manual_seed(0))[0].shape == (2, 8)
    loader = TokenLoader(str(folder / "train"), T=16, B=1, seed=1)
    assert next(iter(loader)).x.shape == (1, 16)
    split = open_cache(root).sft["chats_of_theirs"].train
    assert (len(split), split.tokens, split[0].tolist()) == (2, 14, [USR, 10, EOT, ASST, 11, 12, EOT])
    with pytest.raises(NielsCacheError, match="is 4, not eot_id=5"):
        SFTExampleDataset(str(folder / "train_tokens.bin"), str(folder / "train_idx.npy"), T=8, device="cpu", eot_id=5)


def test_an_assistant_id_that_the_other_program_does_not_name_is_asked_for(tmp_path: Path) -> None:
    folder = prepare_sft(tmp_path / "sft/x", special_token_ids={"eot": EOT})
    with pytest.raises(NielsCacheError, match="asst_id="):
        TokenLoader(str(folder / "train"), T=16, B=1, seed=1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"token_dtype": None}, "token_dtype is None"),
        ({"token_dtype": "uint64"}, r"token_dtype is 'uint64'.* 'uint16-le' or 'uint32-le'"),
        ({"token_dtype": "uint32"}, "hold 62"),
        ({"vocab_size": ...}, "has no vocab_size"),
        ({"vocab_size": "50"}, "vocab_size is '50', .*number"),
        ({"vocab_size": 70_000}, "vocab_size is 70000"),
        ({"special_token_ids": ...}, "has no special_token_ids"),
        ({"special_token_ids": {"bos": 1}}, r"has no special_token_ids\.eot"),
        ({"special_token_ids": [4]}, r"special_token_ids\.eot is \[4\], .*number"),
        ({"special_token_ids": {"eot": VOCAB_SIZE}}, rf"eot.*{VOCAB_SIZE}.* below"),
        ({"val_tokens": ...}, "has no val_tokens"),
        ({"train_tokens": "many"}, "train_tokens is 'many', .*number"),
        ({"train_tokens": 123}, "train_tokens is 123, .* 124"),
        ({"built": False}, "never built"),
        ({"x": float("nan")}, r"value .* meta\.json"),
    ],
    ids=str,
)
def test_a_foreign_meta_that_lacks_what_a_reader_needs_is_refused(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    folder = prepare_pretrain(tmp_path / "x", **fields)
    with pytest.raises(NielsCacheError, match=message) as caught:
        PretrainTokenStreamDataset(str(folder / "train"), T=8, device="cpu")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    "kept", [("schema_version",), ("meta_sha256",), ("files",), ("schema_version", "files"), ("schema_version", "meta_sha256")]
)
def test_a_meta_of_ours_that_lost_some_of_its_keys_is_refused(tmp_path: Path, kept: tuple[str, ...]) -> None:
    folder = write_cache(tmp_path) / "pretrain/notes"
    whole = json.loads((folder / "meta.json").read_text())
    (folder / "meta.json").write_text(
        json.dumps({key: value for key, value in whole.items() if key in kept or key not in ("schema_version", "meta_sha256", "files")})
    )
    with pytest.raises(NielsCacheError, match=r"schema_version|meta_sha256"):
        PretrainTokenStreamDataset(str(folder / "train"), T=2, device="cpu")
    assert verify([str(tmp_path), "notes"]) == 1


def test_without_token_dtype_it_is_no_meta_json(tmp_path: Path) -> None:
    folder = prepare_pretrain(tmp_path / "x", token_dtype=...)
    with pytest.raises(NielsCacheError, match=r"not a niels-cache meta\.json"):
        read_meta(str(folder / "meta.json"))


def test_hashes_cannot_be_asked_for(root: Path) -> None:
    with pytest.raises(NielsCacheError, match=r"verified.* without verify="):
        PretrainTokenStreamDataset(str(root / "pretrain/theirs/train"), T=8, device="cpu", verify="sha256")


def test_verify_calls_it_unverifiable_and_not_broken(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it says so itself
        assert verify([str(root)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[:3] for line in lines[:2]] == [
        ["note", str(root / "pretrain/theirs"), "unverifiable"],
        ["note", str(root / "sft/chats_of_theirs"), "unverifiable"],
    ]
    assert lines[-1].endswith(": no findings; 2 unverifiable")
    assert verify([str(root), "--quick"]) == 0
    assert verify([str(root / "pretrain/theirs")]) == 0
    assert "unverifiable" in capsys.readouterr().out
    assert verify_cache(root) == []


def test_verify_finds_what_the_foreign_meta_itself_denies(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = root / "pretrain/theirs"
    np.array([*TRAIN[:-1], VOCAB_SIZE], dtype="<u2").tofile(folder / "train/shard_00000.bin")
    np.array([1, 2], dtype="<u2").tofile(folder / "val/shard_00000.bin")
    np.save(root / "sft/chats_of_theirs/val_idx.npy", np.array([7, 0], dtype=np.int64))
    ids, counts, starts = map(str, verify_cache(root))
    assert missing(ids, f"{folder}/train/shard_00000.bin: ", f"id {VOCAB_SIZE}", "vocabulary") == []
    assert missing(counts, f"{folder}/meta.json: val_tokens is 11", "hold 2") == []
    assert missing(starts, f"{root}/sft/chats_of_theirs/val_idx.npy: ", "starts at 7") == []
    assert verify([str(root)]) == 1


@pytest.mark.parametrize("quick", [False, True])
def test_verify_names_a_missing_file_of_a_foreign_sft_split_unless_the_split_is_empty(root: Path, quick: bool) -> None:
    folder = root / "sft/chats_of_theirs"
    (folder / "val_tokens.bin").unlink()
    [finding] = verify_cache(root, quick=quick)
    assert missing(finding, f"{folder}/val_tokens.bin: missing") == []
    (folder / "val_idx.npy").unlink()
    [finding] = verify_cache(root, quick=quick)
    assert missing(finding, f"{folder}/meta.json: val_examples is 2", "hold 0") == []
    write_json(folder, {**NEEDED, "special_token_ids": IDS, "train_examples": 2, "val_examples": 0})
    assert verify_cache(root, quick=quick) == []


@pytest.fixture
def run(root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(root.parent)
    monkeypatch.setenv("DAGSTER_HOME", str(root.parent / ".dagster"))
    (root.parent / "niels_cache.toml").write_text('profile = "quickstart"\n')

    def call(*arguments: str, as_json: bool = False) -> tuple[int, Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            place = [] if arguments[0] == "trace" else ["--cache-dir", "cache"]
            code = main([*arguments, *place, *(["--json"] if as_json else [])])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return code, json.loads(out) if as_json else out + err

    return call


def test_commands_show_a_foreign_cache_and_say_that_nothing_can_be_verified(run: Run) -> None:
    code, listed = run("status", as_json=True)
    found = {row["name"]: row for row in listed["data_sets"]}
    assert (code, found["theirs"]["state"], found["theirs"]["counts"]["train_tokens"]) == (1, "unverifiable", len(TRAIN))
    assert found["chats_of_theirs"]["counts"]["train_examples"] == 2
    assert found["theirs"]["condition"] == "complete"
    assert "verified" in found["theirs"]["advice"]
    assert run("status", "theirs")[0] == 0
    for name in ("theirs", "chats_of_theirs"):
        code, shown = run("show", name)
        assert code == 0
        assert "verified" in shown
        code, sampled = run("sample", name, "--seed", "1")
        assert (code, "token ids" in sampled) == (0, True)
    assert run("sample", "chats_of_theirs", "--notable")[0] == 0
    code, said = run("sample", "theirs", "--notable")
    assert (code, "train_doc_ends.npy" in said) == (2, True)
    code, verified = run("verify", as_json=True)
    assert (code, verified["findings"], verified["unverifiable"]) == (0, [], ["pretrain/theirs", "sft/chats_of_theirs"])
    assert "0 folders, 0 files, 0 bytes: no findings; 2 unverifiable" in run("verify")[1]
    code, reported = run("report", as_json=True)
    assert code == 0
    items = {item["name"]: item for item in reported["items"]}
    assert (items["theirs"]["state"], items["theirs"]["counts"]["train_tokens"]) == ("unverifiable", len(TRAIN))


def test_sample_names_the_key_by_which_targets_are_found(root: Path, run: Run) -> None:
    prepare_sft(root / "sft/x", special_token_ids={"eot": EOT})
    for notable in ([], ["--notable"]):
        code, said = run("sample", "x", *notable)
        assert (code, missing(said, "meta.json: ", "special_token_ids", "asst"), "asst_id=" in said) == (2, [], False)


def test_a_foreign_cache_is_exported_and_traced(root: Path, run: Run) -> None:
    folder = root / "pretrain/theirs"
    code, said = run("export", "nanogpt", "theirs", "--out", "exported", "--split", "train")
    assert (code, "documents are unknown" in said) == (2, True)
    np.save(folder / "train_doc_ends.npy", np.arange(31, 125, 31, dtype=np.uint64))
    assert run("export", "nanogpt", "theirs", "--out", "exported", "--split", "train")[0] == 0
    assert np.fromfile("exported/train.bin", dtype="<u2").tolist() == TRAIN
    state = TokenLoader(str(folder / "train"), T=8, B=1, seed=1).state_dict()
    Path("state.json").write_text(json.dumps(state))
    code, traced = run("trace", "--state", "state.json", "--step", "0")
    assert (code, "train/shard_00000.bin" in traced) == (0, True)


def test_a_foreign_cache_is_a_hub_dataset(root: Path) -> None:
    folder = root / "pretrain/theirs"
    with pytest.raises(NielsCacheError, match="documents are unknown"):
        to_hf_dataset("theirs", cache_dir=root)
    np.save(folder / "train_doc_ends.npy", np.arange(31, 125, 31, dtype=np.uint64))
    dataset = to_hf_dataset("theirs", cache_dir=root)
    assert [len(row["input_ids"]) for row in dataset] == [31] * 4
    assert pickle.loads(pickle.dumps(dataset))[0] == dataset[0]
    np.array([*TRAIN[:-1], 5], dtype="<u2").tofile(folder / "train/shard_00000.bin")
    assert to_hf_dataset("theirs", cache_dir=root)._fingerprint != dataset._fingerprint
    assert to_hf_dataset("chats_of_theirs", cache_dir=root)[0]["labels"] == [-100, -100, -100, -100, 11, 12, EOT]


def test_a_build_does_not_replace_a_foreign_cache(root: Path, run: Run, tiny_model: Path) -> None:
    changes: dict[str, dict[str, Any]] = {"complete": {}, "other_tokens": {"token_dtype": "uint64"}, "other_counts": {"val_tokens": "many"}}
    tables = "".join(f'[pretrain.{name}]\nsource = "text"\nfiles = ["text.txt"]\n' for name in changes)
    (root.parent / "text.txt").write_text("A text to build from.\n" * 20)
    (root.parent / "niels_cache.toml").write_text(f'profile = "quickstart"\n[tokenizer]\nmodel = "{tiny_model}"\n{tables}')
    for name, changed in changes.items():
        prepare_pretrain(root / "pretrain" / name, **changed)
    before = {path: path.read_bytes() for path in (root / "pretrain").rglob("*") if path.is_file()}
    code, built = run("build-all", "--only", *changes, as_json=True)
    assert code == 1
    results = {result["name"]: result for result in built["results"]}
    for name in changes:
        assert results[name]["state"] == "failed"
        assert missing(results[name]["message"], f"cache/pretrain/{name}/meta.json: ", "another program") == []
    assert {path: path.read_bytes() for path in before} == before
    states = {row["name"]: row["state"] for row in run("status", as_json=True)[1]["data_sets"]}
    assert [states[name] for name in changes] == ["unverifiable", "unreadable", "unreadable"]
