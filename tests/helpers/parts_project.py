"""A project with one data set of many small files, built in any number of parts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

from niels_cache_assets.artifacts.base import Outcome
from niels_cache_assets.artifacts.graph import Graph, graph
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.project.registry import load_registry
from niels_cache_runtime.format.layout import SPLITS, list_shards
from tests.helpers.tiny import sentences

NAME = "pages"


class PartsProject:
    """The files lie in `folder`/texts. `write` adds files; `graph` gives the graph for settings of the data set's table."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder, self._model = folder, model
        (folder / "texts").mkdir(parents=True)

    def write(self, sizes: Iterable[int], *, first: int = 0, folder: str = "texts") -> None:
        (self.folder / folder).mkdir(exist_ok=True)
        for number, size in enumerate(sizes, start=first):
            lines = [{"id": f"{number}-{row}", "text": text} for row, text in enumerate(sentences(size, seed=number))]
            path = self.folder / folder / f"f{number:03d}.jsonl"
            path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")

    def graph(
        self,
        parts: int,
        settings: str = "val_frac = 0.0",
        *,
        root: str = "cache",
        build: str = "",
        source: str = "jsonl",
        tokenizer: str | None = None,
        shard_bytes: int = 1024,
    ) -> Graph:
        config = self.folder / f"{root}.toml"
        config.write_text(
            f"[dagster]\nplots = false\n[tokenizer]\n{tokenizer or f'model = {json.dumps(str(self._model))}'}\n"
            f'[pretrain.{NAME}]\nsource = "{source}"\nfiles = ["texts/*"]\nparts = {parts}\n{settings}\n'
            f"[build]\nshard_bytes = {shard_bytes}\nthreads = 1\nseed = 7\n{build}\n",
            encoding="utf-8",
        )
        return graph(load_registry(config=str(config)), self.folder / root)

    def cache(self, root: str = "cache") -> Path:
        return self.folder / root / "pretrain" / NAME


def build(found: Graph, keys: Iterable[str] | None = None, *, log: Callable[[str], None] = lambda line: None) -> dict[str, Outcome]:
    """Build these artifacts, or all, in order. Return the outcomes by key."""
    return {key: materialize(found[key], log=log) for key in (found.order() if keys is None else keys)}


def parts_of(found: Graph) -> list[str]:
    return [key for key in found.order() if key.startswith("part/")]


def stream_of(cache: Path) -> dict[str, bytes]:
    """The tokens and the document ends of each split."""
    tokens = {split: b"".join(path.read_bytes() for path in list_shards(cache / split)) for split in SPLITS}
    return tokens | {f"{split} ends": (cache / f"{split}_doc_ends.npy").read_bytes() for split in SPLITS}
