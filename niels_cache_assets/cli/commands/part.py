"""The command `part NAME [NUMBER]`, which builds one part of a data set, its corpus or its search for duplicates.

It also joins, adds or removes parts.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from niels_cache_assets.base.wording import file_size, format_count, format_list
from niels_cache_assets.cli.command import PRETRAIN, WHERE, BuildFailedError, Command, integer_at_least, option, refuse_options, switch
from niels_cache_assets.cli.console import PROGRAM, diagnostics, display, print_facts, stdout
from niels_cache_runtime.errors import NielsCacheError

if TYPE_CHECKING:
    from niels_cache_assets.artifacts.base import Artifact
    from niels_cache_assets.artifacts.graph import Graph
    from niels_cache_assets.cli.worker import JsonLines
    from niels_cache_assets.project.registry import Registry

NUMBER_VARIABLES = ("SLURM_ARRAY_TASK_ID", "JOB_COMPLETION_INDEX")  # of Slurm's array jobs and of Kubernetes' indexed jobs


def _launch(text: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{1,32}", text):
        raise argparse.ArgumentTypeError(f"{text[:40]!r}: use up to 32 hexadecimal digits")
    return text


COMMAND = Command(
    options=(
        option("name", "NAME", "a pretrain data set that is built in parts"),
        option(
            "number",
            "NUMBER",
            f"the part, from 0 (default: the number in {' or '.join(NUMBER_VARIABLES)})",
            nargs="?",
            type=integer_at_least(0),
        ),
        [
            switch("--val", "first build the val of all parts, for data sets with val_tokens or decontaminate"),
            switch("--corpus", "clean this part of the corpus and compute its signatures"),
            switch("--range", "find duplicates in this range of hashes, if [dedup] sets ranges"),
            switch("--seal", "join the finished parts"),
            option("--add", "PATTERN", "add new files to the data set; PATTERN as in the key `files`", nargs="+"),
            switch("--prune", "remove parts of earlier plans"),
        ],
        option("--parts", "N", "with --add: the number of parts for the new files (default: 1)", type=int),
        option("--train-tokens", "N", "with --add: a token budget for the new files (default: all their tokens)", type=int),
        switch("--no-wait", "exit with 75 instead of waiting if another process is building this part"),
        option("--threads", "N", "number of encoding threads; does not affect the bytes", type=integer_at_least(1)),
        option("--launch", "ID", argparse.SUPPRESS, type=_launch),  # a program that starts this command stops it by this name
        switch("--no-notify", "send no [notify] messages"),
    ),
    usage="NAME [NUMBER] ",
    description="""\
Build one part of a data set in this process, without Dagster or a database. Any number of machines that
share the cache directory can do this at the same time, under any scheduler. The first command to run
also creates the tokenizer and the plan. If another process is building the part, the command waits for
that process, and takes over if it dies.

For a data set with prepare, --corpus builds one part of the corpus. --range finds duplicates in one
range of hashes, across all data sets with dedup.

--seal joins the parts into the cache with hard links, so no shard is copied. With prepare, the first
call joins the corpus, and the second joins the cache.

All of these commands write one JSON object per line to stdout: log, progress, result or error
(docs/cluster.md).

--add appends a [[pretrain.NAME.added]] table to the configuration file and leaves the rest of the file
unchanged. The next build reads only the new files: existing tokens keep their positions, and val keeps
its documents.

