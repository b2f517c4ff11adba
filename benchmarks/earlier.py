"""Programs that run with the packages of this working tree or of an earlier revision, so that one run compares both."""

import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def packages_of(revision: str | None, folder: Path) -> Path:
    """Return a folder with the two packages of a git revision, which are written below `folder`, or this working tree for None."""
    if revision is None:
        return ROOT
    command = ["git", "-C", str(ROOT), "archive", revision, "niels_cache_*"]
    with tarfile.open(fileobj=io.BytesIO(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)) as archive:
        archive.extractall(folder / revision, filter="data")
    return folder / revision


def start(packages: Path, program: Path, *arguments: str) -> "subprocess.Popen[str]":
    """Start a Python program that prints JSON, with these packages."""
    environment = {**os.environ, "PYTHONPATH": str(packages)}
    return subprocess.Popen([sys.executable, str(program), *arguments], env=environment, cwd=packages, stdout=subprocess.PIPE, text=True)


def result(process: "subprocess.Popen[str]") -> Any:
    """Return what a program has printed, when it ends."""
    printed, _ = process.communicate()
    if process.returncode:
        sys.exit(process.returncode)
    return json.loads(printed)
