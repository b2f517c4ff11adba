"""What a shell is told when TAB is pressed, by argcomplete: commands, options, and values that depend on the configuration.

Runs at every TAB: nothing heavy may be imported but for the names of data sets, which the registry has.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from niels_cache_assets.cli.completion_options import SHELLS
from niels_cache_assets.cli.parser import build_parsers
from niels_cache_assets.cli.prebuild_options import MEGATRON_CORE
from niels_cache_assets.shipped import catalog
from niels_cache_runtime.format.layout import SPLITS

if TYPE_CHECKING:
    from niels_cache_assets.registry import Registry


def complete() -> NoReturn:
    """Answer the shell that started this process, and leave."""
    from argcomplete import autocomplete

    top, commands = build_parsers()
    for name, parser in commands.items():
        for action in parser._actions:
            values = values_of(name, action)
            if values is not None:
                action.completer = values  # type: ignore[attr-defined]
    autocomplete(top, always_complete_options=False)
    raise SystemExit  # autocomplete has left already


def values_of(command: str, action: argparse.Action) -> Any:
    """What may stand there: a function that argcomplete calls; None where files are offered."""
    metavar = str(action.metavar)
    if metavar == "NAME":
        return partial(_names, _NAMES.get(f"{command} {action.dest}", _data_sets))
    choices = _CHOICES.get(f"{command} {metavar}", _CHOICES.get(metavar))
    if choices is None and metavar in ("FILE", "DIR", "PATH", "PREFIX", "NAME=FOLDER", "MODEL"):
        return None
    return lambda **_: choices or ()


_CHOICES: dict[str, Sequence[str]] = {
    "ACTION": ("compare",),
    "FORMAT": ("megatron", "nanogpt", "llmc", "datatrove", "olmo", "npy"),
    "import FORMAT": ("megatron",),
    "HOW": ("reflink", "hardlink", "copy"),
    "KIND": ("near", "exact"),
    "PART": ("train", "valid", "test"),
    "PROFILE": ("default", "quickstart"),
    "PROGRAM": (MEGATRON_CORE,),
    "SHELL": SHELLS,
    "SPLIT": SPLITS,
    "export SPLIT": (*SPLITS, "all"),
    "STAGE": ("cache", "corpus"),
}


def _data_sets(registry: Registry) -> Iterable[str]:
    return [*registry.pretrain, *registry.sft]


def _caches(registry: Registry) -> Iterable[str]:
    return ["tokenizer", *_data_sets(registry)]


def _pretrain(registry: Registry) -> Iterable[str]:
    return registry.pretrain


_NAMES: dict[str, Callable[[Registry], Iterable[str]]] = {
    "build-all only": _caches,
    "catalog names": lambda registry: catalog(),
    "init catalog": lambda registry: catalog(),
    "show name": _caches,
    "status names": _caches,
    "verify names": _caches,
    "clean like": _pretrain,
    "duplicates name": _pretrain,
    "export name": _pretrain,
    "rejected name": _pretrain,
    "import name": lambda registry: (),  # a new one
    "prebuild-index name": lambda registry: registry.blend,
}


def _names(of: Callable[[Registry], Iterable[str]], *, parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """Raises NielsCacheError for a configuration that is wrong, of which argcomplete makes no suggestion at all."""
    from niels_cache_assets.registry import load_registry

    return list(of(load_registry(profile=getattr(parsed_args, "profile", None), config=getattr(parsed_args, "config", None))))
