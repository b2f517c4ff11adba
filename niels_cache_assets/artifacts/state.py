"""Whether what is on disk is what the configuration asks for, told from meta.json and the sizes of files.

What `niels-cache list`, `niels-cache status` and the check `caches_in_sync` say of the tokenizer, corpora, duplicates and caches. Costs
one or two small reads per data set and a look at each file's size: nothing is hashed and upstream is not asked, so a changed source goes
unseen here. Who is building what, and how far, is disk/staging.py's to say.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial, singledispatch
from pathlib import Path
from typing import Literal, cast

from niels_cache_assets.artifacts.base import Artifact
from niels_cache_assets.artifacts.corpus import Corpus
from niels_cache_assets.artifacts.corpus_report import CorpusReport
from niels_cache_assets.artifacts.dataset import Dataset, SwitchedOff
from niels_cache_assets.artifacts.duplicates import Duplicates
from niels_cache_assets.artifacts.index import BlendIndex
from niels_cache_assets.artifacts.tokenizer import Tokenizer
from niels_cache_assets.corpus.layout import REPORT_NAME, corpus_dir
from niels_cache_assets.corpus.tokenizer_note import training_note
from niels_cache_assets.indices.prebuild import is_prebuilt
from niels_cache_assets.show.contents import shortfall
from niels_cache_runtime.cache.opening import check_sizes, listed_files, open_one_build
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.foreign_meta import UNVERIFIABLE, is_foreign
from niels_cache_runtime.format.layout import META_NAME, Family, dataset_dir, tokenizer_dir
from niels_cache_runtime.format.meta import Meta, load_meta, read_meta
from niels_cache_runtime.format.meta_keys import check_form
from niels_cache_runtime.format.place import place_problem

Kind = Literal["tokenizer", "corpus", "report", "pretrain", "sft", "index"]
State = Literal[
    "in sync",
    "built",  # there, with no settings to compare it with: what another configuration built
    "missing",
    "disabled",
    "switched off",  # with a cache of the time before
    "not configured",
    "no tokenizer",
    "other tokenizer",
    "other settings",
    "other revision",  # than upstream was observed at; told by Dagster alone
    "no corpus",  # or no drop list, of its own or of a member, or one that is out of date
    "unreadable",
    "damaged",  # a file is missing or of another size than meta.json says
    "other data set",  # than the folder is named after
    "unverifiable",  # made by another program: there is nothing to compare it with
]
Condition = Literal["complete", "stale", "missing", "broken", "off"]

_CONDITIONS: dict[State, Condition] = {
    "in sync": "complete",
    "built": "complete",
    "missing": "missing",
    "disabled": "off",
    "switched off": "off",
    "not configured": "off",
    "no tokenizer": "stale",
    "other tokenizer": "stale",
    "other settings": "stale",
    "other revision": "stale",
    "no corpus": "stale",
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


Judgement = tuple[State, str]  # and what to do, empty where nothing is


@dataclass(frozen=True, kw_only=True)
class CacheState:
    """How what lies, or would lie, in one directory stands; `advice` says what to do, and is empty where nothing is.

    note: what to know of what is there, whether anything is to be done or not.
    name: of the data set; `tokenizer`, `corpus/NAME` and `corpus/duplicates` for what comes before.
    """

    name: str
    kind: Kind
    directory: Path
    state: State
    advice: str = ""
    note: str = ""

    @property
    def condition(self) -> Condition:
        return _CONDITIONS[self.state]

    @property
    def needs_build(self) -> bool:
        return self.condition in ("stale", "missing", "broken")


def state_of(artifact: Artifact) -> CacheState:
    """Of one artifact of a configuration. It costs one or two small reads, of a report or the indices of a blend a few more."""
    if isinstance(artifact, SwitchedOff):
        artifact = artifact.dataset
    name = artifact.name if isinstance(artifact, Dataset) else artifact.key
    kind = cast(Kind, artifact.key.partition("/")[0])
    return _state(name, kind, artifact.directory, partial(_judge, artifact), note=partial(_note, artifact))


def _note(artifact: Artifact, meta: Meta) -> str | None:
    if isinstance(artifact, Tokenizer):
        return training_note(artifact.registry, artifact.root, meta)
    return shortfall(meta) if isinstance(artifact, Dataset) else None


@singledispatch
def _judge(artifact: Artifact) -> Judgement:
    raise TypeError(artifact)


@_judge.register
def _(dataset: Dataset) -> Judgement:
    source, directory, root = dataset.source, dataset.directory, dataset.root
    missing = source.missing_setting()
    if missing is not None and source.enabled:
        return "not configured", f"needs {missing}"
    if not (directory / META_NAME).exists():
        return ("missing", "build it") if source.enabled else ("disabled", "")
    meta = _read_dataset(directory, dataset.family)
    if is_foreign(meta):
        return "unverifiable", f"{UNVERIFIABLE}; a build does not replace it without force (--force)"
    if not source.enabled:
        return ("switched off", "switched off; its old cache is kept") if meta["built"] else ("disabled", "")
    if not meta["built"]:
        return "other settings", "build it: it was switched on since"
    judged = _judge_tokenizer(meta, root)
    if judged[0] != "built":
        return judged
    try:
        same = dataset.is_made_of(meta, dataset.identity_with(meta["tokenizer_sha256"], meta["dataset_revision"]))
    except NielsCacheError as error:
        return "no corpus", str(error)
    if not same:
        return "other settings", "build it: its settings or the code version have changed since, or one run used others"
    return "in sync", ""


@_judge.register
def _(tokenizer: Tokenizer) -> Judgement:
    judged = _judge_presence(tokenizer.directory, (*_TOKENIZER_KEYS, "fingerprint"))
    if judged[0] != "built":
        return judged
    try:
        same = tokenizer.is_made_of(read_meta(str(tokenizer.directory / META_NAME)), tokenizer.identity())
    except NielsCacheError as error:  # of a model that is to be imported
        return "other settings", str(error)
    advice = "build it again: [tokenizer] or the seed has changed since; with another model every cache is built again"
    return ("in sync", "") if same else ("other settings", advice)


@_judge.register
def _(corpus: Corpus) -> Judgement:
    judged = _judge_presence(corpus.directory, _CORPUS_KEYS, named=True)
    if judged[0] != "built":
        return judged
    try:
        corpus.current()
    except NielsCacheError as error:
        return "other settings", str(error)
    return "in sync", ""


@_judge.register
def _(duplicates: Duplicates) -> Judgement:
    judged = _judge_presence(duplicates.directory, ("fingerprint",))
    if judged[0] != "built" or not duplicates.registry.prepared("dedup"):
        return judged
    if not duplicates.is_made_of(read_meta(str(duplicates.directory / META_NAME)), duplicates.identity()):
        return "other settings", "find them again: the settings, or a corpus, have changed since"
    return "in sync", ""


@_judge.register
def _(report: CorpusReport) -> Judgement:
    if not (report.directory / REPORT_NAME).exists():
        return "missing", "build it"
    meta = read_meta(str(report.directory / REPORT_NAME))
    try:
        same = report.is_made_of(meta, report.identity(None))
    except NielsCacheError as error:
        return "no corpus", str(error)
    return ("in sync", "") if same else ("other settings", "build it: its corpus or drop list has changed since, or a plot is missing")


@_judge.register
def _(index: BlendIndex) -> Judgement:
    """An index lies under the hash of all that decides it, so one that is there is in sync.

    Costs nothing where a member or any index is missing, else what `find_indices` does.
    """
    assert index.registry is not None, "an index without a table has no state"
    members = index.registry.blend[index.name].weights
    lacking = [member for member in members if not (dataset_dir(index.root, "pretrain", member) / META_NAME).exists()]
    if lacking:
        return "missing", f"build {', '.join(lacking)} first"
    if is_prebuilt(index.registry, index.name, root=index.root):
        return "in sync", ""
    return "missing", f"build it: niels-cache prebuild-index {index.name}, or build-all"


def unlisted_corpus_state(name: str, *, root: Path) -> CacheState:
    """Of a corpus that the configuration does not ask for (any more)."""
    directory = corpus_dir(root, name)
    return _state(f"corpus/{name}", "corpus", directory, lambda: _judge_presence(directory, _CORPUS_KEYS, named=True))


def unlisted_state(family: Family, name: str, *, root: Path) -> CacheState:
    """Of a cache that the configuration does not name."""
    directory = dataset_dir(root, family, name)

    def judge() -> Judgement:
        meta = _read_dataset(directory, family)
        if is_foreign(meta):
            return "unverifiable", UNVERIFIABLE
        if not meta["built"]:
            return "disabled", ""
        if meta["tokenizer_sha256"] is None:  # imported tokens of an unknown tokenizer
            return "built", ""
        return _judge_tokenizer(meta, root)

    return _state(name, family, directory, judge, note=lambda meta: "; ".join([NOT_NAMED, *filter(None, [shortfall(meta)])]))


def index_state(directory: Path) -> CacheState:
    """Of an index of blends, whichever blend it is of."""
    return _state(f"index/{directory.name}", "index", directory, lambda: _judge_presence(directory, ("kind", "files"), named=True))


def _state(
    name: str, kind: Kind, directory: Path, judge: Callable[[], Judgement], *, note: Callable[[Meta], str | None] = lambda meta: None
) -> CacheState:
    """What cannot be read, or whose files are not those of its meta.json, is judged so. `note`: from the meta.json of what is whole."""
    try:
        state, advice = judge()
    except _Damaged as error:
        state, advice = "damaged", str(error)
    except _Misplaced as error:
        state, advice = "other data set", str(error)
    except NielsCacheError as error:
        state, advice = "unreadable", str(error)
    found = CacheState(name=name, kind=kind, directory=directory, state=state, advice=advice)
    if found.condition not in ("complete", "stale"):
        return found
    with suppress(NielsCacheError):  # replaced meanwhile, or with a value that is not of its form: then there is nothing to note
        path = directory / META_NAME
        found = replace(found, note=note(check_form(load_meta(str(path)), path)) or "")
    return found


def _judge_presence(directory: Path, keys: Iterable[str], *, named: bool = False) -> Judgement:
    if not (directory / META_NAME).exists():
        return "missing", "build it"
    _read_with(directory, keys, named=named)
    return "built", ""


def _judge_tokenizer(meta: Meta, root: Path) -> Judgement:
    try:
        tokenizer = _read_with(tokenizer_dir(root), _TOKENIZER_KEYS, named=False)
    except NielsCacheError as error:
        return "no tokenizer", f"build the tokenizer first; it is missing or damaged: {error}"
    if meta["tokenizer_sha256"] != tokenizer["sha256"]:
        return "other tokenizer", "build it: the tokenizer has changed since"
    return "built", ""


def _read_dataset(directory: Path, family: Family) -> Meta:
    """A meta.json with every key that is asked for here and by those who print it."""
    meta = _read_with(directory, ("built",), named=True)
    if is_foreign(meta) or not meta["built"]:
        return meta
    return _read_with(directory, (*_BUILT_KEYS, *(_SFT_KEYS if family == "sft" else ())), named=True)


class _Damaged(NielsCacheError):
    """A file is not what meta.json says."""


class _Misplaced(NielsCacheError):
    """The folder holds another data set than its name says."""


def _read_with(directory: Path, keys: Iterable[str], *, named: bool) -> Meta:
    """meta.json of a whole folder with these keys. named: the folder is FAMILY/NAME, and must hold what is called so."""
    return open_one_build(directory, lambda: _read_build(directory, keys, named=named))


def _read_build(directory: Path, keys: Iterable[str], *, named: bool) -> Meta:
    path = directory / META_NAME
    meta = check_form(load_meta(str(path)), path)
    problem = place_problem(meta, family=directory.parent.name, name=directory.name) if named else None
    if problem is not None:
        raise _Misplaced(f"{path}: {problem}")
    if is_foreign(meta) and named:  # of tokens; a tokenizer or drop lists need keys that no other program writes
        return meta
    lacking = [key for key in keys if key not in meta]
    if lacking:
        raise NielsCacheError(f"{path}: has no {', '.join(lacking)}; build it again with force (--force)")
    listed = listed_files(meta, directory)
    found = {name: (directory / name).stat().st_size for name in listed if (directory / name).is_file()}
    try:
        check_sizes(directory, listed, found)
    except NielsCacheError as error:
        raise _Damaged(str(error)) from error
    return meta
