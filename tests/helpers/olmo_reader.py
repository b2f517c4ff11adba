"""A program that reads an export with OLMo-core's own classes. Requests come on stdin, answers go to stdout, and both are JSON.

tests/exchange/test_olmo.py runs this program. It imports nothing of niels-cache, and knows only the lines that the export command prints.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from olmo_core.data.utils import iter_document_indices, write_document_indices


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return the content of each split's data set.

    lines: as the command prints them. sequence_length: replaces the length in the lines. OLMo-core writes a .csv.gz beside the files of the
    export.
    """
    names: dict[str, Any] = {}
    exec("\n".join(request["lines"]), names)
    configs = {split: names[split] for split in ("train", "val") if split in names}
    settings = {"sequence_length": request["sequence_length"]}
    return {
        "splits": {split: read_split(config, **settings) for split, config in configs.items()},
    }


def read_split(config: Any, *, sequence_length: int) -> dict[str, Any]:
    windows = replace(config, sequence_length=sequence_length).build()
    windows.prepare()
    known = {"eos_token_id": windows.eos_token_id, "dtype": windows.dtype}
    by_metadata = {path: list(iter_document_indices(path, use_array_if_local=False)) for path in windows.paths}
    by_eos = {path: [[int(begin), int(end)] for begin, end in iter_document_indices(path, **known)] for path in windows.paths}
    for path in windows.paths:
        write_document_indices(Path(path), **known)
    return {
        "paths": [str(path) for path in windows.paths],
        "windows": [instance["input_ids"].tolist() for instance in windows],
        "documents_by_metadata": by_metadata,
        "documents_by_eos": by_eos,
        "vocab_size": windows.vocab_size,
    }


if __name__ == "__main__":
    json.dump([answer(request) for request in json.load(sys.stdin)], sys.stdout)
