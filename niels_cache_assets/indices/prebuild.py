"""The builder of the indices of a blend, before training. The blend comes from a table [blend.NAME] or a file for Megatron-LM's
--data-args-path.

Indices for the runtime's data sets are written to the cache root. Indices for megatron-core (`BlendPlan.core`) are written to
megatron-core's own folder. `niels_cache_runtime.megatron.prebuild_blend` decides what is built. For a long blend the steps are compiled if
numba is installed; this does not change the arrays. A long blend is built in a child process, because numpy's shuffle of a large array
cannot be interrupted. A child process can be killed, and the next build removes the files that the child process left.
"""

import json
import math
import multiprocessing
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from niels_cache_assets.config.fingerprint import fingerprint_of
from niels_cache_assets.config.problems import refuse_choice
from niels_cache_assets.config.registry import Registry
from niels_cache_assets.config.tables import ALL_TRAIN, MEGATRON_SEED, MEGATRON_SURPLUS
from niels_cache_assets.processes import end_with_parent
from niels_cache_runtime.errors import NielsCacheError, NotWrittenError
from niels_cache_runtime.format.layout import META_NAME, dataset_dir
from niels_cache_runtime.format.meta import read_meta
from niels_cache_runtime.format.npy_files import read_npy_header
from niels_cache_runtime.format.place import check_place

if TYPE_CHECKING:
    from niels_cache_assets.indices.megatron_core_cache import CoreNames
    from niels_cache_runtime.megatron.index_cache import IndexCache

_LONG = 1_000_000  # number of samples; for a shorter blend, a child process takes more time to start than it can save
_POLL_SECONDS = 0.1
_ERRORS = {"error": NielsCacheError, "not written": NotWrittenError}  # errors that a child process reports

Progress = Callable[[str, int, int], None]
Part = Literal["train", "valid", "test"]


@dataclass(frozen=True, kw_only=True)
class BlendPlan:
    """The arguments of `open_blend`.

    labels, paths: the data sets; a path is a prefix, or the folder of a split.
    weights: as the user gave them.
    core: if given, the indices are stored for megatron-core, under the names of megatron-core, instead of in the cache root.
    """

    labels: tuple[str, ...]
    paths: tuple[str | Path, ...]
    weights: tuple[float, ...] | None
    num_samples: int | None
    sequence_length: int
    seed: int = MEGATRON_SEED
    split: str = ALL_TRAIN
    part: Part = "train"
    surplus: float = MEGATRON_SURPLUS
    core: "CoreNames | None" = None

    @property
    def index_labels(self) -> tuple[str, ...]:
        """The labels of the plan's indices, in build order."""
        return (*self.labels, "blend")


@dataclass(frozen=True, kw_only=True)
class Index:
    """One index on disk.

    label: the label of the data set, or "blend".
    samples: the number of samples.
    bytes: the size of the arrays.
    directory: the folder of the index, or the common beginning of the names of its files.
    """

    label: str
    directory: Path
    samples: int
    bytes: int

    @property
    def hash(self) -> str:
        return self.directory.name


def hash_of_all(indices: Sequence[Index]) -> str:
    """Return a hash of these indices, which changes only if the samples of a run change."""
    return fingerprint_of({"indices": [index.hash for index in indices]})[: len(indices[-1].hash)]


def index_folder(root: Path) -> Path:
    """Return the folder of a cache root for indices. Training passes this folder to `IndexCache`."""
    return root / "index"


def plan_of(registry: Registry, name: str, *, root: Path) -> BlendPlan:
    """Return the plan of [blend.NAME], which reads the train splits of its members' caches.

    Raises NielsCacheError for an unknown name (the message has the nearest name), and if the folder of a member holds a different data set.
    """
    if name not in registry.blend:
        refuse_choice(registry.origin, "no blend", name, registry.blend, registry.elsewhere)
    settings = registry.blend[name]
    folders = [dataset_dir(root, "pretrain", member) for member in settings.weights]
    for folder in folders:
        if (folder / META_NAME).exists():
            check_place(read_meta(str(folder / META_NAME)), folder)
    return BlendPlan(
        labels=tuple(settings.weights),
        paths=tuple(folder / "train" for folder in folders),
        weights=tuple(settings.weights.values()),
        **settings.model_dump(exclude={"weights"}),
    )


