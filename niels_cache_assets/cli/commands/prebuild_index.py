"""The command `prebuild-index`, which builds the indices of a blend (the stored order of its samples) before training needs them."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from niels_cache_assets.base.wording import file_size
from niels_cache_assets.cli.command import WHERE, Command, offer_configured_names, option, refuse_options, whole_number
from niels_cache_assets.cli.console import display, new_table, print_facts
from niels_cache_runtime.errors import NielsCacheError

if TYPE_CHECKING:
    from niels_cache_assets.artifacts.base import Outcome
    from niels_cache_assets.artifacts.index import BlendPlan
    from niels_cache_assets.project.registry import Registry

_OF_A_FILE = ("sequence_length", "num_samples", "seed", "split", "part")


COMMAND = Command(
    options=(
        option("name", "NAME", "a [blend.NAME] table in the configuration", nargs="?"),
        option("--blend", "FILE", "file with the weights and paths of a blend that is not in the configuration"),
        option("--sequence-length", "L", "number of tokens per sample", type=whole_number),
        option("--num-samples", "N", "samples in the run; required with weights (default: every sample once)", type=whole_number),
        option("--seed", "S", "--seed of Megatron-LM (default: 1234, as in Megatron-LM)", type=whole_number),
        option("--split", "A,B,C", 'shares of train, valid and test, such as "99,1,0" (default: everything is train)'),
        option("--part", "PART", "build train, valid or test (default: train)", choices=("train", "valid", "test")),
    ),
    usage="[NAME] ",
    description="""\
Build the GPT and blend indices of a training run in advance, on a CPU machine. An index lists the
samples in Megatron-LM's order. Without NAME, pass --blend FILE and the settings of the run.

FILE has the format of Megatron-LM's --data-args-path: WEIGHT PATH WEIGHT PATH ..., or just paths, each
of which is read once. PATH is the common prefix of a .bin and an .idx file, or a split of a cache, such
as cache/pretrain/wikitext/train.

MegatronGPTDataset and open_blend in niels_cache_runtime.megatron find the indices in index/ of the cache
directory. megatron-core looks elsewhere; examples/megatron_core_indices.py builds its indices.""",
    examples="""\
  niels-cache prebuild-index mix                                              [blend.mix] of niels_cache.toml
  niels-cache prebuild-index --blend blend.txt --sequence-length 4096 --num-samples 10_000_000 --seed 1234""",
    offers={"name": offer_configured_names(lambda registry: registry.blend)},
)


def run(arguments: argparse.Namespace) -> None:
    """Build the missing indices, and print all indices.

    Raises:
        NotWrittenError: If the folder of the indices cannot be written.
    """
    from niels_cache_assets.artifacts.index import prebuild
    from niels_cache_assets.cli.context import open_registry
    from niels_cache_assets.cli.progress import array_progress

    registry, root = open_registry(arguments)
    plan = _plan(arguments, registry, root)
    with array_progress() as progress:
        outcome = prebuild(registry, plan, root=root, progress=progress)
    facts = {
        "state": outcome.state,
        "part": plan.settings["part"],
        "seconds": outcome.seconds,
        "hash": outcome.meta["hash"],
        "indices": [{**asdict(index), "hash": index.hash} for index in outcome.meta["indices"]],
    }
    if print_facts(arguments, facts):
        return
    _print(outcome, plan)


def _plan(arguments: argparse.Namespace, registry: Registry, root: Path) -> BlendPlan:
    from niels_cache_assets.artifacts.index import BlendPlan, blend_plan, read_blend_file
    from niels_cache_assets.project.tables import ALL_TRAIN, MEGATRON_SEED

    if arguments.name is not None:
        reason = f"[blend.{arguments.name}] already has this setting; give NAME alone, or --blend and its settings"
        refuse_options(arguments, ("blend", *_OF_A_FILE), reason)
        return blend_plan(registry, arguments.name, root=root)
    if arguments.blend is None:
        names = ", ".join(registry.blend) or "none"
        raise NielsCacheError(
            f"{WHERE}: no blend is named; give --blend FILE, or the name of a configured one ({registry.origin} has: {names})"
        )
    if arguments.sequence_length is None:
        raise NielsCacheError(f"{WHERE}: --blend needs --sequence-length; add that option")
    paths, weights = read_blend_file(arguments.blend)
    if weights is not None and arguments.num_samples is None:
        raise NielsCacheError(f"{WHERE}: {arguments.blend} has weights, which divide --num-samples among the paths; add --num-samples")
    return BlendPlan(
        labels=tuple(paths),
        paths=tuple(map(Path, paths)),
        weights=None if weights is None else tuple(weights),
        settings={
            "num_samples": arguments.num_samples,
            "sequence_length": arguments.sequence_length,
            "seed": MEGATRON_SEED if arguments.seed is None else arguments.seed,
            "split": ALL_TRAIN if arguments.split is None else arguments.split,
            "part": arguments.part or "train",
        },
    )


def _print(outcome: Outcome, plan: BlendPlan) -> None:
    table = new_table("index of", "samples", "size", "hash", right=["samples", "size"], shrinking=["index of"])
    for index in outcome.meta["indices"]:
        table.add_row(index.label, f"{index.samples:,}", file_size(index.bytes), index.hash)
    display(table)
    verb = "built" if outcome.state == "built" else "already built, checked"
    display(f"\n{plan.settings['part']}, in {outcome.meta['indices'][-1].directory.parent}: {verb} in {outcome.seconds:.1f} s")
    display(f"hash of all: {outcome.meta['hash']}")
