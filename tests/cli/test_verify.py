"""The command `niels-cache verify --against-dagster`. Dagster's record shows a changed cache, even if every hash was computed again."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from niels_cache_assets.cli import main
from niels_cache_assets.corpus.layout import DIGESTS_NAME
from niels_cache_assets.defs.home.history import asset_of
from niels_cache_assets.defs.home.instance import HOME_VARIABLE, ensure_instance
from niels_cache_runtime import read_meta
from niels_cache_runtime.format.meta import content_sha256, sha256_file, write_meta
from niels_cache_runtime.verify import verify_cache
from tests.helpers.built_project import Built
from tests.helpers.dagster_tools import Project
from tests.helpers.hand_made import rewrite_meta
from tests.helpers.names import NAMES
from tests.helpers.prepared_project import add_corpora


def hide_change(folder: Path, path: str) -> None:
    """Change a file and every hash in meta.json, its own included; of a corpus, the hash of its content cannot be told from its files."""
    file = folder / path
    content = bytearray(file.read_bytes())
    place = len(content) - 2 if file.suffix == ".npy" else int(np.flatnonzero(np.frombuffer(content, dtype="<u2") > 20)[0]) * 2
    content[place] ^= 1
    file.write_bytes(content)
    meta = read_meta(str(folder / "meta.json"))
    meta["files"][path]["sha256"] = sha256_file(str(file))
    if meta["kind"] in ("pretrain", "sft"):
        meta["content_sha256"] = content_sha256(meta["files"])
    write_meta(str(folder / "meta.json"), meta)


def record(project: Project, home: Path) -> None:
    """Make a Dagster home, with what the project's instance in memory has recorded of each asset."""
    with ensure_instance(home) as instance:
        for key in project.instance.all_asset_keys():
            for record in reversed(project.instance.fetch_materializations(key, limit=100).records):
                assert record.asset_materialization is not None
                instance.report_runless_asset_event(record.asset_materialization)


def test_hashes_that_were_made_anew_are_found_by_what_dagster_recorded(
    built_project: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    project = built_project.project.copied(tmp_path / "project")
    add_corpora(project)
    assert project.run("build_corpus", "letters").success
    root = project.root
    command = ["verify", "--config", str(project.folder / "niels_cache.toml"), "--cache-dir", str(root), "--profile", "quickstart"]
    assert main([*command, "--against-dagster"]) == 2
    assert "Dagster home" in capsys.readouterr().err

    record(project, tmp_path / "home")
    assert main([*command, "--against-dagster"]) == 0
    capsys.readouterr()
    copied = root / "pretrain/copied"
    shutil.copytree(root / "pretrain/notes", copied)
    rewrite_meta(copied, dataset_name="copied")
    changed = {
        "pretrain/notes": "train/shard_00000.bin",
        "sft/chats": "train_tokens.bin",
        "corpus/letters": DIGESTS_NAME,
    }
    for folder, path in changed.items():
        hide_change(root / folder, path)
    assert verify_cache(root) == []
    assert main([*command, "--against-dagster"]) == 1
    out = capsys.readouterr().out.splitlines()
    lines = [line for line in out if line.startswith(str(root))]
    assert sum(line.endswith(" 1 finding") for line in out) == len(lines), "in the row of its folder"
    assert [line.partition(": ")[0].removeprefix(f"{root}/") for line in lines] == [
        "pretrain/copied/meta.json",
        "pretrain/notes/meta.json",
        "sft/chats/meta.json",
        "corpus/letters/meta.json",
    ]
    assert "no record" in lines[0]
    assert all("Dagster recorded" in line for line in lines[1:])
    assert main([*command, "tokenizer", "--against-dagster"]) == 0


@pytest.mark.parametrize("folder", ["pretrain/.parts/pages/part-00000", "corpus/.parts/pages/val", "", "/elsewhere"])
def test_parts_and_folders_that_are_not_of_the_cache_need_no_record_of_dagster(folder: str) -> None:
    assert asset_of(NAMES, Path("cache"), Path("cache", folder)) == (None, None)
