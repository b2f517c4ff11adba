"""The amount of text in a source, from the sizes of its files and from a sample.

A sample is the first batch of documents, and up to 24 more at evenly spaced bytes of all files: at row groups of Parquet files, at lines of
plain files, and at the beginnings of other files. 4 MB of it are encoded by the code that a build uses. Only files on this machine are
sampled. Cost: at most 5 core-seconds of reading for each source, some for encoding, and the memory of the batches.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from itertools import accumulate
from time import process_time
from typing import Any, NamedTuple

from niels_cache_assets.base.documents import DocumentBatch, SourcePosition, SourceReport, truncate_texts
from niels_cache_assets.base.wording import file_size, format_count, format_share
from niels_cache_assets.disk.space import BYTES_PER_TOKEN
from niels_cache_assets.parts.plan import estimated_text_bytes, is_compressed
from niels_cache_assets.sources.conversations import contents
from niels_cache_assets.sources.excluding import without_excluded
from niels_cache_assets.sources.parquet import Parquet
from niels_cache_assets.sources.reading.files import SourceFile
from niels_cache_assets.sources.reading.parquet_files import open_parquet
from niels_cache_assets.sources.types import ListedFile, PretrainSource, SftSource, Source, SourceWithParts, StreamContext
from niels_cache_assets.streaming.encode import encode_texts
from niels_cache_assets.tokenizer.kinds import BuildTokenizer
from niels_cache_runtime.errors import NielsCacheError

SAMPLE_BYTES = 4_000_000
SAMPLE_SECONDS = 5.0  # of the processor
_PIECES = 24
_FOOTERS = 64
_PIECE_BYTES = 500_000  # of the files, at least, for each piece
_FOUR_BYTES = f"{BYTES_PER_TOKEN} bytes of text count as one token"


@dataclass(frozen=True, kw_only=True)
class Volume:
    """The size of a source, of a share of it, or of a sample. None stands for unknown.

    Attributes:
        file_bytes: The number of bytes of its files.
        text_bytes: The number of bytes of its text.
        items: The number of its documents or conversations. 0 without a sample.
        tokens: The number of its tokens, with EOT and roles.
        read_seconds: The time of reading it.
        seconds: The time of reading it, and of encoding it on one thread.
        basis: Where these numbers come from, in words.
    """

    file_bytes: int | None = None
    text_bytes: int | None = None
    items: int = 0
    tokens: int | None = None
    read_seconds: float | None = None
    seconds: float | None = None
    basis: str = ""

    def scaled(self, share: float) -> Volume:
        """Return the size of a share, such as 0.1 for a tenth."""
        known: dict[str, Any] = {name: value * share for name, value in vars(self).items() if isinstance(value, int | float)}
        return replace(self, **{name: value if name.endswith("seconds") else round(value) for name, value in known.items()})

    def noted(self, remark: str) -> Volume:
        """Return the same size with a remark on where it comes from."""
        return replace(self, basis=f"{self.basis}; {remark}")


def measure(
    source: Source,
    files: Sequence[ListedFile],
    located: Sequence[SourceFile],
    encoder: BuildTokenizer | None,
    *,
    text_bytes: int | None = None,
) -> Volume:
    """Return the size of a source.

    Args:
        source: The source.
        files: Its files with their sizes. Empty if they are unknown.
        located: The same files with their addresses, or none. They are sampled if all are on this machine.
        encoder: The tokenizer that encodes the sample. None: nothing is encoded.
        text_bytes: The number of bytes of its text. None if it is unknown.

    Raises:
        NielsCacheError: If a file cannot be read.
    """
    file_bytes, rough = sum(file.bytes for file in files) or None, text_bytes or estimated_text_bytes(files) or None
    is_here = bool(located) and not any(file.is_remote for file in located)
    sample, is_known = _sample(source, located, encoder) if is_here else (Volume(), False)
    if not sample.text_bytes:
        elsewhere = "its files are on another machine" if files else "it has no list of files, or the list cannot be reached now"
        tokens = "the size of its text is unknown, so only a token budget counts" if rough is None else _FOUR_BYTES
        basis = f"no sample, because {'it begins without text' if is_here else elsewhere}; {tokens}"
        return Volume(file_bytes=file_bytes, text_bytes=rough, tokens=rough and round(rough / BYTES_PER_TOKEN), basis=basis)
    whole = text_bytes or _text_of_parquet(source, files, located) or (sample.text_bytes if is_known else rough) or sample.text_bytes
    return replace(sample.scaled(whole / sample.text_bytes), file_bytes=file_bytes)


def _text_of_parquet(source: Source, files: Sequence[ListedFile], located: Sequence[SourceFile]) -> float | None:
    """Return the bytes of the text in Parquet files, from the footers of up to 64 of them. None if rows are left out, and without text."""
    every = -(-len(files) // _FOOTERS)
    if not isinstance(source, Parquet) or source.exclude or source.condition or (field := source.text_field_of(located[::every])) is None:
        return None
    text_bytes = 0
    for file in located[::every]:
        with open_parquet(file) as table:
            text_bytes += table.uncompressed_bytes(field)
    return text_bytes * sum(file.bytes for file in files) / max(1, sum(file.bytes for file in files[::every]))


class _Piece(NamedTuple):
    """What was read from one position of a source on.

    Attributes:
        texts: The texts.
        items: The number of documents or conversations.
        share: Their share of the source, or 0 if it is unknown.
        byte_seconds: The time of reading a byte of text, without the first batch.
        position: Where the next batch begins.
        weight: For how many pieces it stands.
    """

    texts: list[str]
    items: int
    share: float
    byte_seconds: float
    position: SourcePosition | None
    weight: int


def _sample(source: Source, files: Sequence[SourceFile], encoder: BuildTokenizer | None) -> tuple[Volume, bool]:
    """Return the size of a source from pieces of it, and whether their shares of the source are known.

    Each piece stands for the same number of bytes of the files, or for a multiple. Without the shares, the size is that of the sample.
    """
    deadline = process_time() + SAMPLE_SECONDS

    def read(limit: int, start: SourcePosition | None = None, before: float = 0.0, weight: int = 1) -> _Piece:
        texts, items, size, share, report = list[str](), 0, 0, 1.0, SourceReport()
        times = [(process_time(), 0)]
        try:
            with closing(_batches(source, StreamContext(seed=0, start=start, report=report, files=files))) as batches:
                for count, found in batches:
                    texts += found
                    items += count
                    size += _bytes(found)
                    times.append((process_time(), size))
                    if size >= limit or times[-1][0] >= deadline:
                        share = report.share or 0.0
                        break
        except NielsCacheError as error:
            if start is None:
                raise
            raise NielsCacheError(re.sub(r"\bline \d+", "a line", str(error))) from error  # a piece does not begin at the first line
        began, first = times[len(times) > 2]
        return _Piece(texts, items, max(share - before, 0.0), (times[-1][0] - began) / max(size - first, 1), report.position, weight)

    beginning = read(SAMPLE_BYTES)
    starts = _spread(files, beginning.position) if beginning.share < 1 else []
    pieces = [read(SAMPLE_BYTES // len(starts), *start) for start in starts if process_time() < deadline] or [beginning]
    is_chat = isinstance(source, SftSource)
    specials = 2 if is_chat or (encoder is not None and encoder.bos is not None) else 1  # of each text: a role or BOS, and EOT
    weights, share = sum(piece.weight for piece in pieces), sum(piece.share for piece in pieces)
    is_known = all(piece.share for piece in pieces)
    size = text_bytes = items = tokens = encode_seconds = 0.0
    for piece in pieces:
        copies, of_piece = piece.weight / weights / piece.share if is_known else 1.0, _bytes(piece.texts)
        size += of_piece
        text_bytes += copies * of_piece
        items += copies * piece.items
        heads = [*truncate_texts(piece.texts, SAMPLE_BYTES // len(pieces))]
        if encoder is not None and heads:
            began, more = process_time(), copies * of_piece / _bytes(heads)
            tokens += more * len(encode_texts(heads, encoder, None).ids) + copies * specials * len(piece.texts)
            encode_seconds += more * (process_time() - began)
    count = format_count(sum(piece.items for piece in pieces), "conversation" if is_chat else "document")
    of_all = f", {'all' if share >= 1 else format_share(share)} of the source" if share else ""
    volume = Volume(
        text_bytes=round(text_bytes),
        items=round(items),
        tokens=round(tokens),
        read_seconds=beginning.byte_seconds * text_bytes,
        seconds=beginning.byte_seconds * text_bytes + encode_seconds,
        basis=f"from a sample of {count} ({file_size(round(size))} of text{of_all})",
    )
    if encoder is None:
        volume = replace(volume, tokens=round(text_bytes / BYTES_PER_TOKEN), seconds=None)
        volume = volume.noted(f"{_FOUR_BYTES}, because the tokenizer is not trained yet")
    return volume, is_known


def _batches(source: Source, context: StreamContext) -> Generator[tuple[int, list[str]]]:
    """Yield the number of documents or conversations of each batch, and their texts. Documents come in the order of `context.files`."""
    if isinstance(source, SftSource):
        for batch in source.conversations(context):
            yield len(batch), [content for conversation in batch for content in contents(conversation)]
        return
    assert isinstance(source, PretrainSource)
    reader = source.model_copy(update={"shuffle_buffer": 0})
    if isinstance(source, SourceWithParts):
        with suppress(NielsCacheError):  # files without rows, which only the stream of the source reads
            reader = source.file_reader([file.name for file in context.files or ()])
    for documents in without_excluded(reader.documents(context), source.exclude, context.report):
        yield len(documents), DocumentBatch.of(documents).text.tolist()


def _spread(files: Sequence[SourceFile], position: SourcePosition | None) -> list[tuple[SourcePosition, float, int]]:
    """Return positions evenly spaced over the bytes of all files, with the share of the bytes before each. Empty if there is only one.

    They are row groups of Parquet files, lines of files that `position` counts in bytes, and beginnings of other files. The last number is
    how many of the spaced positions are there.

    Args:
        files: The files.
        position: A position that the stream has reported. If it has no offset in bytes, the stream cannot begin at any of these.
    """
    if position is None or "offset" not in position:
        return []
    ends = [*accumulate((file.size() for file in files), initial=0)]
    count = min(_PIECES, ends[-1] // _PIECE_BYTES)
    starts = Counter[tuple[int, int, int, float]]()
    for piece in range(count):
        target = ends[-1] * (2 * piece + 1) // (2 * count)
        number = bisect_right(ends, target) - 1
        file, size, inside, row, offset, before = files[number], ends[number + 1] - ends[number], target - ends[number], 0, 0, 0.0
        if file.name.endswith(".parquet"):
            with open_parquet(file) as table:
                row = max((first for first in table.first_rows if first * size <= inside * table.rows), default=0)
                before = row / max(table.rows, 1) * size
        elif position["offset"] and not is_compressed(file.name):
            with open(file.url, "rb") as lines:
                lines.seek(inside)
                lines.readline()
                row, before, offset = 1, lines.tell(), lines.tell()
        if offset < size:
            starts[number, row, offset, (ends[number] + before) / ends[-1]] += 1
    return [
        (
            {**position, "number": number, "file": files[number].name, "row": row, "offset": offset, "offset_row": row, "gave": True},
            before,
            weight,
        )
        for (number, row, offset, before), weight in starts.items()
        if len(starts) > 1
    ]


def _bytes(texts: Iterable[str]) -> int:
    return sum(len(text) if text.isascii() else len(text.encode(errors="replace")) for text in texts)
