"""OLMo-core's packed data set, for packed_documents.py, which runs this program with .olmo-env in PYTHONPATH.

    python olmo_packing.py TOKENS LENGTH EOS BATCH SECONDS

TOKENS is a raw file of uint16, which it packs with `LongDocStrategy.fragment`, in one process for the file. Then it reads batches of random
rows, until SECONDS are over. It prints a line of JSON: rows, the seconds of packing, and the tokens per second of reading.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from olmo_core.data import NumpyPackedFSLDataset
from olmo_core.data.types import LongDocStrategy


def main() -> None:
    path, length, eos, batch, seconds = Path(sys.argv[1]), *map(int, sys.argv[2:5]), float(sys.argv[5])
    of_tokens = {"pad_token_id": eos, "eos_token_id": eos, "vocab_size": 1 << 16, "dtype": np.uint16}
    dataset = NumpyPackedFSLDataset(path, sequence_length=length, long_doc_strategy=LongDocStrategy.fragment, **of_tokens)
    with tempfile.TemporaryDirectory() as name:
        dataset.work_dir = Path(name)
        start = time.perf_counter()
        dataset.prepare()
        rows, packed = len(dataset), time.perf_counter() - start
        order, taken, speeds = torch.randperm(rows, generator=torch.Generator().manual_seed(0)).tolist(), 0, []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or not speeds:
            start = time.perf_counter()
            chosen = [order[(taken + number) % rows] for number in range(batch)]
            torch.stack([dataset[number]["input_ids"] for number in chosen])
            speeds.append(batch * length / (time.perf_counter() - start))
            taken += batch
    print(json.dumps({"rows": rows, "seconds": packed, "speed": float(np.median(speeds))}))


if __name__ == "__main__":
    main()
