"""What was promised first, in its own words: the commands, the files at the top of the repository, and the interfaces of the samplers.

Refactoring never edits this file.
"""

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from niels_cache_assets import build_pretrain_cache, build_sft_cache
from niels_cache_runtime import DatasetLoader, PretrainTokenStreamDataset, SFTExampleDataset, TokenLoader, assistant_target_mask

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = """
[tokenizer]
vocab_size = 300

[pretrain.letters]
source = "jsonl"
files = ["letters.jsonl"]
val_frac = 0.1

[sft.chats]
source = "chat_jsonl"
files = ["chats.jsonl"]
"""
WORDS = "the cache of a small house holds many letters about rivers roads and the people who walk along them every day"


def _text(number: int) -> str:
    words = WORDS.split()
    return " ".join(words[(number * 7 + place * place) % len(words)] for place in range(60 + number % 40)) + f" {number}"


def _run(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("NIELS_CACHE_", "DAGSTER_"))}
    return subprocess.run(command, cwd=folder, env={**clean, **variables}, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that `build-all --cache-dir cache --seed 42` has built."""
    folder = tmp_path_factory.mktemp("acceptance")
    (folder / "niels_cache.toml").write_text(SETTINGS, encoding="utf-8")
    letters = "".join(json.dumps({"text": _text(number)}) + "\n" for number in range(300))
    (folder / "letters.jsonl").write_text(letters, encoding="utf-8")
    chats = [
        {"messages": [{"role": "user", "content": _text(number)}, {"role": "assistant", "content": _text(number + 1)}]}
        for number in range(40)
    ]
    (folder / "chats.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats), encoding="utf-8")
    run = _run(folder, sys.executable, "-m", "niels_cache_assets.cli", "build-all", "--cache-dir", "cache", "--seed", "42")
    assert run.returncode == 0, run.stderr
    return folder


@pytest.mark.slow
def test_build_all_writes_tokens_meta_and_sha256_below_the_cache_dir(project: Path) -> None:
    run = _run(project, sys.executable, "-m", "niels_cache_runtime.verify", "cache")
    assert run.returncode == 0, run.stdout + run.stderr
    for family, name in (("pretrain", "letters"), ("sft", "chats")):
        meta = json.loads((project / "cache" / family / name / "meta.json").read_text(encoding="utf-8"))
        assert meta["seed"] == 42
        assert meta["dataset_name"] == name
        assert all(re.fullmatch("[0-9a-f]{64}", recorded["sha256"]) for recorded in meta["files"].values())
        assert len(meta["files"]) > 3
    assert (project / "cache/tokenizer/spm.model").is_file()


@pytest.mark.slow
def test_random_windows_and_sequential_batches_and_examples_come_from_the_cache(project: Path) -> None:
    train = str(project / "cache/pretrain/letters/train")
    windows = PretrainTokenStreamDataset(train, T=16, device="cpu")
    x, y = windows.get_batch(B=4, generator=torch.Generator().manual_seed(0))
    assert (x.shape, y.shape, x.dtype) == ((4, 16), (4, 16), torch.int64)
    assert torch.equal(x[:, 1:], y[:, :-1])
    in_sequence = DatasetLoader(4, 16, 0, 1, train, "cpu")
    x, y = in_sequence.get_batch()
    stream = np.fromfile(project / "cache/pretrain/letters/train/shard_00000.bin", dtype="<u2")
    assert x.flatten().tolist() == stream[:64].tolist()
    assert y.flatten().tolist() == stream[1:65].tolist()
    sft = project / "cache/sft/chats"
    ids = json.loads((sft / "meta.json").read_text(encoding="utf-8"))["special_token_ids"]
    examples = SFTExampleDataset(str(sft / "train_tokens.bin"), str(sft / "train_idx.npy"), T=512, device="cpu", eot_id=ids["eot"])
    batch = examples.get_batch(B=2, generator=torch.Generator().manual_seed(0))
    assert [tuple(each.shape) for each in batch] == [(2, 512)] * len(batch)
    tokens = np.fromfile(sft / "train_tokens.bin", dtype="<u2")
    assert assistant_target_mask(tokens, ids["asst"], ids["eot"]).shape == tokens.shape
    loader = TokenLoader(train, T=16, B=4, seed=42)
    assert next(iter(loader)).x.shape == (4, 16)


@pytest.mark.slow
def test_dagster_materializes_one_partition(project: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    run = _run(
        project,
        *(sys.executable, "-m", "dagster", "asset", "materialize", "-m", "niels_cache_assets.definitions"),
        *("--select", 'key:"pretrain/*"', "--partition", "letters"),
        DAGSTER_HOME=str(home),
    )
    assert run.returncode == 0, run.stderr


def test_the_workspace_names_the_definitions() -> None:
    workspace = yaml.safe_load((ROOT / "workspace.yaml").read_text(encoding="utf-8"))
    assert [entry["python_module"]["module_name"] for entry in workspace["load_from"]] == ["niels_cache_assets.definitions"]
    for name in ("niels_cache_assets", "niels_cache_runtime", "tests"):
        assert (ROOT / name).is_dir()


def test_the_samplers_have_the_promised_parameters() -> None:
    inspect.signature(DatasetLoader).bind(8, 64, 0, 1, "cache/pretrain/x/train", "cpu")
    assert list(inspect.signature(DatasetLoader).parameters)[:6] == [
        *("batch", "seq_len", "process_rank", "num_processes", "dataset_dir", "device"),
    ]
    inspect.signature(PretrainTokenStreamDataset).bind("train", T=64, device="cpu")
    inspect.signature(SFTExampleDataset).bind("train_tokens.bin", "train_idx.npy", T=64, device="cpu", eot_id=3)
    loader = inspect.signature(TokenLoader)
    loader.bind("train", T=64, B=8, seed=0)
    loader.bind(
        *({"a": "a/train", "b": "b/train"},),
        **dict(T=64, B=8, seed=0, epochs=1, weights={"a": 1.0, "b": 2.0}, shuffle=False, rank=1, world_size=2, device="cpu"),
        fields=["document_ids"],
    )
    for build in (build_pretrain_cache, build_sft_cache):
        parameters = inspect.signature(build).parameters
        assert {"tokenizer", "seed"} <= set(parameters)


def test_the_readme_opens_with_make_cache_and_make_test() -> None:
    [block] = re.findall(r"^```\n(make cache\b.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert [line.split("  ")[0].strip() for line in block.splitlines()] == ["make cache", "make test"]
    for target, part in (("cache", "build-all --profile quickstart"), ("test", "-m pytest")):
        run = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert run.returncode == 0, run.stderr
        assert part in run.stdout
