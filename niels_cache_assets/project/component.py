"""The components of a project of `dg`, Dagster's command, as the commands of niels-cache find them.

A component is a defs.yaml of the type niels_cache_assets.NielsCacheComponent. Outside of such a project, the search costs one look for a
pyproject.toml and a dg.toml in each folder above.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from niels_cache_assets.base.defaults import CONFIG_NAME
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
        problem: Why it cannot be read. Then it is taken to name the niels_cache.toml beside it.
    """

    path: Path
    config: Path
    attributes: Mapping[str, Any]
    location: str
    problem: NielsCacheError | None


def find_component(file: str | None) -> ProjectComponent | None:
    """Return the component that a configuration file belongs to.

    Without a file, return the component in the working directory, otherwise the only one of the project around.

    Raises:
        NielsCacheError: If several components fit, or if a file of the component or the project cannot be read.
    """
    start = Path(file or ".").resolve()
    for root in (start, *start.parents):
        if project := _project(root):
            found = [each for each in _components(root, project) if file is None or start in (each.path, each.config)]
            found = [each for each in found if each.path.parent == start] or found
            if len(found) > 1:
                listed = ", ".join(str(each.path) for each in found)
                raise NielsCacheError(f"{file or root}: several components fit: {listed}; name one with --config")
            if found and found[0].problem:
                raise found[0].problem
            return found[0] if found else None
    return None


def _project(folder: Path) -> Mapping[str, Any] | None:
    """Return the settings of the project of `dg` in a folder, or None."""
    for path in (folder / "pyproject.toml", folder / "dg.toml"):
        with suppress(OSError, LookupError, TypeError):  # most folders have no such file, and some have other tables
            if b"directory_type" in path.read_bytes():
                tables = read_tables(path, _READABLE)
                project = (tables if path.name == "dg.toml" else tables["tool"]["dg"])["project"]
                if isinstance(project, dict):
                    return project
    return None


def _components(root: Path, project: Mapping[str, Any]) -> Iterator[ProjectComponent]:
    base = root / "src" if (root / "src").is_dir() else root
    module = str(project.get("defs_module") or f"{project.get('root_module')}.defs")
    for path in sorted(base.joinpath(*module.split(".")).rglob(DEFS_NAME)):
        problem = None
        try:
            attributes = _attributes(path)
        except NielsCacheError as error:
            attributes, problem = {"config": CONFIG_NAME}, error
        if attributes is not None:
            config = path.parent.joinpath(str(attributes.get("config", ""))).resolve()
            yield ProjectComponent(path, config, attributes, project.get("code_location_name") or root.name, problem)


def _attributes(path: Path) -> Mapping[str, Any] | None:
    """Return the attributes of a component with templates filled in, or None if the file has no component of ours."""
    import yaml  # type: ignore[import-untyped]  # only projects of dg need these modules
    from jinja2 import Environment, StrictUndefined, TemplateError

    def fill(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: fill(each) for key, each in value.items()}
        if isinstance(value, list):
            return [*map(fill, value)]
        return Environment(undefined=StrictUndefined).from_string(value).render(env=os.environ) if isinstance(value, str) else value

    try:
        text = path.read_text(encoding="utf-8")
        documents = [*yaml.safe_load_all(text)] if _TYPE in text else []
        own = [each for each in documents if isinstance(each, dict) and str(each.get("type")).endswith(_TYPE)]
        attributes = fill(own[0].get("attributes") or {}) if own else None
    except (OSError, ValueError, yaml.YAMLError, TemplateError) as error:
        raise NielsCacheError(
            f"{path}: cannot be read: {' '.join(str(error).split())}; templates may have {{{{ env.NAME }}}} only"
        ) from error
    if own and (len(documents) > 1 or not isinstance(attributes, dict)):
        raise NielsCacheError(f"{path}: must have one document, whose attributes are a table; give each component a folder of its own")
    return attributes
