"""The two rules about imports between packages."""

import ast
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

import pytest

import niels_cache_runtime
from tests import size
from tests.helpers import programs

ROOT = Path(niels_cache_runtime.__file__).parent.parent
RUNTIME = sorted((ROOT / "niels_cache_runtime").rglob("*.py"))
BESIDE = {name: sorted((ROOT / name).rglob("*.py")) for name in size.BESIDE}
ASSETS = [*sorted((ROOT / "niels_cache_assets").rglob("*.py")), *chain(*BESIDE.values())]
RUNTIME_MAY_IMPORT = sys.stdlib_module_names | {"numpy", "torch", "niels_cache_runtime"}
OPTIONAL = {
    "lightning.py": {"lightning"},
    "blend_indices.py": {"numba"},
    "store.py": {"obstore"},
}  # the one module for each optional package
IMPORTED_LATE = {
    "blend_indices.py",
    "store.py",
}  # whose package is imported when it is needed; nothing else of the runtime imports the others


@cache
def imported_packages(path: Path) -> set[str]:
    """Top-level names of everything the file imports, inside functions too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add("niels_cache_runtime" if node.level and path in RUNTIME else (node.module or "").split(".")[0])
    return found


def test_the_runtime_names_nothing_but_the_standard_library_numpy_and_torch() -> None:
    assert len(RUNTIME) >= 8
    strangers = {path.name: imported_packages(path) - RUNTIME_MAY_IMPORT - OPTIONAL.get(path.name, set()) for path in RUNTIME}
    assert {name: packages for name, packages in strangers.items() if packages} == {}


def test_every_runtime_module_imports_where_nothing_else_is_installed() -> None:
    """Blocks every other package for our own imports; what torch itself tries to import may be there."""
    free = [path for path in RUNTIME if path.name not in OPTIONAL or path.name in IMPORTED_LATE]
    assert len(free) == len(RUNTIME) - len(OPTIONAL) + len(IMPORTED_LATE)
    modules = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in free]
    assert "niels_cache_runtime.samplers.sft_dataset" in modules
    script = f"""
import importlib, sys
import numpy, torch
allowed = set({sorted(RUNTIME_MAY_IMPORT)!r}) | {{name.split(".")[0] for name in sys.modules}}
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] not in allowed:
            raise ModuleNotFoundError("blocked: " + name)
for name in list(sys.modules):
    if name.split(".")[0] in ("niels_cache_assets", "niels_cache_runtime", "dagster"):
        raise SystemExit("already imported: " + name)
sys.meta_path.insert(0, Refuse())
for name in {modules!r}:
    importlib.import_module(name)
runtime = sys.modules["niels_cache_runtime"]
assert len(runtime.__all__) >= 5
for name in runtime.__all__:
    getattr(runtime, name)
print("imported", len({modules!r}))
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == f"imported {len(free)}", done.stderr


@pytest.mark.parametrize("package", BESIDE)
def test_no_module_of_another_package_imports_what_is_beside_the_two(package: str) -> None:
    assert len(BESIDE[package]) >= 5
    others = [path for path in [*ASSETS, *RUNTIME] if path not in BESIDE[package]]
    assert len(others) > 400
    assert [path.name for path in others if package in imported_packages(path)] == []


def test_the_command_line_and_a_plan_of_an_export_load_only_the_format_that_is_written() -> None:
    script = """
import sys
import niels_cache_assets.exchange.formats, niels_cache_assets.exchange.hf, niels_cache_assets.cli.commands.export
from niels_cache_assets.cli.parser import import_command
import_command("import")
from niels_cache_assets.base.beside import load_beside
before = [name for name in sys.modules if name.startswith("niels_cache_formats")]
load_beside("formats", "npy")
print(before, sorted(name for name in sys.modules if name.startswith("niels_cache_formats")))
"""
    done = programs.run("-c", script, cwd=ROOT)
    assert done.stdout.strip() == "[] ['niels_cache_formats', 'niels_cache_formats.npy']", done.stderr


def test_reading_and_verifying_a_cache_does_not_load_torch() -> None:
    script = "import sys, niels_cache_runtime.verify, niels_cache_runtime.format.meta; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "False", done.stderr


def test_a_loader_of_folders_does_not_load_what_only_addresses_need() -> None:
    script = "import sys; from niels_cache_runtime import TokenLoader; print('niels_cache_runtime.remote.local_copy' in sys.modules)"
    done = programs.run("-c", script, cwd=ROOT)
    assert done.stdout.strip() == "False", done.stderr


def test_numba_is_loaded_when_a_large_index_is_built_and_not_before() -> None:
    script = """
import sys
import niels_cache_runtime
from niels_cache_runtime import megatron
[getattr(megatron, name) for name in megatron.__all__]
from niels_cache_runtime.megatron.blend_indices import build_blending_indices
build_blending_indices([0.25, 0.75], 10_000)
before = "numba" in sys.modules
build_blending_indices([0.25, 0.75], 500_000)
print(before, "numba" in sys.modules)
"""
    done = programs.run("-c", script, cwd=ROOT)  # a fork will do: if its server had imported numba, this would fail
    assert done.stdout.strip() == f"False {find_spec('numba') is not None}", done.stderr


def test_nothing_that_is_of_use_without_the_command_line_imports_it() -> None:
    commands = {ROOT / "niels_cache_assets/cli", ROOT / "niels_cache_inspection/commands"}
    others = [path for path in ASSETS if commands.isdisjoint(path.parents)]
    assert 5 <= len(others) < len(ASSETS)
    assert [path.name for path in others if "niels_cache_assets.cli" in path.read_text(encoding="utf-8")] == []


def test_only_the_definitions_import_dagster() -> None:
    assert len(ASSETS) >= 5
    package = ROOT / "niels_cache_assets"
    free = [path for path in ASSETS if path != package / "definitions.py" and package / "defs" not in path.parents]
    assert len(free) >= 5
    assert [path.name for path in free if any(name.startswith("dagster") for name in imported_packages(path))] == []


def test_only_one_module_imports_what_dagster_keeps_private() -> None:
    private = ROOT / "niels_cache_assets/defs/private.py"
    assert len(private.read_text(encoding="utf-8").splitlines()) <= 80
    assert [path.name for path in ASSETS if "dagster._" in path.read_text(encoding="utf-8")] == [private.name]
