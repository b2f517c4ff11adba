"""Caches that people have built stay valid. Fingerprints of default settings are those of the first versions, even with many new keys."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import Field

from niels_cache_assets.artifacts import tokenizer
from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.build_cache import CODE_VERSIONS
from niels_cache_assets.config.fingerprint import _FIRST_KEYS, fingerprint_of, settings_that_count
from niels_cache_assets.config.registry import Registry, load_registry
from niels_cache_assets.corpus import identity as corpus_identity
from niels_cache_assets.corpus.cache_identity import cache_identity
from niels_cache_assets.corpus.identity import corpus_fingerprint, dedup_identity
from niels_cache_assets.documents import DocumentBatch
from niels_cache_assets.sources import PRETRAIN_SOURCES, SFT_SOURCES
from niels_cache_assets.sources.hub.data import HubData
from niels_cache_assets.sources.text import Text
from niels_cache_assets.sources.types import PretrainSource, Source, StreamContext
from niels_cache_assets.streaming import decontaminate

KINDS: dict[str, type[Source]] = {**PRETRAIN_SOURCES, **SFT_SOURCES}

# The tables whose fingerprints are held: a name for each, its kind, and the keys that it needs.
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
    "interleave": {"source": "interleave", "members": {"text": 1.0, "jsonl": 2.0}},
    "prepared": {"source": "jsonl", "files": ["a.jsonl"], "prepare": ["clean", "dedup"]},
}
SFT: dict[str, dict[str, Any]] = {
    **{name: {"source": name} for name in ("dolly15k", "oasst1", "python_help")},
    "dolly15k_files": {"source": "dolly15k", "files": ["a.jsonl"]},
    "oasst1_files": {"source": "oasst1", "files": ["a.jsonl"]},
    "chat_jsonl": {"source": "chat_jsonl", "files": ["a.jsonl"]},
}
LOCAL = [kind for kind, source in KINDS.items() if issubclass(source, HubData)]  # have a version of their own for local files
# The code versions that the fingerprints below were taken with.
THEN = {
    **dict.fromkeys([*KINDS, *(f"{kind} files" for kind in LOCAL)], "1"),
    **{"roam": "2", "wikipedia": "3", "wikipedia files": "3"},
    **{"pretrain": "2", "sft": "2", "corpus": "3", "tokenizer": "1"},
}
# Those that were raised since: one line for each, and a line of CHANGELOG.md that says what is built again, and why.
RAISED: dict[str, str] = {
    "pretrain": "3",  # meta.json has the places of drops
    "sft": "4",  # messages that are not trained on, and the places of drops
    "corpus": "5",  # masks side by side, and the places of drops
    "text": "2",  # data that are not text are dropped
    **dict.fromkeys(("jsonl", "parquet", "chat_jsonl"), "3"),  # the field of the text, and the forms of chats
    **dict.fromkeys(("huggingface", "fineweb_edu"), "2"),
    "markdown_folder": "2",
    "roam": "4",  # a page without a title leaves the others
    "gutenberg": "2",  # all e-texts of a file
    "wikipedia": "4",  # marks of tables, and tags that end at their own
    # names are relative to the folder that files and val_files share
    **{f"{kind} files": "3" for kind in ("fineweb_edu", "huggingface", "wikitext", "gutenberg", "dolly15k", "oasst1")},
    "wikipedia files": "6",
}
GOLDEN = {
    "fineweb_edu": "ac46c6a19ff0b6a7a8f6413f1dd42794f2c78d6bddf4ba375ab28099bc7aa410",
    "roam": "f96e4b986b88031334f529c6b11367319d2c46bec37e4dd27aaedf426ba7e0ad",
    "wikitext": "cdb105d6386be1d4d4c7cb868b2f1fb565d90984a68c8bec84a993a98f7de3f3",
    "gutenberg": "92372c73168cf8a3eb65e3aa0401ba98417834ada15904d0ee9633da35e97c84",
    "wikipedia": "694270b13ce5906142321528f40eb5b1b5c4d26ebb25e246d6dec05e9e0d6701",
    "python_docs": "a092210a110fef2081eaf38bce31af709e5ad5d7d9601f0287990ec7b1e179a1",
    "gutenberg_folder": "b3e46c10a670dc32d7a1670cce5432adee3b4897ec9699e383a9d8ea1c41aac9",
    "wikitext_files": "a3b23e016747c1b0a634c872bd5a90066cd7fea5cbdb92c7479dd66749b28670",
    "wikipedia_files": "7456b1f408c0b4c0053513427774c692bcdf89a12b95be9ba6fbfba3c1000883",
    "huggingface": "6ccce5d39cf0291f13feaba4904e2a8b00af08418b292d042fbf7bff7c972aac",
    "huggingface_files": "291a527c7c673f802cf5e123ec0753646bc6707005e7113ecf61badb6f3e7365",
    "markdown_folder": "a088086cac27862a197cca808cdd84824dcc66e3ba321c88364215e2f5ea4db9",
    "parquet": "2941472bc94777ebbba952323db2af7367f48785db5c6751bb42489aae1a37ea",
    "jsonl": "ca5de73231019903f17f0951e31fca228b9108d335b781365e62ce5e09e9972b",
    "text": "201c78f4a3d99a3be4c854229d0116154ba570c49714dac07e7e122e62df3253",
    "interleave": "e86f6d5b3f3fb35fd3ca6118edf49f1783d58ac02d349cb8a8146db6ce41dfad",
    "prepared": "ca5de73231019903f17f0951e31fca228b9108d335b781365e62ce5e09e9972b",
    "dolly15k": "c5be9cd255d6a7268070f5c303c65c2118f8ef9b46ae66dfadb7098911511e58",
    "oasst1": "6b3ed13b874b71818466a1b7cdad74b16f8bfdda0114da6385036537bfed78e5",
    "python_help": "bc1543bdb5c86f1d4fb3680569468f9af6c81931b44849a02ca2cde8999039fa",
    "dolly15k_files": "479aedd4efcdd509e25b596f26f43377e570c3fecd61ad4f9ea863d81415ca75",
    "oasst1_files": "b470e1abb81d8a27fbb186c7bed548f8d688cec36b7311665d40edcf7ac4d74a",
    "chat_jsonl": "e53c388d10a7b25a918da86f29f209618e083c9874dffcb93a15c62daa85147b",
    "corpus": "dd7c55a0162d92411b48a1564df2f645e6723d25ed2d0c0785318a3ce2a3163a",
    "tokenizer": "570ff4d39ae4df89432b0a4dbd087ac61a0d931ee29ace139fe1d318b9fd3583",
    "dedup": "fd915a2f346465cf325bbdc1aac12a3427d92fe8235a2949c8a23f3f9d5a6280",
}


def registry() -> Registry:
    return load_registry(profile="default", overrides={"pretrain": PRETRAIN, "sft": SFT})


def fingerprints(registry: Registry) -> dict[str, str]:
    """Of every table above, of a corpus, the tokenizer and the drop lists, at fixed revisions."""
    found = {}
    for name, source in {**registry.pretrain, **registry.sft}.items():
        if name in {**PRETRAIN, **SFT}:
            found[name] = fingerprint_of(
                cache_identity(
                    registry,
                    source,
                    registry.build,
                    tokenizer_sha256="0" * 64,
                    vocab_size=16_000,
                    revision="1",
                    siblings=registry.pretrain,
                    prepared=None,
                )
            )
    return {
        **found,
        "corpus": corpus_fingerprint(registry, "prepared", revision="1", tokenizer_sha256=None),
        "tokenizer": fingerprint_of(graph(registry, "").tokenizer().identity()),
        "dedup": fingerprint_of(dedup_identity(registry.dedup)),
    }


def versions() -> dict[str, str]:
    """The code versions of today, by the names of THEN."""
    return {
        **{kind: source.code_version for kind, source in KINDS.items()},
        **{f"{kind} files": KINDS[kind].files_code_version for kind in LOCAL},  # type: ignore[attr-defined]
        **CODE_VERSIONS,
        "corpus": corpus_identity.CODE_VERSION,
        "tokenizer": tokenizer.CODE_VERSION,
    }


@pytest.fixture(autouse=True)
def nothing_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_code_versions_are_those_that_were_raised_on_purpose() -> None:
    assert versions() == {**THEN, **RAISED}


def test_default_settings_have_the_fingerprints_that_they_always_had(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the code versions of then: a raised one is another fingerprint, and nothing else may be."""
    for kind, source in KINDS.items():
        monkeypatch.setattr(source, "code_version", THEN[kind])
    for kind in LOCAL:
        monkeypatch.setattr(KINDS[kind], "files_code_version", THEN[f"{kind} files"])
    for family in ("pretrain", "sft"):
        monkeypatch.setitem(CODE_VERSIONS, family, THEN[family])
    monkeypatch.setattr(corpus_identity, "CODE_VERSION", THEN["corpus"])
    monkeypatch.setattr(corpus_identity, "SIGNATURE_VERSION", "1")  # raised since, with the canonical text
    monkeypatch.setattr(decontaminate, "CODE_VERSION", "1")
    monkeypatch.setattr(tokenizer, "CODE_VERSION", THEN["tokenizer"])
    assert {table["source"] for table in (*PRETRAIN.values(), *SFT.values())} == set(KINDS)
    assert fingerprints(registry()) == GOLDEN


