"""The state of everything on disk, compared with the configuration and derived from meta.json and the sizes of files.

`niels-cache status` and the check `caches_in_sync` show the state of the tokenizer, corpora, duplicates and caches.
Finding a state costs one or two small reads, and a look at the size of each file. Nothing is hashed. Upstream is not asked for its
revision, so a changed source is not noticed. disk/build_lock.py knows which builds are running, and their progress.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial, singledispatch
from pathlib import Path
from typing import Literal

from niels_cache_assets.artifacts.base import Artifact, add_unmatched_ids, kind_of, listed_name
from niels_cache_assets.artifacts.corpus import Corpus
from niels_cache_assets.artifacts.corpus_report import CorpusReport
from niels_cache_assets.artifacts.dataset import PretrainCache, SftCache, SwitchedOff, check_files
from niels_cache_assets.artifacts.duplicates import Duplicates, SearchStep
from niels_cache_assets.artifacts.index import BlendIndex, is_prebuilt
from niels_cache_assets.artifacts.parts.part import PartFolder
from niels_cache_assets.artifacts.parts.plan import PartsPlan
from niels_cache_assets.artifacts.parts.seal import DatasetCache, JoinedCache
from niels_cache_assets.artifacts.parts.watch import STATES, WAITING, watch_parts
from niels_cache_assets.artifacts.repeats import Repeats
from niels_cache_assets.artifacts.suffixes import SuffixIndex
from niels_cache_assets.artifacts.tokenizer import Tokenizer
from niels_cache_assets.corpus.layout import corpus_dir
from niels_cache_assets.facts.contents import budget_shortfall
from niels_cache_assets.facts.drops import DropSummary, summarize_drops
from niels_cache_assets.parts.layout import CHILD_BUILT_KINDS
from niels_cache_assets.parts.lease import DONE
from niels_cache_assets.sources.types import Source
from niels_cache_runtime.cache.opening import listed_files, open_consistently
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import FAMILIES, META_NAME, Family, dataset_dir, tokenizer_dir
from niels_cache_runtime.format.meta import UNVERIFIABLE, Meta, is_foreign, load_meta, location_problem, read_meta
from niels_cache_runtime.format.meta_keys import check_form

State = Literal[
    "in sync",
    "built",  # complete, but made by another configuration, so there are no settings to compare
    "missing",
    "disabled",
    "switched off",  # but an older cache exists
    "not configured",
    "no tokenizer",
    "other tokenizer",
    "other settings",
    "other revision",  # upstream's last observed revision differs; only Dagster finds this
    "no corpus",  # a corpus or drop list of the data set, or of a member of the mixture, is missing or out of date
    "unreadable",
    "damaged",  # a file is missing, or its size differs from meta.json
    "other data set",  # meta.json names a different data set than the folder
    "unverifiable",  # made by another program, so there is nothing to compare
]
Condition = Literal["complete", "stale", "missing", "broken", "off"]

_CONDITIONS: dict[State, Condition] = {  # all other states are stale
    "in sync": "complete",
    "built": "complete",
    "missing": "missing",
    "disabled": "off",
    "switched off": "off",
    "not configured": "off",
    "unreadable": "broken",
    "damaged": "broken",
    "other data set": "broken",
    "unverifiable": "complete",
}

NOT_NAMED = "not in niels_cache.toml"

_TOKENIZER_KEYS = ("kind", "sha256", "vocab_size")
_CORPUS_KEYS = ("kind", "fingerprint", "dataset_revision", "documents", "dropped_by_source")
_BUILT_KEYS = ("kind", "fingerprint", "dataset_revision", "tokenizer_sha256", "train_tokens", "val_tokens")
_SFT_KEYS = ("train_examples", "val_examples")


Evaluation = tuple[State, str]  # the state, and what to do (empty if nothing needs to be done)


@dataclass(frozen=True, kw_only=True)
class CacheState:
    """The state of one directory.

    Attributes:
        key: The key of the artifact.
        directory: The directory.
        state: The state.
        advice: What to do. Empty if nothing needs to be done.
        note: A remark about the existing files. Empty without a remark.
        meta: Its meta.json. Empty if there is none, or none that can be read.
    """

    key: str
    directory: Path
    state: State
    advice: str = ""
    note: str = ""
    meta: Meta = field(default_factory=dict, compare=False, repr=False)

    @property
    def kind(self) -> str:
        """The kind of artifact, which is the first part of its key."""
        return kind_of(self.key)

    @property
    def name(self) -> str:
        """The name of a data set. For everything else, such as `tokenizer` and `corpus/NAME`, the key."""
        return listed_name(self.key)

    @property
    def condition(self) -> Condition:
        """How the files compare with the configuration."""
        return _CONDITIONS.get(self.state, "stale")

    @property
    def needs_build(self) -> bool:
        """Whether the artifact must be built."""
        return self.condition in ("stale", "missing", "broken")


def state_of(artifact: Artifact) -> CacheState:
    """Return the state of one artifact of a configuration. This costs one or two small reads, and a few more for a report or an index."""
    spec = artifact.spec if isinstance(artifact, DatasetCache | SwitchedOff) and artifact.kind in FAMILIES else None
    read = None if spec is None or spec.registry.build.store is None else spec.finished
    return _state(artifact.key, artifact.directory, partial(_evaluate, artifact), note=partial(_note, artifact), read=read)


def _note(artifact: Artifact, meta: Meta) -> str | None:
    if isinstance(artifact, Tokenizer):
        return artifact.training_note(meta)
    if artifact.is_part:
        return budget_shortfall(meta)
    if isinstance(artifact, DatasetCache | SwitchedOff):
        return _content_note(meta, artifact.spec.source)
    return _content_note(meta, artifact.source) if isinstance(artifact, Corpus) else None


def _content_note(meta: Meta, source: Source | None = None) -> str:
    """Return which budgets a build missed, and what it left out."""
    try:
        drops = add_unmatched_ids(summarize_drops(meta), source, meta)
    except NielsCacheError as error:
        drops = DropSummary(warnings=(str(error),))
    return "; ".join(filter(None, [budget_shortfall(meta), *drops.warnings, drops.requested]))


@singledispatch
def _evaluate(artifact: Artifact) -> Evaluation:
    raise TypeError(artifact)


@_evaluate.register
def _(dataset: PretrainCache | JoinedCache | SftCache | SwitchedOff) -> Evaluation:
    source, directory, root = dataset.spec.source, dataset.directory, dataset.spec.root
    missing = source.missing_setting()
    if missing is not None and source.enabled:
        return "not configured", f"needs {missing}"

    def so_far() -> str:
        return f"; {_parts_summary(dataset)}" if isinstance(dataset, JoinedCache) else ""

    is_stored = dataset.spec.registry.build.store is not None
    meta = dataset.spec.finished() if is_stored else _read_dataset(directory, dataset.spec.family)
    if meta is None:
        return ("missing", f"build it{so_far()}") if source.enabled else ("disabled", "")
    if is_foreign(meta):
        return "unverifiable", f"{UNVERIFIABLE}; a build does not replace it without force (--force)"
    if not source.enabled:
        return ("switched off", "switched off; its old cache is kept") if meta["built"] else ("disabled", "")
    if not meta["built"] or isinstance(dataset, SwitchedOff):
        return "other settings", "build it: it has been switched on since"
    _require_tokenizer(meta, root)
    try:
        same = dataset.matches(meta, dataset.identity(meta["dataset_revision"]))
    except NielsCacheError as error:
        has_plan = isinstance(dataset, JoinedCache) and not dataset.is_of_corpus
        return "other settings" if has_plan else "no corpus", str(error)
    if not same:
        changed = "its settings or the code version have changed since, or one run used other settings"
        if meta["source"].get("code") != source.describe().get("code"):
            changed = "the code of its source has changed since"
        return "other settings", f"build it: {changed}{so_far()}"
    return "in sync", ""


@_evaluate.register
def _(step: PartsPlan | SearchStep) -> Evaluation:
    return _evaluate_current(step)


@_evaluate.register
def _(part: PartFolder) -> Evaluation:
    if not part.record_path.exists():
        return "missing", "build it"
    meta = _read_with(part.directory, _BUILT_KEYS, named=False)
    _require_tokenizer(meta, part.spec.root)
    try:
        part.finished()  # raises if the folder holds another part
        return ("in sync", "") if part.is_current(meta) else ("other settings", part.difference(meta))
    except NielsCacheError as error:
        return "other settings", str(error)


@_evaluate.register
def _(tokenizer: Tokenizer) -> Evaluation:
    _evaluate_presence(tokenizer.directory, (*_TOKENIZER_KEYS, "fingerprint"))
    advice = "build it again: [tokenizer] or the seed has changed since; a different model makes every cache stale"
    return _evaluate_match(tokenizer, advice)  # an error: the model to import is missing


@_evaluate.register
def _(corpus: Corpus) -> Evaluation:
    state, advice = _evaluate_current(corpus)
    if state != "missing" and not corpus.is_part:
        _read_with(corpus.directory, _CORPUS_KEYS, named=True)
    return state, f"{advice}; {_parts_summary(corpus)}" if advice and corpus.is_joined else advice


@_evaluate.register
def _(duplicates: Duplicates) -> Evaluation:
    evaluation = _evaluate_presence(duplicates.directory, ("fingerprint",))
    if not duplicates.registry.prepared("dedup"):
        return evaluation
    return _evaluate_match(duplicates, "search for duplicates again: the settings or a corpus have changed since")


@_evaluate.register
def _(repeats: Repeats) -> Evaluation:
    evaluation = _evaluate_presence(repeats.directory, ("fingerprint",))
    if not repeats.registry.prepared(repeats.step):
        return evaluation
    return _evaluate_match(repeats, f"search for repeated {repeats.step} again: the settings or a corpus have changed since")


@_evaluate.register
def _(report: CorpusReport) -> Evaluation:
    if not report.record_path.exists():
        return "missing", "build it"
    return _evaluate_match(report, "build it: its corpus or drop list has changed since", on_error="no corpus")


@_evaluate.register
def _(index: BlendIndex) -> Evaluation:
    """Return `in sync` if every index exists.

    The name of an index is the hash of everything that decides it, so an existing index is current. If a member of the blend or an index is
    missing, the check costs nothing. Otherwise it costs as much as `is_prebuilt`.
    """
    members = index.registry.blend[index.name].weights
    missing_names = [member for member in members if not (dataset_dir(index.root, "pretrain", member) / META_NAME).exists()]
    if missing_names:
        return "missing", f"build {', '.join(missing_names)} first"
    if is_prebuilt(index.registry, index.name, root=index.root):
        return "in sync", ""
    return "missing", f"build it: niels-cache prebuild-index {index.name}, or build-all"


@_evaluate.register
def _(index: SuffixIndex) -> Evaluation:
    _evaluate_presence(index.directory, ("fingerprint", "inputs"), named=True)
    return _evaluate_match(index, "build it: its cache or range_tokens in [find] has changed since")


def _parts_summary(joined: JoinedCache | Corpus) -> str:
    """Return the number of parts in each state, in words. It costs a few small reads a part."""
    steps = [step for step in watch_parts(joined, {}) if step.artifact.kind in CHILD_BUILT_KINDS]
    states = Counter(step.state for step in steps)
    more = "".join(f", {states[state]} {state}" for state in STATES if states[state] and state not in (WAITING, DONE))
    return f"{states[DONE]} of {len(steps)} parts are built{more}"


def unlisted_corpus_state(name: str, *, root: Path) -> CacheState:
    """Return the state of a corpus that is not in the configuration."""
    directory = corpus_dir(root, name)
    return _state(f"corpus/{name}", directory, lambda: _evaluate_presence(directory, _CORPUS_KEYS, named=True))


def unlisted_state(family: Family, name: str, *, root: Path) -> CacheState:
    """Return the state of a cache that is not in the configuration."""
    directory = dataset_dir(root, family, name)

    def evaluate() -> Evaluation:
        if (meta := _read_dataset(directory, family)) is None:
            return "missing", "build it"
        if is_foreign(meta):
            return "unverifiable", UNVERIFIABLE
        if not meta["built"]:
            return "disabled", ""
        if meta["tokenizer_sha256"] is not None:  # otherwise the tokens were imported, and their tokenizer is unknown
            _require_tokenizer(meta, root)
        return "built", ""

    return _state(f"{family}/{name}", directory, evaluate, note=lambda meta: "; ".join(filter(None, [NOT_NAMED, _content_note(meta)])))


def index_state(directory: Path) -> CacheState:
    """Return the state of one index. The index may belong to any blend."""
    return _state(f"index/{directory.name}", directory, lambda: _evaluate_presence(directory, ("kind", "files"), named=True))


def _state(
    key: str,
    directory: Path,
    evaluate: Callable[[], Evaluation],
    *,
    note: Callable[[Meta], str | None] = lambda meta: None,
    read: Callable[[], Meta | None] | None = None,
) -> CacheState:
    """Return a CacheState. An error while reading becomes a state, too.

    Args:
        key: The key of the artifact.
        directory: The directory.
        evaluate: Returns the state and the advice.
        note: Returns a note from the meta.json of a complete directory.
        read: Returns the meta.json of a cache in a store. None: it is in the directory.
    """
    try:
        state, advice = evaluate()
    except _UnfitError as error:
        state, advice = error.state, str(error)
    except NielsCacheError as error:
        state, advice = "unreadable", str(error)
    except OSError as error:  # such as the folder of another user
        state, advice = "unreadable", f"{error.filename or directory}: {error.strerror or error}"
    found = CacheState(key=key, directory=directory, state=state, advice=advice)
    if state in ("unreadable", "other data set"):
        return found
    with suppress(NielsCacheError, OSError):  # the file was replaced in the meantime, or has an invalid value
        path = directory / META_NAME
        meta = check_form(load_meta(path), path) if read is None else read() or {}
        if not is_foreign(meta):
            listed_files({"files": {}, **meta}, directory)
        found = replace(found, meta=meta)
        if found.condition in ("complete", "stale"):
            found = replace(found, note=note(found.meta) or "")
    return found


def _evaluate_current(artifact: Artifact) -> Evaluation:
    if not artifact.record_path.exists():
        return "missing", "build it"
    try:
        artifact.current()
    except NielsCacheError as error:
        return "other settings", str(error)
    return "in sync", ""


def _evaluate_match(artifact: Artifact, advice: str, *, on_error: State = "other settings") -> Evaluation:
    """Return the state of a complete build: `on_error` if there is no identity to compare it with, and the advice if it has another."""
    meta = read_meta(artifact.record_path)
    try:
        same = artifact.matches(meta, artifact.identity(None))
    except NielsCacheError as error:
        return on_error, str(error)
    return ("in sync", "") if same else ("other settings", advice)


def _evaluate_presence(directory: Path, keys: Iterable[str], *, named: bool = False) -> Evaluation:
    if not (directory / META_NAME).exists():
        raise _UnfitError("missing", "build it")
    _read_with(directory, keys, named=named)
    return "built", ""


def _require_tokenizer(meta: Meta, root: Path) -> None:
    try:
        tokenizer = _read_with(tokenizer_dir(root), _TOKENIZER_KEYS, named=False)
    except NielsCacheError as error:
        raise _UnfitError("no tokenizer", f"build the tokenizer first; it is missing or damaged: {error}") from error
    if meta["tokenizer_sha256"] != tokenizer["sha256"]:
        raise _UnfitError("other tokenizer", "build it: the tokenizer has changed since")


def _read_dataset(directory: Path, family: Family) -> Meta | None:
    """Return the meta.json of a cache, or None. It has every key that this module and the commands that print the state need."""
    if not (directory / META_NAME).exists():
        return None
    meta = _read_with(directory, ("built",), named=True)
    if is_foreign(meta) or not meta["built"]:
        return meta
    return _read_with(directory, (*_BUILT_KEYS, *(_SFT_KEYS if family == "sft" else ())), named=True)


class _UnfitError(NielsCacheError):
    """A folder that is not complete, or was built for something else, as its state explains."""

    def __init__(self, state: State, message: str) -> None:
        super().__init__(message)
        self.state = state


def _read_with(directory: Path, keys: Iterable[str], *, named: bool) -> Meta:
    """Return the meta.json of a complete folder, which must have certain keys.

    Args:
        directory: The folder.
        keys: The required keys.
        named: Whether the folder is FAMILY/NAME, and must hold the data set NAME.
    """

    def read() -> Meta:
        path = directory / META_NAME
        meta = check_form(load_meta(path), path)
        problem = location_problem(meta, family=directory.parent.name, name=directory.name) if named else None
        if problem is not None:
            raise _UnfitError("other data set", f"{path}: {problem}")
        if is_foreign(meta) and named:  # only token caches may be foreign; a tokenizer and drop lists need keys of niels-cache
            return meta
        missing_names = [key for key in keys if key not in meta]
        if missing_names:
            raise NielsCacheError(f"{path}: has no {', '.join(missing_names)}; build it again with --force")
        try:
            check_files(directory, meta)
        except NielsCacheError as error:
            raise _UnfitError("damaged", str(error)) from error
        return meta

    return open_consistently(directory, read)
