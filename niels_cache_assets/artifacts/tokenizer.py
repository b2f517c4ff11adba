"""The tokenizer in a root folder: an imported model, or a model trained on a sample of the configured data sets (tokenizer/training.py)."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from niels_cache_assets.artifacts.base import BuildJob, Log, RootArtifact, WriteResult, corpus_keys
from niels_cache_assets.base.defaults import TOKENIZER_TRAIN_THREADS
from niels_cache_assets.base.fingerprint import Identity, identity_settings
from niels_cache_assets.corpus.identity import needs_tokenizer
from niels_cache_assets.disk.staging import finished_meta
from niels_cache_assets.disk.writers import Files, add_folder
from niels_cache_assets.sources.errors import SourceUnavailableError
from niels_cache_assets.tokenizer.hub import fetch_model, is_complete
from niels_cache_assets.tokenizer.kinds import LIBRARIES, built_model, local_settings, open_configured_model
from niels_cache_assets.tokenizer.measures import measure_texts
from niels_cache_assets.tokenizer.settings import TokenizerSettings
from niels_cache_assets.tokenizer.tokenizer_json import json_file, side_files
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import (
    FAMILIES,
    TOKENIZER_MODEL_NAMES,
    built_names,
    dataset_dir,
    tokenizer_dir,
    tokenizer_model_name,
)
from niels_cache_runtime.format.meta import Meta, read_meta, sha256_file

CODE_VERSION = "1"

_WARNING = "WARNING: "
_SAMPLE_NAME = "sample.txt"
_RETRAIN = "niels-cache build-all --only tokenizer --force trains it again, and every cache is built again with it"


@dataclass(frozen=True, kw_only=True)
class Tokenizer(RootArtifact):
    """The tokenizer of all data sets.

    A trained model is kept until the settings in [tokenizer] or the seed change. So new text does not make every cache stale.
    """

    is_shared: bool = False

    key = "tokenizer"
    version = CODE_VERSION
    uses_network = True
    builds_from_partial_inputs = True

    @property
    def directory(self) -> Path:
        return tokenizer_dir(self.root)

    @property
    def is_imported(self) -> bool:
        """Whether the user supplies the model. Otherwise the model is trained here."""
        return self.registry.tokenizer.model is not None

    def inputs(self) -> Sequence[str]:
        if self.is_imported:
            return []
        return corpus_keys(self.registry, [name for name in self.registry.prepared() if not needs_tokenizer(self.registry, name)])

    def finished(self) -> Meta | None:
        try:
            meta = read_meta(self.record_path)
            recorded = {name: entry["sha256"] for name, entry in meta.get("files", {}).items()}
            recorded[tokenizer_model_name(meta)] = meta.get("sha256")
            intact = all(sha256_file(self.directory / name) == sha256 for name, sha256 in recorded.items())
        except NielsCacheError:
            return None
        return meta if intact else None

    def identity(self, revision: str | None = None) -> Identity:
        settings = self.registry.tokenizer
        try:
            settings = local_settings(settings)
        except SourceUnavailableError:  # the files of a pinned commit never change, and the build has copied them
            meta = self.finished()
            if meta is None or meta.get("revision", "") != settings.revision:
                raise
            settings = local_settings(settings, built_model(self.directory))
        if settings.model is not None:
            identity = _identity_of_model(settings, settings.model)
        else:
            counted = identity_settings(settings, "tokenizer", without={"model", "engine"})
            identity = {**counted, "seed": self.registry.build.seed, "threads": TOKENIZER_TRAIN_THREADS}
        return {**identity, "code_version": CODE_VERSION}

    def needs_training(self, *, force: bool = False) -> bool:
        """Return whether a build would train a model now. This is False for an imported model, and if the existing model is current."""
        if self.is_imported:
            return False
        meta = None if force else self.finished()
        return meta is None or not self.matches(meta, self.identity())

    def is_stale(self) -> bool:
        """Return whether there is a tokenizer, and the next build would replace it."""
        meta = self.finished()
        return meta is not None and not self.matches(meta, self.identity())

    def users(self) -> list[str]:
        """Return the data sets whose caches were encoded with the existing tokenizer. Another tokenizer makes them stale."""
        meta = self.finished()
        built = [
            (name, finished_meta(dataset_dir(self.root, family, name))) for family in FAMILIES for name in built_names(self.root / family)
        ]
        return [name for name, cache in built if meta and cache and cache.get("tokenizer_sha256") == meta["sha256"]]

    def training_note(self, meta: Meta) -> str | None:
        """Return a note on a trained tokenizer: the data sets in the training sample, and those that could not be read.

        For example, `trained on notes (prepared), web; without chats, which could not be read: ...`. None for an imported tokenizer.
        """
        trained_on, registry = meta.get("trained_on"), self.registry
        if not isinstance(trained_on, dict):
            return None
        sources, skipped, read_as = (_table(trained_on, key) for key in ("sources", "skipped", "read_as"))
        words = {"prepared": " (prepared)", "members": " (mixed from its members)"}
        # Without `prepare`, only the raw text of a data set can be read.
        used = [name + words.get(str(read_as.get(name)), " (raw text)" if name in registry.prepared() else "") for name in sources]
        notes = [f"trained on {', '.join(used)}"] if used else []
        removed = [name for name in sources if name not in registry.sources]
        if removed:
            notes.append(
                f"{', '.join(removed)} {'is' if len(removed) == 1 else 'are'} not configured any more, which changes nothing: {_RETRAIN}"
            )
        unread = [f"the rest of {name}" if sources.get(name) else name for name in skipped]
        if unread:
            notes.append(f"without {', '.join(unread)}, which could not be read then: {_RETRAIN}")
        return "; ".join(notes) or None

    def write(self, work: BuildJob) -> WriteResult:
        """Import or train a model.

        Raises:
            NielsCacheError: If the model lacks the special tokens, or there is no text to train on.
        """
        from niels_cache_assets.artifacts.tokenizer_sample import spool_sample
        from niels_cache_assets.tokenizer.training import ROUND_TRIP_TEXTS, round_trip_losses, train

        settings = local_settings(self.registry.tokenizer)
        beginnings: dict[str, list[str]] = {}
        warnings: list[str] = []

        def note(message: str) -> None:
            if message.startswith(_WARNING):
                warnings.append(message.removeprefix(_WARNING))
            work.log(message)

        if settings.model is not None:
            origin = _origin_of_model(self.registry.tokenizer, note)
            tokenizer = open_configured_model(settings)
            tokenizer.save(work.directory)
            if losses := round_trip_losses(tokenizer):
                text, decoded = next(iter(losses.items()))
                note(
                    f"{_WARNING}{settings.model}: the model loses or changes text: {len(losses)} of {len(ROUND_TRIP_TEXTS)} difficult "
                    f"texts are not the same after a round trip; {text!r} becomes {decoded!r}"
                )
        else:
            model_path = work.directory / TOKENIZER_MODEL_NAMES[settings.model_kind]
            sample = work.directory / _SAMPLE_NAME
            trained_on = spool_sample(self.registry, self.root, sample, beginnings, note)
            note(f"training a {settings.model_type} tokenizer of {settings.vocab_size:,} pieces on {trained_on['bytes']:,} bytes")
            train(settings, sample, model_path)
            sample.unlink()
            tokenizer = open_configured_model(settings, model_path)
            origin = {"trained_on": trained_on | measure_texts(beginnings, tokenizer)}
        files: Files = {}
        add_folder(work.directory, files)
        library = LIBRARIES[tokenizer.kind]
        meta = {
            "kind": "tokenizer",
            "built": True,
            "model_type": settings.model_type if settings.model is None else "imported",
            **({} if tokenizer.kind == "sentencepiece" else {"model_kind": tokenizer.kind}),
            "vocab_size": tokenizer.vocab_size,
            "special_tokens": tokenizer.special_tokens,
            "special_token_ids": tokenizer.special_token_ids(),
            f"{library}_version": version(library),
            "seed": self.registry.build.seed,
            "sha256": files[TOKENIZER_MODEL_NAMES[tokenizer.kind]]["sha256"],
            "files": files,
            "fingerprint": work.fingerprint,
            **origin,
        }
        return WriteResult(meta=meta, warning="; ".join(warnings) or None)


def _origin_of_model(settings: TokenizerSettings, log: Log) -> Meta:
    """Return the entries of meta.json about the origin of an imported tokenizer, after a line about it in the log."""
    name = settings.hub_name
    if name is None:
        log(f"the tokenizer is {settings.model} on this machine{'; revision is only for models of the hub' if settings.revision else ''}")
        return {"imported": Path(str(settings.model)).name}
    folder = fetch_model(name, settings.revision).parent
    commit = folder.name
    pin = "" if settings.revision == commit else f'; to use it on every machine, add revision = "{commit}"'
    eot = local_settings(settings).special_tokens["eot"]
    log(f"the tokenizer is {name} of the hub at {commit}{pin}; {eot!r} follows each document")
    if not is_complete(folder):
        log(f"{_WARNING}{name}: the hub cannot be reached to list its files, so only those on this machine are used: {folder}")
    return {"imported": name, "revision": commit}


def _identity_of_model(settings: TokenizerSettings, model: str) -> Identity:
    """Return everything that decides an imported tokenizer. The model is not loaded.

    Raises:
        NielsCacheError: If it does not exist.
    """
    kind = settings.model_kind
    file = json_file(model) if kind == "tokenizer.json" else Path(model)
    if not file.is_file():
        raise NielsCacheError(f"{model}: no such tokenizer model; correct [tokenizer] model (--tokenizer-model)")
    identity: Identity = {"model_sha256": sha256_file(file), "special_tokens": settings.special_tokens}
    if kind == "sentencepiece":
        return identity
    identity["model_kind"] = kind
    if kind == "tokenizer.json":
        return {**identity, "side_files": {path.name: sha256_file(path) for path in side_files(model)}}
    if settings.normalize is not None:
        identity["normalize"] = settings.normalize
    if settings.pattern is not None:
        return {**identity, "pattern": settings.pattern}
    return {**identity, "encoding": settings.encoding or file.stem}


def _table(trained_on: dict[str, Any], key: str) -> dict[str, Any]:
    """Return a table in `trained_on`, or an empty table if the value is not a table. No other code checks the form of this value."""
    value = trained_on.get(key)
    return value if isinstance(value, dict) else {}