def read_text(path: str | Path, advice: str) -> str:
    """Return the text of a file. Raises NielsCacheError if it cannot be read or is not text; the message ends with `advice`."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise NielsCacheError(f"{path}: cannot be read: {error.strerror or error}; {advice}") from error
    except ValueError as error:
        raise NielsCacheError(f"{path}: is not text; {advice}") from error


def parse_json(text: str, where: str) -> Any:
    """Return the value of a JSON text. Raises NielsCacheError for anything else; the message begins with `where`."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NielsCacheError(f"{where}: is not valid JSON: {error}") from error


def read_blend_file(path: str | Path) -> tuple[list[str], list[float] | None]:
    """Return the data sets and weights in a file for Megatron-LM's --data-args-path.

    The file contains `WEIGHT PATH WEIGHT PATH ...`, or only paths. Without weights in the file, the weights are None. White space separates
    the words, also line breaks. Raises NielsCacheError if the file cannot be read or has any other form.
    """
    return parse_blend(read_text(path, "--blend takes a file of weights and paths").split(), where=str(path))


def parse_blend(words: Sequence[str], *, where: str) -> tuple[list[str], list[float] | None]:
    """Return the data sets and weights in `WEIGHT PATH WEIGHT PATH ...`. For paths alone, the weights are None.

    This is the form of Megatron-LM's --data-path. Raises NielsCacheError for any other form.
    """
    words = [word.strip() for word in words]
    if not words:
        raise NielsCacheError(f"{where}: has no data set; write WEIGHT PATH for each")
    weights = [_number(word) for word in words[::2]]
    given = [weight for weight in weights if weight is not None]
    if len(words) % 2 == 0 and len(given) == len(weights):
        wrong = next((word for word, weight in zip(words[::2], given, strict=True) if not 0 < weight < math.inf), None)
        if wrong is not None:
            raise NielsCacheError(f"{where}: weight {wrong}: must be above 0; remove a data set that is never read")
        return words[1::2], given
    stray = next((word for word in words if _number(word) is not None), None)
    if stray is not None:
        raise NielsCacheError(f"{where}: {stray} is a weight, but a path is expected; write WEIGHT PATH for each data set, or only paths")
    return words, None


def build_indices(plan: BlendPlan, *, root: Path, progress: Progress | None = None) -> tuple[tuple[Index, ...], bool]:
    """Build the missing indices of a plan under `root`. A long blend is built in a child process.

    progress: called with (name of the array, done, total). Returns the indices and whether any index was built. The indices of the data
    sets come first, in their order, then the index of the blend (a single data set without weights has no blend index).
    Raises NielsCacheError if a data set cannot be opened, if no sample can be made, or if the child process dies.
    Raises NotWrittenError if the folder cannot be written.
    """
    if not _is_long(plan):
        return build_here(plan, root=root, progress=progress)
    context = multiprocessing.get_context("spawn")
    messages, sender = context.Pipe(duplex=False)
    child = context.Process(target=_build_for, args=(sender, plan, root.absolute()), daemon=True)
    child.start()
    sender.close()
    try:
        while True:
            if not messages.poll(_POLL_SECONDS):
                continue
            kind, told = messages.recv()
            if kind == "outcome":
                found: tuple[tuple[Index, ...], bool] = told
                return found
            if kind in _ERRORS:
                raise _ERRORS[kind](told)
            if progress is not None:
                progress(*told)
    except EOFError as error:
        where = index_folder(root) if plan.core is None else plan.core.folder
        raise NielsCacheError(f"{where}: the process that built the indices was killed (out of memory?); run it again") from error
    finally:
        child.kill()
        child.join()
        messages.close()


