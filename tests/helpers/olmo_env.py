"""Programs with the packages of `make olmo`, whose requirements do not fit into .venv."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


def ask(program: str, request: Any, *, package: str, title: str, folder: Path) -> Any:
    """Return the answer of a program of this folder, which reads its request from stdin. Skip the test if the package is not installed.

    package: the one that the program imports. title: the name of its project. folder: where the program writes its own files.
    """
    packages = REPOSITORY / ".olmo-env"
    if not (packages / ".installed").exists() or not (packages / package).is_dir():
        pytest.skip(f"reads with {title}, which is not installed (`make olmo`)")
    done = subprocess.run(
        [sys.executable, "-P", str(REPOSITORY / "tests/helpers" / program)],
        input=json.dumps(request),
        env={**os.environ, "PYTHONPATH": str(packages), "TMPDIR": str(folder), "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
