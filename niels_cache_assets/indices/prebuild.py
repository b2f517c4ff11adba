"""Build the indices of a blend ahead of training: of a table [blend.NAME], or of a file as Megatron-LM's --data-args-path takes it.

They lie in the cache root for the runtime's data sets, or where megatron-core finds them (`BlendPlan.core`).

What is built, and for whom, is `niels_cache_runtime.megatron.prebuild_blend`'s business. Steps are compiled where the blend is long
enough to be worth it and numba is there; the arrays are the same. A long one is built in a child process: numpy's shuffle of a large array
answers no interrupt until it is done, but a child can be killed, and the next build clears what it left.
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

_LONG = 1_000_000  # samples: with fewer, starting a child takes longer than it saves
_POLL_SECONDS = 0.1
_ERRORS = {"error": NielsCacheError, "not written": NotWrittenError}  # what a child tells of

Progress = Callable[[str, int, int], None]
Part = Literal["train", "valid", "test"]


@dataclass(frozen=True, kw_only=True)
class BlendPlan:
    """What `open_blend` is to be asked: data sets by label and path (a prefix, or the folder of a split), weights as they were given.

    core: keep the indices where megatron-core finds them, under its own names, instead of in the cache root.
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
        """Of its indices, in the order in which they are built."""
        return (*self.labels, "blend")


@dataclass(frozen=True, kw_only=True)
class Index:
    """One index on disk. label: of the data set, or "blend"; samples: how many it has; bytes: of its arrays.

    directory: its folder, or what the names of its files begin with.
    """

    label: str
    directory: Path
    samples: int
    bytes: int

    @property
    def hash(self) -> str:
        return self.directory.name


def hash_of_all(indices: Sequence[Index]) -> str:
    """Of these indices: the same as long as the samples of a run are the same."""
    return fingerprint_of({"indices": [index.hash for index in indices]})[: len(indices[-1].hash)]


def index_folder(root: Path) -> Path:
    """Where a cache root keeps indices: what training gives to `IndexCache`."""
    return root / "index"


def plan_of(registry: Registry, name: str, *, root: Path) -> BlendPlan:
    """The plan of [blend.NAME]: the train split of its members' caches.

    Raises NielsCacheError with the nearest name for an unknown one, and if the folder of a member holds another data set.
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
    """Return the text of a file. Raises NielsCacheError for one that cannot be read or is no text, with `advice` what it should be."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise NielsCacheError(f"{path}: cannot be read: {error.strerror or error}; {advice}") from error
    except ValueError as error:
        raise NielsCacheError(f"{path}: is no text; {advice}") from error


def parse_json(text: str, where: str) -> Any:
    """Return the value that JSON holds. Raises NielsCacheError for anything else, with `where` it stands."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NielsCacheError(f"{where}: no valid JSON: {error}") from error


def read_blend_file(path: str | Path) -> tuple[list[str], list[float] | None]:
    """Data sets and weights of a file as Megatron-LM's --data-args-path takes it: `WEIGHT PATH WEIGHT PATH ...`, or paths alone (None).

    White space separates, line breaks included. Raises NielsCacheError for a file that cannot be read or holds anything else.
    """
    return parse_blend(read_text(path, "--blend is a file of weights and paths").split(), where=str(path))


def parse_blend(words: Sequence[str], *, where: str) -> tuple[list[str], list[float] | None]:
    """Data sets and weights of `WEIGHT PATH WEIGHT PATH ...`, or of paths alone (None), as Megatron-LM's --data-path takes them.

    Raises NielsCacheError for anything else.
    """
    words = [word.strip() for word in words]
    if not words:
        raise NielsCacheError(f"{where}: names no data set; write WEIGHT PATH for each")
    weights = [_number(word) for word in words[::2]]
    given = [weight for weight in weights if weight is not None]
    if len(words) % 2 == 0 and len(given) == len(weights):
        wrong = next((word for word, weight in zip(words[::2], given, strict=True) if not 0 < weight < math.inf), None)
        if wrong is not None:
            raise NielsCacheError(f"{where}: weight {wrong}: must be above 0; leave out what is never read")
        return words[1::2], given
    stray = next((word for word in words if _number(word) is not None), None)
    if stray is not None:
        raise NielsCacheError(f"{where}: {stray} is a weight where a path is due; write WEIGHT PATH for each data set, or paths alone")
    return words, None


def build_indices(plan: BlendPlan, *, root: Path, progress: Progress | None = None) -> tuple[tuple[Index, ...], bool]:
    """Build what is not there yet, under `root`; a long blend in a child process. progress: told (name of the array, done, total).

    Returns the indices of the data sets in their order, then of the blend (a single data set without weights has none), and whether any
    was built.

    Raises NielsCacheError if a data set cannot be opened, if no sample can be made or if the child dies; NotWrittenError if the folder
    cannot be written.
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
    """In the child: what `build_here` says and returns goes to the caller, who has the interrupts."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()  # whose end it would notice only when it has something to say
    try:
        sender.send(("outcome", build_here(plan, root=root, progress=lambda *told: sender.send(("progress", told)))))
    except NielsCacheError as error:
        sender.send(("not written" if isinstance(error, NotWrittenError) else "error", str(error)))
    except BrokenPipeError:
        pass  # the caller is gone


def build_here(plan: BlendPlan, *, root: Path, progress: Progress | None = None) -> tuple[tuple[Index, ...], bool]:
    """`build_indices`, in this process."""
    from niels_cache_runtime.megatron.blended import prebuild_blend  # torch

    cache = _cache_of(plan, root)
    built = False

    def tell(array: str, done: int, total: int) -> None:
        nonlocal built
        built = True  # nothing is told of what is found
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
    """Whether every index of [blend.NAME] is there. Costs what `find_indices` does, and nothing where there is no index at all."""
    if not any(path.is_dir() for path in index_folder(root).glob("*")):
        return False
    try:
        plan = plan_of(registry, name, root=root)
    except NielsCacheError:  # the folder of a member holds another data set
        return False
    return len(find_indices(plan, root=root)) == len(plan.index_labels)


def find_indices(plan: BlendPlan, *, root: Path) -> dict[str, str]:
    """Hash to label of the indices of a plan, as far as the first that is not built yet. Builds nothing.

    Costs what `open_blend` does of finished indices: the lengths of all documents are hashed.
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

    with suppress(NielsCacheError):  # of an index, or a data set, that is not there
        open_blend(plan.paths, plan.weights, index_cache=Finished(index_folder(root)), **_settings(plan))
    return dict(zip(found, plan.index_labels, strict=False))


def _settings(plan: BlendPlan) -> dict[str, Any]:
    """Arguments of `open_blend`."""
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
    last = next(path for path in files if path.name.endswith(("shuffle_index.npy", "dataset_index.npy")))  # of a data set, of a blend
    samples = read_npy_header(last).shape[0]
    return Index(label=label, directory=directory, samples=samples, bytes=sum(path.stat().st_size for path in files))
