"""The built wheel works without the repository: its packages, package data, metadata and console script.

The wheel is built from a copy of the sources (a build in the repository would leave `build/` behind, and stale files in it would go into
the next wheel). It is installed into a fresh environment outside of the repository, which takes the dependencies, and nothing of ours, from
the environment of the tests.
"""

import email
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from importlib.metadata import Distribution, distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests import size

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = (*size.PACKAGES, *size.BESIDE)
pytestmark = pytest.mark.walk

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """Standard output of a command that must succeed, without this process's profile, Dagster home and import path."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("NIELS_CACHE_", "DAGSTER_", "PYTHON"))}
    done = subprocess.run(command, cwd=cwd, env=kept | environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{command} exited {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def source_files() -> set[str]:
    """Return the source files of the two packages, relative to the repository."""
    paths = (path for package in PACKAGES for path in (REPOSITORY / package).rglob("*") if path.is_file())
    return {path.relative_to(REPOSITORY).as_posix() for path in paths if "__pycache__" not in path.parts and not path.name.startswith(".")}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sources = tmp_path_factory.mktemp("sources")
    for package in PACKAGES:
        shutil.copytree(REPOSITORY / package, sources / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "LICENSE", "README.md"):
        shutil.copy(REPOSITORY / name, sources)
    out = tmp_path_factory.mktemp("wheel")
    run(*PIP, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", out, sources, cwd=out)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel. A path file adds the installed dependencies, but not our editable installation."""
    folder = tmp_path_factory.mktemp("fresh") / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    run(*PIP, "--python", folder / "bin/python", "install", "--no-deps", "--no-index", wheel, cwd=folder.parent)
    (installed,) = folder.glob("lib/python*/site-packages")
    (installed / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def distribution(environment: Path) -> Distribution:
    (found,) = (
        each for each in distributions(path=list(map(str, environment.glob("lib/python*/site-packages")))) if each.name == "niels-cache"
    )
    return found


def test_the_wheel_holds_every_file_of_both_packages_and_no_other(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = source_files()
    assert {f"{package}/py.typed" for package in PACKAGES} <= expected
    assert {f"niels_cache_assets/project/profiles/{profile}.toml" for profile in ("default", "quickstart")} <= expected
    assert packed == expected


def test_the_wheel_is_pure_python_and_carries_its_licence(wheel: Path) -> None:
    assert wheel.name == "niels_cache-1.0.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (email.message_from_bytes(archive.read(name)) for name in names if name.endswith(".dist-info/METADATA"))
    assert metadata["License-Expression"] == "Apache-2.0"
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert metadata.get_payload().strip(), "the README is the project's page wherever the wheel is published"


def test_the_quickstart_is_built_and_verified_from_the_wheel(environment: Path, tmp_path: Path) -> None:
    run(environment / "bin/niels-cache", "build-all", "--profile", "quickstart", cwd=tmp_path)
    assert len(list(tmp_path.glob("cache/quickstart/*/*/meta.json"))) == 2
    run(environment / "bin/python", "-m", "niels_cache_runtime.verify", "cache/quickstart", cwd=tmp_path)


def test_the_command_line_runs_as_a_module_and_as_a_script(distribution: Distribution, environment: Path, tmp_path: Path) -> None:
    scripts = {point.name: point.value for point in distribution.entry_points if point.group == "console_scripts"}
    assert scripts == {"niels-cache": "niels_cache_assets.cli:main"}
    for command in ([environment / "bin/python", "-m", "niels_cache_assets.cli"], [environment / "bin/niels-cache"]):
        assert "build-all" in run(*command, "--help", cwd=tmp_path, COLUMNS="200")


def test_every_direct_dependency_is_pinned_at_a_version_it_allows() -> None:
    lines = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    named = (line.split("==") for line in lines if line and not line.startswith("#"))
    pins = {canonicalize_name(name): version for name, version in named}
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = [Requirement(line) for group in (project["dependencies"], *project["optional-dependencies"].values()) for line in group]
    assert len(required) > 10
    unmet = [str(need) for need in required if not need.specifier.contains(pins.get(canonicalize_name(need.name), "0"))]
    assert not unmet
    assert not [pin for pin in pins.values() if "+" in pin], "a local version such as 2.13.0+cpu exists on some indexes only"
