"""Former module paths. Each one still imports, and gives the module that has the code now.

    import niels_cache_runtime.mmap  -->  a DeprecationWarning, and the module niels_cache_runtime.cache.mmap itself

`MOVED` is the table of this package. A path stays in it for one release; then its line goes. Paths that the documentation names
(`formats`, `map_style`, `mixture_report`, `packed_examples`, `trace`, `catalog_split`) are not in it: they stay for ever, so each is a file
that type checkers can read too. Cost: one look into the table for every module that a process imports.
"""

import importlib
import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    f"niels_cache_runtime.{old}": f"niels_cache_runtime.{new}"
    for old, new in {
        "batch": "loader.batch",
        "batches": "cache.gather",
        "blend": "loader.blend",
        "described": "format.described",
        "doc_ends": "format.doc_ends",
        "documents": "loader.documents",
        "foreign_meta": "format.foreign_meta",
        "hostile_paths": "format.safe_open",
        "invariants": "verify.invariants",
        "invariants_foreign": "verify.invariants_foreign",
        "invariants_sft": "verify.invariants_sft",
        "kept_examples": "loader.packing.kept",
        "loader_settings": "loader.settings",
        "loader_state": "loader.state",
        "meta": "format.meta",
        "meta_form": "format.meta_form",
        "meta_keys": "format.meta_keys",
        "mixture": "loader.mixture",
        "mmap": "cache.mmap",
        "npy_files": "format.npy_files",
        "offset_file": "verify.offset_file",
        "opening": "cache.opening",
        "order": "loader.order",
        "packing": "loader.packing.plan",
        "place": "format.place",
        "planning": "loader.mixture",
        "prefetch": "loader.prefetch",
        "pretrain_dataset": "samplers.pretrain_dataset",
        "progress_bar": "verify.progress_bar",
        "reading": "format.reading",
        "sequential": "samplers.sequential",
        "sft_dataset": "samplers.sft_dataset",
        "source": "loader.source",
        "steps": "loader.steps",
        "verified_folder": "verify.folder",
        "verified_root": "verify.root",
        "verified_table": "verify.table",
        "windows": "loader.windows",
    }.items()
}


class OldPaths:
    """A finder, and loader, of modules under their former paths. moved: former to present path, both absolute.

    Not derived from the classes of importlib.abc: importing those would take twice as long as importing this package.
    """

    def __init__(self, moved: Mapping[str, str]) -> None:
        self._moved = dict(moved)

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in self._moved else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Put the present module in the place of `module`; `import` then gives that."""
        old = module.__name__
        new = self._moved[old]
        warnings.warn(f"{old} is now {new}; the former path goes with the next release", DeprecationWarning, stacklevel=2)
        sys.modules[old] = importlib.import_module(new)


def forward(moved: Mapping[str, str]) -> None:
    """Let every former path of `moved` import its present module, with a DeprecationWarning."""
    sys.meta_path.insert(0, OldPaths(moved))  # before files that an older version may have left behind
