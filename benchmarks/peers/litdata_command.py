"""litdata's `optimize` (https://github.com/Lightning-AI/litData) as a whole command that tokenizes Parquet files.

    python litdata_command.py TOKENIZER EOT OUTPUT WORKERS FILE...

As in litdata's README, a function yields the ids of a file's documents, here with a batch at a time instead of a document. Run by
command.py in litdata's environment.
"""

import os
import sys
from collections.abc import Iterator
from functools import partial

import numpy as np
import pyarrow.parquet as pq
from litdata import TokensLoader, optimize
from tokenizers import Tokenizer

BLOCK = 2_049  # tokens of a sample, and samples of a chunk: those of the README
BLOCKS = 8_012


def documents_of(file: str, *, tokenizer: str, eot: str) -> Iterator[np.ndarray]:
    encoder = Tokenizer.from_file(tokenizer)
    end = encoder.token_to_id(eot)
    dtype = np.uint16 if encoder.get_vocab_size() <= 65_536 else np.uint32
    for batch in pq.ParquetFile(file).iter_batches(batch_size=8_192, columns=["text"]):
        for encoding in encoder.encode_batch_fast(batch["text"].to_pylist(), add_special_tokens=False):
            yield np.array([*encoding.ids, end], dtype=dtype)


def main(tokenizer: str, eot: str, output: str, workers: str, *files: str) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # there is a process for each core
    optimize(
        fn=partial(documents_of, tokenizer=tokenizer, eot=eot),
        inputs=list(files),
        output_dir=output,
        chunk_size=BLOCK * BLOCKS,
        num_workers=int(workers),
        item_loader=TokensLoader(block_size=BLOCK),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
