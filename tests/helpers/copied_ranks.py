"""One rank of a training run over an address, as a program: `python -m tests.helpers.copied_ranks SETTINGS`.

It writes one line for each batch to a file: the step and a hash of the batch. The settings are JSON: the arguments of TokenLoader, and

    sources, out: the address, and the file. workers, context: of a DataLoader. batches: how many to take, or null for all.
    passes: how often to iterate. state: a saved state, or null. pause: seconds after each batch.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from niels_cache_runtime import TokenLoader
from niels_cache_runtime.loader.batch import Batch
from tests.helpers.grouped import grouped


def hashed(batch: Batch) -> str:
    return hashlib.sha256(batch.x.numpy().tobytes() + batch.y.numpy().tobytes()).hexdigest()[:16]


def main(settings: dict[str, Any]) -> None:
    taken: dict[str, Any] = {
        name: settings.pop(name) for name in ("sources", "out", "workers", "context", "batches", "passes", "state", "pause")
    }
    if taken["state"] is None:
        loader = TokenLoader(taken["sources"], **grouped(settings))
    else:
        loader = TokenLoader.from_state(taken["state"], taken["sources"], **grouped(settings))
    batches = loader
    if taken["workers"]:
        workers = {"num_workers": taken["workers"], "multiprocessing_context": taken["context"], "persistent_workers": True}
        batches = DataLoader(loader, batch_size=None, **workers)
    step = 0
    with Path(taken["out"]).open("w", encoding="utf-8") as out:
        for _ in range(taken["passes"]):
            for batch in islice(batches, taken["batches"]):
                print(step, hashed(batch), file=out, flush=True)
                step += 1
                time.sleep(taken["pause"])


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
