"""A project of a few kilobytes with everything that a cache root can hold, stage by stage. Tests damage it, and build it on bad disks."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.exchange.formats import ExportSettings, plan_export
from niels_cache_assets.exchange.writing import write_export
from niels_cache_assets.project.registry import Registry, load_registry
from niels_cache_runtime.format.layout import dataset_dir
from tests.helpers.corpora import articles, write_jsonl
from tests.helpers.tiny import sentences

DOCUMENTS = 60
CONVERSATIONS = 20

_TABLES = """
[tokenizer]
model = {model}

[pretrain.letters]
source = "jsonl"
files = ["letters.jsonl"]
val_frac = 0.1

[pretrain.notes]
source = "jsonl"
files = ["notes.jsonl"]
val_frac = 0.1
prepare = ["clean", "dedup"]

[sft.chats]
source = "chat_jsonl"
files = ["chats.jsonl"]

[cleaning]
skip = ["not_english", "language_error"]

[dedup]
threshold = {threshold}

[blend.mix]
weights = {{ letters = 1.0, notes = 2.0 }}
sequence_length = 16
num_samples = 100

[build]
shard_bytes = 4096
threads = 1
seed = {seed}
"""


@dataclass(frozen=True, kw_only=True)
class SmallProject:
    """The project. `root`: the folder of the caches. Texts and settings are in other folders."""

    registry: Registry
    root: Path

    def in_root(self, root: Path) -> "SmallProject":
        return SmallProject(registry=self.registry, root=root)

    @property
    def exports(self) -> Path:
        return self.root / "exports"

    def build_all(self) -> None:
        for build in STAGES.values():
            build(self)


def _export(project: SmallProject) -> None:
    folder = dataset_dir(project.root, "pretrain", "letters")
    settings = ExportSettings(format="megatron", out=project.exports / "letters")
    write_export(plan_export("letters", folder, settings), force=True)


def _built(project: SmallProject, key: str) -> object:
    """Build as the command line and the UI do."""
    return materialize(graph(project.registry, project.root)[key])


STAGES: dict[str, Callable[[SmallProject], object]] = {
    "tokenizer": lambda project: _built(project, "tokenizer"),
    "corpus": lambda project: _built(project, "corpus/notes"),
    "duplicates": lambda project: _built(project, "corpus/duplicates"),
    "pretrain": lambda project: _built(project, "pretrain/letters"),
    "prepared pretrain": lambda project: _built(project, "pretrain/notes"),
    "sft": lambda project: _built(project, "sft/chats"),
    "index": lambda project: _built(project, "index/mix"),
    "export": _export,
}


def small_project(folder: Path, tokenizer_model: Path, *, seed: int = 42, threshold: float = 0.85) -> SmallProject:
    """Write texts and settings. Nothing is built yet."""
    folder.mkdir(parents=True, exist_ok=True)
    write_jsonl(folder / "letters.jsonl", articles(DOCUMENTS, seed=1))
    notes = articles(DOCUMENTS, seed=2)
    write_jsonl(folder / "notes.jsonl", [*notes, "short", notes[3]])
    turns = sentences(2 * CONVERSATIONS, seed=3)
    chats = [
        {"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": told}]}
        for asked, told in zip(turns[::2], turns[1::2], strict=True)
    ]
    (folder / "chats.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats), encoding="utf-8")
    config = folder / "niels_cache.toml"
    config.write_text(_TABLES.format(model=json.dumps(str(tokenizer_model)), seed=seed, threshold=threshold), encoding="utf-8")
    return SmallProject(registry=load_registry(profile="quickstart", config=str(config)), root=folder / "cache")
