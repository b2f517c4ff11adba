"""Small data sets for every way to read and split, and the build that fault tests break and resume."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from niels_cache_assets.base.processes import stop_on_signals
from niels_cache_assets.disk.journal import BYTES_VARIABLE
from niels_cache_assets.project.registry import Registry, load_registry
from niels_cache_runtime.format.layout import dataset_dir, tokenizer_dir
from tests.helpers.builds import build_dataset, prepare_corpus
from tests.helpers.chat_models import UNMARKED
from tests.helpers.failing_disk import Disk
from tests.helpers.tiny import sentences

DOCUMENTS = 1_500
SPLIT_BY_BUDGETS = "train_tokens = 16_000\nval_tokens = 2_000\n"
TABLES = {
    "jsonl": 'source = "jsonl"\nfiles = ["lines/*.jsonl"]\nval_frac = 0.1\n',
    "compressed": 'source = "jsonl"\nfiles = ["packed.jsonl.gz"]\n' + SPLIT_BY_BUDGETS,
    "parquet": 'source = "parquet"\nfiles = ["rows.parquet"]\n' + SPLIT_BY_BUDGETS,
    "paragraphs": 'source = "text"\nfiles = ["book.txt"]\nsample_by = "paragraph"\nval_frac = 0.05\n',
    "shuffled": 'source = "jsonl"\nfiles = ["lines/*.jsonl"]\nshuffle_buffer = 700\n' + SPLIT_BY_BUDGETS,
    "mirror": 'source = "huggingface"\ndataset = "local/mirror"\nfiles = ["rows.parquet"]\nshuffle_buffer = 500\n' + SPLIT_BY_BUDGETS,
    "mix": 'source = "interleave"\nmembers = {jsonl = 2, parquet = 1}\nval_frac = 0.1\n',
    "near": 'source = "parquet"\nfiles = ["rows.parquet"]\ndecontaminate = "near"\n' + SPLIT_BY_BUDGETS,
    "exact": 'source = "jsonl"\nfiles = ["lines/*.jsonl"]\nval_frac = 0.1\ndecontaminate = "exact"\n',
    "prepared": 'source = "jsonl"\nfiles = ["lines/*.jsonl"]\nprepare = ["clean"]\ncleaning = {skip = ["no_stopwords", "too_short"]}\n',
}
SFT_TABLES = {
    "chats": 'source = "chat_jsonl"\nfiles = ["chats.jsonl"]\n',
    "templated": 'source = "chat_jsonl"\nfiles = ["chats.jsonl"]\ntemplate = "own.jinja"\non_broken = "drop"\n',
    "trees": 'source = "oasst1"\nfiles = ["trees.jsonl"]\nsplit_by = "tree"\nval_frac = 0.2\n',
    "pairs": 'source = "chat_jsonl"\nkind = "preference"\nfiles = ["pairs.jsonl"]\ntemplate = "own.jinja"\nval_frac = 0.2\n',
}
_PAGES = 'source = "huggingface"\ndataset = "owner/pages"\n'
HUB_TABLES = {
    "hub": f"{_PAGES}shuffle_buffer = 300\n{SPLIT_BY_BUDGETS}",
    "ordered_hub": f"{_PAGES}shuffle_buffer = 0\nval_frac = 0.1\n",
}
PARTS_TABLES = {
    "in_parts": 'source = "jsonl"\nfiles = ["lines/*.jsonl"]\nparts = 3\nshuffle_buffer = 200\n' + SPLIT_BY_BUDGETS,
    "seeded_parts": 'source = "jsonl"\nfiles = ["lines/*.jsonl"]\nparts = 2\nval_frac = 0.1\n',
    "compared_parts": 'source = "jsonl"\nfiles = ["lines/*.jsonl"]\nparts = 2\nval_frac = 0.1\ndecontaminate = "exact"\n',
}


def write_project(folder: Path, model: Path) -> None:
    """Write sources and niels_cache.toml to `folder`, the tokenizer to its `root`, and the corpus of each data set with `prepare`."""
    texts = [text if number % 9 else sentences(1, seed=number % 45)[0] for number, text in enumerate(sentences(DOCUMENTS))]
    (folder / "lines").mkdir()
    for part in range(3):
        lines = [json.dumps({"id": f"{part}-{row}", "text": text if row % 50 else None}) for row, text in enumerate(texts[part::3])]
        (folder / "lines" / f"{part}.jsonl").write_text("\n".join(lines))
    with gzip.open(folder / "packed.jsonl.gz", "wt") as packed:
        packed.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    pq.write_table(
        pa.table({"text": [text if row % 70 else "" for row, text in enumerate(texts)]}), folder / "rows.parquet", row_group_size=900
    )
    (folder / "book.txt").write_text("\n\n".join(texts))
    with open(folder / "chats.jsonl", "w") as chats, open(folder / "trees.jsonl", "w") as trees:
        for row, text in enumerate(texts):
            roles = ("user", "assistant") if row % 40 else ("user", "user")
            chats.write(json.dumps({"messages": [{"role": role, "content": f"{text} {role}"} for role in roles]}) + "\n")
            reply = {"message_id": f"{row}-1", "text": text, "role": "assistant", "lang": "en", "replies": []}
            replies = [reply, {**reply, "message_id": f"{row}-2", "text": f"No. {text}"}]
            prompt = {"message_id": f"{row}", "text": text, "role": "prompter", "lang": "en", "replies": replies}
            trees.write(json.dumps({"message_tree_id": f"{row}", "prompt": prompt}) + "\n")
    with open(folder / "pairs.jsonl", "w") as pairs:
        for row, text in enumerate(texts):
            rejected = f"No. {text}" if row % 40 else text
            pairs.write(json.dumps({"prompt": f"Question {row % 300}?", "chosen": text, "rejected": rejected}) + "\n")
    (folder / "own.jinja").write_text(UNMARKED)
    tables = [f"[pretrain.{name}]\n{table}" for name, table in {**TABLES, **HUB_TABLES, **PARTS_TABLES}.items()]
    tables += [f"[sft.{name}]\n{table}" for name, table in SFT_TABLES.items()]
    (folder / "niels_cache.toml").write_text("\n".join(tables))
    tokenizer_dir(folder / "root").mkdir(parents=True)
    shutil.copy(model, tokenizer_dir(folder / "root") / "spm.model")
    prepare_corpus(project(folder), "prepared", root=folder / "root", processes=1)


def project(folder: Path, shard_bytes: int = 20_000) -> Registry:
    overrides: dict[str, Any] = {"build": {"shard_bytes": shard_bytes, "threads": 2}}
    return load_registry(profile="quickstart", config=str(folder / "niels_cache.toml"), overrides=overrides)


def fresh_root(folder: Path, root: Path) -> Path:
    """Return an empty cache with the project's tokenizer and corpora."""
    shutil.copytree(folder / "root", root)
    return root


def cache_of(folder: Path, name: str, root: Path) -> Path:
    return dataset_dir(root, project(folder).family_of(name), name)


def build(
    folder: Path,
    name: str,
    root: Path,
    *,
    shard_bytes: int = 20_000,
    record_every: int = 10_000,
    at: int | None = None,
    env: dict[str, str] | None = None,
    force: bool = False,
) -> None:
    """Build the data set as `niels-cache` does, with a record after so many bytes. The build is killed at disk call `at`. `root`.calls and
    `root`.log record it.
    """
    os.environ.update({**(env or {}), BYTES_VARIABLE: str(record_every)})
    with stop_on_signals(), open(f"{root}.log", "a", buffering=1) as log, Disk(root, at=at).installed() as disk:
        try:
            build_dataset(project(folder, shard_bytes), name, root=root, force=force, log=lambda message: print(message, file=log))
        finally:
            Path(f"{root}.calls").write_text(str(len(disk.calls)))
