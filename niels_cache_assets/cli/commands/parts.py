"""`parts seal` and `parts prune`: join the parts of a data set, and remove parts that a complete cache no longer needs."""

from __future__ import annotations

import argparse

from niels_cache_assets.cli.command import PRETRAIN, Command
from niels_cache_assets.cli.console import output, print_json
from niels_cache_assets.cli.exit_codes import DONE
from niels_cache_assets.show.wording import counted, file_size

_ACTIONS = ("seal", "prune")


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", metavar="ACTION", choices=_ACTIONS, help="seal or prune")
    parser.add_argument("name", metavar="NAME", help="a pretrain data set")


COMMAND = Command(
    usage="{seal,prune} NAME ",
    description="""\
seal: join the finished parts of a data set into its cache, without Dagster. This copies no shard: they
become hard links. Stdout has the JSON lines of the command `part`.

prune: remove parts of a data set that its complete cache no longer needs: parts of an earlier plan, and
all parts if the data set is not in parts any more. The parts of the current plan stay, because a repair
needs them. They take little room: their shards are hard links.""",
    examples="""\
  niels-cache parts seal web                           join the parts that `part web 0` and so on have built
  niels-cache parts prune web                          remove the parts of earlier plans""",
    add_options=_add_options,
    offers={"action": _ACTIONS, "name": PRETRAIN},
    has_json=True,
)


def run(arguments: argparse.Namespace) -> int:
    """Join or remove the parts, and print the result."""
    if arguments.action == "seal":
        from niels_cache_assets.cli.worker import seal

        return seal(arguments)
    from niels_cache_assets.artifacts.graph import graph
    from niels_cache_assets.artifacts.parts.prune import prune_parts
    from niels_cache_assets.cli.context import open_registry

    registry, root = open_registry(arguments)
    if arguments.name not in registry.pretrain:
        registry.refuse_data_set("command line", "no pretrain data set", arguments.name, list(registry.pretrain))
    removed = prune_parts(graph(registry, root), arguments.name)
    if arguments.json:
        print_json({"name": arguments.name, "removed": [{"directory": part.directory, "bytes": part.bytes} for part in removed]})
        return DONE
    console = output()
    for part in removed:
        console.print(f"removed {part.directory} ({file_size(part.bytes)})", soft_wrap=True)
    there = "all of them belong to the current plan" if registry.pretrain[arguments.name].parts > 1 else "it has none"
    why = "" if removed else f", because {there}"
    console.print(f"{arguments.name}: removed {counted(len(removed), 'part')}{why}", soft_wrap=True)
    return DONE
