"""mosaicml-streaming (https://github.com/mosaicml/streaming), run by `compare.py` in the peers' environment.

Samples of T+1 uint16 tokens of fixed size in MDS shards of 64 MiB in a local folder, shuffled, by its own DataLoader.
"""

import contextlib
import importlib.machinery
import multiprocessing
import sys
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import serve


def _stand_in_for_torchvision() -> None:
    """streaming imports torchvision for its image data sets; one that does not fit this torch fails to load, and is not needed."""
    with contextlib.suppress(ImportError, RuntimeError):
        import torchvision  # noqa: F401

        return
    contents: dict[str, dict[str, Any]] = {
        "torchvision": {},
        "torchvision.datasets": {"VisionDataset": object},
        "torchvision.transforms": {},
        "torchvision.transforms.functional": {"to_tensor": None},
    }
    for name, names in contents.items():
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        module.__path__ = []
        module.__dict__.update(names)
        sys.modules[name] = module


def tokenize(inputs: list[Path], tokenizer: Path, target: Path, T: int) -> None:
    """One writer for each input, in a process and a folder of its own, and one index over all folders, as its documentation has it."""
    from streaming.base.util import merge_index

    with multiprocessing.Pool(2) as pool:
        pool.starmap(tokenize_one, [(path, tokenizer, target / str(number), T) for number, path in enumerate(inputs)])
    merge_index(str(target), keep_local=True)


def tokenize_one(source: Path, tokenizer: Path, target: Path, T: int) -> None:
    batches = (np.concatenate(documents) for documents in serve.batches_of_documents(source, tokenizer) if documents)
    write_rows(serve.cut_into_rows(batches, T), target, T)


def write(source: Path, target: Path, T: int, mib: int) -> None:
    write_rows(serve.rows_of(source, T), target, T, mib)


def write_rows(rows: Iterable[Any], target: Path, T: int, mib: int = 64) -> None:
    from streaming import MDSWriter

    with MDSWriter(out=str(target), columns={"tokens": f"ndarray:uint16:{T + 1}"}, size_limit=mib << 20) as writer:
        for row in rows:
            writer.write({"tokens": row})


class Collate:
    def __init__(self, collate: Any) -> None:
        self.collate = collate

    def __call__(self, samples: list[dict[str, Any]]) -> Any:
        return self.collate([sample["tokens"] for sample in samples])


def make_loader(folder: Path, *, T: int, B: int, workers: int, collate: Any) -> Any:
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()  # what an interrupted run leaves would refuse this one
    return _loader(StreamingDataset(local=str(folder), batch_size=B, shuffle=True, shuffle_seed=0), B, workers, collate)


def make_remote_loader(
    folder: Path,
    *,
    address: str,
    limit: int,
    T: int,
    B: int,
    workers: int,
    collate: Any,
    prefetch_factor: int = 2,
    **options: Any,
) -> Any:
    """Read from a bucket, with its copy in `folder`. options: of StreamingDataset."""
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    fixed = {"batch_size": B, "shuffle": True, "shuffle_seed": 0, "num_canonical_nodes": 1}
    dataset = StreamingDataset(remote=address, local=str(folder), cache_limit=limit, **fixed, **options)
    return _loader(dataset, B, workers, collate, prefetch_factor=prefetch_factor)


def _loader(dataset: Any, B: int, workers: int, collate: Any, **options: Any) -> Any:
    from streaming import StreamingDataLoader

    return StreamingDataLoader(
        dataset, batch_size=B, num_workers=workers, collate_fn=Collate(collate), drop_last=True, persistent_workers=workers > 0, **options
    )


if __name__ == "__main__":
    _stand_in_for_torchvision()
    serve.main(tokenize=tokenize, write=write, make_loader=make_loader, make_remote_loader=make_remote_loader)
