"""Builds from a program, as `niels-cache build-all` makes them, with a listener that records events, and an instance without files."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any, Protocol

import dagster as dg
import jinja2
import pytest
from markupsafe import Markup

from niels_cache_assets.defs.launch_events import LaunchFamily, LaunchListener, LaunchResult
from niels_cache_assets.defs.launcher import launch_builds
from niels_cache_assets.facts.progress import BuildProgress
from niels_cache_pages import page
from niels_cache_pages.drawing import Picture, as_svg
from tests.helpers.dagster_tools import Project

_environments: dict[tuple[Any, ...], jinja2.Environment] = {}
_drawn: dict[str, Markup] = {}


def _environment(*, loader: jinja2.BaseLoader, **options: Any) -> jinja2.Environment:
    """Return an environment of templates that is made, and compiles them, once in this process; by the product, for each page."""
    return _environments.setdefault(tuple(options.items()), jinja2.Environment(loader=loader, **options))


def _as_svg(picture: Picture, of: str) -> Markup:
    """Return a picture, which is drawn once in this process. Equal pictures are equal bytes (tests/pages)."""
    key = repr((picture, of))
    return _drawn[key] if key in _drawn else _drawn.setdefault(key, as_svg(picture, of))


page.Environment = _environment  # type: ignore[misc, assignment]
page.as_svg = _as_svg  # type: ignore[attr-defined]


class Recorder(LaunchListener):
    """A listener that records all events."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.progress: dict[str, BuildProgress] = {}

    def started(self, name: str, family: LaunchFamily) -> None:
        self.told.append(f"started {name} ({family})")

    def progressed(self, name: str, progress: BuildProgress) -> None:
        self.progress[name] = progress

    def logged(self, name: str, message: str) -> None:
        self.told.append(f"{name}: {message}")

    def finished(self, result: LaunchResult) -> None:
        self.told.append(f"finished {result.name}: {result.state}")


def launch(project: Project, *, only: list[str] | None = None, force: bool = False) -> tuple[dict[str, LaunchResult], Recorder]:
    recorder = Recorder()
    results = launch_builds(project.registry, root=project.root, only=only, force=force, listener=recorder)
    return {result.name: result for result in results}, recorder


def states(results: dict[str, LaunchResult]) -> dict[str, str]:
    return {name: result.state for name, result in results.items()}


class HasInstance(Protocol):
    """A project: its folder, and its instance in memory."""

    folder: Path
    instance: dg.DagsterInstance


def launch_in_memory(project: HasInstance, monkeypatch: pytest.MonkeyPatch) -> dg.DagsterInstance:
    """The project's instance, which launches use now: it has no files, and is three times as fast."""
    home = project.folder / "home"
    home.mkdir()
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    monkeypatch.setattr("niels_cache_assets.defs.runs.ensure_instance", lambda home, overrides: nullcontext(project.instance))
    return project.instance
