"""The packages beside `niels_cache_assets` and `niels_cache_runtime`, which are in the same wheel and which nothing imports.

They use `niels_cache_assets`. What needs one of their modules loads it by name at that moment, so that nothing else pays for it. The kinds
of sources in `niels_cache_corpora` are in the tables of `sources/__init__.py`.
"""

from importlib import import_module
from types import ModuleType


def load_beside(package: str, module: str) -> ModuleType:
    """Return a module of `niels_cache_<package>`, which is imported if it was not."""
    return import_module(f"niels_cache_{package}.{module}")
