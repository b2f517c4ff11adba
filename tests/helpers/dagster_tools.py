"""A small configured project, and functions that run its Dagster definitions, for the tests in tests/defs.

A test that needs built data takes a copy of the project of `built_project` (tests/helpers/built_project.py), with its caches and
its events.
"""

import copy
import functools
import json
import os
import shutil
import sqlite3
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import dagster as dg
from alembic.script import ScriptDirectory
from dagster._core.definitions.data_version import CachingStaleStatusResolver  # the states that the UI shows as "unsynced"
from dagster._core.loader import LoadingContextForTest

from niels_cache_assets.defs.assembly import build_defs
from niels_cache_assets.defs.assets.upstream import observe_revision
from niels_cache_assets.defs.resources import CacheRoot
from niels_cache_assets.project.registry import Registry, load_registry
from niels_cache_runtime.format.layout import Family, dataset_dir
from tests.helpers.names import NAMES
from tests.helpers.tiny import sentences

# Dagster makes a database for each run, and reads ninety scripts of its earlier databases twice for it. Here, they are read once.
ScriptDirectory.from_config = functools.cache(ScriptDirectory.from_config)  # type: ignore[method-assign]

TRAIN_HERE = 'vocab_size = 330\ntrain_on = ["notes"]'  # for Project.configure

TABLES = """
[pretrain.notes]
source = "jsonl"
files = ["notes.jsonl"]

[pretrain.books]
source = "text"
files = ["books/*.txt"]
{extra}
[sft.chats]
source = "chat_jsonl"
files = ["chats.jsonl"]
"""


