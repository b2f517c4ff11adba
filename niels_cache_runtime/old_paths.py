"""Former module paths. A former path can still be imported, and gives the module that has the code now.

    import niels_cache_runtime.mmap  -->  a DeprecationWarning, and the module niels_cache_runtime.cache.mmap itself

`MOVED` is the table of this package. A former path stays in the table for one release; then its line is removed. The paths that the
documentation names (`formats`, `map_style`, `mixture_report`, `packed_examples`, `trace`, `catalog_split`, `block_visits`) are not in the
table. They are permanent, so each is a file that type checkers can read too. Every module that a process imports costs one lookup in the
table.
"""

import importlib
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_KEPT_THEIR_NAME = {  # folder -> modules
    "cache": ("mmap", "opening"),
    "format": ("described", "foreign_meta", "meta", "meta_keys", "npy_files", "place", "reading"),
    "loader": ("batch", "blend", "documents", "mixture", "order", "prefetch", "source", "steps", "windows"),
    "samplers": ("pretrain_dataset", "sequential", "sft_dataset"),
    "verify": ("invariants", "invariants_sft", "offset_file"),
}
_RENAMED = {
    "batches": "cache.gather",
    "doc_ends": "cache.opening",
    "hostile_paths": "format.safe_open",
    "invariants_foreign": "verify.invariants",
    "kept_examples": "loader.packing.kept",
    "loader_settings": "loader.settings",
    "loader_state": "loader.state",
    "meta_form": "format.meta_keys",
    "packing": "loader.packing.plan",
    "planning": "loader.mixture",
    "progress_bar": "verify.__main__",
    "verified_folder": "verify.folder",
    "verified_root": "verify.root",
    "verified_table": "verify.table",
}
MOVED = {
    f"niels_cache_runtime.{old}": f"niels_cache_runtime.{new}"
    for old, new in (_RENAMED | {name: f"{room}.{name}" for room, names in _KEPT_THEIR_NAME.items() for name in names}).items()
}


class OldPaths:
    """A finder and loader of modules under their former paths.

    moved: former path -> present path, both absolute. A module that was split has several present paths. A name is looked up in these paths
        in their order.

    This class does not derive from the classes of importlib.abc, because importing them takes twice as long as importing this package.
    """

    def __init__(self, moved: Mapping[str, str | Sequence[str]]) -> None:
        self._moved = dict(moved)

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in self._moved else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Put the present module in the place of `module`, so that `import` returns it. If there are several, copy their names into
        `module`.
        """
        old = module.__name__
        moved = self._moved[old]
        homes = (moved,) if isinstance(moved, str) else moved
        warnings.warn(f"{old} is now {' and '.join(homes)}; the next release drops the former path", DeprecationWarning, stacklevel=2)
        present = [importlib.import_module(home) for home in homes]
        if len(present) == 1:
            sys.modules[old] = present[0]
        for each in reversed(present):
            vars(module).update({name: value for name, value in vars(each).items() if not name.startswith("__")})


def forward(moved: Mapping[str, str | Sequence[str]]) -> None:
    """Let every former path of `moved` import its present module, with a DeprecationWarning."""
    sys.meta_path.insert(0, OldPaths(moved))  # at the front, before files that an older version may have left behind


def former_names(module: str, *homes: str) -> Callable[[str], Any]:
    """Return a `__getattr__` that finds the names that moved from `module` to the modules `homes`. Each use gives a DeprecationWarning."""

    def get(name: str) -> Any:
        if not name.startswith("__") and not _is_submodule(module, name):
            for home in homes:
                if hasattr(importlib.import_module(home), name):
                    told = f"{module}.{name} is now {home}.{name}; the next release drops the former path"
                    warnings.warn(told, DeprecationWarning, stacklevel=2)
                    return getattr(importlib.import_module(home), name)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return get


def _is_submodule(package: str, name: str) -> bool:
    """Return whether `from package import name` imports a file. Before the import, Python looks for an attribute of this name."""
    from importlib.util import find_spec

    return hasattr(sys.modules[package], "__path__") and find_spec(f"{package}.{name}") is not None
