"""litdata's writer and token loader (https://github.com/Lightning-AI/litData), run by `compare.py` in the peers' environment.

Headerless uint16 chunks of 64 MB in a local folder, read in place and shuffled, by its own DataLoader.
"""

import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import serve
from litdata import StreamingDataLoader, StreamingDataset, TokensLoader, optimize
from litdata.streaming import Cache, downloader


def documents_of(source: str, tokenizer: Path) -> Iterator[np.ndarray]:
    for documents in serve.batches_of_documents(Path(source), tokenizer):
        yield from documents


def tokenize(inputs: list[Path], tokenizer: Path, target: Path, T: int) -> None:
    optimize(
        fn=partial(documents_of, tokenizer=tokenizer),
        inputs=[str(path) for path in inputs],
        output_dir=str(target),
        chunk_size=chunk_tokens(T),
        num_workers=2,
        item_loader=TokensLoader(block_size=T + 1),
    )


def chunk_tokens(T: int, mib: int = 64) -> int:
    return (T + 1) * ((mib << 19) // (T + 1))


def write(source: Path, target: Path, T: int, mib: int) -> None:
    cache = Cache(str(target), chunk_size=chunk_tokens(T, mib), item_loader=TokensLoader(block_size=T + 1))
    for number, row in enumerate(serve.rows_of(source, T)):
        cache[number] = np.ascontiguousarray(row)
    cache.done()
    cache.merge()


def make_loader(folder: Path, *, T: int, B: int, workers: int, collate: Any) -> StreamingDataLoader:
    dataset = StreamingDataset(str(folder), item_loader=TokensLoader(block_size=T + 1), shuffle=True, drop_last=True, seed=0)
    return StreamingDataLoader(dataset, batch_size=B, num_workers=workers, collate_fn=collate, persistent_workers=workers > 0)


def let_threads_take_turns() -> None:
    """Change TokensLoader so that a remote one can be measured at all.

    In litdata 0.2.76, the thread that downloads calls `delete` for a chunk, and the thread that reads calls `close` for it. Both look into
    the same dictionaries, and then remove from them, so one of them ends with a KeyError.
    """
    lock = threading.RLock()

    def locked(method: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            with lock:
                method(*arguments)

        return call

    for name in ("_load_chunk", "close", "delete"):
        setattr(TokensLoader, name, locked(getattr(TokensLoader, name)))


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
    is_locked: bool = True,
    **options: Any,
) -> StreamingDataLoader:
    """Read from a bucket, with its copy in `folder`. options: of StreamingDataset. is_locked: see `let_threads_take_turns`.

    litdata gives obstore options that hide AWS_ALLOW_HTTP, so an endpoint without encryption is allowed here.
    """
    if is_locked:
        let_threads_take_turns()
    downloader._OBSTORE_CLIENT_OPTIONS = {**downloader._OBSTORE_CLIENT_OPTIONS, "allow_http": True}
    dataset = StreamingDataset(
        address,
        cache_dir=str(folder),
        item_loader=TokensLoader(block_size=T + 1),
        shuffle=True,
        drop_last=True,
        seed=0,
        max_cache_size=limit,
        storage_options={"endpoint_url": os.environ["AWS_ENDPOINT_URL"]},
        **options,
    )
    return StreamingDataLoader(
        dataset,
        batch_size=B,
        num_workers=workers,
        collate_fn=collate,
        persistent_workers=True,
        prefetch_factor=prefetch_factor,
    )


if __name__ == "__main__":
    serve.main(tokenize=tokenize, write=write, make_loader=make_loader, make_remote_loader=make_remote_loader)
