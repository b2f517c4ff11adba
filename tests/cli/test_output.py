"""The common behaviour of all commands: completion, quiet and verbose, exit codes, speed and time left."""

import errno
import io
import os
import re
import runpy
import ssl
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest
from rich.console import Console

from niels_cache_assets.artifacts.base import ReportedProgress
from niels_cache_assets.build_cache import Progress
from niels_cache_assets.cli import command as exit_codes
from niels_cache_assets.cli import main, progress
from niels_cache_assets.cli.console import diagnostics, new_table, set_verbosity
from niels_cache_assets.cli.parser import build_parsers, import_command
from niels_cache_assets.cli.progress import BarListener, build_listener, transfer_progress
from niels_cache_assets.exchange import FORMATS
from niels_cache_assets.exchange.corpus_text import FileType
from niels_cache_assets.facts.progress import BuildProgress, SpeedMeter, describe
from niels_cache_runtime.megatron.indexed_writer import Link
from tests.helpers import programs
from tests.helpers.messages import missing

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in ("NIELS_CACHE_PROFILE", "NIELS_CACHE_CONFIG", "NIELS_CACHE_ROOT", "DAGSTER_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def completed(folder: Path, line: str) -> list[str]:
    """Return the choices that TAB offers at the end of the line, as argcomplete's protocol gives them to a shell."""
    answer = folder / "answer"
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(REPOSITORY),
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "_ARGCOMPLETE_IFS": "\n",
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }
    code = "import sys; from niels_cache_assets.cli import main; sys.argv[0] = 'niels-cache'; main()"
    programs.run("-c", code, env=environment, cwd=folder, check=True)
    return sorted(word.strip() for word in answer.read_text().split("\n") if word.strip())


def test_a_command_ends_its_process_after_exit_functions_and_frees_no_module(tmp_path: Path) -> None:
    words = "sys.argv[1:] = ['init', '--list']; atexit.register(os.write, 2, b'closed')"
    code = f"import atexit, os, sys; from niels_cache_assets.cli import main; {words}; main(); print('still there')"
    ended = programs.run("-c", code, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(REPOSITORY)}, check=True)
    assert ended.stderr == "closed"
    assert "still there" not in ended.stdout


def test_output_on_a_full_disk_is_one_line(tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        code = "import sys; from niels_cache_assets.cli import main; sys.exit(main(['doctor', '--offline', '--profile', 'quickstart']))"
        command = [sys.executable, "-c", code]
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment, check=False)
    assert ended.returncode == exit_codes.FAILED
    assert len(ended.stderr.splitlines()) == 1
    assert missing(ended.stderr, "output", "No space left") == []


def test_a_log_on_a_full_disk_ends_no_build() -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        with build_listener(Console(file=full, force_terminal=False)) as listener:
            for _ in range(2):
                listener.logged("notes", "a line")
                full.flush()
        assert os.readlink(f"/proc/self/fd/{full.fileno()}") == os.devnull


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("niels-cache sta", ["status"]),
        ("niels-cache show tok", ["tokenizer"]),
        ("niels-cache import megatron x --name my", []),
        ("niels-cache build-all --only tokenizer my", ["my_notes"]),
        ("niels-cache sample --profile quickstart python", ["python_docs", "python_help"]),
        ("niels-cache sample my_notes --split ", ["train", "val"]),
    ],
)
def test_tab_completes_commands_data_sets_and_values(line: str, expected: list[str], empty_folder: Path) -> None:
    (empty_folder / "niels_cache.toml").write_text('[pretrain.my_notes]\nsource = "jsonl"\nfiles = ["a.jsonl"]\n')
    assert completed(empty_folder, line) == expected


def test_every_value_of_a_short_list_that_is_completed_is_known_to_an_option() -> None:
    _, commands = build_parsers()
    offered = {name: import_command(name).COMMAND.offers.keys() for name in commands}
    assert sum(map(len, offered.values())) > 10
    for name, parser in commands.items():
        assert offered[name] <= {action.dest for action in parser._actions}, name


def test_the_choices_of_export_are_its_formats_and_file_types() -> None:
    _, commands = build_parsers()
    choices = {action.dest: action.choices for action in commands["export"]._actions}
    assert choices["format"] == (*FORMATS, "text")
    assert choices["file_type"] == get_args(FileType)
    assert set(choices["link"] or ()) == set(get_args(Link))


