"""Runs of pytest leave long tests out, and say at the end what they left out and why."""

import re
import subprocess
from pathlib import Path

import pytest

from tests import programs
from tests.left_out import LONG
from tests.messages import missing

MARKERS = [*LONG, "browser"]
SHORT = {"short", "skipped"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tests = [f"@pytest.mark.{marker}\ndef test_{marker}(): ...\n" for marker in MARKERS]
    both = "@pytest.mark.browser\n@pytest.mark.walk\ndef test_both(): ...\n"
    skipped = "def test_skipped(): pytest.skip('no such extra')\n"
    (tmp_path / "test_all.py").write_text("\n".join(["import pytest", *tests, both, "def test_short(): ...", skipped]))
    (tmp_path / "pytest.ini").write_text("\n ".join(["[pytest]\nmarkers =", *MARKERS, "short"]))
    return tmp_path


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return programs.run("-m", "pytest", "-p", "tests.left_out", "-p", "no:cacheprovider", *arguments, cwd=folder)


@pytest.mark.parametrize(
    ("expression", "chosen"),
    [
        ("", {"browser", *SHORT}),
        ("not browser", SHORT),
        ("browser or short", {"browser"}),
        ("remote", {"remote"}),
        ("torture or browser", {"torture", "browser", "both"}),
        ("not walk", {*MARKERS, *SHORT} - {"walk"}),
    ],
)
def test_long_tests_run_only_if_an_expression_names_one_of_their_markers(folder: Path, expression: str, chosen: set[str]) -> None:
    collected = run(folder, "--collect-only", "-q", "-m", expression).stdout
    assert set(re.findall(r"::test_(\w+)", collected)) == chosen


@pytest.mark.parametrize("processes", [[], ["-n", "2"]])
def test_the_end_of_a_run_counts_deselected_tests_and_names_the_commands_for_them(folder: Path, processes: list[str]) -> None:
    done = run(folder, *processes, "-m", "not browser")
    _, _, said = done.stdout.partition("left out")
    assert re.search(rf"\b{len(MARKERS) + 1}  deselected\b", said)
    assert missing(said, *LONG.values()) == []
    assert re.search(r"\b1  no such extra\b", said)


def test_a_skip_that_is_not_allowed_makes_a_run_fail(folder: Path) -> None:
    assert run(folder).returncode == pytest.ExitCode.OK
    assert run(folder, "--may-skip", "such extra|GPU").returncode == pytest.ExitCode.OK
    done = run(folder, "--may-skip", "GPU")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert missing(done.stdout, "--may-skip", "'no such extra'") == []
