"""The common part of both builders: settings, progress, provenance, and the empty cache of a data set that is switched off.

resume.py decides where an interrupted build continues.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np

from niels_cache_assets.base.defaults import ROLE_KEYS
from niels_cache_assets.base.documents import DropReport, SourceReport
from niels_cache_assets.base.fingerprint import fingerprint_of
from niels_cache_assets.build_cache.resume import CODE_VERSIONS, JournalFingerprint, Resume, fingerprint_of_journal, open_journal
from niels_cache_assets.disk.journal import Journal, clear_directory, read_journal
from niels_cache_assets.disk.staging import atomic_directory
from niels_cache_assets.sources.reading.encodings import not_text_note
from niels_cache_assets.streaming.feed import Feed
from niels_cache_assets.tokenizer.encoder import BuildEncoder, EngineMismatchError, EngineUse, resume_problem
from niels_cache_assets.tokenizer.engines import reference_of
from niels_cache_assets.tokenizer.kinds import BuildTokenizer, view_tokenizer
from niels_cache_assets.tokenizer.tokenizer_json import tokenizers_limited_to
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import META_NAME, SPLITS, TOKEN_DTYPE_NAME, TOKEN_DTYPES, Family, token_dtype_name
from niels_cache_runtime.format.meta import Meta, content_sha256, write_meta

State = TypeVar("State")
_NO_DOCUMENTS = {"shard_bytes": None, "documents": dict.fromkeys(SPLITS, 0)}


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """The entries of meta.json about the origin of a cache (docs/meta.md).

    Attributes:
        dataset_name: The name of the data set. None: the cache has no name, and may be in any folder.
        dataset_config: The configuration of the data set on the hub. None if it has none.
        dataset_revision: The hub commit, or a digest of the local files. None if there is none.
        source: The kind of the source and its settings, as JSON values. The default is that of an iterable.
        split_rule: How the items were split, in words. None: the builder describes its settings.
        fingerprint: The hash of everything that decides the bytes. None: it is computed from the settings of the builder.
    """

    dataset_name: str | None = None
    dataset_config: str | None = None
    dataset_revision: str | None = None
    source: dict[str, Any] = field(default_factory=lambda: {"kind": "iterable", "streaming": True})
    split_rule: str | None = None
    fingerprint: str | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a build so far.

    Attributes:
        documents: The number of documents (or conversations).
        tokens: The number of tokens.
        share: The finished share, 0 to 1. It is a share of the documents if their number is known, and otherwise of the token budgets or of
            the source. None if unknown.
    """

    documents: int
    tokens: int
    share: float | None

    @property
    def counts(self) -> dict[str, int]:
        """The numbers of documents and tokens, by name."""
        return {"documents": self.documents, "tokens": self.tokens}


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True, kw_only=True)
class CacheBuild(ABC):
    """A build with checked settings, which are the arguments of a public builder.

    The public builders and the artifacts write caches with this class.

    Attributes:
        items: Texts or conversations.
        out_dir: The folder to build, which messages name.
    """

    family: ClassVar[Family]

    items: Iterable[Any] | Feed[Any]
    out_dir: str
    tokenizer: Any
    seed: int
    on_collision: Literal["drop", "raise"] = "drop"
    threads: int | None = None
    token_dtype: str | None = None
    provenance: Provenance = field(default_factory=Provenance)
    report: SourceReport | None = None
    progress: OnProgress | None = None

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The settings that decide the bytes."""

    @property
    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """All values in the builder that decide the bytes. The fingerprint of the journal covers them."""

    def write(self, partial: Path, resume: Resume | None) -> Meta:
        """Write all files except meta.json into `partial`, and return the content of meta.json.

        Args:
            partial: The folder of the unfinished build.
            resume: The request to keep a journal. None: no journal.

        Raises:
            EngineMismatchError: If a fast engine gave other ids than the reference. The written files stay, so a later build can resume.
        """
        with tokenizers_limited_to(self.threads):
            return self._write(partial, resume)

    @abstractmethod
    def _write(self, partial: Path, resume: Resume | None) -> Meta:
        """Write all files except meta.json; see `write`."""

    @cached_property
    def view(self) -> BuildTokenizer:
        """The tokenizer in the form that builders use.

        Raises:
            NielsCacheError: If the tokenizer is unusable.
        """
        return view_tokenizer(self.tokenizer)

    @cached_property
    def encoder(self) -> BuildEncoder:
        """The encoder, which knows after `write` which engines encoded the text."""
        return BuildEncoder(self.view, self.tokenizer)

    @cached_property
    def encoding_view(self) -> BuildTokenizer:
        """The view that encodes with the encoder."""
        return replace(self.view, encode_batch=self.encoder.encode_flat)

    @cached_property
    def dtype_name(self) -> str:
        """The name of the dtype of the tokens, as in meta.json."""
        return choose_token_dtype(self.view.vocab_size, self.token_dtype)

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the tokens."""
        return TOKEN_DTYPES[self.dtype_name]

    @cached_property
    def feed(self) -> Feed[Any]:
        """The items as a Feed."""
        return self.items if isinstance(self.items, Feed) else Feed.of(self.items, self.report or SourceReport())

    def meta(self, split_rule: str) -> Meta:
        """Return the entries of meta.json that are known before any item is read.

        Args:
            split_rule: The split rule to record if the provenance has none.
        """
        provenance = self.provenance
        identity = {
            "settings": self.settings,
            "tokenizer_sha256": self.view.model_sha256,
            "code_version": CODE_VERSIONS[self.family],
            **token_dtype_identity(self.dtype_name),
        }
        return {
            **vars(provenance),
            "kind": self.family,
            "built": True,
            "split_rule": provenance.split_rule or split_rule,
            "seed": self.seed,
            "token_dtype": self.dtype_name,
            "tokenizer_sha256": self.view.model_sha256,
            "vocab_size": self.view.vocab_size,
            "special_token_ids": self.view.special_ids,
            "fingerprint": provenance.fingerprint or fingerprint_of(identity),
        }

    def journal_fingerprint(self, resume: Resume) -> JournalFingerprint:
        """Return the fingerprint of the journal that this build keeps."""
        return fingerprint_of_journal(resume, self.identity, reference=reference_of(self.tokenizer))

    def open_journal(self, partial: Path, resume: Resume | None, new: State) -> tuple[Journal | None, State]:
        """Open the journal of this build, and choose the engine that encodes.

        Args:
            partial: The folder of the unfinished build.
            resume: The request to keep a journal. None: this build keeps no journal.
            new: The state of a new build.

        Returns:
            The journal or None, and its state, which is `new` if there is nothing to resume.
        """
        if resume is None:
            self.encoder.start([], lambda message: None)
            return None, new
        if (recorded := read_journal(partial)) is not None:
            problem = resume_problem(recorded.notes, self.tokenizer)
            if problem is not None and not resume.afresh:
                resume.log(f"starting afresh: {problem}")
                clear_directory(partial)
        name = self.provenance.dataset_name or Path(self.out_dir).name
        journal = open_journal(partial, resume, self.journal_fingerprint(resume), name=name, state=type(new))
        self.encoder.start(EngineUse.recorded(journal.notes), resume.log)
        journal.take_notes = self.encoder.notes
        return journal, journal.state or new

    def build(self, resume: Resume | None) -> None:
        """Build and replace `out_dir`."""
        with atomic_directory(self.out_dir, resumable=resume is not None) as partial:
            try:
                meta = self.write(partial, resume)
            except EngineMismatchError as error:
                raise NielsCacheError(f'{self.out_dir}: {error}; set `engine = "reference"` on the tokenizer, and build again') from error
            write_meta(partial / META_NAME, meta)


