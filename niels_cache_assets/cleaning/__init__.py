"""The cleaning of documents: its settings, its counts and its report.

The shipped cleaning itself is in the package `niels_cache_cleaning`, which nothing imports: a module is loaded by its name when it is
needed.
"""

from importlib import import_module
from types import ModuleType


def load_cleaning(module: str) -> ModuleType:
    """Return a module of `niels_cache_cleaning`, which is imported if it was not."""
    return import_module(f"niels_cache_cleaning.{module}")