--prune removes the parts of earlier plans, or all parts if the data set is no longer built in parts. It
keeps the parts of the current plan, which are needed to repair or extend the cache; their shards are
hard links. With a store, it removes what interrupted attempts have left there, of any data set and of
the tokenizer, and parts of earlier plans a day after their last change. It keeps the published build and
the one before it.""",
    examples="""\
  niels-cache part web 17
  niels-cache part wiki 3 --range                      find duplicates in one range of hashes
  niels-cache part web --seal                          join the parts
  niels-cache part web --add 'CC-MAIN-2026-05/*' --parts 8   add a crawl as 8 more parts""",
    offers={"name": PRETRAIN},
)


def run(arguments: argparse.Namespace) -> int | None:
    """Build or join, and print JSON lines; or add or remove parts, and print what was done."""
    from niels_cache_assets.cli.context import open_registry
    from niels_cache_assets.cli.worker import build_and_report, require_name

    if not arguments.add:
        refuse_options(arguments, ("parts", "train_tokens"), "only for new files; name them with --add, or leave it out")
    if not arguments.add and not arguments.prune:
        return build_and_report(lambda lines: _artifact(arguments, lines), wait=not arguments.no_wait, notify=not arguments.no_notify)
    _refuse_number(arguments)
    registry, root = open_registry(arguments)
    if arguments.add:
        require_name(registry, arguments.name)
    (_add if arguments.add else _prune)(arguments, registry, root)
    return None


def _artifact(arguments: argparse.Namespace, lines: JsonLines) -> Artifact:
    """Return the artifact to build.

    Raises:
        NielsCacheError: If there is no such part, or if something is missing that it needs first.
    """
    from niels_cache_assets.artifacts.graph import graph
    from niels_cache_assets.cli.context import open_registry
    from niels_cache_assets.cli.worker import ready_corpus, ready_dataset, ready_seal, ready_search
    from niels_cache_assets.corpus.layout import HASHES, corpus_parts_dir, range_name, ranges_dir
    from niels_cache_assets.parts.layout import VAL_NAME, part_name, parts_dir
    from niels_cache_assets.parts.lease import StopRequests, stop_stamp

    name = arguments.name
    if is_whole := arguments.val or arguments.seal:
        _refuse_number(arguments)
    number = -1 if is_whole else _number(arguments)
    registry, root = open_registry(arguments)
    if arguments.threads is not None:
        registry = replace(registry, build=registry.build.model_copy(update={"threads": arguments.threads}))
    artifacts = graph(registry, root)
    if arguments.seal:
        seal = ready_seal(artifacts, name, lines)
        lines.key = seal.key
        _require_steps_before(seal.key, artifacts, name, lines)
        return seal
    if arguments.range:
        target = ranges_dir(root) / range_name(number)
    elif arguments.corpus:
        target = corpus_parts_dir(root, name) / part_name(number)
    else:
        target = parts_dir(root, name) / (VAL_NAME if arguments.val else part_name(number))
    # Before the tokenizer, the plan and the hashes, which may take hours.
    stops = StopRequests(launch=arguments.launch, stale=stop_stamp(target))
    if arguments.range:
        search = ready_search(artifacts, name, lines)
        _require_number(number, search.ranges, "range", "the search for duplicates")
        return search if artifacts.is_done(HASHES) else replace(search.range(number), stops=stops)
    if arguments.corpus:
        corpus = ready_corpus(artifacts, name, lines)
        _require_number(number, corpus.source.corpus_parts, "part", f"the corpus of {name}")
        return replace(corpus.part(number), stops=stops)
    sealed = ready_dataset(artifacts, name, lines)
    if arguments.val:
        if not sealed.spec.source.has_val_part:
            raise NielsCacheError(f"{registry.origin}: {name} has no val to build before its parts; build them and leave out --val")
        return replace(sealed.val_part(), stops=stops)
    _require_number(number, sum(key.startswith("part/") for key in sealed.inputs()), "part", name)
    part = sealed.part(number)
    if sealed.spec.source.has_val_part and part.finished() is None:
        try:
            sealed.val_part().current()
        except NielsCacheError as error:
            raise NielsCacheError(f"{error}: {PROGRAM} part {name} --val") from error
    return replace(part, stops=stops)


def _require_steps_before(seal: str, artifacts: Graph, name: str, lines: JsonLines) -> None:
    """Log which steps before a seal are missing, and why: one line for each reason.

    Raises:
        BuildFailedError: If a step is missing. The message has the command that submits exactly the missing steps to Slurm.
    """
    from niels_cache_assets.parts.lease import DONE

    left = {step.key: step for step in artifacts.watch(name) if step.state != DONE}
    missing = [left[key] for key in artifacts.before(seal) if key in left and seal in left]
    reasons: dict[str, list[str]] = {}
    for step in missing:
        reasons.setdefault(f"{step.state}: {step.reason}", []).append(step.key)
    for reason, keys in reasons.items():
        others, numbers = _split_keys(keys)
        lines.log(f"{', '.join([*others, *([f'parts {numbers}'] if numbers else [])])}: {reason}")
    if missing:
        others, numbers = _split_keys([step.key for step in missing])
        jobs = [("--wait", ["--val"])] if f"val_part/{name}" in others else []  # no part can begin before it
        jobs += [(f"--array={numbers}", ["--corpus"] if seal.startswith("corpus/") else [])] if numbers else []
        where = artifacts.registry.options(artifacts.root)
        commands = [shlex.join(["sbatch", how, "--wrap", shlex.join([PROGRAM, "part", name, *what, *where])]) for how, what in jobs]
        raise BuildFailedError(
            f"{seal}: {format_count(len(missing), 'step')} before it are not done; submit them again, such as with {' && '.join(commands)}"
        )


def _split_keys(keys: Sequence[str]) -> tuple[list[str], str]:
    """Return the keys that are not of parts, and the numbers of the parts as the option --array of Slurm, such as 0-3,7."""
    from niels_cache_assets.parts.plan import runs

    others = [key for key in keys if key.count("/") < 2]  # a part has the key part/NAME/part-00017
    numbers = [int(key.rpartition("-")[2]) for key in keys if key.count("/") == 2]
    return others, ",".join(f"{first}-{stop - 1}" if stop - first > 1 else f"{first}" for first, stop in runs(numbers))


def _refuse_number(arguments: argparse.Namespace) -> None:
    if arguments.number is not None:
        what = "--val, --seal, --add and --prune concern all parts"
        raise NielsCacheError(f"{WHERE}: {what} of {arguments.name}; leave out the number {arguments.number}")


def _require_number(number: int, count: int, unit: str, whole: str) -> None:
    if number >= count:
        raise NielsCacheError(f"{WHERE}: {whole} has the {unit}s 0 to {count - 1}, and no {unit} {number}")


def _number(arguments: argparse.Namespace) -> int:
    """Return the number that is typed, or that a scheduler has set.

    Raises:
        NielsCacheError: If there is none.
    """
    if arguments.number is not None:
        return int(arguments.number)
    for variable in NUMBER_VARIABLES:
        if text := os.environ.get(variable):
            if not text.isdecimal():
                raise NielsCacheError(f"{variable}={text[:40]!r}: is not the number of a part")
            return int(text)
    raise NielsCacheError(f"{WHERE}: which part of {arguments.name}? Give its number, --val, or one of {', '.join(NUMBER_VARIABLES)}")


def _add(arguments: argparse.Namespace, registry: Registry, root: Path) -> None:
    from niels_cache_assets.artifacts.parts.plan import check_addition
    from niels_cache_assets.project.editing import TableNotWrittenError, add_table, locked_config, read_added_tables
    from niels_cache_assets.project.registry import load_registry

    name, config = arguments.name, Path(registry.origin)
    if not config.is_file():
        raise NielsCacheError(f"{registry.origin}: is not a file, so nothing can be added to it; write one: {PROGRAM} init")
    settings = {"files": arguments.add, "parts": 1 if arguments.parts is None else arguments.parts}
    if arguments.train_tokens is not None:
        settings["train_tokens"] = arguments.train_tokens
    with locked_config(config, log=lambda line: diagnostics().print(line)):
        registry = load_registry(profile=registry.profile, config=registry.origin)  # another command may have written it meanwhile
        addition = check_addition(registry, root, name, read_added_tables(config, name), settings)
        try:
            written = None if addition is None else add_table(config, name, addition.entry, keys=addition.keys)
        except TableNotWrittenError as error:
            if not print_facts(arguments, {"name": name, "written": None, "lines": error.toml}):
                print(error.toml, file=stdout())
            raise
    if print_facts(
        arguments, {"name": name, "written": written, "files": [] if addition is None else [file.name for file in addition.files]}
    ):
        return
    if addition is None:
        display(f"{name}: {format_list(arguments.add)} is in {config} already; nothing was written")
        return
    size = file_size(sum(file.bytes for file in addition.files))
    summary = f"{format_count(len(addition.files), 'file')} of {size} in {format_count(settings['parts'], 'new part')}"
    display(f"{name}: {summary}; wrote [[pretrain.{name}.added]] to {written}")
    for key, value in addition.keys.items():
        display(f"{name}: also wrote {key} = {value}, the commit of the built data set")
    display(f"build the new parts: {PROGRAM} build-all --only {name}")


def _prune(arguments: argparse.Namespace, registry: Registry, root: Path) -> None:
    from niels_cache_assets.artifacts.graph import graph
    from niels_cache_assets.artifacts.parts.prune import prune_parts

    name = arguments.name
    removed = prune_parts(graph(registry, root), name)
    if print_facts(arguments, {"name": name, "removed": [part._asdict() for part in removed]}):
        return
    for part in removed:
        display(f"removed {part.directory} ({file_size(part.bytes)})")
    why = "" if removed else ", because there is none of an earlier plan or of an interrupted attempt"
    display(f"{name}: removed {format_count(len(removed), 'folder')}{why}")
