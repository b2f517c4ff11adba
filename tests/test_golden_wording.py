"""The output of each command, word by word. tests/wording/ has a session for each command, as on a terminal without colours and with 240
columns.

A change of words is a change of these files. Write them again, then read the diff:

    WRITE_WORDING=1 python -m pytest tests/test_golden_wording.py

A new case is a new `$ ` line in one of them, written the same way. Sessions work in copies of one small project. tests/transcripts.py
says how they are read, and what is hidden because it varies.
"""

import json
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from niels_cache_assets.artifacts.builds import build_dataset
from niels_cache_assets.cli.commands.ui import SIGNALS
from niels_cache_assets.cli.parser import COMMANDS
from niels_cache_assets.config.registry import load_registry
from niels_cache_assets.publish.push import local_build, push
from niels_cache_runtime import TokenLoader
from tests import transcripts
from tests.small_project import small_project

WORDING = Path(__file__).parent / "wording"
SESSIONS = sorted(WORDING.glob("*.txt"))
WRITES = bool(os.environ.get("WRITE_WORDING"))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """Settings, texts and caches; `older` caches, of another seed; one cache that is `published`; the state of a loader; and the command
    on the PATH.
    """
    folder = tmp_path_factory.mktemp("wording")
    shutil.copy(tiny_model, folder / "spm.model")
    small = small_project(folder, Path("spm.model"))
    with (folder / "niels_cache.toml").open("a", encoding="utf-8") as config:
        config.write("\n[dagster]\nplots = false\n")
    small.build_all()
    shutil.move(small.exports, folder / "exports")
    shutil.copytree(small.root / "tokenizer", folder / "older/tokenizer")
    older = load_registry(config=str(folder / "niels_cache.toml"), overrides={"build": {"seed": 7}})
    build_dataset(older, "letters", root=folder / "older")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        state = TokenLoader("cache/pretrain/letters/train", T=16, B=2, seed=3).state_dict()
    (folder / "loader.json").write_text(json.dumps(state), encoding="utf-8")
    push(local_build(folder / "cache/pretrain/letters"), f"file://{folder}/published/letters")
    (folder / "bin").mkdir()
    (folder / "bin" / transcripts.PROGRAM).write_text("#!/bin/sh\n")
    (folder / "bin" / transcripts.PROGRAM).chmod(0o755)
    return folder


@pytest.fixture
def folder(project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of it to work in, whose path is as long as any other's: it stands in tables. Nothing of this machine is to be seen."""
    place = Path(tempfile.mkdtemp(prefix="session-", dir="/tmp"))
    folder = place / "project"
    shutil.copytree(project, folder)
    for variable in os.environ:
        if variable.startswith(("NIELS_CACHE_", "DAGSTER_", "HF_")):
            monkeypatch.delenv(variable)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=80_000_000_000))
    monkeypatch.setenv("HERE", str(folder))
    monkeypatch.chdir(folder)
    yield folder
    shutil.rmtree(place)


@pytest.fixture
def taken_port(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """$TAKEN, where somebody listens; and a UI that ends as soon as it would serve."""
    web = ModuleType("niels_cache_assets.defs.ui.server")
    web.serve = lambda listener, *, read_only, ready: ready()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, web.__name__, web)
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    with socket.create_server(("127.0.0.1", 0)) as other:
        monkeypatch.setenv("TAKEN", str(other.getsockname()[1]))
        yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("session", SESSIONS, ids=lambda path: path.stem)
@pytest.mark.usefixtures("folder", "taken_port")
def test_a_command_says_what_its_file_says(session: Path) -> None:
    kept = session.read_text(encoding="utf-8")
    printed = transcripts.written_again(kept)
    if WRITES:
        session.write_text(printed, encoding="utf-8")
        return
    assert printed.splitlines() == kept.splitlines()


def test_each_command_has_a_file_with_what_is_well_and_with_mistakes() -> None:
    names = {name for commands in COMMANDS.values() for name in commands}
    assert {session.stem for session in SESSIONS} == names
    for session in SESSIONS:
        text = session.read_text(encoding="utf-8")
        assert set(transcripts.commands_of(text)) == {session.stem}
        codes = transcripts.codes_of(text)
        assert (codes.count(0) >= 1, codes.count(2) >= 2) == (True, True), session.name
