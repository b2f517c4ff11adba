"""The command `prebuild-index`. It builds the indices of a blend (the stored order of its samples) before training needs them.
niels_cache_assets.indices has the code of the indices.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from niels_cache_assets.cli.command import HOME_VARIABLE, WHERE, Command, chosen, configured, fraction, whole_number
from niels_cache_assets.cli.console import diagnostics, new_table, output, print_json
from niels_cache_assets.cli.exit_codes import DONE
from niels_cache_assets.processes import stop_on_signals
from niels_cache_assets.show.wording import file_size
from niels_cache_runtime.errors import NielsCacheError

if TYPE_CHECKING:
    from niels_cache_assets.artifacts.base import Outcome
    from niels_cache_assets.config.registry import Registry
    from niels_cache_assets.indices.megatron_core_run import CoreRun
    from niels_cache_assets.indices.prebuild import BlendPlan

MEGATRON_CORE = "megatron-core"
_BLEND: dict[str, Any] = {"metavar": "PREFIX", "nargs": "+"}
_FLAG: dict[str, Any] = {"action": "store_true"}
_NUMBER: dict[str, Any] = {"metavar": "N", "type": whole_number}

_OF_A_BLEND = ("name", "num_samples", "cache_dir", "profile", "config")
_OF_A_FILE = ("sequence_length", "num_samples", "seed", "split", "part")


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", nargs="?", help="a blend of the configuration, from its table [blend.NAME]")
    parser.add_argument(
        "--for", dest="reader", metavar="PROGRAM", help="megatron-core: build all indices of one run, under the file names of megatron-core"
    )
    parser.add_argument(
        "--blend", "--data-args-path", dest="blend", metavar="FILE", help="file with weights and paths of a blend that is not configured"
    )
    parser.add_argument(
        "--sequence-length", "--seq-length", dest="sequence_length", metavar="L", type=whole_number, help="tokens in a sample"
    )
    parser.add_argument(
        "--num-samples", metavar="N", type=whole_number, help="samples in the run; required with weights (default: every sample once)"
    )
    parser.add_argument("--seed", metavar="S", type=whole_number, help="--seed of Megatron-LM (default: 1234, as in Megatron-LM)")
    parser.add_argument("--split", metavar="A,B,C", help='shares of train, valid and test, such as "99,1,0" (default: everything is train)')
    parser.add_argument("--part", metavar="PART", help="build train, valid or test (default: train; for megatron-core: all three)")
    _add_run_options(parser.add_argument_group("with --for megatron-core: the run, with the flags of Megatron-LM"))
    _add_tokenizer_options(parser.add_argument_group("with --for megatron-core: its tokenizer, which determines the file names"))


def _add_run_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--data-cache-path", metavar="DIR", help="folder where megatron-core looks for indices; they are written there")
    group.add_argument(
        "--data-path",
        **_BLEND,
        help="PREFIX, or WEIGHT PREFIX WEIGHT PREFIX ..., or PREFIX PREFIX ...; --split cuts it (default: 969, 30, 1)",
    )
    group.add_argument("--train-data-path", **_BLEND, help="like --data-path, but for train only, without --split")
    group.add_argument("--valid-data-path", **_BLEND, help="like --data-path, but for valid only")
    group.add_argument("--test-data-path", **_BLEND, help="like --data-path, but for test only")
    group.add_argument("--per-split-data-args-path", metavar="FILE", help="one JSON file with the paths of train, valid and test")
    group.add_argument("--train-iters", **_NUMBER, help="steps in the run")
    group.add_argument("--train-samples", **_NUMBER, help="samples in the run, instead of steps")
    group.add_argument("--global-batch-size", **_NUMBER, help="samples in a step")
    group.add_argument("--eval-interval", **_NUMBER, help="steps between evaluations (default: 1000)")
    group.add_argument("--eval-iters", **_NUMBER, help="steps in an evaluation (default: 100)")
    group.add_argument("--full-validation", **_FLAG, help="read the whole of valid once")
    group.add_argument("--multiple-validation-sets", **_FLAG, help="each data set of valid is a separate validation set")
    group.add_argument(
        "--target-sizes",
        metavar="A,B,C",
        help="samples in train, valid and test, instead of steps; none reads every sample once; "
        'Megatron-LM prints them as "datasets target sizes"',
    )
    group.add_argument("--mid-level-dataset-surplus", metavar="X", type=fraction, help="surplus of a blend's data sets (default: 0.005)")


def _add_tokenizer_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--tokenizer-type", metavar="TYPE", help="such as SentencePieceTokenizer, HuggingFaceTokenizer or NullTokenizer")
    group.add_argument("--tokenizer-model", metavar="PATH", help="model of the tokenizer, spelled exactly as in the run")
    group.add_argument("--tokenizer-metadata", metavar="FILE", help="JSON file of the tokenizer, if the run names one")
    group.add_argument("--tokenizer-special-tokens", metavar="TOKEN", nargs="+")
    group.add_argument("--tokenizer-sentencepiece-legacy", **_FLAG)
    group.add_argument("--tokenizer-hf-use-fast", **_FLAG)
    group.add_argument("--tokenizer-hf-include-special-tokens", **_FLAG)
    group.add_argument("--trust-remote-code", **_FLAG, help="changes only the file names; no code is executed")
    group.add_argument("--tiktoken-pattern", metavar="V")
    group.add_argument("--tiktoken-num-special-tokens", **_NUMBER, help="(default: 1000)")
    group.add_argument("--vocab-size", **_NUMBER)
    group.add_argument("--vocab-file", metavar="PATH")
    group.add_argument("--merge-file", metavar="PATH")
    group.add_argument(
        "--tokenizer-identifiers",
        metavar="JSON",
        help="instead of these flags, for any class of tokenizer: its unique_identifiers as JSON, or a file with them, such as a "
        "*-description.txt that megatron-core wrote in an earlier run",
    )


def _names_of(*adders: Callable[[argparse._ArgumentGroup], None]) -> tuple[str, ...]:
    """Return the `dest` of the options that these functions add."""
    parser = argparse.ArgumentParser(add_help=False)
    for adder in adders:
        adder(parser.add_argument_group())
    return tuple(action.dest for action in parser._actions)


OF_MEGATRON_CORE = _names_of(_add_run_options, _add_tokenizer_options)

COMMAND = Command(
    usage="[NAME] ",
    description="""\
