"""A tokenizer whose settings have changed: a worker of parts refuses it, and `--only` does not replace it for others without --force."""

import json
import shutil
from pathlib import Path

import pytest

from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.cli import command as exit_codes
from niels_cache_assets.cli import main
from niels_cache_assets.project.registry import load_registry
from niels_cache_runtime.format.meta import read_meta
from tests.helpers.messages import missing
from tests.helpers.parts_project import build
from tests.helpers.tiny import sentences

SETTINGS = """
[dagster]
plots = false
[tokenizer]
vocab_size = {size}
train_on = ["a"]
[pretrain.a]
source = "jsonl"
files = ["a*.jsonl"]
parts = 2
val_frac = 0.1
[pretrain.b]
source = "jsonl"
files = ["b.jsonl"]
val_frac = 0.1
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    for number, name in enumerate(("a0", "a1", "b")):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in sentences(60, seed=number)))
    config = folder / "niels_cache.toml"
    config.write_text(SETTINGS.format(size=330))
    found = graph(load_registry(config=str(config)), folder / "cache")
    build(found, found.order(["a", "b"]))
    return folder


@pytest.fixture
def project(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy in which `vocab_size` has changed since."""
    folder = shutil.copytree(built, tmp_path / "project", symlinks=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("DAGSTER_HOME", str(folder / "home"))
    (folder / "niels_cache.toml").write_text(SETTINGS.format(size=340))
    return folder


def vocabulary(folder: Path) -> int:
    return int(read_meta(str(folder / "cache/tokenizer/meta.json"))["vocab_size"])


def test_a_worker_with_a_tokenizer_of_other_settings_ends_with_exit_code_2(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(project / "cache/pretrain/a")
    for command in (["part", "a", "0"], ["part", "a", "--seal"]):
        assert main(command) == exit_codes.WRONG_USE
        printed = capsys.readouterr()
        assert missing(printed.err, "cache/tokenizer", "[tokenizer]", "b too", "build-all --only tokenizer") == []
        assert json.loads(printed.out.splitlines()[-1])["exit_code"] == exit_codes.WRONG_USE
    assert vocabulary(project) == 330
    (project / "niels_cache.toml").write_text(SETTINGS.format(size=330))
    assert main(["part", "a", "0"]) == 0, "the settings of the tokenizer that is there"


def test_only_does_not_replace_a_tokenizer_that_others_use(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for more in ([], ["--dry-run"]):
        assert main(["build-all", "--only", "a", *more]) == exit_codes.WRONG_USE
        assert missing(capsys.readouterr().err, "stale: b;", "--force") == []
        assert vocabulary(project) == 330
    assert main(["build-all", "--only", "tokenizer"]) == 0
    assert missing(capsys.readouterr().err, "WARNING", "stale: ", "b") == []
    assert vocabulary(project) == 340
