"""Struck documents: their tokens are gone, every other token keeps its place, and runs that were in the middle continue."""

import os
import shutil
import warnings
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from niels_cache_assets.facts.lineage import read_lineage
from niels_cache_assets.facts.split_tokens import SplitTokens
from niels_cache_assets.tokenizer.kinds import SentencePieceTokenizer
from niels_cache_inspection.erasure.tombstone import strike, struck_tokens
from niels_cache_runtime import FIM, BestFit, Blocks, DatasetLoader, NielsCacheError, PretrainTokenStreamDataset, TokenLoader
from niels_cache_runtime.format.layout import IGNORE_INDEX, META_NAME, Family, tombstone_id
from niels_cache_runtime.format.meta import read_meta
from niels_cache_runtime.verify import verify_dataset
from tests.helpers.tiny import sentences
from tests.helpers.traced_root import build_root, rows_of

LOADERS: dict[str, dict[str, Any]] = {
    "windows": {},
    "blocks": {"order": Blocks(shards=2)},
    "best fit": {"packing": BestFit()},
    "weights": {"fields": ["weights"]},
}
STRUCK = (7, 30, 31)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, tokenizer: SentencePieceTokenizer) -> Path:
    return build_root(tmp_path_factory.mktemp("built"), tokenizer, texts=sentences(60, words=30), answers=sentences(40, seed=3))


@pytest.fixture
def root(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path, dirs_exist_ok=True))


def tokens_of(folder: Path, family: Family) -> SplitTokens:
    return SplitTokens(folder, family, "train", read_meta(folder / META_NAME))


@pytest.mark.parametrize(("name", "family"), [("pretrain/notes", "pretrain"), ("sft/chats", "sft")])
def test_only_the_tokens_and_the_lineage_of_struck_documents_change(root: Path, built: Path, name: str, family: Family) -> None:
    meta = strike(root / name, family, {"train": STRUCK})
    before, after = tokens_of(built / name, family), tokens_of(root / name, family)
    assert verify_dataset(root / name) == []
    assert len(before.ends) > 31
    crossed = 0
    for number, (start, end) in enumerate(map(before.bounds, range(len(before.ends)))):
        old, new = before.read(start, end - start), after.read(start, end - start)
        if number in STRUCK:
            assert {*struck_tokens(after, number, meta).tolist()} == {tombstone_id(meta)}
            assert len(struck_tokens(before, number, meta)) == len(struck_tokens(after, number, meta)) > 5
            crossed += before.file_at(start)[0] != before.file_at(end - 1)[0]
        else:
            assert np.array_equal(old, new)
            assert tombstone_id(meta) not in new
    assert crossed or family == "sft"
    old_rows, new_rows = (read_lineage(tokens.lineage, range(len(before.ends))) for tokens in (before, after))
    assert new_rows == old_rows  # ids, files and rows
    again = strike(root / name, family, {"train": [*STRUCK, 2]})
    assert again["tombstones"]["documents"]["train"] == [2, *STRUCK]
    assert len(again["tombstones"]["earlier"]) == 2
    assert strike(root / name, family, {"train": [2]}) == again
    assert sorted(path.name for path in (root / name).parent.iterdir() if "lock" not in path.name) == [(root / name).name]


def test_the_hash_of_a_struck_text_is_gone(root: Path, built: Path) -> None:
    import pyarrow.parquet as pq

    strike(root / "pretrain/notes", "pretrain", {"train": STRUCK})
    before, after = (pq.read_table(place / "pretrain/notes/train_documents.parquet").to_pylist() for place in (built, root))
    assert [number for number, (one, other) in enumerate(zip(before, after, strict=True)) if one != other] == [*STRUCK]
    assert not {before[number]["text_hash"] for number in STRUCK} & {row["text_hash"] for row in after}


@pytest.mark.parametrize("settings", LOADERS.values(), ids=LOADERS)
def test_a_run_in_the_middle_continues_with_masked_targets(root: Path, built: Path, settings: dict[str, Any]) -> None:
    folder, given = root / "pretrain/notes", {"T": 16, "B": 4, "seed": 2, "device": "cpu", **settings}
    whole = TokenLoader(str(built / "pretrain/notes/train"), **given)
    states, batches = [], []
    for batch in islice(whole, 12):
        batches.append(batch)
        states.append(whole.state_dict())
    meta = strike(folder, "pretrain", {"train": STRUCK[:1]})
    meta = strike(folder, "pretrain", {"train": STRUCK[1:]})
    loader = TokenLoader(str(folder / "train"), **given)
    with pytest.warns(UserWarning, match="documents were struck since the state was saved"):
        loader.load_state_dict({**states[3], "sources": dict(states[3]["sources"])})
    masked = 0
    for step, (old, new) in enumerate(zip(batches[4:], loader, strict=False), 4):
        origin = whole.trace(step)
        struck = np.isin(origin.documents, STRUCK) & ~np.isin(origin.tokens, [meta["special_token_ids"]["eot"]])
        assert torch.equal(new.x == tombstone_id(meta), torch.from_numpy(struck[:, :-1]))
        assert torch.equal(new.x[~torch.from_numpy(struck[:, :-1])], old.x[~torch.from_numpy(struck[:, :-1])])
        expected = old.y if old.y_masked is None else old.y_masked
        assert torch.equal(new.y_masked, torch.where(torch.from_numpy(struck[:, 1:]), IGNORE_INDEX, expected))
        masked += int(struck.sum())
    assert masked > 20
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader.load_state_dict(loader.state_dict())


