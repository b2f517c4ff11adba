"""Code and pickles that name a module by a former path still get that module."""

import importlib
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest

import niels_cache_runtime
from niels_cache_runtime.old_paths import MOVED
from tests.former_paths import imported_anew, require_pickles_load

ROOT = Path(niels_cache_runtime.__file__).parent.parent
FORMER = set(
    """
    batch batches blend catalog catalog_split catalog_text described doc_ends documents errors foreign_meta formats hostile_paths
    invariants invariants_foreign invariants_sft kept_examples lightning loader loader_settings loader_state map_style megatron meta
    meta_form meta_keys mixture mixture_report mmap npy_files offset_file opening order packed_examples packing place planning prefetch
    pretrain_dataset progress_bar reading sequential sft_dataset source steps trace verified_folder verified_root verified_table verify
    windows
    """.split()  # noqa: SIM905
)  # every module of the runtime before the rooms
DOCUMENTED = {  # paths that pages and examples name, whose code is elsewhere
    "catalog_split": "catalog",
    "formats": "format.layout",
    "map_style": "loader.map_style",
    "mixture_report": "loader.report",
    "packed_examples": "loader.packing.rows",
    "trace": "loader.trace",
}


def absolute(name: str) -> str:
    return f"niels_cache_runtime.{name}"


def test_every_former_path_is_a_file_or_in_the_table() -> None:
    assert len(FORMER) > 45
    files = {name for name in FORMER if absolute(name) not in MOVED and find_spec(absolute(name)) is not None}
    assert files | {path.removeprefix("niels_cache_runtime.") for path in MOVED} == FORMER
    assert files >= DOCUMENTED.keys()


def test_no_path_in_the_table_hides_a_file() -> None:
    parts = [ROOT.joinpath(*path.split(".")) for path in MOVED]
    assert [path for path in parts if path.with_suffix(".py").exists() or (path / "__init__.py").exists()] == []


@pytest.mark.parametrize("old", MOVED)
def test_a_former_path_gives_the_present_module_and_warns(old: str, monkeypatch: pytest.MonkeyPatch) -> None:
    new = importlib.import_module(MOVED[old])
    with pytest.warns(DeprecationWarning, match=f"{old} .*{MOVED[old]}") as warned:
        assert imported_anew(old, monkeypatch) is new
    assert [Path(warning.filename) for warning in warned] == [Path(importlib.__file__)]  # who imports: import_module, here
    assert new.__name__ == MOVED[old]
    assert new.__spec__ is not None
    assert new.__spec__.name == MOVED[old]


def test_the_warning_shows_the_line_that_imports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "niels_cache_runtime.order", raising=False)
    monkeypatch.delattr(niels_cache_runtime, "order", raising=False)
    with pytest.warns(DeprecationWarning, match="order") as warned:
        from niels_cache_runtime import order  # type: ignore[attr-defined]
    assert order.__name__ == "niels_cache_runtime.loader.order"
    assert [Path(warning.filename) for warning in warned] == [Path(__file__)]


@pytest.mark.parametrize(("old", "new"), DOCUMENTED.items())
def test_a_documented_path_is_a_file_with_the_same_names_and_does_not_warn(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file, because a type checker sees nothing that is found at run time only."""
    home = importlib.import_module(absolute(new))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module = imported_anew(absolute(old), monkeypatch)
    assert module.__file__ == str(ROOT / "niels_cache_runtime" / f"{old}.py")
    names = [name for name in vars(module) if not name.startswith("_")]
    assert any(getattr(getattr(home, name), "__module__", None) == home.__name__ for name in names) or old == "formats"
    assert [name for name in names if getattr(module, name) is not getattr(home, name)] == []


def test_the_former_name_of_the_verifiers_command_line_warns() -> None:
    with pytest.warns(DeprecationWarning, match="__main__"):
        from niels_cache_runtime.verify import main  # type: ignore[attr-defined]
    assert main.__module__ == "niels_cache_runtime.verify.__main__"


def test_pickles_that_name_former_modules_load_in_a_new_process() -> None:
    """A state that a training run saved, and what a worker of a DataLoader is sent: both name classes by their modules."""
    saved = {
        ("niels_cache_runtime.loader", "TokenLoader"): "niels_cache_runtime.loader.loader",
        ("niels_cache_runtime.steps", "Position"): "niels_cache_runtime.loader.steps",
        ("niels_cache_runtime.trace", "BatchTrace"): "niels_cache_runtime.loader.trace",
        ("niels_cache_runtime.pretrain_dataset", "PretrainTokenStreamDataset"): "niels_cache_runtime.samplers.pretrain_dataset",
    }
    require_pickles_load(saved)
