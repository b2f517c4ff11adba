"""The runtime's examples run as they stand: training resumes exactly, blends keep their shares, pictures are up to date."""

import os
import re
import runpy
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

from niels_cache_assets.build_cache import build_pretrain_cache, build_sft_cache
from niels_cache_assets.sources import python_docs
from niels_cache_assets.tokenizer.kinds import SentencePieceTokenizer
from tests.build_cache.test_determinism import conversations
from tests.helpers import programs
from tests.helpers.tiny import sentences

ROOT = Path(__file__).parents[2]
TRAIN_TINY = ROOT / "examples" / "train_tiny.py"
MIXTURE_SHARE = ROOT / "examples" / "mixture_share.py"
OPTIMIZER = ("torch._dynamo",)  # what an optimizer imports at its first step, which takes more than a second


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory, tokenizer: SentencePieceTokenizer) -> Path:
    """A folder with small caches where `make cache` puts them."""
    folder = tmp_path_factory.mktemp("examples")
    root = folder / "cache" / "quickstart"
    (root / "tokenizer").mkdir(parents=True)
    (root / "tokenizer" / "spm.model").write_bytes(Path(tokenizer.model_path).read_bytes())
    build_pretrain_cache(
        sentences(1_500),
        str(root / "pretrain" / "python_docs"),
        tokenizer=tokenizer,
        max_train_tokens=30_000,
        max_val_tokens=3_000,
        shard_bytes=1 << 14,
        seed=1,
        shuffle_buffer=None,
    )
    build_sft_cache(conversations(60), str(root / "sft" / "python_help"), tokenizer=tokenizer, val_frac=0.1, seed=1)
    return folder


def command() -> list[str]:
    """Return the words of a command up to the name of the checkpoint."""
    return [str(TRAIN_TINY), "-T", "64", "-B", "4", "--log-every", "1", "--checkpoint"]


def train_until_interrupted(cwd: Path, checkpoint: str) -> str:
    """Ctrl-C once the third step is printed."""
    printed = ""
    reads, writes = os.pipe()
    training = programs.Program(*command(), checkpoint, cwd=cwd, streams=(0, writes, 2), imported=OPTIMIZER)
    os.close(writes)
    with open(reads, encoding="utf-8") as lines:
        for line in lines:
            printed += line
            if line.startswith("step     3"):
                training.send_signal(signal.SIGINT)
    assert training.wait() == 0
    assert "stopped after step" in printed
    return printed


TWICE = """
import runpy, sys
main = runpy.run_path(sys.argv[1])["main"]
*arguments, steps = sys.argv[2:]
main([*arguments, "interrupted.pt", "--resume", "--steps", steps])
main([*arguments, "straight.pt", "--steps", steps])
"""


def resume_and_train_anew(cwd: Path, *, steps: int) -> tuple[str, str]:
    done = programs.run("-c", TWICE, *command(), str(steps), cwd=cwd, imported=OPTIMIZER)
    assert done.returncode == 0, done.stderr
    resumed, end, anew = done.stdout.partition("interrupted.pt; continue with --resume")
    assert end
    return resumed, anew


def loss_lines(printed: str) -> list[str]:
    return re.findall(r"^step +\d+  loss \d+\.\d+", printed, re.MULTILINE)


@pytest.mark.slow
def test_training_that_is_interrupted_and_resumed_has_the_losses_of_training_that_is_not(quickstart: Path) -> None:
    before = train_until_interrupted(quickstart, "interrupted.pt")
    steps = len(loss_lines(before)) + 4  # it may have got a little further than the step at which it was told to stop
    after, straight = resume_and_train_anew(quickstart, steps=steps)
    assert len(loss_lines(straight)) == steps >= 7
    assert loss_lines(before) + loss_lines(after) == loss_lines(straight)
    first, second = (torch.load(quickstart / f"{name}.pt", weights_only=True) for name in ("straight", "interrupted"))
    assert len(first["losses"]) == steps
    assert first["losses"] == second["losses"]  # to the last bit
    assert first["loader"]["samples"] == second["loader"]["samples"] == steps * 4
    assert all(torch.equal(first["model"][name], second["model"][name]) for name in first["model"])
    assert np.mean(first["losses"][-3:]) < first["losses"][0]


@pytest.mark.parametrize("script", [TRAIN_TINY, MIXTURE_SHARE], ids=lambda script: script.stem)
def test_examples_without_caches_say_what_to_run(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=r"^[^\n]*make cache[^\n]*$"):
        runpy.run_path(str(script))["main"]([])


def test_a_blend_of_four_caches_has_the_shares_it_was_given(
    quickstart: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = python_docs.stdlib_files()
    read = [file for file in files if file.name.startswith("c")]  # python_source holds these; parsing all takes seconds
    assert 30 < len(read) < len(files)
    monkeypatch.setattr(python_docs, "stdlib_files", lambda: read)
    monkeypatch.chdir(quickstart)
    runpy.run_path(str(MIXTURE_SHARE))["main"](["-T", "64", "--out", "share.png"])
    printed = capsys.readouterr().out
    rows = re.findall(r"^(\w+) +([\d.]+%) +([\d,]+) +([\d.]+%) +([\d,]+) +([\d,]+)$", printed, re.MULTILINE)
    assert [row[0] for row in rows] == ["python_docs", "python_source", "sums", "calendars"]
    assert [row[1] for row in rows] == [row[3] for row in rows] == ["40.0%", "10.0%", "30.0%", "20.0%"]
    assert [row[2] for row in rows] == ["2,560", "640", "1,920", "1,280"]
    culled = {row[0]: int(row[5].replace(",", "")) for row in rows}
    assert culled["calendars"] > 20  # a year's calendar is nearly that of another year that begins on the same day
    assert Path("share.png").read_bytes().startswith(b"\x89PNG")


def test_caches_that_are_named_wrongly_are_one_line(tmp_path: Path) -> None:
    main = runpy.run_path(str(MIXTURE_SHARE))["main"]
    with pytest.raises(SystemExit, match="expected NAME=FOLDER=WEIGHT"):
        main(["wiki=0.4"])
    with pytest.raises(SystemExit, match="no such folder"):
        main([f"wiki={tmp_path / 'wiki'}=0.4"])


def test_the_pictures_of_the_guide_are_up_to_date(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.image import imread

    runpy.run_path(str(ROOT / "docs" / "runtime_pictures.py"))["main"](tmp_path)
    drawn = sorted(tmp_path.glob("runtime_*.png"))
    assert len(drawn) == 5
    for picture in drawn:
        kept, new = imread(ROOT / "docs" / "images" / picture.name), imread(picture)
        assert kept.shape == new.shape, f"{picture.name}: run python docs/runtime_pictures.py"
        assert np.abs(kept - new).mean() < 0.005, (
            f"{picture.name}: run python docs/runtime_pictures.py"
        )  # machines may smooth edges otherwise
