"""One writer and many readers. A reader of a data set that is rebuilt sees one whole build. If many processes build a data set, one of them
does it, and all end well.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from niels_cache_assets.artifacts.base import Artifact, BuildJob, WriteResult
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.build_cache import Provenance, build_pretrain_cache, build_sft_cache
from niels_cache_assets.build_cache.pretrain import PretrainBuild
from niels_cache_assets.build_cache.resume import Resume
from niels_cache_assets.project.registry import Registry, load_registry
from niels_cache_runtime import PretrainTokenStreamDataset, SFTExampleDataset, TokenLoader
from niels_cache_runtime.cache.opening import open_split
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import idx_name, tokens_name
from niels_cache_runtime.format.meta import Meta
from tests.build_cache.test_determinism import digests
from tests.helpers import children

Build = Callable[[Path, int], None]
Reader = Callable[[Path, int], set[int]]

EOT, ROLE = 299, 290
DOCUMENTS = 40


class Marked:
    """A tokenizer that always writes the same id. Each build has another id, so its tokens are known."""

    vocab_size = 300

    def __init__(self, mark: int) -> None:
        self._mark = mark

    def encode(self, text: str) -> list[int]:
        return [self._mark] * (len(text) + self._mark % 7)  # so that builds differ in length too

    def special_token_ids(self) -> dict[str, int | None]:
        return {"eot": EOT, "usr": ROLE, "asst": ROLE + 1, "sys": ROLE + 2}


TEXTS = ["x" * (20 + number % 11) for number in range(DOCUMENTS)]
SETTINGS: dict[str, Any] = {"max_train_tokens": 10**9, "max_val_tokens": 0, "shard_bytes": 512, "shuffle_buffer": None}


def build_pretrain(folder: Path, mark: int) -> None:
    build_pretrain_cache(TEXTS, str(folder), tokenizer=Marked(mark), seed=mark, resume=Resume(fingerprint="same"), **SETTINGS)


@dataclass(frozen=True, kw_only=True)
class Marks(Artifact):
    """The cache of `build_pretrain`."""

    folder: Path
    mark: int

    resumable = True

    @property
    def registry(self) -> Registry:
        return load_registry(profile="quickstart")

    @property
    def key(self) -> str:
        return f"pretrain/{self.folder.name}"

    @property
    def directory(self) -> Path:
        return self.folder

    def _build(self) -> PretrainBuild:
        provenance = Provenance()
        return PretrainBuild(
            items=TEXTS, out_dir=str(self.folder), tokenizer=Marked(self.mark), seed=self.mark, provenance=provenance, **SETTINGS
        )

    def identity(self, revision: str | None) -> dict[str, Any]:
        return {"mark": self.mark}

    def matches(self, meta: Meta, identity: Mapping[str, Any]) -> bool:
        return bool(meta["seed"] == identity["mark"])

    def write(self, work: BuildJob) -> WriteResult:
        return WriteResult(meta=self._build().write(work.directory, work.resume))


def build_sft(folder: Path, mark: int) -> None:
    chat = [{"role": "user", "content": "question"}, {"role": "assistant", "content": "an answer"}]
    build_sft_cache([chat] * DOCUMENTS, str(folder), tokenizer=Marked(mark), val_frac=0.2, seed=mark)


def marks(tokens: torch.Tensor) -> set[int]:
    """Return the ids of content among these tokens. One build has one such id."""
    return set(tokens.flatten().tolist()) - {EOT, -100, *range(ROLE, ROLE + 3)}


def read_windows(folder: Path, seed: int) -> set[int]:
    data = PretrainTokenStreamDataset(str(folder / "train"), T=16, device="cpu")
    generator = torch.Generator().manual_seed(seed)
    return set().union(*(marks(batch) for _ in range(3) for batch in data.get_batch(B=8, generator=generator)))


def read_ordered(folder: Path, seed: int) -> set[int]:
    batches = iter(TokenLoader(str(folder / "train"), T=16, B=4, seed=seed))
    return set().union(*(marks(next(batches).x) for _ in range(3)))


def read_whole(folder: Path, seed: int) -> set[int]:
    """Read all shards, the document ends, and meta.json, which names the build that they must belong to."""
    split = open_split(folder / "train", doc_ends=True)
    assert split.meta is not None
    assert split.doc_ends is not None
    tokens = np.concatenate(split.tokens.shards)
    assert len(tokens) == split.meta["train_tokens"]
    assert len(split.doc_ends) == DOCUMENTS
    assert (tokens[split.doc_ends - 1] == EOT).all()
    found = set(tokens.tolist()) - {EOT}
    assert found == {split.meta["seed"]}
    return found


def read_examples(folder: Path, seed: int) -> set[int]:
    tokens, starts = folder / tokens_name("train"), folder / idx_name("train")
    data = SFTExampleDataset(str(tokens), str(starts), T=64, device="cpu", eot_id=EOT)
    return marks(data.get_batch(B=8, generator=torch.Generator().manual_seed(seed))[0])


@pytest.mark.parametrize("rebuilds", [5, pytest.param(100, marks=pytest.mark.torture)])
@pytest.mark.parametrize(
    ("build", "readers"), [(build_pretrain, (read_windows, read_ordered, read_whole)), (build_sft, (read_examples, read_examples))]
)
def test_every_batch_belongs_wholly_to_one_build_while_the_data_set_is_built_again_and_again(
    tmp_path: Path, build: Build, readers: tuple[Reader, ...], rebuilds: int
) -> None:
    """The build is repeated so many times, and until each reader has seen builds come and go."""
    folder = tmp_path / "x"
    build(folder, 1)
    done = threading.Event()
    seen: list[list[int]] = [[] for _ in readers]  # the build that each reader opened, each time

    def read(reader: Reader, seen: list[int]) -> None:
        while not done.is_set():
            try:
                found = reader(folder, len(seen))
            except NielsCacheError as error:
                if "was rebuilt 5 times" not in str(error):
                    raise
                continue
            assert len(found) == 1, f"a batch of the builds {sorted(found)}"
            seen += found

    kept = PretrainTokenStreamDataset(str(folder / "train"), T=16, device="cpu") if build is build_pretrain else None
    with ThreadPoolExecutor(len(readers)) as pool:
        reads = [pool.submit(read, *each) for each in zip(readers, seen, strict=True)]
        try:
            mark, deadline = 1, time.monotonic() + 120
            while mark <= rebuilds or (any(len(set(own)) < 3 for own in seen) and time.monotonic() < deadline):
                mark += 1
                build(folder, mark)
        finally:
            done.set()
        for each in reads:
            each.result()
    for own in seen:
        assert own == sorted(own), "never an older build after a newer one"
        assert len(set(own)) >= 3
    if kept is not None:
        assert marks(kept.get_batch(B=64, generator=torch.Generator().manual_seed(0))[0]) == {1}, "what is open stays the build it was"


def build_or_find(folder: Path, told: Path) -> None:
    """Build or find the data set, as one of many processes. Write the result to a separate file."""

    outcome = materialize(Marks(folder=folder, mark=7), wait=True)
    (told / f"{os.getpid()}.{outcome.state}").touch()


def reference(folder: Path) -> dict[str, str]:
    folder.mkdir()
    build_pretrain(folder / "x", 7)
    return digests(folder / "x")


def outcomes(told: Path) -> list[str]:
    return sorted(path.suffix[1:] for path in told.iterdir())


def test_of_many_processes_that_want_a_data_set_one_builds_it_and_the_others_find_it(tmp_path: Path) -> None:
    expected = reference(tmp_path / "reference")
    told = tmp_path / "told"
    told.mkdir()
    with ThreadPoolExecutor(4) as pool:
        codes = list(pool.map(lambda _: children.run(build_or_find, tmp_path / "x", told), range(6)))
    assert codes == [0] * 6
    assert outcomes(told) == ["built", *["cache_hit"] * 5]
    assert digests(tmp_path / "x") == expected
