"""Fast engines: libraries that encode text faster than the reference of a kind of tokenizer, and give the same ids.

The reference (the library `tokenizers`, `tiktoken` or `sentencepiece`) defines the ids. An engine is used only if its package is installed,
if it can load the model, and if it gives the reference's ids for all texts of proof.py. If its package is missing, or if it cannot load the
model, the reference is used, which is not an error. docs/dependencies.md gives the reasons for the choice of engines.

A version of an engine is proven once for each model. The result is in a file beside the tokenizer of a cache root, for all processes that
build there, and in the user's cache folder, for other roots. A text of a build for which the ids differ is part of the proof too, and
makes it a failure.
"""

from __future__ import annotations

import ctypes
import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from threading import Lock, Thread
from typing import Any, Protocol

import numpy as np

from niels_cache_assets.base.strings import Strings
from niels_cache_assets.disk.journal import write_atomically
from niels_cache_assets.tokenizer.base import FlatIds, TextTokenizer, first_line
from niels_cache_assets.tokenizer.bpe_json import ranks_as_json, sentencepiece_as_json
from niels_cache_assets.tokenizer.kinds import LIBRARIES, PROOFS_NAME, open_configured_model
from niels_cache_assets.tokenizer.proof import EngineProof, compare, difficult_texts
from niels_cache_assets.tokenizer.sentencepiece_model import USER_DEFINED, DescribedModel, SentencePieceTokenizer
from niels_cache_assets.tokenizer.settings import TokenizerSettings
from niels_cache_assets.tokenizer.tiktoken_ranks import TiktokenTokenizer, read_ranks
from niels_cache_assets.tokenizer.tokenizer_json import HuggingFaceTokenizer
from niels_cache_assets.tokenizer.unigram_words import UnigramWords
from niels_cache_runtime.errors import panics_as_errors
from niels_cache_runtime.format.commit import BusyError, LockRefusedError, hold_lock