def test_every_raised_version_changes_the_fingerprint_of_its_kind_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprints(registry())
    monkeypatch.setattr(Text, "code_version", "99")
    after = fingerprints(registry())
    assert {name for name in before if after[name] != before[name]} == {"text", "interleave"}  # which has it as a member


def test_every_kind_has_its_first_keys() -> None:
    assert set(KINDS) <= set(_FIRST_KEYS)


def test_a_new_key_counts_only_where_it_is_set() -> None:
    class WithNewKey(Text):
        new: int = Field(7)

    assert WithNewKey(files=["x"]).identity() == WithNewKey(files=["x"], new=7).identity() == Text(files=["x"]).identity()
    assert WithNewKey(files=["x"], new=8).identity() == {**Text(files=["x"]).identity(), "new": 8}


ADDED_LATER = {"tokenizer": {"kind", "encoding", "pattern", "engine", "normalize"}, "cleaning": {"mask"}, "dedup": {"ranges"}}


@pytest.mark.parametrize("name", ["cleaning", "dedup", "tokenizer", "reports"])
def test_a_new_key_of_a_shared_table_counts_only_where_it_is_set(name: str) -> None:
    table = type(getattr(load_registry(profile="default"), name))
    with_new_key = type("WithNewKey", (table,), {"new": 7, "__annotations__": {"new": int}})
    first = table().model_dump(mode="json", exclude=ADDED_LATER.get(name))
    assert settings_that_count(with_new_key(), name) == first
    assert settings_that_count(with_new_key(new=8), name) == {**first, "new": 8}


