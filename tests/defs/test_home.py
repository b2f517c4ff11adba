"""The Dagster home: it is made once, even by two processes at the same time, belongs to the user, and refuses in one line."""

import errno
import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.instance.ref import InstanceRef
from sqlalchemy.exc import DBAPIError, OperationalError

from niels_cache_assets.cli import main
from niels_cache_assets.defs.home import instance as instance_module
from niels_cache_assets.defs.home.home_errors import home_errors
from niels_cache_assets.defs.home.instance import dagster_home, ensure_instance
from niels_cache_runtime.errors import NielsCacheError, NotWrittenError
from tests.helpers import programs
from tests.helpers.dagster_tools import Project
from tests.helpers.messages import missing


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
        with pytest.raises(NotWrittenError) as caught, home_errors(tmp_path / "home"):
            raise_from_dagster(error)
        line = str(caught.value)
        assert line.startswith(f"{tmp_path / 'home'}: the database")
        assert missing(line, f": {said}", *WHAT_SQLITE_SAYS[said]) == []
        assert "\n" not in line


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_what_the_disk_refuses_while_dagster_writes_names_the_file(tmp_path: Path, code: int) -> None:
    path = str(tmp_path / "home/storage/x")
    with pytest.raises(NotWrittenError, match="DAGSTER_HOME") as caught, home_errors(tmp_path / "home"):
        raise_from_dagster(OSError(code, os.strerror(code), path))
    assert str(caught.value).startswith(f"{path}: {os.strerror(code)}")


def test_other_errors_are_left_as_they_are(tmp_path: Path) -> None:
    for error in (ValueError("a bug"), sqlite3.OperationalError("no such column: x"), FileNotFoundError(errno.ENOENT, "missing", "x")):
        with pytest.raises(type(error)) as caught, home_errors(tmp_path):
            raise error
        assert caught.value is error
    with pytest.raises(NielsCacheError) as wrong_use, home_errors(tmp_path):
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
    assert "Traceback" not in error
    assert missing(error.splitlines()[-1], f"{home}: ", "not a database", "the damaged home") == []


REPOSITORY = Path(__file__).parents[2]
COMMAND = ["-m", "niels_cache_assets.defs.home.instance"]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home that does not exist yet, named relative to the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGSTER_HOME", "state/dagster")
    return tmp_path / "state/dagster"


def test_the_home_is_absolute_and_stands_in_the_environment(home: Path) -> None:
    with ensure_instance() as instance:
        assert instance.root_directory == str(home)
        assert os.environ["DAGSTER_HOME"] == str(home)
        assert instance.get_settings("telemetry") == {"enabled": False}
        assert instance.get_settings("nux") == {"enabled": False}
        assert instance.global_op_concurrency_default_limit == 1
        assert instance.run_monitoring_enabled


def test_the_engine_of_a_database_is_created_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    created: list[str] = []
    create = instance_module._create_engine
    monkeypatch.setattr(instance_module, "_engines", {})
    monkeypatch.setattr(instance_module, "_create_engine", lambda url, **settings: created.append(url) or create(url, **settings))
    with ensure_instance() as instance:
        for _ in range(3):
            instance.report_runless_asset_event(dg.AssetObservation("notes"))
        assert len(instance.fetch_observations(dg.AssetKey("notes"), limit=5).records) == 3
    assert len(created) == len({*created}) == 2, "of all runs, and of events without a run"


def test_without_a_setting_the_home_lies_in_the_working_directory(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DAGSTER_HOME")
    assert dagster_home() == Path.cwd() / ".dagster"


def test_a_home_that_cannot_be_made_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NielsCacheError, match="point DAGSTER_HOME"):
        ensure_instance(tmp_path / "file" / "home")
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "file" / "home"))
    with pytest.raises(SystemExit) as ended:
        instance_module.main()  # python -m niels_cache_assets.defs.home.instance
    assert ended.value.code == 2
    assert missing(capsys.readouterr().err, "file/home", "point DAGSTER_HOME") == []


DEFAULT = (Path(instance_module.__file__).parent / "dagster.yaml").read_bytes()


@pytest.mark.parametrize("torn", [b"", b" \n\n", b"\0" * len(DEFAULT)])
def test_an_empty_dagster_yaml_that_a_torn_start_left_is_written_again(home: Path, torn: bytes) -> None:
    home.mkdir(parents=True)
    (home / "dagster.yaml").write_bytes(torn)
    with ensure_instance() as instance:
        assert not instance.telemetry_enabled
        assert instance.global_op_concurrency_default_limit == 1
        assert instance.run_monitoring_enabled
    assert (home / "dagster.yaml").read_bytes() == DEFAULT