_PROOF_VERSION = 1  # raise this by hand if the difficult texts change, or if an engine loads a model in another way
_WAIT_SECONDS = 60.0  # for the proof of another process, which takes some seconds unless the process is stopped
_THREADS_VARIABLE = "FASTOKENS_BPE_THREADS"
_GPT2_PATTERNS = frozenset(  # three spellings of the same words, of different versions of tiktoken
    {
        r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s""",
        r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+""",
        r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+""",
    }
)
_CL100K_PATTERN = (
    r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"""
)

_LOCK = Lock()
_LOADED: dict[tuple[Any, ...], Engine | str] = {}  # the engine of the last model, or why none is used
_REJECTED: dict[str, str] = {}  # of this process, also where nothing can be recorded: why an engine is not used, by its proof


class Engine(Protocol):
    """A model that is loaded into a fast engine."""

    name: str
    version: str

    def encode_flat(self, texts: Sequence[str] | Strings) -> FlatIds:
        """Return the ids of all texts back to back, and the number of ids of each text, int64.

        The texts must be valid Unicode. Special tokens in the texts are ordinary text. May raise any Exception for a text that the engine
        cannot encode.
        """


class Fastokens:
    """A model in the library `fastokens`, which releases the GIL, so that more threads encode faster.

    Args:
        tokenizer: The loaded object of the library.
        version: Version of the library.
        prepare: Returns the texts as the library gets them.
    """

    name = "fastokens"

    def __init__(self, tokenizer: Any, version: str, prepare: Callable[[Iterable[str]], list[str]]) -> None:
        self._tokenizer, self.version, self._prepare = tokenizer, version, prepare

    @classmethod
    def load(cls, tokenizer: TextTokenizer) -> Fastokens | str:
        """Load the model of a tokenizer, or return why that is impossible."""
        version = installed_version(cls.name)
        if version is None:
            return f"{cls.name}, which is much faster, is not installed; pip install 'niels-cache[fast]'"
        os.environ.setdefault(_THREADS_VARIABLE, "1")  # a build has threads of its own, as many as [build] threads says
        try:
            import fastokens

            library = fastokens.Tokenizer
            with panics_as_errors():
                if isinstance(tokenizer, TiktokenTokenizer):
                    return cls(cls._load_ranks(library, tokenizer), version, tokenizer.normalized)
                if isinstance(tokenizer, SentencePieceTokenizer):
                    model = DescribedModel.of(tokenizer)
                    return cls(library.from_json_str(sentencepiece_as_json(model)), version, model.spell)
                assert isinstance(tokenizer, HuggingFaceTokenizer)
                return cls(library.from_json_str(tokenizer.library_tokenizer.to_str()), version, list)
        except Exception as error:  # a damaged installation, or a component that fastokens does not know
            return f"{cls.name} {version} cannot load the model: {first_line(error):.200}"

    @staticmethod
    def _load_ranks(library: Any, tokenizer: TiktokenTokenizer) -> Any:
        """Load ranks so that fastokens splits words with its own code.

        Its regular expressions are slower, and take U+180E for a blank. Its own reader of ranks is faster than `ranks_as_json`, but refuses
        ids without a piece, and pieces that are not the join of two others.
        """
        pattern = tokenizer.pattern
        if pattern not in _GPT2_PATTERNS:
            words = {"encoding": "cl100k_base"} if pattern == _CL100K_PATTERN else {"pattern": pattern}
            with suppress(ValueError):
                return library.from_tiktoken(tokenizer.ranks_path, special_tokens={}, **words)
        return library.from_json_str(ranks_as_json(read_ranks(tokenizer.ranks_path).ranks, None if pattern in _GPT2_PATTERNS else pattern))

    def encode_flat(self, texts: Sequence[str] | Strings) -> FlatIds:
        with panics_as_errors():
            ids, offsets = self._tokenizer.encode_batch_flat(self._prepare(texts), add_special_tokens=False, split_special_tokens=True)
        return np.frombuffer(ids, np.uint32), np.diff(np.frombuffer(offsets, np.uint64)).astype(np.int64)


Log = Callable[[str], object]
"""A function that reports a line to the user."""

Loaders = Mapping[str, Callable[["TextTokenizer"], Engine | str]]
"""Functions by the names of engines. Each loads the model of a tokenizer, or returns why that is impossible."""

ENGINES: Loaders = {Fastokens.name: Fastokens.load}


def engines_for(tokenizer: Any) -> Loaders:
    """Return the engines that may encode for this model, the preferred one first."""
    if isinstance(tokenizer, SentencePieceTokenizer) and DescribedModel.of(tokenizer).is_unigram:
        return {UnigramWords.name: UnigramWords.load}
    return ENGINES if reference_of(tokenizer) else {}


def reference_of(tokenizer: Any) -> str | None:
    """Return the library that defines the ids of a tokenizer, or None if no engine can encode for this kind of tokenizer."""
    return LIBRARIES[tokenizer.kind] if isinstance(tokenizer, TextTokenizer) else None


def describe_reference(tokenizer: TextTokenizer) -> str:
    """Return the library that defines the ids, with its version."""
    library = LIBRARIES[tokenizer.kind]
    return f"{library} {metadata.version(library)}"


def is_engine_loaded(tokenizer: TextTokenizer) -> bool:
    """Return whether the engine of this model is loaded, or none is used: whether the model is the last one asked for in this process."""
    return _key(tokenizer) in _LOADED


def may_encode(tokenizer: Any, name: str, version: str) -> bool:
    """Return whether an engine, perhaps one of another process, can still encode: nothing forbids it, and no proof has failed."""
    return reference_of(tokenizer) is not None and tokenizer.engine == "auto" and not _result(tokenizer, f"{name} {version}")


def prove(tokenizer: TextTokenizer, engine: Engine) -> EngineProof:
    """Compare an engine with its reference on the fixed set of difficult texts (see proof.difficult_texts), which takes some seconds."""
    return compare(difficult_texts(**_model_tokens(tokenizer)), reference=tokenizer.encode_flat, engine=engine.encode_flat)


def proven_engine(tokenizer: TextTokenizer, log: Log) -> Engine | str:
    """Return the first engine that can load a model and gives the ids of the reference, or why there is none, which is logged once.

    A process that builds with several models in turn loads their engines again, because an engine takes a hundred megabytes.
    """
    with _LOCK:
        key = _key(tokenizer)
        if key not in _LOADED:
            _LOADED.clear()
            _LOADED[key] = found = _first_proven(tokenizer, log)
            if isinstance(found, str):
                log(f"{describe_reference(tokenizer)} encodes: {found}")
            if isinstance(tokenizer, HuggingFaceTokenizer):
                tokenizer.renew_remembered_words()
            _free_memory()
        return _LOADED[key]


def load_in_background(settings: TokenizerSettings, root: Path, log: Log) -> None:
    """Begin to load and prove the engine of an imported model, in a thread of its own, unless this process has loaded one.

    A build waits for it at its first text, and reports what is wrong with the model. The engine of a SentencePiece model is left to the
    build, because a small one does not load it.
    """

    def load() -> None:
        with suppress(Exception):  # the build does the same in its turn
            tokenizer = open_configured_model(settings)
            tokenizer.proofs = root / PROOFS_NAME
            proven_engine(tokenizer, log)

    if settings.model and settings.model_kind != "sentencepiece" and settings.engine == "auto" and not _LOADED:
        Thread(target=load).start()


def reject_engine(tokenizer: TextTokenizer, engine: Engine, log: Log) -> None:
    """Record that an engine gave other ids. From now on, no build with this model uses this version of it."""
    with _LOCK, _record_lock(tokenizer, log):
        name = f"{engine.name} {engine.version}"
        _LOADED[_key(tokenizer)] = _record(tokenizer, name, f"{name} is not used: it gave other ids for a text of a build")


def _key(tokenizer: TextTokenizer) -> tuple[Any, ...]:
    return (tokenizer.kind, tokenizer.model_sha256, *engines_for(tokenizer).values())


def _first_proven(tokenizer: TextTokenizer, log: Log) -> Engine | str:
    reasons = []
    for load in engines_for(tokenizer).values():
        engine = load(tokenizer)
        reason = engine if isinstance(engine, str) else _prove_once(tokenizer, engine, log)
        if not reason:
            return engine
        reasons.append(reason)
    return "; ".join(reasons)


def _prove_once(tokenizer: TextTokenizer, engine: Engine, log: Log) -> str:
    """Return why an engine is not used, or "" if its ids are right. Only the first process of a cache root proves it; others wait."""
    name = f"{engine.name} {engine.version}"
    with _record_lock(tokenizer, log):
        rejection = _result(tokenizer, name)
        if rejection is None:
            rejection = _rejection_reason(tokenizer, name, prove(tokenizer, engine))
        return _record(tokenizer, name, rejection)


def _rejection_reason(tokenizer: TextTokenizer, engine: str, proof: EngineProof) -> str:
    """Return why an engine with this proof is not used, or an empty string if it is used."""
    reference = reference_of(tokenizer)
    counts = {f"it gives other ids than {reference} for": proof.differing, f"{reference} cannot encode": proof.unencodable}
    found = ", and ".join(f"{problem} {count:,}" for problem, count in counts.items() if count)
    return f"{engine} is not used: {found} of {proof.texts:,} difficult texts (niels-cache tokenizer prove shows them)" if found else ""


def _result(tokenizer: TextTokenizer, engine: str) -> str | None:
    """Return why an engine is not used, "" if its ids are right, or None if it has not been proven yet. A rejection counts in each root.

    Args:
        tokenizer: The model.
        engine: Name and version of the engine.
    """
    key = _proof_key(tokenizer, engine)
    records = (read_record(path)["proofs"] for path in (tokenizer.proofs, _user_record()))
    return max((proofs[key] for proofs in (_REJECTED, *records) if key in proofs), default=None)


def _record(tokenizer: TextTokenizer, engine: str, rejection: str) -> str:
    """Record the result of a proof in the root and for this user, and return it."""
    key = _proof_key(tokenizer, engine)
    for path in (tokenizer.proofs, _user_record() if tokenizer.proofs else None):
        _add_to_record(path, "proofs", key, rejection)
    if rejection:
        _REJECTED[key] = rejection
    return rejection


def record_encoder(tokenizer: TextTokenizer, encoder: str, reason: str, log: Log) -> None:
    """Record beside the tokenizer which library encodes, and why no faster one does, for `status`."""
    with _record_lock(tokenizer, log):
        _add_to_record(tokenizer.proofs, "encoders", str(tokenizer.model_sha256), {"name": encoder, "why_not_faster": reason or None})


def read_record(path: Path | None) -> dict[str, dict[str, Any]]:
    """Return the record beside the tokenizer of a cache root, or the one in the user's cache folder.

    Returns:
        "proofs": results of proofs, by what they depend on. "encoders": the library that encoded last, by the sha256 of the model. Both are
        empty without a record.
    """
    try:
        record = json.loads(path.read_bytes()) if path is not None else {}
        return {table: dict(record[table]) for table in ("proofs", "encoders")}
    except (OSError, ValueError, RecursionError, TypeError, KeyError):
        return {"proofs": {}, "encoders": {}}


@contextmanager
def _record_lock(tokenizer: TextTokenizer, log: Log) -> Iterator[None]:
    """Hold the lock of the record. Go on without it in a read-only folder, or if another process holds it for a minute."""
    with ExitStack() as stack:
        try:
            if tokenizer.proofs is not None:
                stack.enter_context(hold_lock(lock := tokenizer.proofs.with_name("tokenizer.engines")))
        except BusyError as error:
            log(f"waiting for up to {_WAIT_SECONDS:g} s until another process has proven the engine: {error.writer}")
            with suppress(LockRefusedError, BusyError):
                stack.enter_context(hold_lock(lock, retry_seconds=_WAIT_SECONDS))
        except LockRefusedError:
            pass
        yield


def _user_record() -> Path | None:
    """Return the path of the record in the user's cache folder, or None for a user without a home."""
    folder = Path(os.path.expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache"))
    return folder / "niels-cache" / "engines.json" if folder.is_absolute() else None


def _add_to_record(path: Path | None, table: str, key: str, value: Any) -> None:
    """Add to a record. The caller holds the lock of the record in a root; an entry of the user's that is lost costs a proof."""
    record = read_record(path)
    if path is not None and record[table].get(key) != value:
        record[table][key] = value
        with suppress(OSError):  # a read-only folder
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps(record).encode(), spare=f"{secrets.token_hex(4)}.new")


def _proof_key(tokenizer: TextTokenizer, engine: str) -> str:
    """Return what a proof depends on."""
    return f"{engine} as {describe_reference(tokenizer)}, model {tokenizer.model_sha256}, proof {_PROOF_VERSION}"


def _free_memory() -> None:
    """Give unused memory back to the system if the C library can (glibc): after a proof, up to 200 MB."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def _model_tokens(tokenizer: TextTokenizer) -> dict[str, list[str]]:
    """Return the added tokens and the pieces of a model, for difficult_texts."""
    pieces = []
    for piece in tokenizer.piece_bytes():
        with suppress(UnicodeDecodeError):  # a part of a character
            pieces.append(piece.decode())
    user_defined = DescribedModel.of(tokenizer).pieces_of(USER_DEFINED) if isinstance(tokenizer, SentencePieceTokenizer) else []
    return {"added": [*tokenizer.special_tokens.values(), *tokenizer.special_names(), *user_defined], "pieces": pieces}


@cache
def installed_version(package: str) -> str | None:
    """Return the version of an installed package or of an engine of this package, or None."""
    if package == UnigramWords.name:
        return UnigramWords.version
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