def _build_for(sender: Connection, plan: BlendPlan, root: Path) -> None:
    """Run `build_here` in the child process, and send its progress and result to the parent. Only the parent handles interrupts."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()  # otherwise this process would notice the parent's end only when it sends a message
    try:
        sender.send(("outcome", build_here(plan, root=root, progress=lambda *told: sender.send(("progress", told)))))
    except NielsCacheError as error:
        sender.send(("not written" if isinstance(error, NotWrittenError) else "error", str(error)))
    except BrokenPipeError:
        pass  # the parent has ended


def build_here(plan: BlendPlan, *, root: Path, progress: Progress | None = None) -> tuple[tuple[Index, ...], bool]:
    """Do the work of `build_indices` in this process."""
    from niels_cache_runtime.megatron.blended import prebuild_blend  # torch

    cache = _cache_of(plan, root)
    built = False

    def tell(array: str, done: int, total: int) -> None:
        nonlocal built
        built = True  # an existing index reports no progress
        if progress is not None:
            progress(array, done, total)

    directories = prebuild_blend(
        plan.paths,
        plan.weights,
        index_cache=cache,
        progress=tell,
        **_settings(plan),
    )
    indices = tuple(_index(cache, label, directory) for label, directory in zip(plan.index_labels, directories, strict=False))
    return indices, built


def _cache_of(plan: BlendPlan, root: Path) -> "IndexCache":
    if plan.core is None:
        from niels_cache_runtime.megatron.index_cache import IndexCache

        return IndexCache(index_folder(root))
    from niels_cache_assets.indices.megatron_core_cache import MegatronCoreCache

    read_whole = plan.weights is None and len(plan.paths) > 1
    return MegatronCoreCache(plan.core, part=plan.part, asked_for_none=plan.num_samples == 0 and not read_whole)


def is_prebuilt(registry: Registry, name: str, *, root: Path) -> bool:
    """Return whether every index of [blend.NAME] exists. The check costs as much as `find_indices`, or nothing if there is no index at
    all.
    """
    if not any(path.is_dir() for path in index_folder(root).glob("*")):
        return False
    try:
        plan = plan_of(registry, name, root=root)
    except NielsCacheError:  # the folder of a member holds a different data set
        return False
    return len(find_indices(plan, root=root)) == len(plan.index_labels)


def find_indices(plan: BlendPlan, *, root: Path) -> dict[str, str]:
    """Return the existing indices of a plan as {hash: label}, up to the first missing index. Builds nothing.

    This costs as much as `open_blend` with finished indices, because the lengths of all documents are hashed.
    """
    from niels_cache_runtime.megatron.blended import open_blend  # torch
    from niels_cache_runtime.megatron.index_cache import IndexCache, open_arrays

    found: list[str] = []

    class Finished(IndexCache):
        def open(self, kind: str, parameters: Mapping[str, Any], build: Callable[..., object]) -> dict[str, Any]:
            directory = self.directory(kind, parameters)
            arrays = open_arrays(directory)
            found.append(directory.name)
            return arrays

    with suppress(NielsCacheError):  # an index or a data set is missing
        open_blend(plan.paths, plan.weights, index_cache=Finished(index_folder(root)), **_settings(plan))
    return dict(zip(found, plan.index_labels, strict=False))


def _settings(plan: BlendPlan) -> dict[str, Any]:
    """Return the arguments of `open_blend`."""
    return {name: getattr(plan, name) for name in ("num_samples", "sequence_length", "seed", "split", "part", "surplus")}


def _is_long(plan: BlendPlan) -> bool:
    return plan.num_samples is None or plan.num_samples >= _LONG


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


def _index(cache: "IndexCache", label: str, directory: Path) -> Index:
    files = cache.array_files(directory)
    last = next(path for path in files if path.name.endswith(("shuffle_index.npy", "dataset_index.npy")))  # of a data set or of a blend
    samples = read_npy_header(last).shape[0]
    return Index(label=label, directory=directory, samples=samples, bytes=sum(path.stat().st_size for path in files))
