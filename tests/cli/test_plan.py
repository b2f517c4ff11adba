"""The command `niels-cache plan`. What it prints is what a loader has, and a plan that it writes is one that a loader opens."""

import json
from pathlib import Path
from typing import Any

import pytest

from niels_cache_assets.cli import main
from niels_cache_runtime import FIM, BestFit, Blocks, TokenLoader
from niels_cache_runtime.verify import verify_dataset
from tests.helpers.hand_made import EOT, rewrite_meta, write_stream


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A command for a data set of 60 documents of 20 to 22 tokens in shards of 100, and of one that has one token."""
    lengths = [1, *([20, 21, 22] * 20)]
    ends = [sum(lengths[: number + 1]) for number in range(len(lengths))]
    folder = tmp_path / "cache" / "pretrain" / "notes"
    write_stream(folder, [EOT] * ends[-1], shard_tokens=100, doc_ends=ends)
    rewrite_meta(folder, documents={"train": len(ends), "val": 0}, val_tokens=0)
    monkeypatch.chdir(tmp_path)
    return ["plan", "notes", "--cache-dir", str(tmp_path / "cache"), "--profile", "quickstart"]


def test_it_shows_what_settings_of_the_rows_cost(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    command += ["--T", "64", "--json", "--write"]
    found = []
    for words, settings in (
        ([], {}),
        (["--max-documents", "2"], {"max_documents": 2}),
        (["--pad-documents-to", "32"], {"packing": BestFit(pad_documents_to=32)}),
        (["--fim", "0.5"], {"fim": FIM(pre=5, suf=6, mid=7)}),
    ):
        assert main([*command, *words]) == 0
        (plan,) = json.loads(capsys.readouterr().out)["plans"]
        details: Any = TokenLoader("cache/pretrain/notes", **{"T": 64, "B": 1, "seed": 0, "packing": "best_fit"} | settings).report(1)
        assert {**details.sources[0].details._asdict(), "padding": details.sources[0].details.padding} == plan
        found.append((plan["rows"], plan["least_rows"]))
    assert len(list(Path("cache/index").glob("*/"))) == 4
    assert found == [(20, 20), (30, 30), (30, 30), (25, 21)]
    assert main([*command, "--pad-documents-to", "10"]) == 2
    assert "T=60" in capsys.readouterr().err
    assert main([*command, "--fim", "2"]) == 2
    assert "rate=2" in capsys.readouterr().err
    assert main([*command, "--bos-on-pieces"]) == 2
    assert "bos" in capsys.readouterr().err


@pytest.mark.parametrize("blocks", [None, 3])
def test_it_prints_the_rows_of_a_loader_and_writes_them(
    command: list[str], blocks: int | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command += ["--T", "30", "63", *(["--blocks", str(blocks)] if blocks else [])]
    assert main([*command, "--json"]) == 0
    plans: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["plans"]
    assert not Path("cache/index").exists()
    assert main([*command, "--write"]) == 0
    shown = capsys.readouterr()
    written = [path for path in Path("cache/index").iterdir() if path.is_dir()]
    assert [verify_dataset(path) for path in written] == [[], []]
    monkeypatch.setattr("niels_cache_runtime.loader.packing.documents.build_document_plan", None)
    for plan in plans:
        order: Any = Blocks(shards=blocks) if blocks else "split"
        loader = TokenLoader("cache/pretrain/notes", T=plan["T"], B=1, seed=0, packing="best_fit", order=order)
        assert (plan["rows"], plan["inputs"]) == (loader.samples_per_epoch["notes"], loader._sources["notes"].tokens)
        assert f"{plan['padding']:.2%}" in shown.out
        assert (plan["left_out"], plan["cut"], plan["documents"]) == (1, 0, 60)
    assert "T=30: " in shown.err
    assert "T=63 has" in shown.err
    assert ("T=63: " in shown.err) == (plans[1]["padding"] > 0.05)


def test_a_plan_that_cannot_be_written_is_an_error(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("cache/index").write_text("a file")
    assert main([*command, "--T", "30", "--write"]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_an_unknown_data_set_or_T_is_refused(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for words, named in ((["--T", "0"], "at least 1"), (["--T", "100000"], "T=100000"), (["--split", "tran"], "train")):
        assert main([*command, *words]) == 2
        assert named in capsys.readouterr().err
