"""`clean FILE ...`: the cleaning chain on files that need no table, to see what it would take. Nothing is written.

It runs what makes a corpus, in as many processes where there is enough to read.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain, islice
from operator import attrgetter
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from niels_cache_assets.cleaning.counting import CleaningReport
from niels_cache_assets.cleaning.settings import CleaningSettings
from niels_cache_assets.cli.commands.rejected import check_reason, chosen_examples, examples_by_reason, print_examples, print_reasons
from niels_cache_assets.cli.console import diagnostics, output, print_json
from niels_cache_assets.cli.context import open_registry
from niels_cache_assets.cli.exit_codes import DONE
from niels_cache_assets.cli.overrides import WHERE, parse_value
from niels_cache_assets.corpus.chunks import Chunk, ChunkWork
from niels_cache_assets.corpus.counts import CorpusCounts
from niels_cache_assets.corpus.report import estimated_tokens
from niels_cache_assets.corpus.workers import map_in_processes
from niels_cache_assets.documents import Document
from niels_cache_assets.own_data.by_name import sources_of
from niels_cache_assets.registry import Registry, load_registry
from niels_cache_assets.sources.base import PretrainSource, StreamContext
from niels_cache_assets.streaming.encode import in_chunks
from niels_cache_assets.wording import counted
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.reading import available_threads

EXAMPLES = 3  # of a reason that is asked for
_WORTH_PROCESSES = 8_000_000  # bytes of input from which starting processes pays


def run(arguments: argparse.Namespace) -> int:
    for option, value, least in (("-n", arguments.count, 0), ("--limit", arguments.limit, 1)):
        if value is not None and value < least:
            raise NielsCacheError(f"{WHERE}: {option} must be at least {least}")
    if arguments.reason is not None:
        check_reason(arguments.reason, ())
    registry, _ = open_registry(arguments)
    settings = _thresholds(registry, arguments)
    sources = sources_of(arguments.files, text_field=arguments.text_field)
    outcome = CorpusCounts(report=CleaningReport(registry.build.seed))
    with _progress() as bar:
        task = bar.add_task("cleaning", total=None, detail="")
        for _ in _clean(sources, settings, limit=arguments.limit, seed=registry.build.seed, outcome=outcome):
            bar.update(task, detail=f"{outcome.before.documents:,} documents, {outcome.after.documents:,} kept")
    count = arguments.count if arguments.count is not None else EXAMPLES if arguments.reason else 0
    if arguments.json:
        examples = chosen_examples(examples_by_reason(outcome.report.rows()), count=count, reason=arguments.reason)
        print_json({**outcome.meta(), "examples": examples})
        return DONE
    console = output()
    _print_counts(console, outcome)
    print_examples(console, examples_by_reason(outcome.report.rows()), count=count, reason=arguments.reason)
    return DONE


def _thresholds(registry: Registry, arguments: argparse.Namespace) -> CleaningSettings:
    """[cleaning], with the keys of --like's data set and those of --set in it."""
    changes: dict[str, Any] = {}
    for setting in arguments.settings:
        key, equals, value = setting.partition("=")
        key = key.strip().removeprefix("cleaning.")
        if not equals or not key:
            raise NielsCacheError(f"{WHERE}: --set {setting!r} is not KEY=VALUE, for example min_words=20")
        changes[key] = parse_value(value.strip())
    own: dict[str, Any] = {}
    if arguments.like is not None:
        if arguments.like not in registry.pretrain:
            registry.refuse_data_set(f"{WHERE}: --like", "no pretrain data set", arguments.like, registry.pretrain)
        own = registry.pretrain[arguments.like].cleaning or {}
    overrides = {"cleaning": {**own, **changes}}
    options = {f"cleaning.{key}": f"{WHERE}: clean --set" for key in changes}
    return load_registry(profile=arguments.profile, config=arguments.config, overrides=overrides, options=options).cleaning


def _clean(
    sources: Sequence[PretrainSource], settings: CleaningSettings, *, limit: int | None, seed: int, outcome: CorpusCounts
) -> Iterator[None]:
    """Count the sources' documents, the first `limit` of all, in `outcome`, chunk by chunk."""
    given = 0

    def chunks_of(documents: Iterable[Document]) -> Iterator[Chunk]:
        nonlocal given
        for chunk in in_chunks(documents, lambda document: len(document.text)):
            yield Chunk(given, chunk)
            given += len(chunk)

    for source in sources:
        context = StreamContext(seed=seed)
        documents = chain.from_iterable(source.unconverted(context))
        chunks = chunks_of(documents if limit is None else islice(documents, limit - given))
        processes = available_threads() if limit is None and _input_bytes(source) >= _WORTH_PROCESSES else 1
        work = ChunkWork(source=source, seed=seed, cleaning=settings, num_perm=None, ngram=None)
        with closing(map_in_processes(work, chunks, processes=processes, doing="cleaning", size_of=attrgetter("characters"))) as results:
            for chunk in results:
                outcome.add(chunk)
                yield
        outcome.dropped_by_source += context.report.dropped


def _input_bytes(source: PretrainSource) -> int:
    return sum(os.path.getsize(path) for path in getattr(source, "files", []) if os.path.isfile(path))


def _progress() -> Progress:
    console = diagnostics()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TextColumn("{task.fields[detail]}"), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _print_counts(console: Console, outcome: CorpusCounts) -> None:
    before, after = outcome.before, outcome.after
    given = before.documents + sum(outcome.dropped_by_source.values())
    console.print(f"{counted(given, 'document')} read, {after.documents:,} kept", style="bold", soft_wrap=True)
    print_reasons(console, kept=after.documents, by_cleaning=outcome.report.dropped, by_source=outcome.dropped_by_source)
    if before.characters:
        tokens = f"about {counted(estimated_tokens(after.characters), 'token')}"
        console.print(f"\n{counted(before.characters, 'character')} read, {after.characters:,} kept, {tokens}", soft_wrap=True)
