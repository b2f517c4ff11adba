"""datatrove's tokenizer and folder dataset (https://github.com/huggingface/datatrove), run by `compare.py` in an environment of its own.

Headerless uint16 files with an index of document ends, documents shuffled within a file by its writer, read by torch's DataLoader.
"""

from pathlib import Path
from typing import Any

import serve
from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens import DocumentTokenizer
from datatrove.utils.dataset import DatatroveFolderDataset
from torch.utils.data import DataLoader


def tokenize(inputs: list[Path], tokenizer: Path, target: Path, T: int) -> None:
    (folder,) = {path.parent for path in inputs}
    steps = [
        JsonlReader(str(folder), glob_pattern="*.jsonl"),
        DocumentTokenizer(str(target), tokenizer_name_or_path=str(tokenizer), eos_token=serve.EOT, batch_size=serve.TEXTS_AT_ONCE, seed=0),
    ]
    logs = target.with_name(f"{target.name}-logs")
    LocalPipelineExecutor(pipeline=steps, tasks=len(inputs), workers=2, logging_dir=str(logs)).run()


class Collate:
    def __init__(self, collate: Any) -> None:
        self.collate = collate

    def __call__(self, samples: list[dict[str, Any]]) -> Any:
        return self.collate([sample["input_ids"].numpy() for sample in samples])


def make_loader(folder: Path, *, T: int, B: int, workers: int, collate: Any) -> DataLoader:
    dataset = DatatroveFolderDataset(str(folder), seq_len=T, filename_pattern="*.ds", shuffle=True, seed=0)
    return DataLoader(
        dataset,
        batch_size=B,
        shuffle=True,
        num_workers=workers,
        collate_fn=Collate(collate),
        drop_last=True,
        persistent_workers=workers > 0,
    )


if __name__ == "__main__":
    serve.main(tokenize=tokenize, make_loader=make_loader)