def test_a_dagster_yaml_that_is_cut_anywhere_is_refused_by_name(home: Path) -> None:
    home.mkdir(parents=True)
    path = home / "dagster.yaml"
    cuts = range(1, len(DEFAULT.rstrip()), 37)
    assert len(cuts) > 10
    for cut in [*cuts, len(DEFAULT.rstrip()) - 1]:
        path.write_bytes(DEFAULT[:cut])
        with pytest.raises(NielsCacheError, match="remove it") as raised:
            ensure_instance()
        assert missing(raised.value, f"{path}: ", "cut short") == []
        assert path.read_bytes() == DEFAULT[:cut]


@pytest.mark.parametrize(
    "edited",
    [
        DEFAULT.partition(b"\n")[2][:100].rpartition(b"\n")[0],  # shortened, without the line that says whose it is
        DEFAULT.rstrip(),
        DEFAULT.replace(b"default_limit: 1", b"default_limit: 2"),
        b"telemetry: {enabled: false}\n",
    ],
)
def test_a_dagster_yaml_that_somebody_edited_stays_and_holds(home: Path, edited: bytes) -> None:
    home.mkdir(parents=True)
    (home / "dagster.yaml").write_bytes(edited)
    with ensure_instance() as instance:
        expected = {b"2": 2, b"1": 1}.get(edited.partition(b"default_limit: ")[2][:1])
        assert instance.global_op_concurrency_default_limit == expected
    assert (home / "dagster.yaml").read_bytes() == edited


@pytest.mark.parametrize(("text", "on"), [("telemetry: {}\n", False), ("telemetry: {enabled: true}\n", True)])
def test_telemetry_is_off_unless_dagster_yaml_turns_it_on(home: Path, monkeypatch: pytest.MonkeyPatch, text: str, on: bool) -> None:
    monkeypatch.delenv("DAGSTER_DISABLE_TELEMETRY", raising=False)
    home.mkdir(parents=True)
    (home / "dagster.yaml").write_text(text)
    with ensure_instance() as instance:
        assert instance.telemetry_enabled is on
        assert ("DAGSTER_DISABLE_TELEMETRY" in os.environ) is not on
    os.environ.pop("DAGSTER_DISABLE_TELEMETRY", None)


@pytest.mark.parametrize("text", ["telemetry: [", "telemetri: {enabled: false}\n", "\xff"])
def test_a_dagster_yaml_that_is_not_valid_is_said_in_one_line(home: Path, text: str) -> None:
    home.mkdir(parents=True)
    (home / "dagster.yaml").write_bytes(text.encode("latin-1"))
    with pytest.raises(NielsCacheError) as raised:
        ensure_instance()
    assert str(raised.value).startswith(f"{home / 'dagster.yaml'}: not valid: ")
    assert "\n" not in str(raised.value)


def test_first_starts_at_once_leave_one_working_home(home: Path) -> None:
    """Two processes that create the databases together can leave them broken for good (dagster-io/dagster#27390)."""
    environment = {**os.environ, "DAGSTER_HOME": str(home)}
    with ThreadPoolExecutor(2) as threads:
        starts = list(threads.map(lambda _: programs.run(*COMMAND, cwd=REPOSITORY, env=environment), range(2)))
    outputs = [start.stdout + start.stderr for start in starts]
    assert [start.returncode for start in starts] == [0, 0], outputs
    assert outputs == [f"Dagster home: {home}\n"] * 2
    with ensure_instance() as instance:
        instance.report_runless_asset_event(dg.AssetMaterialization("tokenizer"))
        assert instance.get_latest_materialization_event(dg.AssetKey("tokenizer")) is not None


class UndefinedTable(Exception):
    """An error with the name of psycopg2's, which is an optional requirement."""


@pytest.mark.parametrize(
    ("failures", "error", "tries"),
    [
        (2, DBAPIError("CREATE TABLE runs", {}, Exception("runs already exists")), 3),
        (2, DBAPIError("SELECT", {}, UndefinedTable("runs")), 3),
        (99, DBAPIError("CREATE TABLE runs", {}, Exception("runs already exists")), 6),
        (2, DBAPIError("CREATE TABLE runs", {}, Exception("full")), 1),
    ],
)
def test_two_homes_may_create_the_tables_of_one_database(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, failures: int, error: Exception, tries: int
) -> None:
    monkeypatch.setattr(instance_module, "_WAIT_SECONDS", 0)
    opened, tried = dg.DagsterInstance.from_ref, [0]

    def from_ref(ref: InstanceRef) -> dg.DagsterInstance:
        tried[0] += 1
        if tried[0] <= failures:
            raise error
        return opened(ref)

    monkeypatch.setattr(dg.DagsterInstance, "from_ref", from_ref)
    if tries > failures:
        with ensure_instance(tmp_path) as instance:
            assert instance.get_runs_count() == 0
    else:
        with pytest.raises(DBAPIError) as raised:
            ensure_instance(tmp_path)
        assert raised.value is error
    assert tried == [tries]
