"""The import paths that are public: those that are promised, and those that a page imports or names."""

import importlib
from pathlib import Path

import pytest

import niels_cache_assets
import niels_cache_runtime
from niels_cache_assets.defs.assembly import build_defs
from niels_cache_assets.project.registry import load_registry
from tests.golden.imports import can_be_imported, documented_paths

MODULES = (
    *(f"niels_cache_runtime.{name}" for name in ("formats", "lightning", "map_style", "megatron", "packed_examples", "trace", "verify")),
    "niels_cache_assets.build_cache",
)
NAMES = {  # of modules that only pass on what another module defines
    "niels_cache_runtime.formats": ("Family", "META_NAME", "Split", "dataset_dir"),
    "niels_cache_runtime.map_style": ("SampleDataset",),
    "niels_cache_runtime.packed_examples": ("PackedExamples", "PackingReport"),
    "niels_cache_runtime.trace": ("BatchTrace", "TokenOrigin"),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_promised_module_is_a_file_and_can_be_imported(name: str) -> None:
    if name == "niels_cache_runtime.lightning":
        pytest.importorskip("lightning")
    module = importlib.import_module(name)
    assert module.__name__ == name
    assert module.__file__ is not None  # type checkers see only files
    assert Path(module.__file__).exists()
    assert [each for each in NAMES.get(name, ()) if not hasattr(module, each)] == []


def test_the_promised_names_of_both_packages_can_be_imported() -> None:
    assert {"build_pretrain_cache", "build_sft_cache", "to_hf_dataset"} <= set(niels_cache_assets.__all__)
    assert {"DatasetLoader", "PretrainTokenStreamDataset", "SFTExampleDataset", "TokenLoader"} <= set(niels_cache_runtime.__all__)
    for package in (niels_cache_assets, niels_cache_runtime):
        for name in package.__all__:
            assert getattr(package, name).__name__ == name


def test_every_path_that_a_page_or_a_description_in_the_ui_names_can_be_imported() -> None:
    specs = build_defs(registry=load_registry(profile="quickstart")).resolve_all_asset_specs()
    names = documented_paths([spec.description or "" for spec in specs])
    assert len(names) > 25
    assert [name for name in sorted(names) if not can_be_imported(name)] == []
