"""Code that names a module of the assets by a former path still gets it, and documented paths stay without a warning."""

import importlib
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import niels_cache_assets
from niels_cache_assets.old_paths import MOVED
from tests.former_paths import imported_anew, require_pickles_load

ROOT = Path(niels_cache_assets.__file__).parent.parent
ONE = {old: new for old, (new, *others) in MOVED.items() if not others}
SEVERAL = {old: new for old, new in MOVED.items() if len(new) > 1}
DOCUMENTED = {  # paths that pages name, whose code is elsewhere
    "niels_cache_assets.registry": "niels_cache_assets.config.registry",
    "niels_cache_assets.tokenization": "niels_cache_assets.tokenizer.kinds",
    "niels_cache_assets.defs.instance": "niels_cache_assets.defs.home.instance",
}
NAMES = [  # of modules that are packages now, or have lost a name to another file
    ("niels_cache_assets.sources.hub", "HubData", "niels_cache_assets.sources.hub.data"),
    ("niels_cache_assets.sources.hub", "Part", "niels_cache_assets.sources.hub.data"),
    ("niels_cache_assets.sources.mediawiki", "read_pages", "niels_cache_assets.sources.mediawiki.dump"),
    ("niels_cache_assets.sources.python_docs", "PythonHelp", "niels_cache_assets.sources.python_help"),
    ("niels_cache_assets.defs.metadata", "split_files", "niels_cache_assets.defs.metadata.builds"),
]


def test_no_path_in_the_table_hides_a_file() -> None:
    assert len(MOVED) > 80
    parts = [ROOT.joinpath(*path.split(".")) for path in MOVED]
    assert [path for path in parts if path.with_suffix(".py").exists() or (path / "__init__.py").exists()] == []


@pytest.mark.parametrize("old", ONE)
def test_a_former_path_gives_the_present_module_and_warns(old: str, monkeypatch: pytest.MonkeyPatch) -> None:
    new = importlib.import_module(ONE[old])
    with pytest.warns(DeprecationWarning, match=f"{old} .*{ONE[old]}"):
        assert imported_anew(old, monkeypatch) is new


@pytest.mark.parametrize("old", SEVERAL)
def test_the_former_path_of_several_modules_has_the_public_names_of_all(old: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(DeprecationWarning, match=old):
        module = imported_anew(old, monkeypatch)
    found = 0
    for home in map(importlib.import_module, SEVERAL[old]):
        own = [name for name, value in vars(home).items() if getattr(value, "__module__", None) == home.__name__ and name[0] != "_"]
        found += len(own)
        assert [name for name in own if getattr(module, name) is not getattr(home, name)] == []
    assert found >= len(SEVERAL[old])


@pytest.mark.parametrize(("old", "name", "new"), NAMES)
def test_a_module_that_gave_names_away_still_has_them_and_warns(old: str, name: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"{old}.{name} is now"):
        found = getattr(importlib.import_module(old), name)
    assert found is getattr(importlib.import_module(new), name)
    with pytest.raises(AttributeError, match="nothing"):
        _ = importlib.import_module(old).nothing


@pytest.mark.parametrize(("old", "new"), DOCUMENTED.items())
def test_a_documented_path_is_a_file_with_the_same_names_and_does_not_warn(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    home = importlib.import_module(new)
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)
        module = imported_anew(old, monkeypatch)
    assert module.__file__ == f"{ROOT.joinpath(*old.split('.'))}.py"
    own = [name for name, value in vars(home).items() if getattr(value, "__module__", None) == new and name[0] != "_"]
    assert len(own) > 2
    assert [name for name in own if getattr(module, name) is not getattr(home, name)] == []


def test_the_documented_command_makes_a_dagster_home(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error::DeprecationWarning:niels_cache_assets", "-m", "niels_cache_assets.defs.instance"]
    environment = {**os.environ, "DAGSTER_HOME": str(tmp_path / "home")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == f"Dagster home: {tmp_path / 'home'}", done.stderr
    assert (tmp_path / "home" / "dagster.yaml").is_file()


def test_pickles_that_name_former_modules_load_in_a_new_process() -> None:
    saved = {
        ("niels_cache_assets.registry", "Registry"): "niels_cache_assets.config.registry",
        ("niels_cache_assets.cleaning.settings", "CleaningSettings"): "niels_cache_assets.config.tables",
        ("niels_cache_assets.sources.row_files", "Parquet"): "niels_cache_assets.sources.parquet",
        ("niels_cache_assets.sources.chat", "ChatJsonl"): "niels_cache_assets.sources.chat_jsonl",
        ("niels_cache_assets.sources.hub", "Part"): "niels_cache_assets.sources.reading.places",
    }
    require_pickles_load(saved)
