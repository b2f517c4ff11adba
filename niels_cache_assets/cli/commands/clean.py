"""The command `clean`, which tries the cleaning chain, or shows what it dropped from a corpus.

`clean FILE ...` runs the chain on any files, and prints which documents it would drop. Nothing is written. `clean --dropped NAME` prints
what cleaning dropped from a corpus, with the examples that the build saved. The command runs the code that makes a corpus, and uses all
cores for a large input.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain, islice
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from niels_cache_assets.base.parallel import map_in_processes
from niels_cache_assets.base.reasons import explain, reasons_of, row_of
from niels_cache_assets.base.wording import format_count, format_share
from niels_cache_assets.cli.command import PRETRAIN, WHERE, Command, integer_at_least, option, raise_invalid
from niels_cache_assets.cli.console import diagnostics, display, excerpt, new_table, print_facts, title_of
from niels_cache_assets.cli.overrides import parse_value
from niels_cache_assets.corpus.layout import REJECTED, REJECTED_NAME
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.reading import available_threads

if TYPE_CHECKING:
    from niels_cache_assets.base.documents import Document
    from niels_cache_assets.cleaning.settings import CleaningSettings
    from niels_cache_assets.corpus.chunks import CorpusChunk, CorpusCounts
    from niels_cache_assets.project.registry import Registry
    from niels_cache_assets.sources.types import PretrainSource

EXAMPLES = 3  # examples to print of each reason for --dropped and --reason
_MIN_BYTES_FOR_PROCESSES = 8_000_000  # bytes of input; a smaller input is faster without processes

Example = Mapping[str, Any]  # a row of corpus.layout.REJECTED


COMMAND = Command(
    options=(
        option("files", "FILE", "files and folders", nargs="*"),
        option("--dropped", "NAME", "instead of cleaning FILE, show what cleaning dropped from this built data set"),
        option(
            "-n", "N", "examples to print for each reason (default: 3 with --dropped or --reason)", dest="count", type=integer_at_least(0)
        ),
        option("--reason", "REASON", "only print examples of this reason"),
        option("--steps-of", "NAME", "run the steps of this data set, and clean only if it is cleaned or --set is given"),
        option("--limit", "N", "only read the first N documents", type=integer_at_least(1)),
        option("--text-field", "FIELD", "text field of rows (default: text, else the only possible field)"),
        option(
            "--set",
            "KEY=VALUE",
            "override a key of [cleaning]; the value is TOML, or plain text if it is not valid TOML; repeatable",
            action="append",
            default=[],
            dest="settings",
        ),
    ),
    usage="[FILE ...] ",
    description="""\
Run the cleaning chain on files and show which documents it drops, without registering or writing
anything.

--dropped NAME shows what cleaning dropped from a built data set: counts by reason, and examples with the
measured value. A build saves 50 randomly sampled examples per reason.

The extension of FILE determines its format: .txt, .md, .rst, .html and .epub (one document per file),
.jsonl, .json, .csv, .tsv, .parquet, .arrow and .feather (one per row), .xml (a MediaWiki dump), .warc and
.wet (one per record). Text files may be compressed as .gz, .bz2, .xz or .zst. For a folder, all such files
in it are read. The thresholds come from [cleaning] in your
configuration.""",
    examples="""\
  niels-cache clean notes/ articles.jsonl.gz                   counts by reason
  niels-cache clean dump.xml.bz2 --limit 1000 -n 2             two examples of each reason
  niels-cache clean a.jsonl --set min_words=20 --set 'skip=["not_english"]'
  niels-cache clean --dropped wikipedia                        what a build dropped

