"""Caches that people have built stay valid. Fingerprints of default settings do not change, even with many new keys."""

from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import Field

from niels_cache_assets.artifacts.cache_identity import cache_identity
from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.base.fingerprint import fingerprint_of, identity_settings
from niels_cache_assets.corpus.identity import dedup_identity, identity_of_corpus
from niels_cache_assets.project.registry import Registry, load_registry
from niels_cache_assets.sources import PRETRAIN_SOURCES, SFT_SOURCES
from niels_cache_assets.sources.text import Text
from niels_cache_assets.sources.types import Source

KINDS: dict[str, type[Source]] = {**PRETRAIN_SOURCES, **SFT_SOURCES}

# The tables whose fingerprints are held by tests/golden/kinds.json: a name for each, its kind, and the keys that it needs.
PRETRAIN: dict[str, dict[str, Any]] = {
    **{name: {"source": name} for name in ("fineweb_edu", "wikitext", "wikipedia", "python_docs")},
    "roam": {"source": "roam", "path": "notes"},
    "gutenberg": {"source": "gutenberg", "enabled": True},
    "gutenberg_folder": {"source": "gutenberg", "enabled": True, "path": "books"},
    "wikitext_files": {"source": "wikitext", "files": ["a.txt"], "val_files": ["b.txt"]},
    "wikipedia_files": {"source": "wikipedia", "files": ["a.xml"]},
    "huggingface": {"source": "huggingface", "dataset": "owner/name"},
    "huggingface_files": {"source": "huggingface", "dataset": "owner/name", "files": ["a.jsonl"]},
    "markdown_folder": {"source": "markdown_folder", "path": "notes"},
    "parquet": {"source": "parquet", "files": ["a.parquet"]},
    "jsonl": {"source": "jsonl", "files": ["a.jsonl"]},
    "text": {"source": "text", "files": ["a.txt"]},
    **{name: {"source": name, "files": [f"a.{name}"]} for name in ("arrow", "csv", "html", "epub", "warc")},
    "interleave": {"source": "interleave", "members": {"text": 1.0, "jsonl": 2.0}},
    "code": {"source": "code", "files": ["project"]},
    "prepared": {"source": "jsonl", "files": ["a.jsonl"], "prepare": ["clean", "dedup"]},
}
SFT: dict[str, dict[str, Any]] = {
    **{name: {"source": name} for name in ("dolly15k", "oasst1", "python_help")},
    "dolly15k_files": {"source": "dolly15k", "files": ["a.jsonl"]},
    "oasst1_files": {"source": "oasst1", "files": ["a.jsonl"]},
    "chat_jsonl": {"source": "chat_jsonl", "files": ["a.jsonl"]},
}


def registry() -> Registry:
    return load_registry(profile="default", overrides={"pretrain": PRETRAIN, "sft": SFT})


def fingerprints(registry: Registry) -> dict[str, str]:
    """Of every table above, of a corpus, the tokenizer and the drop lists, at fixed revisions."""
    found = {}
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(metadata, "distributions", lambda name: [SimpleNamespace(version="of the library")])  # that extracts text
    for name, source in {**registry.pretrain, **registry.sft}.items():
        if name in {**PRETRAIN, **SFT}:
            found[name] = fingerprint_of(
                cache_identity(registry, source, registry.build, registry.pretrain, tokenizer=("0" * 64, 16_000), revision="1")
            )
    monkeypatch.undo()
    return {
        **found,
        "corpus": fingerprint_of(identity_of_corpus(registry, "prepared", revision="1", tokenizer_sha256=None)),
        "tokenizer": fingerprint_of(graph(registry, "").tokenizer().identity()),
        "dedup": fingerprint_of(dedup_identity(registry.dedup)),
    }


@pytest.fixture(autouse=True)
def nothing_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_kind_is_among_those_whose_fingerprints_are_held() -> None:
    assert {table["source"] for table in (*PRETRAIN.values(), *SFT.values())} == set(KINDS)


def test_every_raised_version_changes_the_fingerprint_of_its_kind_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprints(registry())
    monkeypatch.setattr(Text, "code_version", "99")
    after = fingerprints(registry())
    assert {name for name in before if after[name] != before[name]} == {"text", "interleave", "html", "epub"}  # members, subclasses


def test_a_new_key_counts_only_where_it_is_set() -> None:
    class WithNewKey(Text):
        new: int = Field(7)

    assert WithNewKey(files=["x"]).identity() == WithNewKey(files=["x"], new=7).identity() == Text(files=["x"]).identity()
    assert WithNewKey(files=["x"], new=8).identity() == {**Text(files=["x"]).identity(), "new": 8}


ADDED_LATER = {
    "tokenizer": {"kind", "revision", "encoding", "pattern", "engine", "normalize"},
    "cleaning": {"mask"},
    "dedup": {"ranges", "units"},
}


@pytest.mark.parametrize("name", ["cleaning", "dedup", "tokenizer", "reports"])
def test_a_new_key_of_a_shared_table_counts_only_where_it_is_set(name: str) -> None:
    table = type(getattr(load_registry(profile="default"), name))
    with_new_key = type("WithNewKey", (table,), {"new": 7, "__annotations__": {"new": int}})
    first = table().model_dump(mode="json", exclude=ADDED_LATER.get(name))
    assert identity_settings(with_new_key(), name) == first
    assert identity_settings(with_new_key(new=8), name) == {**first, "new": 8}
