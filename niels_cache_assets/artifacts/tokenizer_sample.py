"""The training text of a tokenizer: the first `sample_bytes` of every data set, with each line of a text as one line of the file.

A data set with `prepare` contributes the documents of its corpus that go to train. These documents are cleaned, and documents in the drop
list are left out. If the data set has no current corpus, its raw source is read, with a warning. A mixture without a corpus is mixed from
its members. A member with a corpus contributes its documents of train. A mixture whose corpus needs the tokenizer is always mixed from its
members. So the mixture gives the same text when the tokenizer is trained again. A data set that cannot be read, for any reason, is left
out, with a warning and a record. Only the needed part of each data set is read. The text is written to disk.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from niels_cache_assets.artifacts.base import Log
from niels_cache_assets.artifacts.prepared_corpora import open_prepared
from niels_cache_assets.base.documents import Document, Documents
from niels_cache_assets.base.wording import DEBUG
from niels_cache_assets.corpus.identity import needs_tokenizer
from niels_cache_assets.corpus.prepared import PreparedCorpus, PreparedMember
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.sources.conversations import contents
from niels_cache_assets.sources.errors import SourceUnavailableError, describe_error, log_traceback
from niels_cache_assets.sources.excluding import ids_of_key
from niels_cache_assets.sources.reading.encodings import not_text_note
from niels_cache_assets.sources.reading.rows import batched
from niels_cache_assets.sources.types import PretrainSource, SftSource, StreamContext
from niels_cache_assets.streaming.encode import normalize_newlines
from niels_cache_assets.streaming.shuffle import shuffled
from niels_cache_assets.tokenizer.measures import keep_beginning
from niels_cache_assets.tokenizer.training import MAX_LINE_BYTES
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.meta import Meta

ReadAs = Literal["prepared", "members", "raw"]

_LONGEST_PIECE = 16  # number of characters; this is the limit of SentencePiece


def spool_sample(registry: Registry, root: Path, sample: Path, beginnings: dict[str, list[str]], log: Log) -> Meta:
    """Write the sample to the file `sample`, and return `trained_on` for meta.json.

    Args:
        registry: The configuration.
        root: The folder of the caches.
        sample: The file to write.
        beginnings: The beginning of each data set's text is added here.
        log: Called with each message.

    Raises:
        NielsCacheError: If there is no text at all, or a data set in [tokenizer] train_on is available but cannot be read.
    """
    settings = registry.tokenizer
    names = settings.train_on or registry.partition_keys()
    used: dict[str, int] = {}
    revisions: dict[str, str | None] = {}
    skipped: dict[str, str] = {}
    read_as: dict[str, ReadAs] = {}
    no_text: list[str] = []
    digest = hashlib.sha256()
    with open(sample, "wb") as file:
        for name in names:
            written = 0
            lines = _SampleLines(registry, root, name, beginnings.setdefault(name, []), log)
            for data in lines:
                file.write(data)
                digest.update(data)
                written += len(data)
                if written >= settings.sample_bytes:
                    break
            if lines.opened:
                revisions[name] = lines.revision
            if lines.error is not None:
                unavailable = isinstance(lines.error, SourceUnavailableError)
                problem = describe_error(lines.error)
                log_traceback(lines.error, lambda traceback: log(DEBUG + traceback))
                if settings.train_on is not None and not unavailable:
                    raise NielsCacheError(f"[tokenizer] train_on {name}: {problem}") from lines.error
                log(f"WARNING: the tokenizer is trained without {'the rest of ' if written else ''}{name}: {problem}")
                skipped[name] = "unavailable" if unavailable else "failed"
                if not written:
                    no_text.append(f"{name}: {problem}")
                    continue
            elif not written:
                reason = not_text_note(lines.facts) + "".join(f"; {hint}" for hint in lines.hints)
                no_text.append(f"{name}{reason or ': no text was found in it'}")
            used[name] = written
            read_as[name] = lines.read_as
    if not sum(used.values()):
        reason = "".join(f"; {found}" for found in no_text)
        raise NielsCacheError(f"{registry.origin}: no text to train a tokenizer on{reason}; check [tokenizer] train_on, or import a model")
    return {
        "sources": used,
        "revisions": revisions,
        "skipped": skipped,
        "read_as": read_as,
        "bytes": sum(used.values()),
        "sha256": digest.hexdigest(),
    }


def split_long_line(line: str) -> Iterator[str]:
    """Cut a line into pieces of at most MAX_LINE_BYTES UTF-8 bytes, at the last blank before the limit if there is a blank."""
    data = line.encode()
    start = 0
    while len(data) - start > MAX_LINE_BYTES:
        head = data[start : start + MAX_LINE_BYTES].decode(errors="ignore")
        cut = head.rfind(" ")
        piece = head[:cut] if cut > 0 else head
        yield piece
        start += len(piece.encode())
    yield data[start:].decode()


def raw_texts(source: PretrainSource | SftSource, context: StreamContext) -> Iterator[str]:
    """Yield the text of every document or message of a source."""
    if isinstance(source, PretrainSource):
        for batch in source.kept_documents(context):
            for document in batch:
                yield document.text
    else:
        excluded = ids_of_key(source.exclude)
        for conversation in chain.from_iterable(source.conversations(context)):
            if conversation.source_id not in excluded:
                yield from contents(conversation)


@dataclass
class _SampleLines:
    """The lines of one data set, each with its newline, as bytes.

    Attributes:
        error: The reason why the data set cannot be read. The lines end there. None if it could be read.
        opened: Whether the `revision` of the source is known.
        read_as: The kind of text that was read.
        facts: The facts in the source's report.
    """

    registry: Registry
    root: Path
    name: str
    beginning: list[str]
    log: Log
    read_as: ReadAs = "raw"
    revision: str | None = None
    opened: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    hints: Sequence[str] = ()
    error: Exception | None = None

    def __iter__(self) -> Iterator[bytes]:
        try:
            # as the builders will encode them, but a lone surrogate becomes `?`
            texts = (normalize_newlines(text).encode(errors="replace").decode() for text in self._texts())
            for text in keep_beginning(texts, self.beginning):
                for line in text.split("\n"):
                    if line:
                        for piece in split_long_line(line):
                            yield piece.encode() + b"\n"
        except Exception as error:  # any error of a source; errors of the sample file are not raised in this generator
            self.error = error

    def _texts(self) -> Iterator[str]:
        source = self.registry.source(self.name)
        prepared = _prepared(self.registry, self.name, root=self.root) if getattr(source, "has_corpus", False) else None
        if isinstance(prepared, PreparedCorpus):
            self.read_as, self.opened, self.revision = "prepared", True, prepared.meta["dataset_revision"]
            return (document.text for document in _train_documents(prepared))
        members = self._members(source)
        if members:
            self.read_as = "members"
        elif prepared is not None:
            self.log(f"WARNING: the tokenizer is trained on raw text of {self.name}, not on its prepared documents: {prepared}")
        siblings = {**self.registry.pretrain, **members}
        self.revision = source.revision(siblings)
        self.opened = True
        context = StreamContext(seed=self.registry.build.seed, revision=self.revision, log=self.log, siblings=siblings)
        self.facts, self.hints = context.report.facts, context.report.hints
        return raw_texts(source, context)

    def _members(self, source: PretrainSource | SftSource) -> dict[str, PretrainSource]:
        """Return readers for the members of a mixture that have a corpus."""
        names = [name for name in getattr(source, "members", {}) if name in self.registry.prepared()]
        found: dict[str, PretrainSource] = {}
        for name in names:
            prepared = _prepared(self.registry, name, root=self.root)
            if isinstance(prepared, PreparedCorpus):
                found[name] = _member_of_train(prepared)
            else:
                self.log(f"WARNING: the tokenizer is trained on raw text of {name} in {self.name}: {prepared}")
        return found


def _prepared(registry: Registry, name: str, *, root: Path) -> PreparedCorpus | str:
    """Return the corpus of a data set, or the reason why it is not read. Duplicates are left out if they are known."""
    if needs_tokenizer(registry, name):
        return "its corpus is made after the tokenizer; set `prepare` for its members to train on their prepared documents"
    problem = ""
    for minus_duplicates in (True, False):
        try:
            return open_prepared(registry, name, root=root, minus_duplicates=minus_duplicates)
        except NielsCacheError as error:
            problem = str(error)
    return problem


class _TrainReader(PreparedMember):
    """A reader that yields only documents of train.

    Without the tokenizer, a mixture cannot find the documents that a token budget gives to val.
    """

    def documents(self, context: StreamContext) -> Iterator[Documents]:
        return batched(_train_documents(self.prepared))


def _member_of_train(prepared: PreparedCorpus) -> PreparedMember:
    return _TrainReader.of(lambda: prepared)


def _train_documents(prepared: PreparedCorpus) -> Iterator[Document]:
    """Yield the documents that go to train.

    If token budgets decide the split, only the tokenizer can find the end of val. Therefore the longest possible val is skipped. This val
    consists of val_tokens pieces of maximal length, but of at most half of the text.
    """
    source = prepared.source
    batches = prepared.documents()
    if source.shuffle_buffer:  # with a shuffle, val comes first in the shuffled order
        batches = shuffled(batches, buffer_size=source.shuffle_buffer, seed=prepared.seed)
    reach = min(_LONGEST_PIECE * (source.val_tokens or 0), prepared.meta["characters"]["after"] // 2)
    for document in chain.from_iterable(batches):
        if document.split == "train" or (document.split is None and reach <= 0):
            yield document
        elif document.split is None:
            reach -= len(document.text)
