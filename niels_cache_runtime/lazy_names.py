"""The `__getattr__` of packages whose names load their modules at first use. It imports nothing but the standard library."""

from collections.abc import Callable, Mapping
from importlib import import_module
from sys import modules as loaded
from typing import Any


def load_lazily(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a `__getattr__` for a package, whose `dir` then lists these names too.

    Args:
        package: Name of the package.
        modules: For each module, relative to the package: the names that it has, separated by blanks.
    """

    def load(name: str) -> Any:
        for module, names in modules.items():
            if name in names.split():
                return getattr(import_module(f"{package}.{module}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    here = vars(loaded[package])
    here["__dir__"] = lambda: here["__all__"]
    return load
