"""The encoder of a build: a fast engine that is proven first, and compared with the reference again while the build runs.

Before an engine encodes the first text of a build, it must give the reference's ids for the fixed set of difficult texts (proof.py). A
build that encodes no text with it, such as one with a chat template, does not load it. During a build, the reference also encodes the first
batches in full, which are a sample of the data set, and then one text in 512: one in 64 of every eighth batch. So no batch waits long for
the reference.

A batch is compared before it is written. If ids differ, EngineMismatchError ends the build, and this version of the engine counts as
disproven from then on. If the engine cannot encode a batch, or if a text of the batch has more than 16 million characters, the reference
encodes it. A text that the reference cannot encode has no ids to compare with, so it is not compared. Cost: about a tenth of the build,
because the reference is far slower.

For a SentencePiece model, the reference encodes the first megabytes, because loading and proving the engine would cost a small build more
than it gains. Then the first batch of the engine is compared in full. If the engine of this model is still loaded, it is used at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from typing import Any

import numpy as np

from niels_cache_assets.base.strings import Strings
from niels_cache_assets.base.wording import DEBUG
from niels_cache_assets.tokenizer.base import FlatIds
from niels_cache_assets.tokenizer.engines import (
    Engine,
    describe_reference,
    is_engine_loaded,
    may_encode,
    proven_engine,
    record_encoder,
    reference_of,
    reject_engine,
)
from niels_cache_assets.tokenizer.kinds import BuildTokenizer
from niels_cache_assets.tokenizer.proof import compare_encoded
from niels_cache_assets.tokenizer.sentencepiece_model import DescribedModel, SentencePieceTokenizer
from niels_cache_runtime.errors import NielsCacheError

FIRST_BATCHES = 8  # batches that are compared in full, of 256 documents each
_FIRST_CHARACTERS = 1 << 20  # about the maximum number of characters in them; the first batch is compared in any case
BATCHES_PER_CHECK = 8
TEXTS_PER_CHECK = 64

UNIGRAM_LOAD_CHARACTERS = 64_000_000  # after this much text, the engine for unigram models is loaded, which takes some core-seconds
BPE_LOAD_CHARACTERS = 8_000_000  # the same for BPE models of SentencePiece; their engine is loaded sooner, and gains more
MAX_ENGINE_CHARACTERS = 16_000_000  # an engine gets no longer texts: comparing one would take as much memory as the whole build


@dataclass(frozen=True, kw_only=True)
class EngineUse:
    """The use of an engine or of the reference in a build, for the journal and for Dagster's metadata.

    Attributes:
        name: Name of the library.
        version: Version of the library.
        texts: Number of texts that it encoded.
        checked: How many of them the reference also encoded.
        is_reference: Whether the library is the reference.
        reason: Why the reference encoded, and no engine.
    """

    name: str
    version: str
    texts: int = 0
    checked: int = 0
    is_reference: bool = False
    reason: str = ""

    @classmethod
    def recorded(cls, notes: Mapping[str, Any] | None) -> list[EngineUse]:
        """Return the uses in the notes of a journal, without entries in another form."""
        uses = []
        for each in (notes or {}).get("engines", ()):
            with suppress(TypeError):
                uses.append(cls(**each))
        return uses

    @staticmethod
    def notes(uses: Sequence[EngineUse]) -> dict[str, Any]:
        """Return uses as notes for a journal."""
        return {"engines": [asdict(use) for use in uses]} if uses else {}

    def describe(self) -> str:
        """Return the use in words."""
        library = f"{self.name} {self.version}"
        if self.is_reference:
            return f"{library} (the reference{'; ' if self.reason else ''}{self.reason})"
        share = self.checked / self.texts if self.texts else 1
        return f"{library}, {share:.2%} of the texts checked with the reference"


class EngineMismatchError(NielsCacheError):
    """An error for a fast engine that gave other ids than the reference while a build ran. The message quotes no text.

    Args:
        engine: The engine with its version.
        reference: The reference with its version.
        text: The text, with line feeds.
        where: Where the text is in the source; by default unknown.
    """

    def __init__(self, engine: str, reference: str, text: str, where: str = "a text") -> None:
        super().__init__(f"{where}: {engine} gave other ids than {reference}")
        self.engine, self.reference, self.text = engine, reference, text

    def at(self, where: str) -> EngineMismatchError:
        """Return the same error with the text's position in the source."""
        return EngineMismatchError(self.engine, self.reference, self.text, where)


