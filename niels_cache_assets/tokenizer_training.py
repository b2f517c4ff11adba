"""The tokenizer of a cache: import a model, or train one on a sample of the configured data sets (tokenizer_sample.py).

SentencePiece cannot be interrupted, so training runs in a child process (`python -m niels_cache_assets.tokenizer_training SPEC`) that is
killed when the parent leaves, and that ends with it if it is killed itself. Nothing in the text may vanish: no normalization, white space
kept, bytes for what has no piece. Training text is spooled to disk; SentencePiece itself holds the sample in memory.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfile
from typing import Any, Literal

from niels_cache_assets.defaults import TOKENIZER_TRAIN_THREADS
from niels_cache_assets.fingerprint import fingerprint_of, settings_that_count
from niels_cache_assets.registry import Registry
from niels_cache_assets.sources.network import patient
from niels_cache_assets.streaming.directories import atomic_directory
from niels_cache_assets.streaming.writers import Files, add_file
from niels_cache_assets.tokenization import SentencePieceTokenizer
from niels_cache_assets.tokenizer_measures import measure_texts
from niels_cache_assets.tokenizer_sample import MAX_LINE_BYTES, spool_sample
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import META_NAME, TOKENIZER_MODEL_NAME, tokenizer_dir
from niels_cache_runtime.format.meta import Meta, read_meta, sha256_file, write_meta

Log = Callable[[str], None]

CODE_VERSION = "1"
ROUND_TRIP_TEXTS = (
    "one\ntwo\n\nthree\n",
    "\tindented\n\t\ttwice\n",
    "def f(x):\n    if x:\n        return [x]\n",
    "runs   of    blanks  ",
    " leading blank",
    "中文、日本語、한국어",
    "emoji 😀👩‍👩‍👧 and ½ €",
    "\u0000\u007f\ufffd",
)

_POLL_SECONDS = 0.1
_SAMPLE_NAME = "sample.txt"
_WARNING = "WARNING: "


@dataclass(frozen=True, kw_only=True)
class TokenizerOutcome:
    """What happened to the tokenizer of a cache root. `warning`: which data sets it was trained without, or on raw text of, and why."""

    state: Literal["built", "cache_hit"]
    meta: Meta
    model: Path
    seconds: float
    warning: str | None = None


@dataclass(frozen=True, kw_only=True)
class RoundTripLoss:
    """A text that does not survive decode(encode(text))."""

    text: str
    decoded: str


@patient
def build_tokenizer(registry: Registry, *, root: Path, force: bool = False, log: Log = lambda message: None) -> TokenizerOutcome:
    """Make `root/tokenizer/{spm.model, meta.json}`, or find that it is what the settings ask for.

    A trained tokenizer is kept until its own settings change or `force`: a new note, data set or corpus does not invalidate every cache.
    Raises NielsCacheError for a model that lacks the special tokens, no source that can be read, or a vocabulary too large for the text.
    """
    started = time.monotonic()
    settings = registry.tokenizer
    directory = tokenizer_dir(root)
    model = directory / TOKENIZER_MODEL_NAME
    fingerprint = tokenizer_fingerprint(registry)
    old = None if force else _current_meta(directory, fingerprint)
    if old is not None:
        return TokenizerOutcome(state="cache_hit", meta=old, model=model, seconds=time.monotonic() - started)
    beginnings: dict[str, list[str]] = {}
    warnings: list[str] = []

    def note(message: str) -> None:
        if message.startswith(_WARNING):
            warnings.append(message.removeprefix(_WARNING))
        log(message)

    with atomic_directory(directory) as partial:
        made = partial / TOKENIZER_MODEL_NAME
        if settings.model is not None:
            origin: dict[str, Any] = {"imported": Path(settings.model).name}
            _require_readable(settings.model)
            copyfile(settings.model, made)
        else:
            origin = {"trained_on": _train(registry, root, partial, beginnings, note)}
        tokenizer = SentencePieceTokenizer(settings.model or str(made), special_tokens=settings.special_tokens)
        if settings.model is None:
            origin["trained_on"] |= measure_texts(beginnings, tokenizer)
        files: Files = {}
        add_file(made, TOKENIZER_MODEL_NAME, files)
        write_meta(str(partial / META_NAME), _meta(tokenizer, registry, fingerprint, files, origin))
    return TokenizerOutcome(
        state="built",
        meta=read_meta(str(directory / META_NAME)),
        model=model,
        seconds=time.monotonic() - started,
        warning="; ".join(warnings) or None,
    )


def needs_training(registry: Registry, *, root: Path, force: bool = False) -> bool:
    """Whether `build_tokenizer` would train one now: not if it imports one, nor if the one that is there is what the settings ask for."""
    if registry.tokenizer.model is not None:
        return False
    return force or _current_meta(tokenizer_dir(root), tokenizer_fingerprint(registry)) is None


def tokenizer_fingerprint(registry: Registry) -> str:
    """sha256 over everything that its settings say of the tokenizer. Raises NielsCacheError where the model to import is not there."""
    settings = registry.tokenizer
    if settings.model is not None:
        _require_readable(settings.model)
        identity: dict[str, Any] = {"model_sha256": sha256_file(settings.model), "special_tokens": settings.special_tokens}
    else:
        counted = settings_that_count(settings, "tokenizer", without={"model"})
        identity = {**counted, "seed": registry.build.seed, "threads": TOKENIZER_TRAIN_THREADS}
    return fingerprint_of({**identity, "code_version": CODE_VERSION})


def round_trip_losses(tokenizer: SentencePieceTokenizer) -> list[RoundTripLoss]:
    """The texts of the fixed list that come back changed; empty for a tokenizer trained here."""
    pairs = ((text, tokenizer.decode(tokenizer.encode(text))) for text in ROUND_TRIP_TEXTS)
    return [RoundTripLoss(text=text, decoded=decoded) for text, decoded in pairs if decoded != text]


def _meta(tokenizer: SentencePieceTokenizer, registry: Registry, fingerprint: str, files: Files, origin: dict[str, Any]) -> Meta:
    import sentencepiece

    return {
        "kind": "tokenizer",
        "built": True,
        "model_type": registry.tokenizer.model_type if registry.tokenizer.model is None else "imported",
        "vocab_size": tokenizer.vocab_size,
        "special_tokens": tokenizer.special_tokens,
        "special_token_ids": tokenizer.special_token_ids(),
        "sentencepiece_version": sentencepiece.__version__,
        "seed": registry.build.seed,
        "sha256": files[TOKENIZER_MODEL_NAME]["sha256"],
        "files": files,
        "fingerprint": fingerprint,
        **origin,
    }


def _require_readable(model: str) -> None:
    if not Path(model).is_file():
        raise NielsCacheError(f"{model}: no such tokenizer model; correct [tokenizer] model (--tokenizer-model)")


def _current_meta(directory: Path, fingerprint: str) -> Meta | None:
    meta = _intact_meta(directory)
    return meta if meta is not None and meta["fingerprint"] == fingerprint else None


def _intact_meta(directory: Path) -> Meta | None:
    try:
        meta = read_meta(str(directory / META_NAME))
        intact = meta.get("sha256") == sha256_file(str(directory / TOKENIZER_MODEL_NAME))
    except NielsCacheError:
        return None
    return meta if intact else None


def _train(registry: Registry, root: Path, partial: Path, beginnings: dict[str, list[str]], log: Log) -> dict[str, Any]:
    """Spool the sample, train in a child process, and return what it was trained on. `beginnings`: filled with those of the sources."""
    settings = registry.tokenizer
    sample = partial / _SAMPLE_NAME
    trained_on = spool_sample(registry, root, sample, beginnings, log)
    log(f"training a {settings.model_type} tokenizer of {settings.vocab_size:,} pieces on {trained_on['bytes']:,} bytes")
    spec = {
        "sample": str(sample),
        "model": str(partial / TOKENIZER_MODEL_NAME),
        "vocab_size": settings.vocab_size,
        "model_type": settings.model_type,
        "character_coverage": settings.character_coverage,
        "user_defined_symbols": list(settings.special_tokens.values()),
    }
    _run_child(spec)
    sample.unlink()
    return trained_on


def _run_child(spec: dict[str, Any]) -> None:
    read_end, write_end = os.pipe()
    command = [
        sys.executable,
        "-m",
        "niels_cache_assets.attended",
        str(read_end),
        "niels_cache_assets.tokenizer_training",
        json.dumps(spec),
    ]
    try:
        child = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, pass_fds=[read_end], start_new_session=True
        )
        try:
            while child.poll() is None:
                time.sleep(_POLL_SECONDS)
        finally:
            child.kill()
            _, errors = child.communicate()
    finally:
        os.close(read_end)
        os.close(write_end)
    if child.returncode != 0:
        raise NielsCacheError(f"tokenizer training failed: {_training_advice(errors, spec)}")


def _training_advice(errors: str, spec: dict[str, Any]) -> str:
    """SentencePiece's last line without where in its code it was written, and what to do about it."""
    last = errors.strip().splitlines()[-1].split("] ")[-1] if errors.strip() else "the child process was killed"
    if "size too high" in last:
        return f"{last} The sample is too small for vocab_size = {spec['vocab_size']}: lower it (--vocab-size) or add text"
    if "required_chars" in last:
        return f"{last.split('Increase')[0]}The text has more characters than that: raise --vocab-size or lower --character-coverage"
    return last


def _train_from_spec(spec: dict[str, Any]) -> None:
    """The child's whole job."""
    import sentencepiece

    model = io.BytesIO()

    def sentences() -> Iterator[str]:
        with open(spec["sample"], encoding="utf-8", newline="\n") as file:
            for line in file:
                yield line.rstrip("\n")

    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=sentences(),
        model_writer=model,  # a model_prefix would put its path, and so the machine, into the model's bytes
        vocab_size=spec["vocab_size"],
        model_type=spec["model_type"],
        character_coverage=spec["character_coverage"],
        user_defined_symbols=spec["user_defined_symbols"],
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        max_sentence_length=MAX_LINE_BYTES,
        num_threads=TOKENIZER_TRAIN_THREADS,
        minloglevel=1,
    )
    Path(spec["model"]).write_bytes(model.getvalue())


if __name__ == "__main__":
    _train_from_spec(json.loads(sys.argv[1]))
