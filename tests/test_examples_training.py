"""The examples of training, run for a few steps on the CPU: a plain torch loop, and Hugging Face's Trainer where it is installed."""

import re
import runpy
import sys
from pathlib import Path

import pytest

from tests.test_examples_runtime import quickstart  # noqa: F401  the fixture

EXAMPLES = Path(__file__).parent.parent / "examples"


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