def test_a_table_on_a_narrow_terminal_loses_nothing() -> None:
    width = 80
    label, sha256 = "characters per token of my_text", "0123456789abcdef" * 4
    table = new_table("setting", "A", "B", "size", right=frozenset({"size"}), shrinking=["A", "B"])
    table.add_row(label, sha256, f"{sha256}.parquet", "1,234")
    console = Console(width=width)
    with console.capture() as captured:
        console.print(table)
    printed = captured.get()
    assert max(map(len, printed.splitlines())) <= width
    assert "…" not in printed
    header, _, *rows = printed.splitlines()
    assert len(rows) > 1, "too wide for one line"
    assert rows[0].startswith(f"{label} ")
    assert rows[0].endswith(" 1,234"), "what does not fold stands on one line"
    a, b, size = (header.index(column) for column in (" A ", " B ", " size"))
    assert "".join(row[a:b].strip() for row in rows) == sha256
    assert "".join(row[b:size].strip() for row in rows) == f"{sha256}.parquet"


def test_quiet_says_warnings_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with set_verbosity("quiet"), build_listener(diagnostics()) as listener:
        listener.started("notes", "pretrain")
        listener.logged("notes", "resuming at 3%")
        listener.logged("notes", "WARNING: 3 of 4 documents are dropped")
    assert capsys.readouterr().err == "notes: WARNING: 3 of 4 documents are dropped\n"