Build the GPT and blend indices of a training run in advance, on a CPU machine. An index lists the
samples in the order of Megatron-LM. The command prints the folder and hash of each index. NAME is a
table [blend.NAME] of the configuration. Without NAME, give --blend FILE and the settings of the run.

FILE has the form of Megatron-LM's --data-args-path: WEIGHT PATH WEIGHT PATH ..., or only paths, each of
which is read once. PATH is the prefix of a .bin and an .idx, or a split of a cache, such as
cache/pretrain/wikitext/train. A prefix and a split with the same content have the same index.

Indices are written to index/ of the cache directory, under a hash of every setting and of the data.
MegatronGPTDataset and open_blend of niels_cache_runtime.megatron find them there.

With --for megatron-core, all indices of a run (train, valid and test) are written to --data-cache-path
under the names of megatron-core 0.16.1, so that training builds no index. The data are the .bin and
.idx files of `niels-cache export megatron`. Copy the flags from the command line of the run: the names
depend on the prefixes and the path of the tokenizer, exactly as you write them there. If another
version of megatron-core uses other names, it builds its own indices. If you call prebuild-index again,
it builds nothing. After a new export to the same prefix, it replaces outdated indices.""",
    examples="""\
  niels-cache prebuild-index mix                                              [blend.mix] of niels_cache.toml
  niels-cache prebuild-index --blend blend.txt --sequence-length 4096 --num-samples 10_000_000 --seed 1234
  niels-cache prebuild-index --blend blend.txt --sequence-length 4096 --num-samples 50_000 --split 99,1,0 --part valid
  niels-cache prebuild-index --for megatron-core --data-path data/wikitext_text_document --split 969,30,1 --seq-length 4096 \\
      --train-iters 10000 --global-batch-size 1024 --tokenizer-type SentencePieceTokenizer \\
      --tokenizer-model cache/tokenizer/spm.model --data-cache-path /scratch/megatron""",
    add_options=_add_options,
    offers={"name": configured(lambda registry: registry.blend), "reader": (MEGATRON_CORE,), "part": ("train", "valid", "test")},
    has_json=True,
)


def run(arguments: argparse.Namespace) -> int:
    """Build the missing indices, and print all indices. Raise NotWrittenError if the folder of the indices cannot be written."""
    from niels_cache_assets.artifacts.index import prebuild
    from niels_cache_assets.cli.context import open_registry
    from niels_cache_assets.cli.progress import array_progress

    if arguments.reader is not None:
        chosen("--for", "no program", arguments.reader, [MEGATRON_CORE])
        return _run_for_megatron_core(arguments)
    for option in OF_MEGATRON_CORE:
        value = getattr(arguments, option)
        if value is not None and value is not False:  # 0 counts as a value
            raise NielsCacheError(f"{WHERE}: --{option.replace('_', '-')}: works only with --for megatron-core; add that option")
    registry, root = open_registry(arguments)
    plan = _plan(arguments, registry, root)
    with stop_on_signals(), array_progress() as progress:
        outcome = prebuild(plan, root=root, progress=progress)
        if arguments.name in registry.blend_keys():  # the UI has a partition only for these names
            _record(registry, arguments.name, root)
    if arguments.json:
        print_json(
            {
                "state": outcome.state,
                "part": plan.part,
                "seconds": outcome.seconds,
                "hash": outcome.meta["hash"],
                "indices": _indices_json(outcome),
            }
        )
        return DONE
    _print(outcome, plan)
    return DONE


def _record(registry: Registry, name: str, root: Path) -> None:
    """Record the index in the current Dagster home, if there is a home. Then the UI of this home shows the index as built."""
    home = Path(os.environ.get(HOME_VARIABLE) or ".dagster").expanduser().absolute()
    if not (home / "dagster.yaml").exists():
        return
    from niels_cache_assets.defs.launcher import record_index  # takes seconds: dagster

    try:
        record_index(registry, name, root=root, home=home)
    except NielsCacheError as error:  # only the record failed; the index is built
        diagnostics().print(f"WARNING: the index is built, but it is not recorded in {home}: {error}", soft_wrap=True)


def _plan(arguments: argparse.Namespace, registry: Registry, root: Path) -> BlendPlan:
    from niels_cache_assets.config.tables import ALL_TRAIN, MEGATRON_SEED
    from niels_cache_assets.indices.prebuild import BlendPlan, Part, plan_of, read_blend_file

    given = [f"--{option.replace('_', '-')}" for option in _OF_A_FILE if getattr(arguments, option) is not None]
    if arguments.name is not None:
        if arguments.blend is not None or given:
            option = "--blend" if arguments.blend is not None else given[0]
            raise NielsCacheError(
                f"{WHERE}: {option}: [blend.{arguments.name}] already has this setting; give NAME alone, or --blend and its settings"
            )
        return plan_of(registry, arguments.name, root=root)
    if arguments.blend is None:
        names = ", ".join(registry.blend) or "none"
        raise NielsCacheError(
            f"{WHERE}: no blend is named; give --blend FILE, or the name of a configured one ({registry.origin} has: {names})"
        )
    if arguments.sequence_length is None:
        raise NielsCacheError(f"{WHERE}: --blend needs --sequence-length; add that option")
    part: Part = chosen("--part", "no part", arguments.part or "train", get_args(Part))
    paths, weights = read_blend_file(arguments.blend)
    if weights is not None and arguments.num_samples is None:
        raise NielsCacheError(f"{WHERE}: {arguments.blend} has weights, which divide --num-samples among the paths; add --num-samples")
    return BlendPlan(
        labels=tuple(paths),
        paths=tuple(map(Path, paths)),
        weights=None if weights is None else tuple(weights),
        num_samples=arguments.num_samples,
        sequence_length=arguments.sequence_length,
        seed=MEGATRON_SEED if arguments.seed is None else arguments.seed,
        split=ALL_TRAIN if arguments.split is None else arguments.split,
        part=part,
    )


def _indices_json(outcome: Outcome) -> list[dict[str, Any]]:
    return [{**asdict(index), "hash": index.hash} for index in outcome.meta["indices"]]


def _print(outcome: Outcome, plan: BlendPlan) -> None:
    console = output()
    table = new_table("index of", "samples", "size", "hash", right=frozenset({"samples", "size"}), shrinking=["index of"])
    for index in outcome.meta["indices"]:
        table.add_row(index.label, f"{index.samples:,}", file_size(index.bytes), index.hash)
    console.print(table)
    verb = "built" if outcome.state == "built" else "already built, checked"
    console.print(f"\n{plan.part}, in {outcome.meta['indices'][-1].directory.parent}: {verb} in {outcome.seconds:.1f} s", soft_wrap=True)
    console.print(f"hash of all: {outcome.meta['hash']}", soft_wrap=True)


def _run_for_megatron_core(arguments: argparse.Namespace) -> int:
    """Build the missing indices, and print all indices. Raise NielsCacheError for wrong use. Raise NotWrittenError if the folder cannot be
    written.
    """
    from niels_cache_assets.artifacts.index import prebuild
    from niels_cache_assets.cli.megatron_core_flags import option_of, run_of
    from niels_cache_assets.cli.progress import array_progress
    from niels_cache_assets.indices.megatron_core_run import check_data, plans_of
    from niels_cache_assets.indices.prebuild import Part

    for name in _OF_A_BLEND:
        if getattr(arguments, name) is not None:
            shown = "NAME" if name == "name" else option_of(name)
            raise NielsCacheError(f"{WHERE}: {shown}: does not work with --for megatron-core; use the flags of the training run (--help)")
    run = run_of(arguments)
    if arguments.part is not None:
        chosen("--part", "no part", arguments.part, get_args(Part))
    plans = [plan for plan in plans_of(run) if arguments.part in (None, plan.part)]
    if not plans:
        raise NielsCacheError(f"{WHERE}: there is no data set for {arguments.part or 'any part'}; check --split")
    check_data(plans)
    began = time.monotonic()
    with stop_on_signals(), array_progress() as tell:
        outcomes = [prebuild(plan, root=Path(run.folder), progress=tell) for plan in plans]
    _print_run(run, plans, outcomes, seconds=time.monotonic() - began, as_json=arguments.json)
    return DONE


def _print_run(run: CoreRun, plans: Sequence[BlendPlan], outcomes: Sequence[Outcome], *, seconds: float, as_json: bool) -> None:
    from niels_cache_assets.indices.megatron_core_cache import VERSION
    from niels_cache_assets.indices.prebuild import Part

    hit = all(outcome.state == "cache_hit" for outcome in outcomes)
    flag = f"--data-cache-path {run.folder}"
    if as_json:
        parts = [
            {
                "part": plan.part,
                "num_samples": plan.num_samples,
                "state": outcome.state,
                "indices": _indices_json(outcome),
            }
            for plan, outcome in zip(plans, outcomes, strict=True)
        ]
        state = "cache_hit" if hit else "built"
        print_json({"state": state, "for": f"megatron-core {VERSION}", "seconds": seconds, "flag": flag, "parts": parts})
        return
    console = output()
    table = new_table("part", "index of", "samples", "size", "files", right=frozenset({"samples", "size"}), shrinking=["index of"])
    for plan, outcome in zip(plans, outcomes, strict=True):
        for index in outcome.meta["indices"]:
            table.add_row(plan.part, index.label, f"{index.samples:,}", file_size(index.bytes), f"{index.hash}-*")
    console.print(table)
    sizes = ", ".join(f"{part} {'all' if size is None else f'{size:,}'}" for part, size in zip(get_args(Part), run.sizes, strict=True))
    console.print(
        f"\nin {outcomes[0].meta['indices'][0].directory.parent}: {'already built, checked' if hit else 'built'} in {seconds:.1f} s",
        soft_wrap=True,
    )
    console.print(
        f"for megatron-core {VERSION}, with target sizes {sizes} (compare them with those that Megatron-LM prints at the start)",
        soft_wrap=True,
    )
    console.print(f"add to the training command: {flag}", soft_wrap=True)
