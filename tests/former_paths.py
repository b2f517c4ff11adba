"""Helpers for the tests of former module paths."""

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest

from tests import programs

ROOT = Path(__file__).resolve().parents[1]


def imported_anew(path: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import a module as a process does that has not imported this path yet."""
    monkeypatch.delitem(sys.modules, path, raising=False)
    return importlib.import_module(path)


def require_pickles_load(saved: Mapping[tuple[str, str], str]) -> None:
    """Assert that pickles of these classes, by former module and name, load in a new process; to each, the module it is in now."""
    pickles = [f"c{module}\n{name}\n.".encode() for module, name in saved]
    script = f"import pickle\nfor found in map(pickle.loads, {pickles!r}): print(found.__module__, found.__name__)"
    done = programs.run("-c", script, cwd=ROOT)
    assert done.stdout.splitlines() == [f"{home} {name}" for (_, name), home in saved.items()], done.stderr
