"""A server of objects, and caches to push to it. Each is made once for a file of tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.helpers.loopback_s3 import BUCKET, LoopbackS3

if TYPE_CHECKING:  # imported when a test requests a cache
    from niels_cache_assets.publish.push import LocalBuild
    from niels_cache_runtime.remote.record import Record

ADDRESS = f"s3://{BUCKET}/at/letters"
RECORD = "at/letters/meta.json"


@dataclass(frozen=True)
class Caches:
    """Three builds of the data set `letters` with one tokenizer, and the SFT data set `chats`. No test changes them."""

    letters: Path
    other: Path
    third: Path
    chats: Path


@pytest.fixture(scope="session")
def server() -> Iterator[LoopbackS3]:
    server = LoopbackS3()
    yield server
    server.close()


@pytest.fixture
def s3(server: LoopbackS3, monkeypatch: pytest.MonkeyPatch) -> LoopbackS3:
    """An empty bucket. The environment of the test has its endpoint and credentials."""
    for name, value in server.env.items():
        monkeypatch.setenv(name, value)
    server.reset()
    return server


@pytest.fixture(scope="session")
def caches(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Caches:
    from tests.helpers.small_project import STAGES, small_project

    folder = tmp_path_factory.mktemp("caches")
    roots = []
    for seed in (1, 2, 3):
        project = small_project(folder / f"seed{seed}", tiny_model, seed=seed)
        for stage in ("tokenizer", "pretrain", *(["sft"] if seed == 1 else [])):
            STAGES[stage](project)
        roots.append(project.root)
    return Caches(*(root / "pretrain/letters" for root in roots), roots[0] / "sft/chats")


def record_at(address: str = ADDRESS) -> Record:
    from niels_cache_runtime.remote.record import read_record
    from niels_cache_runtime.remote.store import open_store

    return read_record(open_store(address))[0]


def keys_of(build: LocalBuild, prefix: str = "at/letters") -> set[str]:
    return {f"{prefix}/{file.key}" for file in build.files}


def letters(caches: Caches) -> LocalBuild:
    from niels_cache_assets.publish.push import open_local_build

    return open_local_build(caches.letters)