def choose_token_dtype(vocab_size: int, requested: str | None) -> str:
    """Return the name of the dtype of a cache's tokens: `requested`, or the narrowest one that holds every id below `vocab_size`.

    Raises:
        NielsCacheError: If the dtype is unknown, or too narrow for the vocabulary.
    """
    narrowest = token_dtype_name(vocab_size)
    if requested is None:
        return narrowest
    if requested not in TOKEN_DTYPES:
        raise NielsCacheError(f"token_dtype is {requested!r:.80}; choose from {', '.join(TOKEN_DTYPES)}, or leave it out")
    if TOKEN_DTYPES[requested].itemsize < TOKEN_DTYPES[narrowest].itemsize:
        raise NielsCacheError(f"token_dtype is {requested!r}, which is too narrow for the tokenizer's {vocab_size:,} ids; leave it out")
    return requested


def token_dtype_identity(name: str) -> dict[str, str]:
    """Return the entry of the dtype in a fingerprint. It is empty for uint16, the default."""
    return {} if name == TOKEN_DTYPE_NAME else {"token_dtype": name}


def describe_dropped_items(counts: DropReport, hints: Sequence[str]) -> str:
    """Return the end of the message about a source without usable items.

    It names the reasons for which items were dropped, files that are not text, and the source's `hints`.
    """
    dropped = ", ".join(f"{reason} {count}" for reason, count in sorted(counts.dropped.items()))
    return "".join([f" (dropped: {dropped})" if dropped else "", not_text_note(counts.facts), *(f"; {hint}" for hint in hints)])


def write_unbuilt_cache(out_dir: str, *, family: Literal["pretrain", "sft"], provenance: Provenance) -> None:
    """Write the cache of a data set that is switched off: empty directories and a meta.json with `"built": false`.

    Args:
        out_dir: The folder to write. It is replaced in one step.
        family: The kind of the cache. Only a "pretrain" cache has the empty folders train/ and val/.
        provenance: The entries of meta.json about the origin.

    Raises:
        NielsCacheError: If the folder cannot be written.
    """
    with atomic_directory(out_dir) as partial:
        write_meta(partial / META_NAME, write_unbuilt(partial, family=family, provenance=provenance))


def write_unbuilt(partial: Path, *, family: Family, provenance: Provenance) -> Meta:
    """Write the cache of a data set that is switched off into `partial`, without meta.json, and return the content of meta.json."""
    if family == "pretrain":
        for split in SPLITS:
            (partial / split).mkdir()
    return {
        **vars(provenance),
        "kind": family,
        "built": False,
        "dataset_revision": None,
        "seed": None,
        "token_dtype": TOKEN_DTYPE_NAME,
        "tokenizer_sha256": None,
        "vocab_size": None,
        "special_token_ids": dict.fromkeys(ROLE_KEYS),
        **{f"{split}_tokens": 0 for split in SPLITS},
        **(_NO_DOCUMENTS if family == "pretrain" else {f"{split}_examples": 0 for split in SPLITS}),
        "dropped": {},
        "files": {},
        "content_sha256": content_sha256({}),
    }
