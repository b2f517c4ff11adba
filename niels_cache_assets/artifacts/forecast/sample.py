"""A short sample of a source, from which the tokens and the time of a whole build are estimated.

A sample is the first 2 MB of text, or what 3 seconds of reading give. It is encoded by the code that a build uses. Only sources that read
files on this machine are sampled. Cost: some seconds for each source, and the memory of the first batches of documents.
"""

import time
from collections.abc import Callable, Generator, Iterable, Sequence, Sized
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from typing import TypeVar

from niels_cache_assets.corpus.prepared import PreparedCorpus
from niels_cache_assets.documents import Conversation, DocumentBatch, Documents, beginning
from niels_cache_assets.sources.conversations import contents
from niels_cache_assets.sources.excluding import without_excluded
from niels_cache_assets.sources.types import ListedFile, PretrainSource, SftSource, Source, StreamContext
from niels_cache_assets.sources.with_parts import SourceWithParts
from niels_cache_assets.streaming.encode import encode_texts
from niels_cache_assets.tokenizer.checked import Encoder
from niels_cache_assets.tokenizer.kinds import BuildTokenizer, TextTokenizer, view_tokenizer
from niels_cache_runtime.errors import NielsCacheError

SAMPLE_BYTES = 2_000_000
SAMPLE_SECONDS = 3.0

Batch = TypeVar("Batch", bound=Sized)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """The beginning of a source.

    items: the number of its documents or conversations. unit: `document` or `conversation`. text_bytes: the bytes of their text. share: the
    part of the source that they are, 0 to 1; None if it is unknown. tokens_per_byte: tokens for one byte of text, with EOT and roles; None
    without a tokenizer. read_seconds: the time of reading. encode_seconds: the time of encoding on one thread; None without a tokenizer.
    """

    items: int
    unit: str
    text_bytes: int
    share: float | None
    tokens_per_byte: float | None
    read_seconds: float
    encode_seconds: float | None


def encoder_of(tokenizer: TextTokenizer) -> BuildTokenizer:
    """Return the view of a tokenizer that encodes as a build does. This takes some seconds if there is a fast engine to prove."""
    view = view_tokenizer(tokenizer)
    encoder = Encoder(view, tokenizer)
    encoder.start([], lambda message: None)
    encoder.encode_flat([""], None)  # proves the engine before the time is measured
    return replace(view, encode_numbered=encoder.encode_flat)


def sample_of_source(source: Source, files: Sequence[ListedFile], *, seed: int, encoder: BuildTokenizer | None) -> Sample | None:
    """Return the sample of a source that reads these files of this machine. Return None if it begins without text.

    Raises NielsCacheError for files that cannot be read.
    """
    context = StreamContext(seed=seed)
    if isinstance(source, SftSource):
        conversations = source.conversations(context)
        return _sample(conversations, _messages, context, encoder, unit="conversation", specials_each=2)  # a role and EOT
    assert isinstance(source, PretrainSource)
    return _sample(_documents(source, files, context), _texts, context, encoder, specials_each=_specials_of_document(encoder))


def sample_of_corpus(prepared: PreparedCorpus, *, encoder: BuildTokenizer | None) -> Sample | None:
    """Return the sample of a corpus. Its share is not known."""
    context = StreamContext(seed=prepared.seed)
    return _sample(prepared.stream(context), _texts, context, encoder, specials_each=_specials_of_document(encoder))


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
    batches: Iterable[Batch],
    texts_of: Callable[[Batch], list[str]],
    context: StreamContext,
    encoder: BuildTokenizer | None,
    *,
    unit: str = "document",
    specials_each: int,
) -> Sample | None:
    """Return the sample at the beginning of a stream. specials_each: the number of special tokens that a build adds to each text."""
    texts: list[str] = []
    items = size = 0
    share: float | None = 1.0
    stream = iter(batches)
    started = time.monotonic()
    with closing(stream) if isinstance(stream, Generator) else nullcontext():
        for batch in stream:
            found = texts_of(batch)
            texts += found
            items += len(batch)
            size += sum(map(_bytes, found))
            if size >= SAMPLE_BYTES or time.monotonic() - started >= SAMPLE_SECONDS:
                share = context.report.share
                break
    read_seconds = time.monotonic() - started
    if not size:
        return None
    tokens_per_byte = encode_seconds = None
    if encoder is not None:
        head = [*beginning(texts, SAMPLE_BYTES)]
        encoded = sum(map(_bytes, head))
        started = time.monotonic()
        ids = encode_texts(head, encoder, None).ids
        encode_seconds = (time.monotonic() - started) * size / encoded
        tokens_per_byte = len(ids) / encoded + specials_each * len(texts) / size
    return Sample(
        items=items,
        unit=unit,
        text_bytes=size,
        share=share,
        tokens_per_byte=tokens_per_byte,
        read_seconds=read_seconds,
        encode_seconds=encode_seconds,
    )


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="replace"))