docs/drop_reasons.md says what each reason means and what to do; docs/cleaning.md explains the thresholds.""",
    offers={"dropped": PRETRAIN, "steps_of": PRETRAIN, "reason": reasons_of("cleaning", "reading")},
)


def run(arguments: argparse.Namespace) -> None:
    """Print the counts of each reason, and examples."""
    from niels_cache_assets.cli.context import open_registry

    if bool(arguments.files) == bool(arguments.dropped):
        raise NielsCacheError(f"{WHERE}: clean takes FILE ... to clean, or --dropped NAME of a built data set")
    if arguments.reason is not None and row_of(arguments.reason) is None:
        raise_invalid("--reason", "unknown value", arguments.reason, reasons_of("cleaning", "reading"))
    if arguments.count is None:
        arguments.count = EXAMPLES if arguments.reason or arguments.dropped else 0
    registry, root = open_registry(arguments)
    if arguments.dropped:
        _show_dropped(arguments, registry, root)
    else:
        _clean_files(arguments, registry)


def _show_dropped(arguments: argparse.Namespace, registry: Registry, root: Path) -> None:
    from niels_cache_assets.artifacts.corpus_report import source_documents
    from niels_cache_assets.corpus.prepared import open_documents
    from niels_cache_assets.inspection.corpora import find_corpus

    name = arguments.dropped
    directory, meta = find_corpus(registry, root, name)
    dropped = Counter[str](meta["dropped"])
    with open_documents(directory / REJECTED_NAME) as parquet:
        examples = _select_examples(parquet.read(columns=list(REJECTED)).to_pylist(), arguments)
    given, kept, by_source = source_documents(meta), meta["documents"]["kept"], Counter[str](meta["dropped_by_source"])
    if print_facts(arguments, {"name": name, "read": given, "kept": kept, "dropped": dropped, "examples": examples}):
        return
    _print_reasons(f"{name}: ", kept=kept, by_cleaning=dropped - by_source, by_source=by_source)
    _print_examples(examples)
    if arguments.reason and dropped[arguments.reason] and not examples and arguments.count:
        explanation = "these documents were dropped while the source was read; no examples of them are saved"
        display(f"{arguments.reason}: {format_count(dropped[arguments.reason], 'document')}; {explanation}")


def _clean_files(arguments: argparse.Namespace, registry: Registry) -> None:
    from niels_cache_assets.cleaning.report import CleaningReport
    from niels_cache_assets.cli.detection import sources_of
    from niels_cache_assets.corpus.chunks import CorpusCounts

    settings: CleaningSettings | None = _thresholds(arguments)
    sources = sources_of(arguments.files, text_field=arguments.text_field)
    if name := arguments.steps_of:
        table = registry.pretrain.get(name)
        if table is None or not table.steps:
            raise NielsCacheError(f"{WHERE}: --steps-of {name}: this data set has no steps in {registry.origin}")
        own = {key: getattr(table, key) for key in ("steps", "keep") if hasattr(table, key)}  # conditions may read what is kept
        sources = [each.model_copy(update=own) for each in sources]
        if not arguments.settings:
            settings = registry.cleaning_of(name) if "clean" in table.prepare else None
    outcome = CorpusCounts(report=CleaningReport(registry.build.seed))
    with diagnostics().status("cleaning") as status:  # shown only in a terminal
        for _ in _clean(sources, settings, limit=arguments.limit, seed=registry.build.seed, outcome=outcome):
            status.update(f"cleaning {outcome.before.documents:,} documents, {outcome.after.documents:,} kept")
    examples = _select_examples(outcome.report.rows(), arguments)
    if not print_facts(arguments, {**outcome.meta(), "examples": examples}):
        _print_counts(outcome)
        _print_examples(examples)


def _thresholds(arguments: argparse.Namespace) -> CleaningSettings:
    from niels_cache_assets.project.registry import load_registry

    changes: dict[str, Any] = {}
    for setting in arguments.settings:
        key, equals, value = setting.partition("=")
        key = key.strip().removeprefix("cleaning.")
        if not equals or not key:
            raise NielsCacheError(f"{WHERE}: --set {setting!r} is not KEY=VALUE, for example min_words=20")
        changes[key] = parse_value(value.strip())
    options = {f"cleaning.{key}": f"{WHERE}: clean --set" for key in changes}
    return load_registry(profile=arguments.profile, config=arguments.config, overrides={"cleaning": changes}, options=options).cleaning


def _clean(
    sources: Sequence[PretrainSource], settings: CleaningSettings | None, *, limit: int | None, seed: int, outcome: CorpusCounts
) -> Iterator[None]:
    """Count the documents of all sources in `outcome`, chunk by chunk, up to `limit` documents in all."""
    from niels_cache_assets.base.documents import DocumentBatch
    from niels_cache_assets.corpus.chunks import ChunkWork, CorpusChunk
    from niels_cache_assets.sources.types import StreamContext
    from niels_cache_assets.steps.identity import is_stateful
    from niels_cache_assets.streaming.intake import in_lists

    given = 0

    def chunks_of(documents: Iterable[Document]) -> Iterator[CorpusChunk]:
        nonlocal given
        for chunk in in_lists(documents):
            yield CorpusChunk(given, DocumentBatch.of(chunk))
            given += len(chunk)

    for source in sources:
        context = StreamContext(seed=seed)
        documents = chain.from_iterable(source.unconverted(context))
        chunks = chunks_of(documents if limit is None else islice(documents, limit - given))
        size = sum(os.path.getsize(path) for path in getattr(source, "files", []) if os.path.isfile(path))
        one = limit is not None or size < _MIN_BYTES_FOR_PROCESSES or is_stateful(source)
        processes = 1 if one else available_threads()
        work = ChunkWork(source=source, seed=seed, cleaning=settings, signer=None)
        with closing(map_in_processes(work, chunks, processes=processes, doing="cleaning", size_of=attrgetter("characters"))) as results:
            for chunk in results:
                outcome.add(chunk.counts)
                yield
        outcome.dropped_by_source.join(context.report)


def _print_counts(outcome: CorpusCounts) -> None:
    from niels_cache_assets.artifacts.corpus_report import estimated_tokens

    before, after = outcome.before, outcome.after
    by_source = outcome.dropped_by_source.dropped
    _print_reasons("", kept=after.documents, by_cleaning=outcome.report.dropped, by_source=by_source)
    if before.characters:
        tokens = f"about {format_count(estimated_tokens(after.characters), 'token')}"
        display(f"\n{format_count(before.characters, 'character')} read, {after.characters:,} kept, {tokens}")
    if masked := outcome.report.masked:
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in sorted(masked.items()))
        display(f"masked in {format_count(outcome.report.masked_documents, 'kept document')}: {kinds}")


def _print_reasons(title: str, *, kept: int, by_cleaning: Mapping[str, int], by_source: Mapping[str, int]) -> None:
    """Print the number of kept documents, and the number of dropped documents for each reason.

    Args:
        title: Heading of the table.
        kept: Number of kept documents.
        by_cleaning: Number of documents that the cleaning chain dropped, by reason.
        by_source: Number of documents that the source dropped while reading, before the cleaning chain, by reason.
    """
    given = kept + sum(by_cleaning.values()) + sum(by_source.values())
    display(f"{title}{format_count(given, 'document')} read, {kept:,} kept", style="bold")
    table = new_table("", "documents", "share", "meaning", right=["documents", "share"], shrinking=["meaning"])
    table.add_row("kept", f"{kept:,}", format_share(kept, given), "", style="bold")
    rows = [(reason, note, count) for counts, note in ((by_cleaning, ""), (by_source, " (when read)")) for reason, count in counts.items()]
    for reason, note, count in sorted(rows, key=lambda row: (-row[2], row[0] + row[1])):
        table.add_row(reason + note, f"{count:,}", format_share(count, given), explain(reason))
    display(table)


def _select_examples(rows: Iterable[Example], arguments: argparse.Namespace) -> list[Example]:
    """Return `-n` examples of each reason, or only of `--reason`, ordered by reason."""
    examples: dict[str, list[Example]] = {}
    for row in rows:
        examples.setdefault(row["reason"], []).append(row)
    return [
        row for reason in sorted(examples) if arguments.reason in (None, reason) for row in evenly_spaced(examples[reason], arguments.count)
    ]


def evenly_spaced(rows: Sequence[Example], count: int) -> list[Example]:
    """Return `count` evenly spaced rows, always the same ones."""
    count = min(count, len(rows))
    return [rows[index * len(rows) // count] for index in range(count)]


def _print_examples(examples: Iterable[Example]) -> None:
    """Print examples, each below a heading such as `list_page 0.734: Title (articles.jsonl, row 12)`."""
    from niels_cache_assets.cleaning.report import EXCERPT_CHARACTERS  # an example has no more text than this

    for row in examples:
        value = "" if row["value"] is None else f" {row['value']:.4g}"
        display(f"\n--- {row['reason']}{value}: {title_of(row['title'], row['file'], row['row'])}", style="bold")
        display(excerpt(row["excerpt"], EXCERPT_CHARACTERS))
