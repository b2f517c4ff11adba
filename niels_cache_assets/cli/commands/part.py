"""`part NAME [NUMBER]`: build one part of a data set, one part of its corpus, or one range of the search, in this process."""

from __future__ import annotations

import argparse
import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from niels_cache_assets.cli.command import PRETRAIN, WHERE, Command, at_least
from niels_cache_runtime.errors import NielsCacheError

if TYPE_CHECKING:
    from niels_cache_assets.artifacts.base import Artifact
    from niels_cache_assets.artifacts.graph import Graph
    from niels_cache_assets.artifacts.parts.part import Part
    from niels_cache_assets.artifacts.parts.seal import Sealed
    from niels_cache_assets.cli.worker import Lines
    from niels_cache_assets.config.registry import Registry

_BY_VARIABLE = -1  # --range without a number
NUMBER_VARIABLES = ("SLURM_ARRAY_TASK_ID", "JOB_COMPLETION_INDEX")  # of Slurm's array jobs and of Kubernetes' indexed jobs


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="a pretrain data set in parts")
    parser.add_argument(
        "number",
        metavar="NUMBER",
        nargs="?",
        type=at_least(0),
        help=f"the part, from 0 (default: the number in {' or '.join(NUMBER_VARIABLES)})",
    )
    parser.add_argument(
        "--val", action="store_true", help="build the val of all parts instead; data sets with val_tokens or decontaminate need it first"
    )
    parser.add_argument(
        "--corpus", action="store_true", help="clean and sign this part of the corpus; for data sets with prepare, which need it"
    )
    parser.add_argument(
        "--range",
        metavar="NUMBER",
        nargs="?",
        type=at_least(0),
        const=_BY_VARIABLE,
        help="find duplicates in this range of hashes, from 0; for data sets with dedup, if [dedup] sets ranges",
    )
    parser.add_argument(
        "--no-wait", action="store_true", help="if another process builds this part, end with exit code 75 instead of waiting"
    )
    parser.add_argument("--threads", metavar="N", type=at_least(1), help="threads that encode text; never changes the bytes")
    parser.add_argument("--launch", type=_launch, help=argparse.SUPPRESS)  # a program that starts this command stops it by this name
    parser.add_argument("--no-notify", action="store_true", help="send no message of [notify]; the program that starts this command does")


