"""The script that people write first: encode the batches of Parquet files, and write the ids with `tofile`. Run by command.py.

    python plain_script.py TOKENIZER EOT OUTPUT FILE...

The libraries `tokenizers` and `sentencepiece` encode a list of texts on all cores.
"""

import sys
from collections.abc import Callable
from itertools import chain

import numpy as np
import pyarrow.parquet as pq


def open_tokenizer(path: str, eot: str) -> tuple[Callable[[list[str]], list[list[int]]], int, int]:
    """Return a function that encodes texts, the id of EOT, and the size of the vocabulary."""
    if path.endswith(".json"):
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(path)

        def encode(texts: list[str]) -> list[list[int]]:
            return [encoding.ids for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

        return encode, tokenizer.token_to_id(eot), tokenizer.get_vocab_size()
    from sentencepiece import SentencePieceProcessor

    processor = SentencePieceProcessor(model_file=path)
    return processor.encode, processor.piece_to_id(eot), processor.vocab_size()


def main(path: str, eot: str, output: str, *files: str) -> None:
    encode, end, size = open_tokenizer(path, eot)
    dtype = np.uint16 if size <= 65_536 else np.uint32
    with open(output, "wb") as out:
        for file in files:
            for batch in pq.ParquetFile(file).iter_batches(columns=["text"]):
                ids = ([*each, end] for each in encode(batch["text"].to_pylist()))
                np.fromiter(chain.from_iterable(ids), dtype).tofile(out)


if __name__ == "__main__":
    main(*sys.argv[1:])
