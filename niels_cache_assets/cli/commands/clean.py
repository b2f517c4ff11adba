"""The command `clean FILE ...`. It runs the cleaning chain on any files, and prints which documents the chain would drop. Nothing is
written.

The command runs the code that makes a corpus, and uses all cores for a large input.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from niels_cache_assets.cli.command import PRETRAIN, WHERE, Command, at_least
from niels_cache_assets.cli.console import diagnostics, output, print_json
from niels_cache_assets.cli.exit_codes import DONE
from niels_cache_assets.cli.overrides import parse_value
from niels_cache_assets.cli.reasons import check_reason, chosen_examples, examples_by_reason, print_examples, print_reasons
from niels_cache_assets.show.wording import counted
from niels_cache_assets.streaming.in_flight import map_in_processes
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.reading import available_threads

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from niels_cache_assets.config.registry import Registry
    from niels_cache_assets.config.tables import CleaningSettings
    from niels_cache_assets.corpus.chunks import Chunk, CorpusCounts
    from niels_cache_assets.documents import Document
    from niels_cache_assets.sources.types import PretrainSource

EXAMPLES = 3  # examples to print if --reason names a reason
_WORTH_PROCESSES = 8_000_000  # bytes of input; a smaller input is faster without processes


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", metavar="FILE", nargs="+", help="files and folders")
    parser.add_argument(
        "-n", metavar="N", dest="count", type=at_least(0), help="rejected examples to print for each reason (default: 0; 3 with --reason)"
    )
    parser.add_argument("--reason", metavar="REASON", help="print examples of this reason only")
    parser.add_argument("--limit", metavar="N", type=at_least(1), help="read the first N documents only")
    parser.add_argument(
        "--text-field", metavar="FIELD", help="field with the text in .jsonl and .parquet (default: text, else the only one that can be it)"
    )
    parser.add_argument("--like", metavar="NAME", help="use the thresholds of this data set")
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        dest="settings",
        help="override a key of [cleaning]; the value is TOML, or plain text if it is not valid TOML; repeat the option for several keys",
    )


COMMAND = Command(
    usage="FILE ... ",
    description="""\
Run the cleaning chain on files and show which documents it drops. Nothing is registered or written.

The name of FILE determines its format: .txt, .md and .rst (one document per file), .jsonl (one per
line), .parquet (one per row), .xml (a MediaWiki dump), each also compressed as .gz, .bz2, .xz or .zst.
A folder stands for every such file in it. The thresholds come from [cleaning] in your configuration.""",
    examples="""\
  niels-cache clean notes/ articles.jsonl.gz                   how many documents stay, and why the others are dropped
  niels-cache clean dump.xml.bz2 --limit 1000 -n 2             two examples of each reason
  niels-cache clean a.jsonl -n 20 --reason list_page           twenty of one reason
  niels-cache clean a.jsonl --set min_words=20 --set 'skip=["not_english"]'
  niels-cache clean a.jsonl --like wikipedia                   with the thresholds of that data set

What each reason means, and where its threshold comes from: docs/cleaning.md""",
    add_options=_add_options,
    offers={"like": PRETRAIN},
    has_json=True,
)


def run(arguments: argparse.Namespace) -> int:
    from niels_cache_assets.cleaning.counting import CleaningReport
    from niels_cache_assets.cli.context import open_registry
    from niels_cache_assets.corpus.chunks import CorpusCounts
    from niels_cache_assets.own_data.recognizing import sources_of

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
    """Return the settings of [cleaning]. The data set of --like overrides their keys, and --set overrides both."""
    from niels_cache_assets.config.registry import load_registry

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
    """Count the documents of all sources in `outcome`, chunk by chunk, up to `limit` documents in all."""
    from niels_cache_assets.corpus.chunks import Chunk, ChunkWork
    from niels_cache_assets.sources.types import StreamContext
    from niels_cache_assets.streaming.intake import in_lists

    given = 0

    def chunks_of(documents: Iterable[Document]) -> Iterator[Chunk]:
        nonlocal given
        for chunk in in_lists(documents):
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
                outcome.add(chunk.counts)
                yield
        outcome.dropped_by_source.join(context.report)


def _input_bytes(source: PretrainSource) -> int:
    return sum(os.path.getsize(path) for path in getattr(source, "files", []) if os.path.isfile(path))


def _progress() -> Progress:
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = diagnostics()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TextColumn("{task.fields[detail]}"), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _print_counts(console: Console, outcome: CorpusCounts) -> None:
    from niels_cache_assets.corpus.report import estimated_tokens

    before, after = outcome.before, outcome.after
    given = before.documents + outcome.dropped_by_source.dropped.total()
    console.print(f"{counted(given, 'document')} read, {after.documents:,} kept", style="bold", soft_wrap=True)
    print_reasons(console, kept=after.documents, by_cleaning=outcome.report.dropped, by_source=outcome.dropped_by_source.dropped)
    if before.characters:
        tokens = f"about {counted(estimated_tokens(after.characters), 'token')}"
        console.print(f"\n{counted(before.characters, 'character')} read, {after.characters:,} kept, {tokens}", soft_wrap=True)
    if masked := outcome.report.masked:
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in sorted(masked.items()))
        console.print(f"masked in {counted(outcome.report.masked_documents, 'kept document')}: {kinds}", soft_wrap=True)
