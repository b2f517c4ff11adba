"""OLMo-core, if `make olmo` has installed it. It runs in a separate process, because it needs older versions of libraries that we use
too.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGES = REPOSITORY / ".olmo-env"
REASON = "reads with OLMo-core, which is not installed (`make olmo`)"


def read(*requests: dict[str, Any], folder: Path) -> list[Any]:
    """Return the answer of tests/olmo_reader.py to each request. One process reads all requests. OLMo-core keeps its files in `folder`.

    Skip the test if OLMo-core is not installed.
    """
    if not (PACKAGES / ".installed").exists():
        pytest.skip(REASON)
    environment = {**os.environ, "PYTHONPATH": str(PACKAGES), "TMPDIR": str(folder), "HOME": str(folder)}
    done = subprocess.run(
        [sys.executable, "-P", str(Path(__file__).with_name("olmo_reader.py"))],
        input=json.dumps(requests),
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers: list[Any] = json.loads(done.stdout)
    return answers