def test_no_identity_takes_settings_past_the_rule() -> None:
    """All code that dumps a table for a fingerprint calls settings_that_count."""
    package = Path(__file__).parents[1] / "niels_cache_assets"
    dumps = {
        (path.relative_to(package).as_posix(), line.strip())
        for path in package.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if "model_dump(" in line
    }
    assert {file for file, _ in dumps} == {
        "config/fingerprint.py",
        "config/registry.py",  # one table made of another
        "config/tables.py",  # the same
        "artifacts/index.py",  # arguments of a plan
        "defs/config.py",  # settings of a run
        "defs/assets/index.py",  # shown
        "cli/commands/show.py",  # shown
        "cli/commands/init.py",  # shown
    }
    assert not [line for file, line in dumps if file == "defs/assets/index.py" and "json_entry(" not in line]


def test_the_default_of_parts_does_not_count_for_a_kind_that_is_not_listed() -> None:
    class Own(PretrainSource):
        source: Literal["own"] = "own"
        path: str = "x"

        def documents(self, context: StreamContext) -> Iterator[DocumentBatch]:
            raise NotImplementedError

    assert settings_that_count(Own(val_tokens=5), "own") == {
        "enabled": True,
        "path": "x",
        "shuffle_buffer": 0,
        "source": "own",
        "train_tokens": None,
        "val_frac": None,
        "val_tokens": 5,
    }
    assert settings_that_count(Own(val_tokens=5).model_copy(update={"parts": 2}), "own")["parts"] == 2
