"""`parts add`, `parts seal` and `parts prune`: add files, join the parts, remove parts that a complete cache no longer needs."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from niels_cache_assets.cli.command import PRETRAIN, Command
from niels_cache_assets.cli.console import PROGRAM, diagnostics, output, print_json
from niels_cache_assets.cli.exit_codes import DONE
from niels_cache_assets.show.wording import counted, file_size, listed
from niels_cache_runtime.errors import NielsCacheError

if TYPE_CHECKING:
    from niels_cache_assets.config.registry import Registry

_NAMES = ("add", "seal", "prune")


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", metavar="ACTION", choices=_NAMES, help="add, seal or prune")
    parser.add_argument("name", metavar="NAME", help="a pretrain data set")
    parser.add_argument("files", metavar="PATTERN", nargs="*", default=[], help="add: new files, as the key `files` would name them")
    parser.add_argument("--parts", type=int, metavar="N", help="add: the number of parts for the new files (default: 1)")
    parser.add_argument("--train-tokens", type=int, metavar="N", help="add: a token budget for the new files (default: all of them)")


def _add(arguments: argparse.Namespace, registry: Registry, root: Path) -> None:
    """Write a table `[[pretrain.NAME.added]]`, and print it."""
    from niels_cache_assets.artifacts.parts.adding import check_addition
    from niels_cache_assets.config.editing import NotAddedError, add_table, added_tables, locked_config
    from niels_cache_assets.config.registry import load_registry

    name, config = arguments.name, Path(registry.origin)
    if not arguments.files:
        raise NielsCacheError(f"command line: parts add {name} needs a pattern of the new files, such as 'new/*.jsonl'")
    if not config.is_file():
        raise NielsCacheError(f"{registry.origin}: is not a file, so nothing can be added to it; write one: {PROGRAM} init")
    wanted = {"files": arguments.files, "parts": 1 if arguments.parts is None else arguments.parts}
    if arguments.train_tokens is not None:
        wanted["train_tokens"] = arguments.train_tokens
    with locked_config(config, log=lambda line: diagnostics().print(line, soft_wrap=True)):
        registry = load_registry(profile=registry.profile, config=registry.origin)  # another command may have written it meanwhile
        addition = check_addition(registry, root, name, added_tables(config, name), wanted)
        try:
            written = None if addition is None else add_table(config, name, addition.entry, keys=addition.keys)
        except NotAddedError as error:
            print_json({"name": name, "written": None, "lines": error.toml}) if arguments.json else print(error.toml)
            raise
    if arguments.json:
        files = [] if addition is None else [file.name for file in addition.files]
        print_json({"name": name, "written": written, "files": files})
        return
    console = output()
    if addition is None:
        console.print(f"{name}: {listed(arguments.files)} is in {config} already; nothing was written", soft_wrap=True)
        return
    size = file_size(sum(file.bytes for file in addition.files))
    told = f"{counted(len(addition.files), 'file')} of {size} in {counted(wanted['parts'], 'new part')}"
    console.print(f"{name}: {told}; wrote [[pretrain.{name}.added]] to {written}", soft_wrap=True)
    for key, value in addition.keys.items():
        console.print(f"{name}: also wrote {key} = {value}, the commit of the built data set", soft_wrap=True)
    console.print(f"build the new parts: {PROGRAM} build-all --only {name}", soft_wrap=True)


def _require_only_a_name(arguments: argparse.Namespace) -> None:
    for given in (*arguments.files, *(["--parts"] if arguments.parts else []), *(["--train-tokens"] if arguments.train_tokens else [])):
        raise NielsCacheError(f"command line: parts {arguments.action} takes a name only, and not {given}; leave it out")


def _prune(arguments: argparse.Namespace, registry: Registry, root: Path) -> None:
    """Remove the parts, and print them."""
    from niels_cache_assets.artifacts.graph import graph
    from niels_cache_assets.artifacts.parts.prune import prune_parts

    _require_only_a_name(arguments)
    removed = prune_parts(graph(registry, root), arguments.name)
    if arguments.json:
        print_json({"name": arguments.name, "removed": [{"directory": part.directory, "bytes": part.bytes} for part in removed]})
        return
    console = output()
    for part in removed:
        console.print(f"removed {part.directory} ({file_size(part.bytes)})", soft_wrap=True)
    source = registry.pretrain[arguments.name]
    there = "all of them belong to the current plan" if source.is_in_parts or source.corpus_parts > 1 else "it has none"
    why = "" if removed else f", because {there}"
    console.print(f"{arguments.name}: removed {counted(len(removed), 'part')}{why}", soft_wrap=True)


_ACTIONS: dict[str, Callable[[argparse.Namespace, Registry, Path], None]] = {"add": _add, "prune": _prune}

COMMAND = Command(
    usage="{add,seal,prune} NAME [PATTERN ...] ",
    description="""\
add: let a data set grow by new files. This writes a table [[pretrain.NAME.added]] into the file of the
configuration, and keeps everything else in it. The next build reads the new files only: the tokens
that were there keep their places, and val keeps its documents.

seal: join the finished parts of a data set into its cache, without Dagster. This copies no shard: they
become hard links. For a data set with prepare, join the parts of its corpus instead. Stdout has the JSON lines of the command `part`.

prune: remove parts of a data set that its complete cache no longer needs: parts of an earlier plan,
and all parts if the data set is not in parts any more. The parts of the current plan stay, because a
repair and growth need them. They take little room: their shards are hard links.""",
    examples="""\
  niels-cache parts add web 'CC-MAIN-2026-05/*' --parts 8   add the files of a crawl, as 8 more parts
  niels-cache parts seal web                                join the parts that `part web 0` and so on have built
  niels-cache parts prune web                               remove the parts of earlier plans""",
    add_options=_add_options,
    offers={"action": _NAMES, "name": PRETRAIN},
    has_json=True,
)


def run(arguments: argparse.Namespace) -> int:
    """Run the action."""
    if arguments.action == "seal":
        from niels_cache_assets.cli.worker import seal

        _require_only_a_name(arguments)
        return seal(arguments)
    from niels_cache_assets.cli.context import open_registry

    registry, root = open_registry(arguments)
    if arguments.name not in registry.pretrain:
        registry.refuse_data_set("command line", "no pretrain data set", arguments.name, list(registry.pretrain))
    _ACTIONS[arguments.action](arguments, registry, root)
    return DONE
