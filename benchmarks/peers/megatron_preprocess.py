"""Tokenize a .jsonl file as Megatron-LM's tools/preprocess_data.py does (https://github.com/NVIDIA/Megatron-LM), for engines.py.

That script needs Megatron-LM's training package, which is not on the package index, so its steps are taken here with the classes of
megatron-core that it uses. Each process of a pool reads JSON lines, 32 at a time, and gives each text to Megatron's tokenizer. The main
process receives lists of ids and adds them to Megatron's indexed data set. Prints the seconds from the first line to the finished index.

    python megatron_preprocess.py texts.jsonl TOKENIZER_JSON EOT OUTPUT [--workers 2]
"""

import argparse
import json
import multiprocessing
import time
from pathlib import Path
from typing import Any

from compare import as_a_model_folder
from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder
from megatron.core.tokenizers import MegatronTokenizer

LINES_PER_TASK = 32  # as in the script


class Worker:
    """The tokenizer of a process of the pool."""

    tokenizer: Any

    @classmethod
    def start(cls, model: Path) -> None:
        cls.tokenizer = MegatronTokenizer.from_pretrained(
            tokenizer_path=str(model), metadata_path={"library": "huggingface"}, use_fast=True, include_special_tokens=False
        )

    @classmethod
    def encode(cls, line: str) -> list[int]:
        ids: list[int] = cls.tokenizer.tokenize(json.loads(line)["text"])
        return [*ids, cls.tokenizer.eod]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("eot")
    parser.add_argument("output", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    arguments.output.mkdir()
    # The processes are forks, so loading the tokenizer does not count.
    Worker.start(as_a_model_folder(arguments.tokenizer, arguments.eot, arguments.output / "model"))
    with multiprocessing.get_context("fork").Pool(arguments.workers) as pool, arguments.texts.open(encoding="utf-8") as lines:
        started = time.perf_counter()
        builder = IndexedDatasetBuilder(str(arguments.output / "text.bin"), dtype=DType.optimal_dtype(Worker.tokenizer.vocab_size))
        for ids in pool.imap(Worker.encode, lines, LINES_PER_TASK):
            builder.add_document(ids, [len(ids)])
        builder.finalize(str(arguments.output / "text.idx"))
        print(json.dumps({"seconds": time.perf_counter() - started}))


if __name__ == "__main__":
    main()
