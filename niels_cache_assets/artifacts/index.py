"""The indices of a blend, in Megatron-LM's order: the plan of a blend, and the artifact that builds its indices before training.

The blend comes from a table [blend.NAME], or from a file for Megatron-LM's --data-args-path. The directory of each index is named after the
hash of everything that decides the index. The runtime's index cache (niels_cache_runtime/cache/index_cache.py) locks, stages and commits
each index, with the code that other artifacts use (format/commit.py). This artifact learns only after all indices are open whether one was
missing. For a long blend the steps are compiled if numba is installed; this does not change the arrays.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from niels_cache_assets.artifacts.base import BuildJob, BuildLock, Log, Outcome, ReportedProgress, RootArtifact, WriteResult
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.base.choices import raise_unknown_choice
from niels_cache_assets.base.fingerprint import Identity, fingerprint_of
from niels_cache_assets.project.registry import Registry
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import META_NAME, dataset_dir
from niels_cache_runtime.format.meta import Meta, check_location, read_meta
from niels_cache_runtime.format.npy_files import read_npy_header

OnIndexProgress = Callable[[str, int, int], None]
BlendPart = Literal["train", "valid", "test"]


@dataclass(frozen=True, kw_only=True)
class BlendPlan:
    """The arguments of `open_blend`.

    Attributes:
        labels: The names of the data sets.
        paths: The data sets. A path is a prefix, or the folder of a split.
        weights: The weights as the user gave them. None if there are none.
        settings: The other arguments: `num_samples`, `sequence_length`, `seed`, `split` and `part`.
    """

    labels: tuple[str, ...]
    paths: tuple[str | Path, ...]
    weights: tuple[float, ...] | None
    settings: Mapping[str, Any]

    @property
    def index_labels(self) -> tuple[str, ...]:
        """The labels of the plan's indices, in build order."""
        return (*self.labels, "blend")


@dataclass(frozen=True, kw_only=True)
class Index:
    """One index on disk.

    Attributes:
        label: The label of the data set, or "blend".
        directory: The folder of the index.
        samples: The number of samples.
        bytes: The size of the arrays.
    """

    label: str
    directory: Path
    samples: int
    bytes: int

    @property
    def hash(self) -> str:
        """The hash of everything that decides the index."""
        return self.directory.name


def index_folder(root: Path) -> Path:
    """Return the folder of a cache root for indices. Training passes this folder to `IndexCache`."""
    return root / "index"


def blend_plan(registry: Registry, name: str, *, root: Path) -> BlendPlan:
    """Return the plan of [blend.NAME], which reads the train splits of its members' caches.

    Raises:
        NielsCacheError: If the name is unknown (the message has the nearest name), or the folder of a member holds a different data set.
    """
    if name not in registry.blend:
        raise_unknown_choice(registry.origin, "no blend", name, registry.blend, registry.elsewhere)
    settings = registry.blend[name]
    folders = [dataset_dir(root, "pretrain", member) for member in settings.weights]
    for folder in folders:
        if (folder / META_NAME).exists():
            check_location(read_meta(folder / META_NAME), folder)
    return BlendPlan(
        labels=tuple(settings.weights),
        paths=tuple(folder / "train" for folder in folders),
        weights=tuple(settings.weights.values()),
        settings=settings.model_dump(exclude={"weights"}),
    )


def read_blend_file(path: str | Path) -> tuple[list[str], list[float] | None]:
    """Return the data sets and weights in a file for Megatron-LM's --data-args-path.

    The file contains `WEIGHT PATH WEIGHT PATH ...`, or only paths. Without weights in the file, the weights are None. White space,
    including line breaks, separates the words.

    Raises:
        NielsCacheError: If the file cannot be read or has any other form.
    """
    try:
        words = Path(path).read_text(encoding="utf-8").split()
    except (OSError, ValueError) as error:
        message = getattr(error, "strerror", None) or error
        raise NielsCacheError(f"{path}: cannot be read: {message}; --blend takes a file of weights and paths") from error
    if not words:
        raise NielsCacheError(f"{path}: has no data set; write WEIGHT PATH for each")
    weights = [_number(word) for word in words[::2]]
    given = [weight for weight in weights if weight is not None]
    if len(words) % 2 == 0 and len(given) == len(weights):
        wrong = next((word for word, weight in zip(words[::2], given, strict=True) if not 0 < weight < math.inf), None)
        if wrong is not None:
            raise NielsCacheError(f"{path}: weight {wrong}: must be above 0; remove a data set that is never read")
        return words[1::2], given
    stray = next((word for word in words if _number(word) is not None), None)
    if stray is not None:
        raise NielsCacheError(f"{path}: {stray} is a weight, but a path is expected; write WEIGHT PATH for each data set, or only paths")
    return words, None


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


