"""Refusals of the disk or the database of a Dagster home. They give one line, and an exit code that does not mean wrong use."""

import errno
import os
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from niels_cache_assets.cli import main
from niels_cache_assets.defs.home.instance import ensure_instance
from niels_cache_assets.defs.home.refusals import home_refusals
from niels_cache_runtime.errors import NielsCacheError, NotWrittenError
from tests.dagster_tools import Project
from tests.messages import missing


def raise_from_dagster(error: Exception) -> None:
    try:
        raise error
    except Exception as cause:
        raise RuntimeError("what Dagster makes of it") from cause


WHAT_SQLITE_SAYS = {  # and parts of what to do then
    "database or disk is full": ["are free there", "make room", "DAGSTER_HOME", "another disk"],
    "disk I/O error": ["quota", "failing", "make room"],
    "attempt to write a readonly database": ["make its files writable"],
    "unable to open database file": ["make room", "its files writable"],
    "database is locked": ["another program", "try again"],
    "database disk image is malformed": ["move the damaged home", "only its history", "no cache"],
    "file is not a database": ["move the damaged home", "only its history", "no cache"],
}


@pytest.mark.parametrize("said", WHAT_SQLITE_SAYS)
def test_what_sqlite_refuses_is_one_line_with_what_to_do(tmp_path: Path, said: str) -> None:
    for error in (sqlite3.OperationalError(said), OperationalError("INSERT", {}, sqlite3.OperationalError(said))):
        with pytest.raises(NotWrittenError) as caught, home_refusals(tmp_path / "home"):
            raise_from_dagster(error)
        line = str(caught.value)
        assert line.startswith(f"{tmp_path / 'home'}: the database")
        assert missing(line, f": {said}", *WHAT_SQLITE_SAYS[said]) == []
        assert "\n" not in line


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_what_the_disk_refuses_while_dagster_writes_names_the_file(tmp_path: Path, code: int) -> None:
    path = str(tmp_path / "home/storage/x")
    with pytest.raises(NotWrittenError, match="DAGSTER_HOME") as caught, home_refusals(tmp_path / "home"):
        raise_from_dagster(OSError(code, os.strerror(code), path))
    assert str(caught.value).startswith(f"{path}: {os.strerror(code)}")


def test_a_quota_that_is_met_when_the_home_is_opened_is_no_wrong_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("DAGSTER_HOME", str(home))

    def refuse(self: Path, *args: object, **settings: object) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(NotWrittenError, match="raise the quota"), home_refusals(home), ensure_instance():
        pass


def test_other_errors_are_left_as_they_are(tmp_path: Path) -> None:
    for error in (ValueError("a bug"), sqlite3.OperationalError("no such column: x"), FileNotFoundError(errno.ENOENT, "missing", "x")):
        with pytest.raises(type(error)) as caught, home_refusals(tmp_path):
            raise error
        assert caught.value is error
    with pytest.raises(NielsCacheError) as wrong_use, home_refusals(tmp_path):
        raise NielsCacheError("a name is unknown")
    assert not isinstance(wrong_use.value, NotWrittenError)


@pytest.mark.parametrize("command", ["build-all", "verify"])
def test_a_database_that_is_damaged_ends_commands_in_one_line(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], command: str
) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    project = Project(tmp_path / "project", tiny_model)
    with ensure_instance():
        pass
    databases = [*home.rglob("*.db")]
    assert databases
    for database in databases:
        database.write_bytes(b"no database" * 1000)
    config = ["--profile", "quickstart", "--config", str(project.folder / "niels_cache.toml"), "--cache-dir", str(project.root)]
    assert project.build_tokenizer().success
    capfd.readouterr()
    assert main([command, *config, *(["--against-dagster"] if command == "verify" else [])]) == 1
    error = capfd.readouterr().err
    assert error.count("\n") == 1, error
    assert missing(error, f"{home}: ", "not a database", "the damaged home") == []
