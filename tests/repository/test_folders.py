"""The folders of tests mirror the subpackages, so that the path of a module leads to its tests."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
PACKAGES = [ROOT / "niels_cache_assets", ROOT / "niels_cache_runtime"]
FOLDERS = {path.parent.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py")} - {"."}
OTHERS = {"faults", "product", "repository"}  # folders whose tests are about no single subpackage
SHARED = {"golden", "helpers", "mutants"}  # folders without tests


def test_every_subpackage_has_a_folder_of_tests_and_there_is_no_other() -> None:
    subpackages = {path.parent.name for package in PACKAGES for path in package.glob("*/__init__.py")}
    assert len(subpackages) > 20
    assert {folder for folder in FOLDERS if "/" not in folder} == subpackages | OTHERS


def test_a_folder_in_a_folder_of_tests_is_in_the_subpackage_too() -> None:
    nested = {folder for folder in FOLDERS if "/" in folder}
    assert nested
    assert {folder for folder in nested if not any((package / folder).is_dir() for package in PACKAGES)} == set()


def test_what_tests_share_is_in_helpers() -> None:
    assert {path.name for path in TESTS.glob("*.py")} == {"__init__.py", "conftest.py", "size.py", "test_acceptance.py"}
    shared = {
        path for path in TESTS.glob("*/**/*.py") if not path.name.startswith("test_") and path.name not in ("__init__.py", "conftest.py")
    }
    assert len(shared) > 40
    assert {path.relative_to(TESTS).parts[0] for path in shared} <= SHARED