def test_verbose_says_what_is_used_and_where_an_error_arose(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--all", "--profile", "quickstart", "--verbose"]) == exit_codes.FAILED
    output, errors = capsys.readouterr()
    assert "python_docs" in output
    assert missing(errors.splitlines()[0], "settings: ", "profile quickstart", str(Path("cache/quickstart"))) == []
    assert " of memory" in errors
    assert main(["show", "wikitxt", "--verbose"]) == exit_codes.WRONG_USE
    errors = capsys.readouterr().err
    assert "Traceback" in errors
    assert errors.splitlines()[-1].startswith("niels-cache: error: ")
    assert main(["status", "-q", "-v"]) == exit_codes.WRONG_USE
    assert "not allowed with" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error", [ZeroDivisionError(), ssl.SSLError(errno.EPERM, "a certificate")]
)  # the number of TLS means something else
def test_a_bug_has_an_exit_code_of_its_own(error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(arguments: object) -> int:
        raise error

    monkeypatch.setattr("niels_cache_assets.cli.commands.status.run", fail)
    assert main(["status"]) == exit_codes.BUG
    errors = capsys.readouterr().err
    assert type(error).__name__ in errors
    assert "bug in niels-cache" in errors.splitlines()[-1]


def test_a_missing_package_is_no_bug(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(arguments: object) -> int:
        raise ModuleNotFoundError("No module named 'pydantic'", name="pydantic")

    monkeypatch.setattr("niels_cache_assets.cli.commands.status.run", fail)
    assert main(["status"]) == exit_codes.WRONG_USE
    (line,) = capsys.readouterr().err.splitlines()
    assert missing(line, "'pydantic'", "pip install niels-cache", "niels_cache_runtime.verify") == []


def test_a_file_that_cannot_be_read_is_no_bug(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(arguments: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "books/meta.json")

    monkeypatch.setattr("niels_cache_assets.cli.commands.status.run", refuse)
    assert main(["status"]) == exit_codes.FAILED
    [line] = capsys.readouterr().err.splitlines()
    assert missing(line, "books/meta.json", "Permission denied") == []
    assert main(["status", "--verbose"]) == exit_codes.FAILED
    assert "Traceback" in capsys.readouterr().err


def test_a_system_without_posix_is_refused_with_advice(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("niels_cache_assets.cli._system", lambda: "nt")
    assert main(["status"]) == exit_codes.WRONG_USE
    assert "WSL 2" in capsys.readouterr().err


def test_the_page_about_commands_is_what_the_code_says() -> None:
    page = runpy.run_path(str(REPOSITORY / "docs/commands.py"))["page"]()
    assert (REPOSITORY / "docs/commands.md").read_text(encoding="utf-8") == page, "run python docs/commands.py"


def told(progress: BuildProgress, pace: SpeedMeter, now: float) -> str:
    return describe(progress, pace.estimate(progress, now), with_share=True)


def test_nothing_is_guessed_without_a_share_or_before_the_second_report() -> None:
    pace = SpeedMeter()
    assert told(Progress(documents=1, tokens=1_000, share=None), pace, 0.0) == "1 documents, 1.0k tokens"
    assert told(Progress(documents=2, tokens=3_000, share=None), pace, 2.0) == "2 documents, 3.0k tokens, 1.0k tokens/s"
    assert told(Progress(documents=2, tokens=3_000, share=0.5), pace, 2.0) == "50%, 2 documents, 3.0k tokens, 1.0k tokens/s, 0:02 left"
    corpus = SpeedMeter()
    first = told(ReportedProgress(counts={"documents": 10, "kept": 9, "characters": 5_000}, share=0.1), corpus, 0.0)
    assert first == "10%, 10 documents, 9 kept, 5.0k characters"
    assert told(ReportedProgress(counts={"documents": 30, "kept": 25, "characters": 15_000}, share=0.3), corpus, 4.0) == (
        "30%, 30 documents, 25 kept, 15.0k characters, 2.5k characters/s, 0:14 left"
    )


def test_a_bar_has_share_speed_time_left_and_the_memory_of_this_process_until_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    assert re.fullmatch(r"[\d.]+ (MB|GB)", progress.memory_now() or "")
    monkeypatch.setattr(progress, "memory_now", lambda: "512.0 MB")
    console, now = Console(force_terminal=True, width=160, record=True), [0.0]
    monkeypatch.setattr(progress, "monotonic", lambda: now[0])
    listener = BarListener(console)

    def shown() -> str:
        console.print(listener.bars.get_renderable())
        return console.export_text()

    listener.started("notes", "pretrain")
    listener.logged("notes", "DEBUG: only for the log")
    for now[0], share in ((0.0, 0.1), (4.0, 0.3)):
        listener.progressed(
            "notes", ReportedProgress(counts={"documents": 30, "kept": 25, "characters": round(50_000 * share)}, share=share)
        )
    line = shown()
    for part in ("notes", "30%", "25 kept", "2.5k characters/s, 0:14 left", "512.0 MB"):
        assert part in line
    listener.finished(SimpleNamespace(name="notes", state="built"))  # type: ignore[arg-type]
    done = shown()
    assert "built" in done
    assert "log" not in line + done
    assert "512.0 MB" not in done


def test_a_command_in_a_notebook_shows_its_progress_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JPY_PARENT_PID", "1")
    console, now = Console(force_terminal=True, highlight=False, file=io.StringIO()), [0.0]
    monkeypatch.setattr(progress, "monotonic", lambda: now[0])
    monkeypatch.setattr(progress, "diagnostics", lambda: console)
    with build_listener(console) as listener:
        listener.started("notes", "pretrain")
        for now[0], share in ((0.4, 0.1), (0.6, 0.2), (0.8, 0.3), (1.2, 0.4)):
            listener.progressed("notes", Progress(documents=30, tokens=1, share=share))
        listener.finished(SimpleNamespace(name="notes", state="built", seconds=1.5, message=""))  # type: ignore[arg-type]
    with transfer_progress("pulling") as on_progress:
        now[0] = 2
        on_progress(1, 2)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b" not in printed
    lines = [[part.rstrip() for part in line.split("\r")] for line in printed.split("\n")]
    assert lines == [
        ["notes: started"],
        ["notes: 20%, 30 documents, 1 tokens, 0:02 left", "notes: 40%, 30 documents, 1 tokens, 0:02 left", "notes: built in 1.5 s"],
        ["pulling: 50%, 1 byte of 2 bytes", "", ""],
    ]
    assert all(len(part) == 100 for part in re.split("[\r\n]", printed)[:-1]), "a notebook keeps what is not overwritten"


def test_bytes_are_a_line_every_ten_seconds_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(progress, "monotonic", lambda: now[0])
    with transfer_progress("exporting notes") as on_progress:
        for seconds, done in ((3, 100_000), (10, 250_000), (12, 300_000), (20, 500_000), (21, 1_000_000)):
            now[0] = seconds
            on_progress(done, 1_000_000)
    output, errors = capsys.readouterr()
    assert not output
    assert errors.splitlines() == [
        "exporting notes: 25%, 250.0 kB of 1.0 MB",
        "exporting notes: 50%, 500.0 kB of 1.0 MB",
    ]
