"""A folder that may not be read, such as one of another user. Root may read every folder, so modes do not help."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest


def forbid(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Refuse to tell what is in a folder."""
    stat = os.stat

    def refusing(path: Any, **settings: Any) -> os.stat_result:
        if isinstance(path, (str, Path)) and os.path.abspath(path).startswith(f"{folder}/"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, **settings)

    monkeypatch.setattr(os, "stat", refusing)
