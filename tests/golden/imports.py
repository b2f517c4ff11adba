"""The names that other code may import: public names with their parameters, and the paths that the documentation imports or names."""

import ast
import importlib
import inspect
import re
import tomllib
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from tests.helpers.docs_reader import REPOSITORY, blocks_of

_PACKAGES = ("niels_cache_runtime", "niels_cache_runtime.megatron", "niels_cache_assets", "niels_cache_assets.build_cache")
_PAGES = (REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md")))
_DOTTED = re.compile(r"\bniels_cache_(?:runtime|assets)(?:\.\w+)+")
_STARRED = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_POSITIONAL)
_PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)


def public_names() -> set[str]:
    """List every name in `__all__` of the packages."""
    return {f"{package}.{name}" for package in _PACKAGES for name in importlib.import_module(package).__all__}


def described_names() -> set[str]:
    """List every name on the API pages."""
    pages = sorted((REPOSITORY / "docs/api").glob("*.md"))
    return {name for page in pages for name in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)}


def told_of_name(name: str) -> Any:
    """Return the parameters of a function, those of each method of a class, or "value" for anything else."""
    module, _, attribute = name.rpartition(".")
    thing = getattr(importlib.import_module(module), attribute)
    if not inspect.isclass(thing):
        return _parameters(thing) if inspect.isfunction(thing) else "value"
    ours = [each for each in thing.__mro__ if each.__module__.startswith("niels_cache_")]
    members = {member: value for each in reversed(ours) for member, value in vars(each).items() if not member.startswith("_")}
    members |= {
        field: None for each in ours for field in inspect.get_annotations(each) if not field.startswith("_") and field not in members
    }
    constructor = next((vars(each)["__init__"] for each in ours if "__init__" in vars(each)), None)
    told = {member: _parameters(value) if inspect.isfunction(value) else "value" for member, value in members.items()}
    return {**({"()": _parameters(constructor)} if constructor else {}), **told}


def _parameters(function: Callable[..., Any]) -> list[str]:
    """List parameters with their defaults; a star is before those that are given by name alone."""
    found = []
    for parameter in inspect.signature(function).parameters.values():
        stars = "**" if parameter.kind is parameter.VAR_KEYWORD else "*" if parameter.kind in _STARRED else ""
        is_plain = parameter.default is None or isinstance(parameter.default, str | int | float | tuple)
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}" if is_plain else " = ..."
        found.append(f"{stars}{parameter.name}{default}")
    return found


def documented_paths(descriptions: list[str]) -> set[str]:
    """Find modules and names that README, the pages of docs, `descriptions` and the entry points of the project lead to."""
    found = {name for path in _PAGES for name in _DOTTED.findall(path.read_text(encoding="utf-8"))}
    found |= {name for path in _PAGES for block in blocks_of(path) if block.language == "python" for name in _imported(block.text)}
    found |= {name for text in descriptions for code in _PYTHON.findall(text) for name in _imported(code)}
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    return (
        found | {entry.replace(":", ".") for entry in project["project"]["scripts"].values()} | {project["tool"]["dagster"]["module_name"]}
    )


def _imported(code: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("niels_cache_"):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("niels_cache_")}
    return found


def can_be_imported(name: str) -> bool:
    """Return whether it is a module, or an attribute of one. A module whose extra is not installed is taken at its word."""
    module, _, attribute = name.rpartition(".")
    try:
        if find_spec(name) is not None:
            return True
    except ModuleNotFoundError:  # its parent is no package
        pass
    try:
        return hasattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        return error.name is not None and not error.name.startswith("niels_cache")