@dataclass
class Project:
    """A folder with sources and a niels_cache.toml. The registry has only the data sets in this file."""

    folder: Path
    tokenizer_model: Path
    instance: dg.DagsterInstance = field(default_factory=dg.DagsterInstance.ephemeral)
    _loaded: tuple[str, dg.Definitions] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.write_notes(sentences(60))
        (self.folder / "books").mkdir(exist_ok=True)
        for number in range(4):
            (self.folder / "books" / f"{number}.txt").write_text("\n".join(sentences(5, seed=number)), encoding="utf-8")
        chats = (
            {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": text[::-1]}]}
            for text in sentences(20, seed=9)
        )
        (self.folder / "chats.jsonl").write_text("\n".join(map(json.dumps, chats)), encoding="utf-8")
        self.configure()

    @property
    def root(self) -> Path:
        return self.folder / "cache"

    def copied(self, folder: Path) -> "Project":
        """Return a copy with the same files in another folder, and the same events about these files in a new instance."""
        made = copy.copy(self)
        made.folder = shutil.copytree(self.folder, folder, dirs_exist_ok=True)
        made._loaded = None
        made.instance = _copied(self.instance, old=self.folder, new=folder)
        return made

    def remove(self, name: str) -> None:
        """Remove the cache of a data set. Dagster still knows that it was built."""
        shutil.rmtree(dataset_dir(self.root, self.registry.family_of(name), name))

    def write_notes(self, texts: list[str]) -> None:
        (self.folder / "notes.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts), encoding="utf-8")

    def configure(self, *, extra: str = "", tokenizer: str | None = None) -> None:
        """Write niels_cache.toml. The lines of `extra` follow the table of `books`, and `tokenizer` replaces the lines of [tokenizer]."""
        settings = f'model = "{self.tokenizer_model}"' if tokenizer is None else tokenizer
        text = f"[dagster]\nplots = false\n[tokenizer]\n{settings}\n{TABLES.format(extra=extra)}"
        (self.folder / "niels_cache.toml").write_text(text, encoding="utf-8")

    def edit(self, old: str, new: str) -> None:
        """Replace a part of niels_cache.toml that occurs once."""
        toml = self.folder / "niels_cache.toml"
        text = toml.read_text(encoding="utf-8")
        assert text.count(old) == 1
        toml.write_text(text.replace(old, new), encoding="utf-8")

    def import_other_tokenizer(self, *, extra: str = "") -> None:
        """Configure a model with other bytes that encodes in the same way. It is the old model with a field that SentencePiece does not
        know.
        """
        other = self.folder / "other.model"
        other.write_bytes(self.tokenizer_model.read_bytes() + b"\x78\x01")
        self.configure(tokenizer=f'model = "{other}"', extra=extra)

    @property
    def registry(self) -> Registry:
        loaded = load_registry(profile="quickstart", config=str(self.folder / "niels_cache.toml"))
        return replace(
            loaded,
            pretrain={name: source for name, source in loaded.pretrain.items() if name != "python_docs"},
            sft={name: source for name, source in loaded.sft.items() if name != "python_help"},
        )

    @property
    def defs(self) -> dg.Definitions:
        """The definitions, which are loaded again when niels_cache.toml has changed."""
        text = (self.folder / "niels_cache.toml").read_text(encoding="utf-8")
        if self._loaded is None or self._loaded[0] != text:
            self._loaded = text, build_defs({"cache_root": CacheRoot(root=os.fspath(self.root))}, registry=self.registry)
        return self._loaded[1]

    def build_tokenizer(self, **config: Any) -> dg.ExecuteInProcessResult:
        return self._execute("build_tokenizer", "tokenizer", None, config)

    def build(self, name: str, *, family: Family = "pretrain", **config: Any) -> dg.ExecuteInProcessResult:
        return self._execute(f"build_{family}", NAMES.stream_ops[family], name, config)

    def run(self, job: str, partition: str | None = None, **settings: Any) -> dg.ExecuteInProcessResult:
        return self.defs.resolve_job_def(job).execute_in_process(
            instance=self.instance, partition_key=partition, raise_on_error=False, **settings
        )

    def _execute(self, job: str, op: str, partition: str | None, config: dict[str, Any]) -> dg.ExecuteInProcessResult:
        return self.run(job, partition, run_config={"ops": {op: {"config": config}}})

    def observe(self, *names: str) -> None:
        """Record the present upstream of these data sets."""
        for name in names:
            self.instance.report_runless_asset_event(observe_revision(self.registry, name, root=self.root))

    def status(self, key: dg.AssetKey, partition: str | None = None) -> str:
        """Return FRESH, STALE or MISSING, as the UI shows it."""
        resolver = CachingStaleStatusResolver(self.instance, self.defs.resolve_asset_graph(), LoadingContextForTest(self.instance))
        return resolver.get_status(key, partition).value


def _copied(instance: dg.DagsterInstance, *, old: Path, new: Path) -> dg.DagsterInstance:
    """Return a copy in memory of an instance in memory. Each path in `old` is replaced by a path in `new`."""
    made = dg.DagsterInstance.ephemeral()
    for of, to in ((instance.run_storage, made.run_storage), (instance.event_log_storage, made.event_log_storage)):
        read, written = (storage._held_conn.connection.dbapi_connection for storage in (of, to))  # type: ignore[attr-defined]
        read.backup(written)
    _rename(written, old, new)
    return made


def _rename(events: sqlite3.Connection, old: Path, new: Path) -> None:
    for table, column in (("event_logs", "event"), ("asset_keys", "last_materialization"), ("asset_check_executions", "evaluation_event")):
        events.execute(f"UPDATE {table} SET {column} = replace({column}, ?, ?)", (f"{old}/", f"{new}/"))
    events.commit()


def materializations(run: dg.ExecuteInProcessResult, op: str = "stream_pretrain_dataset") -> dict[str, dg.AssetMaterialization]:
    """Return the materializations of builds, by key. Observations of upstream are left out."""
    events = run.asset_materializations_for_node(op)
    return {event.asset_key.to_user_string(): event for event in events if event.asset_key.path[0] != "upstream"}


def data_versions(run: dg.ExecuteInProcessResult, op: str = "stream_pretrain_dataset") -> dict[str, str]:
    return {key: (event.tags or {})["dagster/data_version"] for key, event in materializations(run, op).items()}


def metadata(event: dg.AssetMaterialization) -> dict[str, Any]:
    return {key: value.value for key, value in event.metadata.items()}


def state_in(metadata: dict[str, Any]) -> str:
    """Return `built`, `cache_hit` or `disabled` from the metadata of a materialization."""
    word = str(metadata["state"]).partition(" ")[0]
    return "cache_hit" if word == "hit" else word


def checks(run: dg.ExecuteInProcessResult) -> dict[str, dg.AssetCheckEvaluation]:
    return {evaluation.check_name: evaluation for evaluation in run.get_asset_check_evaluations()}


def failure(run: dg.ExecuteInProcessResult) -> str:
    """Return the error message of the step that failed."""
    assert not run.success
    failures = [event.step_failure_data for event in run.all_events if event.is_step_failure]
    assert failures[0].user_failure_data is not None, failures[0].error
    return failures[0].user_failure_data.description or ""


def rows(value: Any) -> list[dict[str, Any]]:
    """Return the records of a table in metadata."""
    return [dict(record.data) for record in value.records]


def files_of(found: dict[str, Any]) -> dict[str, str]:
    """Return {path: sha256} from the entry `files` in metadata."""
    lines = found["files"].split("```")[1].splitlines()[1:]
    return {path: sha256 for sha256, path in (line.split("  ") for line in lines)}


def json_of(entry: str) -> dict[str, Any]:
    """Return the content of an entry of metadata that opens in a window."""
    found: dict[str, Any] = json.loads(entry.rstrip().removeprefix("```json\n").removesuffix("```"))
    return found
