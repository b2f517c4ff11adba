"""litdata's token loader (https://github.com/Lightning-AI/litData), run by `compare.py` in the peers' environment.

Headerless uint16 chunks of 64 MB in a local folder, read in place and shuffled, by its own DataLoader.
"""

from pathlib import Path
from typing import Any

import numpy as np
import serve
from litdata import StreamingDataLoader, StreamingDataset, TokensLoader
from litdata.streaming import Cache


def write(source: Path, target: Path, T: int) -> None:
    cache = Cache(str(target), chunk_size=(T + 1) * (2**25 // (T + 1)), item_loader=TokensLoader(block_size=T + 1))
    for number, row in enumerate(serve.rows_of(source, T)):
        cache[number] = np.ascontiguousarray(row)
    cache.done()
    cache.merge()


def make_loader(folder: Path, *, T: int, B: int, workers: int, collate: Any) -> StreamingDataLoader:
    dataset = StreamingDataset(str(folder), item_loader=TokensLoader(block_size=T + 1), shuffle=True, drop_last=True, seed=0)
    return StreamingDataLoader(dataset, batch_size=B, num_workers=workers, collate_fn=collate, persistent_workers=workers > 0)


if __name__ == "__main__":
    serve.main(write, make_loader)