def test_an_example_that_is_struck_has_no_target(root: Path) -> None:
    loader = TokenLoader(str(root / "sft/chats/train"), T=64, B=4, seed=2)
    state = loader.state_dict()
    meta = strike(root / "sft/chats", "sft", {"train": STRUCK})
    struck = TokenLoader(str(root / "sft/chats/train"), T=64, B=4, seed=2, epochs=1)
    with pytest.warns(UserWarning, match="struck"):
        struck.load_state_dict({**state, "settings": struck.state_dict()["settings"]})
    gone = 0
    for batch in struck:
        assert batch.y_masked is not None
        assert tombstone_id(meta) not in batch.y_masked
        gone += int((batch.y == tombstone_id(meta)).sum())
    assert gone > 20


def test_samplers_ignore_struck_targets_and_resume(root: Path) -> None:
    split = str(root / "pretrain/notes/train")
    state = DatasetLoader(2, 16, 0, 1, split, "cpu").state_dict()
    meta = strike(root / "pretrain/notes", "pretrain", {"train": range(40)})
    loader = DatasetLoader(2, 16, 0, 1, split, "cpu")
    loader.load_state_dict(state)
    windows = PretrainTokenStreamDataset(split, T=16, device="cpu")
    for x, y in (loader.get_batch(), windows.get_batch(B=64, generator=torch.Generator().manual_seed(1))):
        assert tombstone_id(meta) in x
        assert IGNORE_INDEX in y
        assert tombstone_id(meta) not in y


def test_what_cannot_be_struck_is_refused_and_changes_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = root / "pretrain/notes"
    before = (folder / META_NAME).read_bytes()
    with pytest.raises(NielsCacheError, match="has 60 documents, so there is no document 60"):
        strike(folder, "pretrain", {"train": [60]})

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("niels_cache_inspection.erasure.tombstone.replace_folder", die)
        with pytest.raises(KeyboardInterrupt):
            strike(folder, "pretrain", {"train": STRUCK})
    assert (folder / META_NAME).read_bytes() == before
    assert verify_dataset(folder) == []
    strike(folder, "pretrain", {"train": STRUCK})
    assert not [path for path in folder.parent.iterdir() if path.name.endswith(".gone")]
    assert os.stat(folder / "train_doc_ends.npy").st_nlink == 1


def test_fim_refuses_the_tombstone_as_a_token(root: Path) -> None:
    meta = strike(root / "pretrain/notes", "pretrain", {"train": STRUCK})
    fim = FIM(pre=tombstone_id(meta), suf=1, mid=2)
    with pytest.raises(NielsCacheError, match=f"has token {tombstone_id(meta)} in place of struck documents; give other tokens"):
        TokenLoader(str(root / "pretrain/notes/train"), T=16, B=4, seed=2, packing=BestFit(), fim=fim)


def test_a_cache_that_uses_every_id_is_refused(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    build_root(tmp_path, tokenizer, texts=[document.text for document in rows_of(sentences(20))], answers=["yes"])
    from niels_cache_inspection.erasure import tombstone

    meta = read_meta(tmp_path / "pretrain/notes" / META_NAME)
    every = SplitTokens(tmp_path / "pretrain/notes", "pretrain", "train", meta)
    every.shards = [np.arange(meta["vocab_size"], dtype=np.uint16)]
    every.shards = [np.arange(meta["vocab_size"] - 4, dtype=np.uint16)]
    fim = {name: meta["vocab_size"] - number for name, number in (("pre", 1), ("suf", 2), ("mid", 3))}
    assert tombstone._unused_id(tmp_path, {**meta, "fim_tokens": fim}, [every]) == meta["vocab_size"] - 4  # loaders add the others
    every.shards = [np.arange(meta["vocab_size"], dtype=np.uint16)]
    with pytest.raises(NielsCacheError, match=r"all [0-9,]+ ids of the vocabulary occur in it"):
        tombstone._unused_id(tmp_path, meta, [every])