def resume_problem(notes: Mapping[str, Any] | None, tokenizer: Any) -> str | None:
    """Return why a build with this tokenizer cannot resume an unfinished one, or None.

    The tokens of an engine that is no longer used are kept only if each of its texts was compared with the reference.

    Args:
        notes: Notes in the journal of the unfinished build.
        tokenizer: The tokenizer of this build.
    """
    unproven = [
        f"{use.name} {use.version}"
        for use in EngineUse.recorded(notes)
        if not use.is_reference and use.checked < use.texts and not may_encode(tokenizer, use.name, use.version)
    ]
    return f"not every text that {', '.join(unproven)} encoded was compared with the reference" if unproven else None


class BuildEncoder:
    """The encoder of one build. Its methods may be called from several threads.

    Args:
        view: The tokenizer as the builders see it.
        tokenizer: The object that was given to the builder. Its attribute `engine` decides whether an engine may encode.
    """

    def __init__(self, view: BuildTokenizer, tokenizer: Any) -> None:
        self._view, self._tokenizer = view, tokenizer
        self._reference: str | None = reference_of(tokenizer)
        self._engine: Engine | None = None
        self._uses: dict[tuple[str, str], EngineUse] = {}  # by name and version; the reference's without the texts that it only checked
        self._engine_use: EngineUse | None = None  # without counts, as the next
        self._reference_use: EngineUse | None = None
        self._lock = threading.Lock()
        self._is_engine_pending = False  # whether the engine is not loaded yet, but will be
        self._load_after = 0  # after how many characters it is loaded
        self._characters = 0  # of the texts that came before it was loaded
        self._compares_next = False  # whether the next batch of the engine is compared in full
        self._has_failed = False
        self._log: Callable[[str], None] = lambda message: None

    def start(self, before: Sequence[EngineUse], log: Callable[[str], None]) -> None:
        """Begin a build. The first text to encode chooses the engine, which takes some seconds if the engine must be proven.

        Args:
            before: Uses that the journal of an interrupted build records.
            log: Called with messages about the choice.
        """
        if self._reference is None:
            return
        self._uses, self._log = {(use.name, use.version): use for use in before}, log
        self._reference_use = EngineUse(name=self._reference, version=metadata.version(self._reference), is_reference=True)
        self._is_engine_pending = self._tokenizer.engine == "auto"
        if not self._is_engine_pending:
            self._use_reference('[tokenizer] engine = "reference"')
        elif isinstance(self._tokenizer, SentencePieceTokenizer) and not is_engine_loaded(self._tokenizer):
            self._load_after = UNIGRAM_LOAD_CHARACTERS if DescribedModel.of(self._tokenizer).is_unigram else BPE_LOAD_CHARACTERS
            self._use_reference(f"an engine encodes only what follows the first {self._load_after:,} characters")

    def _load_engine(self) -> None:
        engine = proven_engine(self._tokenizer, self._log)
        if isinstance(engine, str):
            self._use_reference(engine)
        else:
            self._engine, self._engine_use = engine, EngineUse(name=engine.name, version=engine.version)
            self._report(self._engine_use)

    def _use_reference(self, reason: str) -> None:
        assert self._reference_use is not None
        self._reference_use = replace(self._reference_use, reason=reason)
        self._report(self._reference_use)

    def _report(self, use: EngineUse) -> None:
        """Say which library encodes from now on, and why no faster one, in the log and in the record for `status`."""
        encoder = f"{use.name} {use.version}"
        self._log(f"{DEBUG}encoding with {encoder}{': ' if use.reason else ''}{use.reason}")
        if not (self._is_engine_pending and self._load_after):  # else nothing is chosen yet
            record_encoder(self._tokenizer, encoder, use.reason, self._log)

    def _count(self, use: EngineUse | None, texts: int, *, checked: int) -> None:
        if use is not None:
            with self._lock:
                before = self._uses.get((use.name, use.version), use)
                self._uses[use.name, use.version] = replace(use, texts=before.texts + texts, checked=before.checked + checked)

    def _load_if_due(self, size: int) -> None:
        """Count the characters that arrive while an engine is not loaded, and load it after enough of them.

        At the beginning of a build, other threads wait for the engine. Later, they encode with the reference meanwhile.
        """
        with self._lock:
            self._characters += size
            if not self._is_engine_pending or self._characters < self._load_after:
                return
            if not self._load_after:
                self._load_engine()
            self._is_engine_pending = False
        if self._load_after:
            self._compares_next = True
            self._load_engine()

    def encode_flat(self, texts: Sequence[str] | Strings, batch: int | None) -> FlatIds:
        """Return the ids of all texts back to back, and the number of ids of each text, int64.

        Args:
            texts: Texts to encode.
            batch: Number of this batch in its pass over the source, which decides what is compared. A batch without a number is not
                compared; use None only for texts that have been encoded before.

        Raises:
            EngineMismatchError: If the engine and the reference give different ids.
        """
        found, sizes = None, _sizes(texts)
        if sizes.max(initial=0) <= MAX_ENGINE_CHARACTERS:
            if self._is_engine_pending:
                self._load_if_due(int(sizes.sum()))
            if self._engine is not None and not (batch is None and self._compares_next):  # it would not be compared
                found = self._with_engine(self._engine, texts)
        if found is None:
            self._count(self._reference_use, len(texts), checked=len(texts))
            return self._view.encode_batch(texts, batch)
        chosen = _texts_to_compare(batch, int(sizes.sum()))
        if self._compares_next and batch is not None:
            self._compares_next, chosen = False, slice(None)
        compared = list(texts[chosen])
        self._count(self._engine_use, len(texts), checked=self._compare(compared, found, chosen) if compared else 0)
        return found

    def _compare(self, texts: Sequence[str], found: FlatIds, chosen: slice) -> int:
        """Compare the ids of some texts of a batch, and return how many were compared: those that the reference can encode.

        Args:
            texts: Texts of the batch.
            found: Ids of the batch.
            chosen: Which texts to compare.

        Raises:
            EngineMismatchError: If ids differ.
        """
        ids, lengths = found
        try:
            expected = self._view.encode_batch(texts, None)
        except NielsCacheError:
            if len(texts) == 1:
                return 0
            positions = range(len(lengths))[chosen]
            return sum(self._compare([text], found, slice(position, position + 1)) for text, position in zip(texts, positions, strict=True))
        is_chosen = np.zeros(len(lengths), dtype=bool)
        is_chosen[chosen] = True
        some = ids[np.repeat(is_chosen, lengths)], lengths[chosen]
        difference = compare_encoded(texts, expected, some).first
        if difference is not None:
            assert self._engine is not None
            mismatch = EngineMismatchError(
                f"{self._engine.name} {self._engine.version}", describe_reference(self._tokenizer), difference.text
            )
            reject_engine(self._tokenizer, self._engine, self._log)
            raise mismatch
        return len(texts)

    def _with_engine(self, engine: Engine, texts: Sequence[str] | Strings) -> FlatIds | None:
        """Return the ids, or None if the engine fails. The reference then encodes the batch, or raises a clear error."""
        try:
            ids, lengths = engine.encode_flat(texts)
            if len(lengths) == len(texts) and lengths.sum() == len(ids):
                return ids, lengths
            reason = "it gave another number of texts or ids"
        except Exception as error:
            reason = type(error).__name__  # its message may quote the text
        with self._lock:
            is_first, self._has_failed = not self._has_failed, True
        if is_first:  # log it once per build
            model = self._tokenizer.model_path
            self._log(f"{model}: {engine.name} {engine.version} failed ({reason}); {self._reference} encodes each batch for which it fails")
        return None

    @property
    def uses(self) -> list[EngineUse]:
        """All uses for this cache, those of an interrupted build included, one per library and version, the reference last.

        A library that encoded no text is left out. Empty for a tokenizer of another package.
        """
        uses = [*self._uses.values()]  # other threads may add one meanwhile
        return sorted((use for use in uses if use.texts), key=lambda use: use.is_reference)

    def notes(self) -> dict[str, Any]:
        """Return the uses as notes for the journal, without the reference of a SentencePiece model before an engine is loaded."""
        is_undecided = self._is_engine_pending and self._load_after and all(use.is_reference for use in self.uses)
        return {} if is_undecided else EngineUse.notes(self.uses)


def _sizes(texts: Sequence[str] | Strings) -> np.ndarray:
    """Return the size of each text, (n,) int64: its characters, or its bytes, which are not fewer."""
    return np.diff(texts.buffers()[1]) if isinstance(texts, Strings) else np.fromiter(map(len, texts), np.int64, len(texts))


def _texts_to_compare(batch: int | None, size: int) -> slice:
    """Return which texts of a batch are compared with the reference: all of the first batches, then one in 64 of every eighth.

    The index of the first text changes from batch to batch, so that batches of few long texts are compared at the same rate.

    Args:
        batch: Number of the batch, or None.
        size: Characters or bytes of the batch.
    """
    if batch == 0 or (batch is not None and batch < FIRST_BATCHES and (batch + 1) * size <= _FIRST_CHARACTERS):
        return slice(None)
    if batch is None or batch % BATCHES_PER_CHECK:
        return slice(0, 0)
    return slice(batch // BATCHES_PER_CHECK % TEXTS_PER_CHECK, None, TEXTS_PER_CHECK)