def is_prebuilt(registry: Registry, name: str, *, root: Path) -> bool:
    """Return whether every index of [blend.NAME] exists. This builds nothing.

    The check costs as much as `open_blend` with finished indices, because the lengths of all documents are hashed. It costs nothing if
    there is no index at all.
    """
    if not any(path.is_dir() for path in index_folder(root).glob("*")):
        return False
    from niels_cache_runtime.cache.index_cache import IndexCache, open_arrays
    from niels_cache_runtime.megatron.blended import open_blend  # torch

    class Finished(IndexCache):
        def open(self, kind: str, parameters: Mapping[str, Any], build: Callable[..., object]) -> dict[str, Any]:
            return open_arrays(self.directory(kind, parameters))

    try:
        plan = blend_plan(registry, name, root=root)
        open_blend(plan.paths, plan.weights, index_cache=Finished(index_folder(root)), **plan.settings)
    except NielsCacheError:  # an index or a data set is missing, or the folder of a member holds a different data set
        return False
    return True


def prebuild(registry: Registry, plan: BlendPlan, *, root: Path, progress: OnIndexProgress | None = None) -> Outcome:
    """Build the missing indices of a plan.

    Args:
        registry: The configuration.
        plan: The plan.
        root: The folder of the caches.
        progress: Called with (name of the array, done, total). None: no reports.

    Raises:
        NielsCacheError: If a data set cannot be opened, or no sample can be made.
        NotWrittenError: If the folder cannot be written.
    """
    return materialize(BlendIndex(registry, root, name=plan.settings["part"], plan=plan, progress=progress), notify=False)


@dataclass(frozen=True, kw_only=True)
class BlendIndex(RootArtifact):
    """The indices of one plan. The plan belongs to a table [blend.NAME] or to any other blend.

    The record is the result of `write`; it is not stored. Its `indices` are the indices of the data sets in their order, then the index of
    the blend (a single data set without weights has no blend index). Its `hash` covers all indices, and changes only if the samples of a
    run change.

    Attributes:
        plan: The plan. None: the plan of the table is used.
        progress: Called with (name of the array, done, total), besides the reports of the build. None: no such calls.
    """

    name: str
    plan: BlendPlan | None = None
    progress: OnIndexProgress | None = field(default=None, compare=False)

    version = "1"  # every hash also covers the version of the algorithms
    record = None

    @property
    def key(self) -> str:
        return f"index/{self.name}"

    @property
    def directory(self) -> Path:
        return index_folder(self.root)

    def inputs(self) -> Sequence[str]:
        return [f"pretrain/{member}" for member in self.registry.blend[self.name].weights] if self.plan is None else []

    def finished(self) -> Meta | None:
        return None

    def identity(self, revision: str | None) -> Identity:
        return {}

    @contextmanager
    def lock(self, *, wait: bool, log: Log) -> Iterator[BuildLock]:
        yield BuildLock()

    def stage(self, work: BuildJob) -> AbstractContextManager[Path]:
        return nullcontext(self.directory)

    def write(self, work: BuildJob) -> WriteResult:
        from niels_cache_runtime.cache.index_cache import IndexCache
        from niels_cache_runtime.megatron.blended import prebuild_blend  # torch

        plan, built = self.plan or blend_plan(self.registry, self.name, root=self.root), False

        def report(array: str, done: int, total: int) -> None:
            nonlocal built
            built = True  # an existing index reports no progress
            work.report(ReportedProgress(counts={f"entries of {array}": done}, share=done / total if total else None))
            if self.progress is not None:
                self.progress(array, done, total)

        directories = prebuild_blend(plan.paths, plan.weights, index_cache=IndexCache(self.directory), progress=report, **plan.settings)
        indices = tuple(_index(label, directory) for label, directory in zip(plan.index_labels, directories, strict=False))
        hash_of_all = fingerprint_of({"indices": [index.hash for index in indices]})[: len(indices[-1].hash)]
        return WriteResult(meta={"indices": indices, "hash": hash_of_all}, changed=built)


def _index(label: str, directory: Path) -> Index:
    files = [directory / name for name in read_meta(directory / META_NAME)["files"]]
    last = next(path for path in files if path.name in ("shuffle_index.npy", "dataset_index.npy"))  # of a data set or of a blend
    samples = read_npy_header(last).shape[0]
    return Index(label=label, directory=directory, samples=samples, bytes=sum(path.stat().st_size for path in files))
