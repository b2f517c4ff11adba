"""Fast engines: libraries that encode text faster than the reference of a kind of tokenizer, and give the same ids.

The reference (the library `tokenizers`, `tiktoken` or `sentencepiece`) defines the ids. An engine is used only if its package is installed,
if it can load the model, and if it gives the reference's ids for all texts of proof.py. If its package is missing, or if it cannot load the
model, the reference is used, which is not an error. docs/dependencies.md gives the reasons for the choice of engines.

A version of an engine is proven once for each model. The result is in a file beside the tokenizer of a cache root, for all processes that
build there. A text of a build for which the ids differ is part of the proof too, and makes it a failure.
"""

from __future__ import annotations

import ctypes
import json
import os
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import metadata
from itertools import pairwise
from threading import Lock
from typing import Any, Protocol

import numpy as np

from niels_cache_assets.base.strings import Strings
from niels_cache_assets.disk.journal import write_atomically
from niels_cache_assets.tokenizer.base import FlatIds, TextTokenizer
from niels_cache_assets.tokenizer.byte_level import byte_characters
from niels_cache_assets.tokenizer.kinds import LIBRARIES, SentencePieceTokenizer
from niels_cache_assets.tokenizer.proof import EngineProof, compare, difficult_texts
from niels_cache_assets.tokenizer.tiktoken_ranks import TiktokenTokenizer, read_ranks
from niels_cache_assets.tokenizer.tokenizer_json import HuggingFaceTokenizer
from niels_cache_assets.tokenizer.unigram_words import UnigramWords
from niels_cache_runtime.errors import panics_as_errors

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
_LOADED: dict[tuple[Any, ...], Engine | None] = {}  # the engine of the last model; None if no engine is used
_RESULTS: dict[tuple[Any, ...], str] = {}  # by model, and name and version: why the engine is not used, or "" if its ids are right


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
        prepare: Returns the texts as the library gets them; by default unchanged.
    """

    name = "fastokens"

    def __init__(self, tokenizer: Any, version: str, prepare: Callable[[Iterable[str]], list[str]] = list) -> None:
        self._tokenizer, self.version, self._prepare = tokenizer, version, prepare

    @classmethod
    def load(cls, tokenizer: TextTokenizer) -> Fastokens | None:
        """Load the model of a tokenizer, or return None if the package is not installed or does not support the model."""
        version = installed_version(cls.name)
        if version is None:
            return None
        os.environ.setdefault(_THREADS_VARIABLE, "1")  # a build has threads of its own, as many as [build] threads says
        try:
            import fastokens

            with panics_as_errors():
                if isinstance(tokenizer, HuggingFaceTokenizer):
                    loaded = fastokens.Tokenizer.from_json_str(tokenizer.library_tokenizer.to_str())
                elif isinstance(tokenizer, TiktokenTokenizer):
                    loaded = cls._load_ranks(fastokens.Tokenizer, tokenizer)
                else:
                    return None
        except Exception:  # a damaged installation, or a component that fastokens does not know
            return None
        return cls(loaded, version, tokenizer.normalized if isinstance(tokenizer, TiktokenTokenizer) else list)

    @staticmethod
    def _load_ranks(library: Any, tokenizer: TiktokenTokenizer) -> Any:
        """Load ranks so that fastokens splits words with its own code.

        Its regular expressions are slower, and take U+180E for a blank.
        """
        if tokenizer.pattern in _GPT2_PATTERNS:
            return library.from_json_str(gpt2_tokenizer_json(read_ranks(tokenizer.ranks_path)[0]))
        if tokenizer.pattern == _CL100K_PATTERN:
            return library.from_tiktoken(tokenizer.ranks_path, encoding="cl100k_base", special_tokens={})
        return library.from_tiktoken(tokenizer.ranks_path, pattern=tokenizer.pattern, special_tokens={})

    def encode_flat(self, texts: Sequence[str] | Strings) -> FlatIds:
        with panics_as_errors():
            ids, offsets = self._tokenizer.encode_batch_flat(self._prepare(texts), add_special_tokens=False, split_special_tokens=True)
        return np.frombuffer(ids, np.uint32), np.diff(np.frombuffer(offsets, np.uint64)).astype(np.int64)


Loaders = Mapping[str, Callable[["TextTokenizer"], Engine | None]]
"""Functions by the names of engines. Each loads the model of a tokenizer, or returns None (not installed, not supported)."""

ENGINES: Loaders = {Fastokens.name: Fastokens.load}
"""The engines, the preferred one first."""


OWN_ENGINES: Loaders = {UnigramWords.name: UnigramWords.load}
"""The engines of this package, for models of SentencePiece. A build loads one only after some megabytes of text (encoder.py)."""


def engines_for(tokenizer: Any) -> Loaders:
    """Return the engines that may encode for this kind of tokenizer."""
    if isinstance(tokenizer, SentencePieceTokenizer):
        return OWN_ENGINES
    return ENGINES if isinstance(tokenizer, HuggingFaceTokenizer | TiktokenTokenizer) else {}


def reference_of(tokenizer: Any) -> str | None:
    """Return the library that defines the ids of a tokenizer, or None if no engine can encode for this kind of tokenizer."""
    kinds = HuggingFaceTokenizer | TiktokenTokenizer | SentencePieceTokenizer
    return LIBRARIES[tokenizer.kind] if isinstance(tokenizer, kinds) else None


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


def proven_engine(tokenizer: TextTokenizer, log: Callable[[str], None]) -> Engine | None:
    """Return the first engine that can load a model and gives the ids of the reference, or None.

    A process that builds with several models in turn loads their engines again, because an engine takes a hundred megabytes.

    Args:
        tokenizer: The model.
        log: Called with the reason if an engine is not used.
    """
    with _LOCK:
        key = _key(tokenizer)
        if key not in _LOADED:
            _LOADED.clear()
            _LOADED[key] = _first_proven(tokenizer, log)
            if isinstance(tokenizer, HuggingFaceTokenizer):
                tokenizer.renew_remembered_words()
            _free_memory()
        return _LOADED[key]


def reject_engine(tokenizer: TextTokenizer, engine: Engine) -> None:
    """Record that an engine gave other ids. From now on, no build with this model uses this version of it."""
    with _LOCK:
        _record(tokenizer, f"{engine.name} {engine.version}", "it gave other ids for a text of a build")
        _LOADED[_key(tokenizer)] = None


def _key(tokenizer: TextTokenizer) -> tuple[Any, ...]:
    return (tokenizer.kind, tokenizer.model_sha256, *engines_for(tokenizer).values())


def _first_proven(tokenizer: TextTokenizer, log: Callable[[str], None]) -> Engine | None:
    engines = engines_for(tokenizer)
    loaded = [engine for load in engines.values() if (engine := load(tokenizer)) is not None]
    for engine in loaded:
        name_and_version = f"{engine.name} {engine.version}"
        rejection = _result(tokenizer, name_and_version)
        if rejection is None:
            rejection = _rejection_reason(tokenizer, prove(tokenizer, engine))
            _record(tokenizer, name_and_version, rejection)
        if not rejection:
            return engine
        log(f"{tokenizer.model_path}: {name_and_version} is not used: {rejection}")
    if engines is ENGINES and engines and not loaded and not any(map(installed_version, engines)):
        log(f"encoding with {reference_of(tokenizer)}; pip install 'niels-cache[fast]' adds an engine that is much faster")
    return None


def _rejection_reason(tokenizer: TextTokenizer, proof: EngineProof) -> str:
    """Return why an engine with this proof is not used, or an empty string if it is used."""
    reference = reference_of(tokenizer)
    found = [
        *([f"it gives other ids than {reference} for {proof.differing:,}"] if proof.differing else []),
        *([f"{reference} cannot encode {proof.unencodable:,}"] if proof.unencodable else []),
    ]
    return f"{', and '.join(found)} of {proof.texts:,} difficult texts (niels-cache tokenizer prove shows them)" if found else ""


def _result(tokenizer: TextTokenizer, engine: str) -> str | None:
    """Return why an engine is not used, "" if its ids are right, or None if it has not been proven yet.

    Args:
        tokenizer: The model.
        engine: Name and version of the engine.
    """
    results = [_RESULTS.get((*_key(tokenizer), engine)), _recorded(tokenizer).get(engine)]
    return max((result for result in results if result is not None), default=None)  # any failure sorts after ""


def _record(tokenizer: TextTokenizer, engine: str, rejection: str) -> None:
    _RESULTS[*_key(tokenizer), engine] = rejection
    if tokenizer.proofs is None:
        return
    content = {**_versions(tokenizer), "engines": {**_recorded(tokenizer), engine: rejection}}
    with suppress(OSError):  # a read-only folder: each process proves the engine again
        write_atomically(tokenizer.proofs, json.dumps(content).encode(), spare=f"{secrets.token_hex(4)}.new")


def _recorded(tokenizer: TextTokenizer) -> dict[str, str]:
    """Return the results beside the tokenizer by name and version of the engine, without those for another model or reference."""
    try:
        recorded = json.loads(tokenizer.proofs.read_bytes()) if tokenizer.proofs is not None else {}
        engines = recorded.pop("engines")
    except (OSError, ValueError, RecursionError, AttributeError, KeyError):
        return {}
    return engines if recorded == _versions(tokenizer) and isinstance(engines, dict) else {}


def _versions(tokenizer: TextTokenizer) -> dict[str, str | None]:
    """Return what a proof depends on besides the engine."""
    return {
        "model_sha256": tokenizer.model_sha256,
        "reference": describe_reference(tokenizer),
        "niels_cache": installed_version("niels-cache"),
    }


def _free_memory() -> None:
    """Give unused memory back to the system if the C library can (glibc): after a proof, up to 200 MB."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def gpt2_tokenizer_json(ranks: Mapping[bytes, int]) -> str:
    """Return the tokenizer.json of GPT-2's words with these ranks.

    A rank file lists no merges, so they are computed from the ranks. The merge of a piece joins the two parts that are left when its bytes
    are merged with lower ranks only. No merge makes a piece that has fewer or more than two such parts; as in tiktoken, it stands only for
    a whole word. This takes a second for 50,000 ranks.
    """
    characters = {byte: character for character, byte in byte_characters().items()}

    def spell(piece: bytes) -> str:
        return "".join(characters[byte] for byte in piece)

    merges = []
    for piece, rank in sorted(ranks.items(), key=lambda item: item[1]):
        parts = _merge_below(piece, ranks, below=rank)
        if len(parts) == 2:
            merges.append([spell(part) for part in parts])
    model = {"type": "BPE", "ignore_merges": True, "vocab": {spell(piece): rank for piece, rank in ranks.items()}, "merges": merges}
    words = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return json.dumps({"version": "1.0", "added_tokens": [], "pre_tokenizer": words, "model": model})


def _merge_below(piece: bytes, ranks: Mapping[bytes, int], *, below: int) -> list[bytes]:
    parts = [piece[index : index + 1] for index in range(len(piece))]
    while len(parts) > 1:
        joined = [ranks.get(one + other, below) for one, other in pairwise(parts)]
        least = min(joined)
        if least >= below:
            break
        index = joined.index(least)
        parts[index : index + 2] = [parts[index] + parts[index + 1]]
    return parts


def _model_tokens(tokenizer: TextTokenizer) -> dict[str, list[str]]:
    """Return the added tokens and the pieces of a model, for difficult_texts."""
    added = list(tokenizer.special_tokens.values())
    if isinstance(tokenizer, HuggingFaceTokenizer):
        added += [each.content for each in tokenizer.library_tokenizer.get_added_tokens_decoder().values()]
    pieces = []
    for piece in tokenizer.piece_bytes():
        try:
            pieces.append(piece.decode())
        except UnicodeDecodeError:  # a part of a character
            continue
    return {"added": added, "pieces": pieces}


@cache
def installed_version(package: str) -> str | None:
    """Return the version of an installed package or of an engine of this package, or None."""
    if package == UnigramWords.name:
        return UnigramWords.version
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
