"""The examples of training, run for a few steps on the CPU: a plain torch loop, and Hugging Face's Trainer where it is installed."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.helpers import megatron_core
from tests.repository.test_examples_runtime import quickstart  # noqa: F401  the fixture

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, *arguments: str) -> None:
    runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"](list(arguments))


def test_a_plain_loop_learns_from_both_families(
    quickstart: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(quickstart)
    run("torch_loop", "--steps", "12", "-T", "32", "-B", "4")
    found = re.findall(r"^(\w+)  step +(\d+)  loss ([\d.]+)$", capsys.readouterr().out, re.MULTILINE)
    assert [(title, int(step)) for title, step, _ in found] == [(title, step) for title in ("pretrain", "sft") for step in (0, 10, 11)]
    losses = [float(loss) for _, _, loss in found]
    assert losses[2] < losses[0]
    assert losses[5] < losses[3]


@pytest.mark.parametrize("data", ["python_docs", "python_help"])
def test_trainer_learns_from_a_cache(
    data: str,
    quickstart: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for package in ("transformers", "accelerate"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install transformers accelerate")
    monkeypatch.chdir(quickstart)
    run("hf_trainer", "--data", data, "--steps", "8", "-T", "32", "-B", "4", "--log-every", "2", "--out", str(tmp_path))
    found = re.search(r"^loss ([\d.]+) at the start, ([\d.]+) at the end, ([\d.]+) on val$", capsys.readouterr().out, re.MULTILINE)
    assert found is not None
    assert float(found[2]) < float(found[1])


@pytest.mark.parametrize("name", ["torch_loop", "hf_trainer"])
def test_a_name_that_is_not_there_is_one_line(name: str, quickstart: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    if name == "hf_trainer":
        pytest.importorskip("transformers", reason="transformers is not installed")
    monkeypatch.chdir(quickstart)
    with pytest.raises(SystemExit, match=r"^[^\n]*did you mean 'python_docs'\?$"):
        run(name, "--data" if name == "hf_trainer" else "--pretrain", "python_doc")


def test_trainer_that_is_not_installed_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(SystemExit, match=r"^[^\n]*pip install [^\n]*accelerate$"):
        run("hf_trainer")


FLAGS = """--split 80,15,5 --seq-length 16 --seed 7 --train-iters 20 --global-batch-size 4 --eval-interval 10 --eval-iters 1
--tokenizer-type NullTokenizer --vocab-size 200 --data-cache-path index"""
# The data sets of a run, and the numbers of their indices.
RUNS = {"one data set": ("a", 3), "weights": ("30 a 70 ./b", 9)}


def build_in_a_run(folder: Path, blend: tuple[list[str], list[float] | None]) -> list[int]:
    """Build train, valid and test as a training run does, in a process group. Return their lengths."""
    import torch
    from megatron.core.tokenizers.text.utils.build_tokenizer import build_tokenizer

    core = megatron_core.load()
    tokenizer = build_tokenizer(SimpleNamespace(tokenizer_type="NullTokenizer", vocab_size=200))
    config = megatron_core.config(folder, blend=blend, split="80,15,5", random_seed=7, tokenizer=tokenizer)
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        parts = core.builder.BlendedMegatronDatasetBuilder(core.gpt.GPTDataset, [80, 12, 4], lambda: True, config).build()
    finally:
        torch.distributed.destroy_process_group()
    return [len(part) for part in parts]


@pytest.mark.walk
@pytest.mark.parametrize("run_name", RUNS)
def test_megatron_core_finds_every_index_that_the_example_built(run_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, count = RUNS[run_name]
    megatron_core.load()
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate("abc"):
        megatron_core.write_documents(Path(name), megatron_core.random_lengths(60, seed=seed, mean=30), seed=seed)

    def printed() -> str:
        words = [sys.executable, EXAMPLES / "megatron_core_indices.py", "--data-path", *data.split(), *FLAGS.split(), "--lr", "3"]
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout

    first = printed()
    assert "ignored: --lr 3\n" in first
    assert f"{count} indices built" in first
    before = {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in Path("index").iterdir()}
    assert len(before) > count
    assert f"0 indices built, {count} in index" in printed(), "a second process finds them all"
    blend = (data.split(), None) if len(data.split()) % 2 else (["a", "./b"], [30.0, 70.0])
    with monkeypatch.context() as patch:
        from megatron.core.datasets import helpers

        for name in ("build_sample_idx", "build_blending_indices", "build_exhaustive_blending_indices"):
            patch.setattr(helpers, name, None)  # nothing can be built
        assert min(build_in_a_run(Path("index"), blend)) >= 4
    assert before == {path: (path.stat().st_ino, path.stat().st_mtime_ns) for path in Path("index").iterdir()}

    os.utime("a.idx")  # as after another export: the indices of a are stale
    assert "0 stale" not in printed()
    assert before.keys() == set(Path("index").iterdir())
    rebuilt = {path for path, state in before.items() if state != (path.stat().st_ino, path.stat().st_mtime_ns)}
    of_a = {path for path in before if '"a"' in Path(f"{str(path).rpartition('-')[0]}-description.txt").read_text()}
    assert rebuilt == of_a != set()