def _launch(text: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{1,32}", text):
        raise argparse.ArgumentTypeError(f"{text[:40]!r}: use up to 32 hexadecimal digits")
    return text


COMMAND = Command(
    usage="NAME [NUMBER] ",
    description="""\
Build one part of a data set in parts, in this process: no Dagster, no database. Any number of machines
that share the cache directory can do this at the same time, and any scheduler can start it. The first
command also makes the tokenizer and the plan. A finished part is a hit. If another process builds the
part, the command waits for it; if that process has died, the command continues its work.

--corpus builds a part of the corpus instead, for a data set with prepare. --range finds the documents that
share a hash in one range of hashes, among all data sets with dedup. The first of these commands makes the
hashes. If the drop lists are current, a range is a hit.

Stdout has one JSON object on each line: log, progress, result or error (docs/cluster.md). At the end,
`parts seal` joins the parts.""",
    examples="""\
  niels-cache part web --val                           build the val of all parts, if the data set needs one
  niels-cache part web 17
  niels-cache part wiki 17 --corpus                    clean and sign a part of a data set with prepare
  niels-cache part wiki --range 3                      find duplicates in one range of hashes
  niels-cache part web 17 --no-wait""",
    add_options=_add_options,
    offers={"name": PRETRAIN},
)


def run(arguments: argparse.Namespace) -> int:
    """Build the part, and print JSON lines."""
    from niels_cache_assets.cli.worker import work

    return work(lambda lines: _chosen(arguments, lines), wait=not arguments.no_wait, tells=not arguments.no_notify)


def _chosen(arguments: argparse.Namespace, lines: Lines) -> Artifact:
    """Return the artifact to build. Raises NielsCacheError if there is no such part, or if something is missing that it needs first."""
    from niels_cache_assets.artifacts.graph import graph
    from niels_cache_assets.cli.context import open_registry
    from niels_cache_assets.cli.worker import ready
    from niels_cache_assets.parts.layout import VAL_NAME, part_name, parts_dir
    from niels_cache_assets.parts.lease_files import Stops, mark_of_stop

    if arguments.range is not None:
        return _range(arguments, lines)
    number = _number(arguments)
    registry, root = open_registry(arguments)
    if arguments.corpus:
        return _corpus_part(arguments, number, graph(_with_threads(registry, arguments), root), lines)
    target = parts_dir(root, arguments.name) / (VAL_NAME if number is None else part_name(number))
    stops = Stops(launch=arguments.launch, stale=mark_of_stop(target))  # before the tokenizer and the plan, which may take hours
    sealed = ready(graph(_with_threads(registry, arguments), root), arguments.name, lines)
    if number is not None:
        return replace(_part(sealed, number), stops=stops)
    if not sealed.has_val_part:
        raise NielsCacheError(f"{registry.origin}: {arguments.name} has no val to build before its parts; build them and leave out --val")
    return replace(sealed.val_part(), stops=stops)


def _with_threads(registry: Registry, arguments: argparse.Namespace) -> Registry:
    if arguments.threads is None:
        return registry
    return replace(registry, build=registry.build.model_copy(update={"threads": arguments.threads}))


def _corpus_part(arguments: argparse.Namespace, number: int | None, found: Graph, lines: Lines) -> Artifact:
    """Return a part of a corpus, whose plan exists. Raises NielsCacheError if there is no such part."""
    from niels_cache_assets.cli.worker import ready_corpus
    from niels_cache_assets.corpus.layout import corpus_parts_dir
    from niels_cache_assets.parts.layout import part_name
    from niels_cache_assets.parts.lease_files import Stops, mark_of_stop

    if number is None:
        raise NielsCacheError(f"{WHERE}: --val and --corpus exclude each other; the val of a prepared data set is chosen from its corpus")
    target = corpus_parts_dir(found.root, arguments.name) / part_name(number)
    stops = Stops(launch=arguments.launch, stale=mark_of_stop(target))  # before the plan, which may take long
    corpus = ready_corpus(found, arguments.name, lines)
    count = corpus.source.corpus_parts
    if number >= count:
        raise NielsCacheError(f"{WHERE}: the corpus of {arguments.name} has the parts 0 to {count - 1}, and no part {number}")
    return replace(corpus.part(number), stops=stops)


def _range(arguments: argparse.Namespace, lines: Lines) -> Artifact:
    """Return a range of the search for duplicates, whose hashes exist. If the drop lists are current, return them instead."""
    from niels_cache_assets.artifacts.graph import graph
    from niels_cache_assets.cli.context import open_registry
    from niels_cache_assets.cli.worker import ready_search
    from niels_cache_assets.corpus.layout import HASHES, range_name, ranges_dir
    from niels_cache_assets.parts.lease_files import Stops, mark_of_stop

    for given, told in ((arguments.number, "a number of a part"), (arguments.val or None, "--val"), (arguments.corpus or None, "--corpus")):
        if given is not None:
            raise NielsCacheError(f"{WHERE}: --range and {told} exclude each other")
    number = _number_of(arguments.name) if arguments.range == _BY_VARIABLE else int(arguments.range)
    registry, root = open_registry(arguments)
    stops = Stops(launch=arguments.launch, stale=mark_of_stop(ranges_dir(root) / range_name(number)))  # before the hashes
    found = graph(registry, root)
    search = ready_search(found, arguments.name, lines)
    if number >= search.ranges:
        raise NielsCacheError(f"{WHERE}: the search for duplicates has the ranges 0 to {search.ranges - 1}, and no range {number}")
    return search if found.is_done(HASHES) else replace(search.range(number), stops=stops)


def _part(sealed: Sealed, number: int) -> Part:
    keys = [key for key in sealed.inputs() if key.startswith("part/")]
    if number >= len(keys):
        raise NielsCacheError(f"{WHERE}: {sealed.name} has the parts 0 to {len(keys) - 1}, and no part {number}")
    part = sealed.part(number)
    if sealed.has_val_part and part.finished() is None:
        try:
            sealed.val_part().current()
        except NielsCacheError as error:
            raise NielsCacheError(f"{error}: niels-cache part {sealed.name} --val") from error
    return part


def _number(arguments: argparse.Namespace) -> int | None:
    """Return the number of the part, or None for the val. Raises NielsCacheError if there is no number, or one too many."""
    if arguments.val:
        if arguments.number is not None:
            raise NielsCacheError(f"{WHERE}: --val builds the val of all parts; leave out the number {arguments.number}")
        return None
    if arguments.number is not None:
        number: int = arguments.number
        return number
    return _number_of(arguments.name)


def _number_of(name: str) -> int:
    """Return the number that a scheduler has set. Raises NielsCacheError if there is none."""
    for variable in NUMBER_VARIABLES:
        if text := os.environ.get(variable):
            if not text.isdecimal():
                raise NielsCacheError(f"{variable}={text[:40]!r}: is not the number of a part")
            return int(text)
    raise NielsCacheError(f"{WHERE}: which part of {name}? Give its number, --val, or one of {', '.join(NUMBER_VARIABLES)}")
