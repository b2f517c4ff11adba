"""The components of a project of `dg`, Dagster's command, as the commands of niels-cache find them.

A component is a defs.yaml of the type niels_cache_assets.NielsCacheComponent. Outside of such a project, the search costs one look for a
pyproject.toml and a dg.toml in each folder above.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from niels_cache_assets.project.merging import read_tables
from niels_cache_runtime.errors import NielsCacheError

DEFS_NAME = "defs.yaml"
_TYPE = ".NielsCacheComponent"
_READABLE = "make it readable"


class ProjectComponent(NamedTuple):
    """One component.

    Attributes:
        path: Its defs.yaml.
        config: The configuration that it names.
        attributes: Its attributes, not checked.
        location: Name of the code location, as `dg` computes it.
    """

    path: Path
    config: Path
    attributes: Mapping[str, Any]
    location: str


def find_component(file: str | None) -> ProjectComponent | None:
    """Return the component that a configuration file belongs to. Without a file, return the only component of the project around.

    Raises:
        NielsCacheError: If several components fit, or if a file of the project cannot be read.
    """
    start = Path(file or ".").resolve()
    for root in (start, *start.parents):
        if project := _project(root):
            found = [each for each in _components(root, project) if file is None or start in (each.path, each.config)]
            if len(found) > 1:
                listed = ", ".join(str(each.path) for each in found)
                raise NielsCacheError(f"{file or root}: several components fit: {listed}; name one with --config")
            return found[0] if found else None
    return None


def _project(folder: Path) -> Mapping[str, Any] | None:
    """Return the settings of the project of `dg` in a folder, or None."""
    for path in (folder / "pyproject.toml", folder / "dg.toml"):
        with suppress(OSError):  # most folders have no such file
            if b"directory_type" in path.read_bytes():
                tables = read_tables(path, _READABLE)
                return tables.get("tool", {}).get("dg", tables).get("project")
    return None


def _components(root: Path, project: Mapping[str, Any]) -> Iterator[ProjectComponent]:
    import yaml  # type: ignore[import-untyped]  # only projects of dg need these modules
    from jinja2 import Environment, StrictUndefined, TemplateError

    base = root / "src" if (root / "src").is_dir() else root
    module = project.get("defs_module") or f"{project.get('root_module')}.defs"
    for path in sorted(base.joinpath(*module.split(".")).rglob(DEFS_NAME)):
        try:
            text = path.read_text(encoding="utf-8")
            if _TYPE not in text:
                continue
            filled = Environment(undefined=StrictUndefined).from_string(text).render(env=os.environ)
            documents = [*yaml.safe_load_all(filled)]
        except (OSError, ValueError, yaml.YAMLError, TemplateError) as error:
            raise NielsCacheError(
                f"{path}: cannot be read: {' '.join(str(error).split())}; templates may have {{{{ env.NAME }}}} only"
            ) from error
        for document in documents:
            if isinstance(document, dict) and str(document.get("type")).endswith(_TYPE):
                attributes = document.get("attributes") or {}
                config = path.parent.joinpath(str(attributes.get("config", ""))).resolve()
                yield ProjectComponent(path, config, attributes, project.get("code_location_name") or root.name)
