"""Estimates of the amount of text in the data sets, and of the tokens, time and disk space of a build.

The files of each source are listed once, and sampled once. A sample is the first batch of documents, and up to 24 more at evenly spaced
bytes of all files: at row groups of Parquet files, at lines of plain files, and at the beginnings of other files. 4 MB of it are encoded by
the code that a build uses. Only sources that read files on this machine are sampled. Cost: at most 5 core-seconds of reading for each
source, some for encoding, and the memory of the batches. Every number is approximate.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Sequence, Sized
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any, TypeVar

from niels_cache_assets.artifacts.dataset import DatasetSpec
from niels_cache_assets.artifacts.graph import Graph
from niels_cache_assets.artifacts.input_problems import NO_RETRY_SECONDS
from niels_cache_assets.artifacts.parts.plan import PartsPlan, settings_of_group
from niels_cache_assets.base.documents import Conversation, DocumentBatch, Documents, SourcePosition, SourceReport, truncate_texts
from niels_cache_assets.base.wording import file_size, format_count, format_share
from niels_cache_assets.build_cache.base import choose_token_dtype
from niels_cache_assets.corpus.prepared import PreparedCorpus
from niels_cache_assets.disk.space import BYTES_PER_TOKEN, corpus_need
from niels_cache_assets.facts.contents import total_bytes
from niels_cache_assets.facts.disjoint import SAMPLE_TOKENS
from niels_cache_assets.parts.plan import Plan, PlannedGroup, PlannedPart, encode_group, estimated_text_bytes, is_compressed, plan_parts
from niels_cache_assets.sources.conversations import contents
from niels_cache_assets.sources.errors import SourceUnavailableError
from niels_cache_assets.sources.excluding import without_excluded
from niels_cache_assets.sources.hub.data import HubData, hub_files
from niels_cache_assets.sources.net.retries import retry_at_most
from niels_cache_assets.sources.parquet import Parquet
from niels_cache_assets.sources.reading.file_source import list_files_for_plan
from niels_cache_assets.sources.reading.files import SourceFile
from niels_cache_assets.sources.reading.parquet_files import open_parquet
from niels_cache_assets.sources.types import ListedFile, PretrainSource, SftSource, Source, SourceWithParts, StreamContext
from niels_cache_assets.streaming.encode import encode_texts
from niels_cache_assets.tokenizer.encoder import BuildEncoder
from niels_cache_assets.tokenizer.kinds import BuildTokenizer, TextTokenizer, view_tokenizer
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import TOKEN_DTYPES
from niels_cache_runtime.format.reading import available_threads

SAMPLE_BYTES = 4_000_000
SAMPLE_SECONDS = 5.0  # of the processor
_PIECES = 24
_FOOTERS = 64
_PIECE_BYTES = 500_000  # of the files, at least, for each piece

# Core-seconds, and bytes of memory or disk, measured on two cores on 29 November 2026 (docs/benchmarks.md).
START_SECONDS = 3.7  # of the command, and the step of the tokenizer
ENGINE_SECONDS = 4.0  # of an imported tokenizer, besides the proof of its engine
STEP_SECONDS = 0.5
PART_SECONDS = 1.5  # of a part in its own process
SEAL_SECONDS = 1e-3  # for each part
REPORT_SECONDS = 1.8  # of a pretrain data set
CHECK_SECONDS = 0.07e-6  # for each token that is compared
WRITE_SECONDS = 0.06e-6  # for each token: hashing and the journal
ITEM_SECONDS = 40e-6  # for each document or conversation: lineage and rows
ITEM_BYTES = {"pretrain": 27, "sft": 17}  # of disk, for each document or conversation
MODEL_BYTES = 16  # of disk, for each piece of a trained tokenizer
START_MEMORY = 270_000_000  # of a process
THREAD_MEMORY = 50_000_000
PIECE_MEMORY = 1_500  # for each piece of the vocabulary
CHECK_MEMORY = 290_000_000
TRAINED_BYTES = 3_000_000  # of text, for a tokenizer that the build trains on more
TRAINING_EXPONENT = 1.16  # of the time of training, by the size of the text
TRAINING_MEMORY = 30  # for each byte of the text that a tokenizer is trained on

Batch = TypeVar("Batch", bound=Sized)


@dataclass(frozen=True, kw_only=True)
class SourceSample:
    """The beginning of a source.

    Attributes:
        items: The number of its documents or conversations.
        unit: `document` or `conversation`.
        text_bytes: The number of bytes of their text.
        share: The share of the source that they are. Above 1 if pieces overlap. None if unknown.
        tokens_per_byte: The number of tokens for one byte of text, with EOT and roles. None without a tokenizer.
        read_seconds: The time of reading.
        encode_seconds: The time of encoding on one thread. None without a tokenizer.
    """

    items: int
    unit: str
    text_bytes: int
    share: float | None
    tokens_per_byte: float | None
    read_seconds: float
    encode_seconds: float | None


def encoder_view(tokenizer: TextTokenizer) -> BuildTokenizer:
    """Return the view of a tokenizer that encodes as a build does. This takes some seconds if there is a fast engine to prove."""
    view = view_tokenizer(tokenizer)
    encoder = BuildEncoder(view, tokenizer)
    encoder.start([], lambda message: None)
    encoder.encode_flat([""], None)  # proves the engine before the time is measured
    return replace(view, encode_numbered=encoder.encode_flat)


def sample_of_source(source: Source, files: Sequence[ListedFile], *, seed: int, encoder: BuildTokenizer | None) -> SourceSample | None:
    """Return the sample of a source that reads these files of this machine. Return None if no text is found.

    Raises:
        NielsCacheError: If a file cannot be read.
    """
    context, found = StreamContext(seed=seed), source.input_files() or []
    if isinstance(source, SftSource):
        return _sample(source.conversations, _messages, context, encoder, found, unit="conversation", specials_each=2)  # a role and EOT
    assert isinstance(source, PretrainSource)
    if isinstance(source, SourceWithParts):
        found = source.located(files, None)
    return _sample(partial(_documents, source, files), _texts, context, encoder, found, specials_each=_specials_of_document(encoder))


def sample_of_corpus(prepared: PreparedCorpus, *, encoder: BuildTokenizer | None) -> SourceSample | None:
    """Return the sample of a corpus. Its share is not known."""
    context = StreamContext(seed=prepared.seed)
    return _sample(prepared.stream, _texts, context, encoder, (), specials_each=_specials_of_document(encoder))


def _specials_of_document(encoder: BuildTokenizer | None) -> int:
    return 1 if encoder is None or encoder.bos is None else 2


def _documents(source: PretrainSource, files: Sequence[ListedFile], context: StreamContext) -> Iterable[Documents]:
    if isinstance(source, SourceWithParts):
        try:
            reader = source.file_reader([file.name for file in files])
        except NielsCacheError:  # files without rows, which only the stream of the source reads
            pass
        else:
            batches = reader.documents(replace(context, files=source.located(files, None)))
            return without_excluded(batches, source.exclude, context.report)
    return source.model_copy(update={"shuffle_buffer": 0}).kept_documents(context)


def _texts(batch: Documents) -> list[str]:
    return DocumentBatch.of(batch).text.tolist()


def _messages(batch: Sequence[Conversation]) -> list[str]:
    return [content for conversation in batch for content in contents(conversation)]


def _sample(
    stream: Callable[[StreamContext], Iterable[Batch]],
    texts_of: Callable[[Batch], list[str]],
    context: StreamContext,
    encoder: BuildTokenizer | None,
    files: Sequence[SourceFile],
    *,
    unit: str = "document",
    specials_each: int,
) -> SourceSample | None:
    """Return the sample of a stream: its first batch, then pieces at evenly spaced positions if the stream can begin there.

    Args:
        stream: Opens the stream at the position of a context.
        texts_of: Returns the texts of a batch.
        context: The context of the stream.
        encoder: The tokenizer that encodes. None: nothing is encoded.
        files: The files of the stream, in order.
        unit: `document` or `conversation`.
        specials_each: The number of special tokens that a build adds to each text.
    """
    deadline = time.process_time() + SAMPLE_SECONDS

    def read(limit: int, start: SourcePosition | None = None, before: float = 0.0) -> tuple[list[str], int, float, float, SourceReport]:
        """Return the texts from a position on, the number of their items, their share, and the time of a byte after the first batch."""
        texts: list[str] = []
        items, size, after = 0, 0, 1.0
        report = SourceReport()
        batches = iter(stream(replace(context, start=start, report=report)))
        times = [(time.process_time(), 0)]
        with closing(batches) if isinstance(batches, Generator) else nullcontext():
            for batch in batches:
                found = texts_of(batch)
                texts += found
                items += len(batch)
                size += sum(map(_bytes, found))
                times.append((time.process_time(), size))
                if size >= limit or times[-1][0] >= deadline:
                    after = report.share or 0.0
                    break
        began, first = times[len(times) > 2]
        return texts, items, max(after - before, 0.0), (times[-1][0] - began) / max(size - first, 1), report

    pieces = [read(SAMPLE_BYTES)]
    *_, share, per_byte, report = pieces[0]
    if share < 1 and report.position and "offset" in report.position and len(starts := _spread(files, report.position)) > 1:
        pieces = [read(SAMPLE_BYTES // _PIECES, *start) for start in starts if time.process_time() < deadline] or pieces
    size = sum(_bytes(text) for piece in pieces for text in piece[0])
    if not size:
        return None
    tokens_per_byte = encode_seconds = None
    if encoder is not None:
        heads = [text for piece in pieces for text in truncate_texts(piece[0], SAMPLE_BYTES // len(pieces))]
        encoded = sum(map(_bytes, heads))
        started = time.process_time()
        ids = encode_texts(heads, encoder, None).ids
        encode_seconds = (time.process_time() - started) * size / encoded
        tokens_per_byte = len(ids) / encoded + specials_each * sum(len(piece[0]) for piece in pieces) / size
    return SourceSample(
        items=sum(piece[1] for piece in pieces),
        unit=unit,
        text_bytes=size,
        share=sum(piece[2] for piece in pieces) or None,
        tokens_per_byte=tokens_per_byte,
        read_seconds=per_byte * size,
        encode_seconds=encode_seconds,
    )


def _spread(files: Sequence[SourceFile], position: SourcePosition) -> list[tuple[SourcePosition, float]]:
    """Return positions evenly spaced over the bytes of all files, each with the share of the bytes before it.

    They are row groups of Parquet files, lines of files that `position` counts in bytes, and beginnings of other files.
    """
    ends = [*accumulate((os.path.getsize(file.url) for file in files), initial=0)]
    count = max(1, min(_PIECES, ends[-1] // _PIECE_BYTES))
    found: dict[tuple[int, int, int], tuple[SourcePosition, float]] = {}
    for target in (ends[-1] * (2 * piece + 1) // (2 * count) for piece in range(count)):
        number = bisect_right(ends, target) - 1
        file, size, inside, row, offset = files[number], ends[number + 1] - ends[number], target - ends[number], 0, 0
        before = 0.0
        if file.name.endswith(".parquet"):
            with open_parquet(file) as table:
                row = max((first for first in table.first_rows if first * size <= inside * table.rows), default=0)
                before = row / max(table.rows, 1) * size
        elif position["offset"] and not is_compressed(file.name):
            with open(file.url, "rb") as lines:
                lines.seek(inside)
                lines.readline()
                row, offset = 1, lines.tell()
            before = offset
        if offset < size:
            at = {**position, "number": number, "file": file.name, "row": row, "offset": offset, "offset_row": row, "gave": True}
            found[number, row, offset] = at, (ends[number] + before) / ends[-1]
    return [*found.values()]


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="replace"))


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """An estimate of what one step reads, writes and takes. None stands for unknown.

    Attributes:
        bytes_to_read: The number of bytes of the files, on their disk. A pass that only counts documents is not included.
        tokens: The number of tokens of train and val.
        core_seconds: The processor time of all processes on this machine.
        memory_bytes: The peak memory of all processes together. Steps run one after the other.
        disk_bytes: The disk space of the result.
        basis: Where the numbers come from, in words.
    """

    bytes_to_read: int | None
    tokens: int | None
    core_seconds: float | None
    memory_bytes: int | None
    disk_bytes: int | None
    basis: str


@dataclass(frozen=True, kw_only=True)
class SourceSize:
    """The size of a source. None stands for unknown.

    Attributes:
        file_bytes: The number of bytes of its files.
        text_bytes: The number of bytes of its text, estimated from the sample or the sizes of the files.
        sample: The beginning of its text.
        no_sample: Why there is no sample.
        remark: A note about these numbers.
    """

    file_bytes: int | None = None
    text_bytes: int | None = None
    sample: SourceSample | None = None
    no_sample: str = ""
    remark: str = ""

    def scaled(self, share: float) -> SourceSize:
        """Return the size of a share of the source, 0 to 1."""
        file_bytes, text_bytes = (None if size is None else round(size * share) for size in (self.file_bytes, self.text_bytes))
        return replace(self, file_bytes=file_bytes, text_bytes=text_bytes)

    @property
    def read_seconds(self) -> float:
        """The time to read all text, 0 if it is unknown."""
        if self.sample is None or self.text_bytes is None:
            return 0.0
        return self.text_bytes / self.sample.text_bytes * self.sample.read_seconds

    def basis(self, *, budget: int | None) -> str:
        """Return in words where an estimate comes from.

        Args:
            budget: The token budget. None if there is none.
        """
        if self.sample is None:
            remarks = [f"no sample, because {self.no_sample}"]
        else:
            sample = self.sample
            share = "" if sample.share is None else f", {'all' if sample.share >= 1 else format_share(sample.share)} of the source"
            remarks = [f"from a sample of {format_count(sample.items, sample.unit)} ({file_size(sample.text_bytes)} of text{share})"]
        if self.text_bytes is None:
            remarks.append("the size of its text is unknown" + ("" if budget is None else ", so its token budget counts"))
        elif self.sample is None or self.sample.tokens_per_byte is None:
            why = "" if self.sample is None else ", because the tokenizer is not trained yet"
            remarks.append(f"{BYTES_PER_TOKEN} bytes of text count as one token{why}")
        return "; ".join([*remarks, *([self.remark] if self.remark else [])])


def estimate_cache(
    volume: SourceSize, spec: DatasetSpec[Any], *, is_part: bool, budget: int | None, vocab_size: int, counts_first: bool = False
) -> Estimate:
    """Return the estimate of a cache that is built from a source of this size.

    Args:
        volume: The size of the source.
        spec: The data set.
        is_part: Whether a process of its own builds the cache, and the splits are compared later.
        budget: The maximum number of tokens of the build. None for no limit.
        vocab_size: The number of pieces of the tokenizer.
        counts_first: Whether the build reads the source once before, to count its documents.
    """
    sample, build = volume.sample, spec.build
    per_byte = 1 / BYTES_PER_TOKEN if sample is None or sample.tokens_per_byte is None else sample.tokens_per_byte
    all_tokens = None if volume.text_bytes is None else round(volume.text_bytes * per_byte)
    known = [tokens for tokens in (all_tokens, budget) if tokens is not None]
    tokens = min(known) if known else None
    used = tokens / all_tokens if tokens is not None and all_tokens else 1.0  # the share of the source that the build reads
    memory = START_MEMORY * (1 + is_part) + THREAD_MEMORY * (build.threads or available_threads()) + PIECE_MEMORY * vocab_size
    memory += CHECK_MEMORY * (not is_part and _has_check(spec))
    seconds, items = None, 0.0
    if sample is not None and tokens is not None and volume.text_bytes is not None:
        samples = volume.text_bytes / sample.text_bytes
        items = sample.items * samples * used
        memory += round(sample.text_bytes / sample.items * min(getattr(spec.source, "shuffle_buffer", 0), items))
        if sample.encode_seconds is not None:
            seconds = PART_SECONDS if is_part else STEP_SECONDS + _seconds_after(spec, tokens)
            seconds += WRITE_SECONDS * tokens + ITEM_SECONDS * items
            seconds += samples * ((used + counts_first) * sample.read_seconds + used * sample.encode_seconds)
    token_bytes = TOKEN_DTYPES[choose_token_dtype(vocab_size, build.token_dtype)].itemsize
    return Estimate(
        bytes_to_read=None if volume.file_bytes is None else round(volume.file_bytes * used),
        tokens=tokens,
        core_seconds=seconds,
        memory_bytes=memory,
        disk_bytes=None if tokens is None else tokens * token_bytes + round(ITEM_BYTES[spec.family] * items),
        basis=volume.basis(budget=budget),
    )


def estimate_seal(whole: Estimate, spec: DatasetSpec[Any]) -> Estimate:
    """Return the estimate of the join of finished parts, from that of a build of everything by one process."""
    seconds = STEP_SECONDS + SEAL_SECONDS * spec.source.total_parts + _seconds_after(spec, whole.tokens or 0)
    return replace(
        whole, bytes_to_read=0, tokens=0, core_seconds=seconds, disk_bytes=0, basis="links to the parts, whose splits are compared"
    )


def _has_check(spec: DatasetSpec[Any]) -> bool:
    source = spec.source
    return spec.family == "pretrain" and bool(source.has_own_splits or source.seeded_val_frac or source.val_tokens)


def _seconds_after(spec: DatasetSpec[Any], tokens: int) -> float:
    """Return the time of comparing the splits of a data set of so many tokens, and of its reports."""
    compared = tokens if spec.build.near_check == "all" else min(tokens, SAMPLE_TOKENS)
    return REPORT_SECONDS * (spec.family == "pretrain") + CHECK_SECONDS * compared * _has_check(spec)


def estimate_tokenizer(model: str | None, read: int, seconds: float | None, *, vocab_size: int) -> Estimate:
    """Return the estimate of a tokenizer, with the start of the command.

    Args:
        model: The file to import. None: the tokenizer is trained.
        read: The bytes of the text that it is trained on.
        seconds: The time of training, or of the proof of its engine. None if unknown.
        vocab_size: The number of its pieces.
    """
    size = MODEL_BYTES * vocab_size if model is None else os.path.getsize(model)
    return Estimate(
        bytes_to_read=read if model is None else size,
        tokens=0,
        core_seconds=None if seconds is None else START_SECONDS + ENGINE_SECONDS * (model is not None) + seconds,
        memory_bytes=START_MEMORY + PIECE_MEMORY * vocab_size + TRAINING_MEMORY * read,
        disk_bytes=size,
        basis="from training on a part of the text" if model is None else "from a proof of its engine",
    )


def estimate_corpus(volume: SourceSize) -> Estimate:
    """Return the estimate of a corpus. The time and the memory of cleaning are not estimated."""
    need = corpus_need(volume.text_bytes)
    return Estimate(
        bytes_to_read=volume.file_bytes,
        tokens=0,
        core_seconds=None,
        memory_bytes=None,
        disk_bytes=None if need is None else need.bytes,
        basis="all of the source is prepared; the time and the memory of cleaning are not estimated",
    )


class SourceSizes:
    """The sizes of the data sets, and the plans of those in parts.

    Args:
        graph: The graph.
        encoder: Returns the tokenizer that encodes samples, or None.
    """

    def __init__(self, graph: Graph, encoder: Callable[[], BuildTokenizer | None]) -> None:
        self._graph, self._registry, self._encoder = graph, graph.registry, encoder
        self._volumes: dict[str, SourceSize] = {}
        self._plans: dict[str, Plan | None] = {}
        self._listings: dict[str, list[ListedFile] | None] = {}
        self._unreachable: set[str] = set()  # data sets whose list of files cannot be reached now

    def of_corpus(self, prepared: PreparedCorpus) -> SourceSize:
        """Return the size of a corpus that is on disk."""
        meta = prepared.meta
        sample = sample_of_corpus(prepared, encoder=self._encoder())
        text_bytes = round(meta["bytes"]["after"] * prepared.kept / meta["documents"]["kept"])
        return SourceSize(file_bytes=total_bytes(meta["files"]), text_bytes=text_bytes, sample=sample, no_sample="its corpus has no text")

    def plan(self, name: str) -> Plan | None:
        """Return the plan that was made in memory, or else the plan on disk. Return None if the list of files cannot be reached now."""
        if name not in self._plans:
            self._plans[name] = self._graph.sealed(name).spec.parts_plan.read()
        return self._plans[name]

    def share(self, name: str, part: PlannedPart) -> float:
        """Return the share of a part in the bytes of all files of the plan, or that of an average part if no size is known."""
        size, plan = self.of_source(name).file_bytes, self.plan(name)
        return sum(file.bytes for file in part.files) / size if size else 1 / len(plan.parts if plan else [part])

    def make_plan(self, artifact: PartsPlan) -> None:
        """Make the plan of a data set in memory.

        Raises:
            NielsCacheError: If its files cannot be divided.
        """
        name, source, files = artifact.name, artifact.source, self._files(artifact.name)
        self._plans[name] = None
        self._volumes.pop(name, None)  # that of the files of an earlier plan
        if files is not None and source.added:
            self._plans[name] = self._grown_plan(artifact)
        elif files is not None:
            budgets = (None, None) if source.prepare else (source.train_tokens, source.val_tokens)  # those of a corpus apply later
            group = plan_parts(files, source.parts, train_tokens=budgets[0], val_tokens=budgets[1])
            self._plans[name] = Plan(meta={}, groups=(group,))

    def _grown_plan(self, artifact: PartsPlan) -> Plan | None:
        """Return the plan of a data set with tables `added`. Return None if the list of files cannot be reached now.

        A group of the last plan stays if its settings are the same, and the names and sizes of its files.
        """
        source, last = artifact.source, artifact.finished()
        last_groups = () if last is None else Plan.of(last).groups
        try:
            with retry_at_most(seconds=NO_RETRY_SECONDS):
                revision = source.revision({}) if isinstance(source, HubData) else None
                groups = [artifact.group(number, revision, hashed=False) for number in range(1 + len(source.added))]
        except SourceUnavailableError:
            return None
        groups = [
            last_groups[number] if number < len(last_groups) and _is_unchanged_group(last_groups[number], group) else group
            for number, group in enumerate(groups)
        ]
        return Plan.of({"fingerprint": "", "dataset_revision": revision, "groups": [*map(encode_group, groups)]})

    def _files(self, name: str) -> list[ListedFile] | None:
        """Return the files of a data set with their sizes. Return None without a list, and if the list cannot be reached now."""
        if name not in self._listings:
            try:
                with retry_at_most(seconds=NO_RETRY_SECONDS):
                    self._listings[name] = _listed(self._registry.source(name))
            except SourceUnavailableError:
                self._listings[name] = None
                self._unreachable.add(name)
        return self._listings[name]

    def of_source(self, name: str) -> SourceSize:
        """Return the size of the source of a data set.

        Raises:
            NielsCacheError: If a file cannot be read.
        """
        if name not in self._volumes:
            self._volumes[name] = self._find_size(name)
        return self._volumes[name]

    def _find_size(self, name: str) -> SourceSize:
        source = self._registry.source(name)
        if getattr(source, "members", None):
            return SourceSize(no_sample="a mixture has no files of its own")
        plan = None
        if isinstance(source, PretrainSource) and source.is_in_parts:
            with suppress(NielsCacheError):  # the plan is still to be made
                plan = self.plan(name)
        files = self._files(name) if plan is None else [file for part in plan.parts for file in part.files]
        if not files:
            is_unreachable = name in self._unreachable
            return SourceSize(no_sample="its list of files cannot be reached now" if is_unreachable else "its source has no list of files")
        file_bytes = sum(file.bytes for file in files) or None
        volume = SourceSize(
            file_bytes=file_bytes, text_bytes=estimated_text_bytes(files) or None, no_sample="its files are on another machine"
        )
        found = source.input_files()
        if not found or any("://" in file.url for file in found):
            return volume
        measured = _text_of_parquet(source, files)  # this also imports what the time of the sample should not contain
        sample = sample_of_source(source, files, seed=self._registry.build.seed, encoder=self._encoder())
        if sample is None:
            return replace(volume, no_sample="it begins without text")
        text_bytes = measured or (round(sample.text_bytes / sample.share) if sample.share else volume.text_bytes)
        return replace(volume, sample=sample, text_bytes=text_bytes)


def _text_of_parquet(source: Source, files: Sequence[ListedFile]) -> int | None:
    """Return the bytes of the text in Parquet files, from the footers of up to 64 of them. None if rows are left out, and without text."""
    if not isinstance(source, Parquet) or source.exclude is not None or source.condition is not None:
        return None
    chosen = files[:: -(-len(files) // _FOOTERS)]
    located = source.located(chosen, None)
    field, size = source.text_field_of(located), 0
    if field is None:
        return None
    for file in located:
        with open_parquet(file) as table:
            size += table.uncompressed_bytes(field)
    return size * sum(file.bytes for file in files) // max(1, sum(file.bytes for file in chosen))


def _is_unchanged_group(last: PlannedGroup, current: PlannedGroup) -> bool:
    """Return whether a group of the last plan would stay. Only names and sizes of files are compared, because nothing was hashed."""
    files = [[(file.name, file.bytes) for file in group.listed] for group in (last, current)]
    return files[0] == files[1] and settings_of_group(last.identity) == settings_of_group(current.identity)


def _listed(source: Source) -> list[ListedFile] | None:
    """Return the files of a source with their sizes. For a data set of the hub, this asks the hub."""
    if isinstance(source, HubData) and not source.local_key:
        return hub_files(source, source.revision({}))
    if isinstance(source, SourceWithParts):
        return source.list_files(None, hashed=False)
    return list_files_for_plan(source.input_files(), None, hashed=False) or None
