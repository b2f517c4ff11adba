"""A cache that is opened by name. It shows its content and how to draw from it. For a missing name, it suggests a similar name."""

import copy
import sys
from pathlib import Path

import numpy as np
import pytest

from niels_cache_runtime import Batch, NielsCacheError, TokenLoader, open_cache
from niels_cache_runtime.cache.opening import open_split
from niels_cache_runtime.catalog import Cache
from tests.helpers.hand_made import ASST, EOT, SYS, USR, rewrite_meta, write_cache, write_meta_of, write_pretrain, write_stream
from tests.helpers.messages import missing
from tests.helpers.unreadable import forbid

DOCUMENTS = [[10, 11, 12, 13, EOT], [14, EOT], [*[20] * 8, EOT], [30, 31, 32, EOT]]
EXAMPLES = [[USR, 10, 11, EOT, ASST, 12, EOT], [SYS, 20, EOT, USR, 21, EOT, ASST, 22, 23, EOT]]


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return open_cache(write_cache(tmp_path / "cache"))


def test_a_split_says_its_sizes_and_what_it_shows_as_code_draws_batches(cache: Cache) -> None:
    shown = repr(cache.pretrain["notes"].train)
    assert "pretrain/notes/train: 20 tokens in 4 documents" in shown
    for split, targets in ((cache.pretrain["notes"].train, "y"), (cache.sft["chats"].train, "y_masked")):
        code = [line.strip() for line in repr(split).splitlines()[1:]]
        assert len(code) == 3
        scope: dict[str, object] = {"open_cache": open_cache}
        exec("\n".join(code), scope)
        assert isinstance(scope["loader"], TokenLoader)
        assert isinstance(batch := scope["batch"], Batch)
        assert batch.x.shape == getattr(batch, targets).shape
        assert len(batch.x) == 8


def test_an_empty_split_is_called_empty_and_shows_no_code(cache: Cache) -> None:
    assert repr(cache.sft["chats"].val) == "sft/chats/val: empty"


@pytest.mark.parametrize("shard_tokens", [3, 1 << 12], ids=lambda size: f"shards of {size}")
def test_rows_are_the_documents_across_shards_and_the_examples(tmp_path: Path, shard_tokens: int) -> None:
    root = write_cache(tmp_path)
    write_pretrain(root / "pretrain" / "cut", shard_tokens=shard_tokens)
    opened = open_cache(root)
    train = opened.pretrain["cut"].train
    assert len(train) == 4
    assert [row.tolist() for row in train] == DOCUMENTS
    assert train[-1].tolist() == DOCUMENTS[-1]
    assert train[0].dtype == np.uint16
    assert [row.tolist() for row in opened.sft["chats"].train] == EXAMPLES
    with pytest.raises(IndexError, match="row 4: "):
        train[4]


def test_shards_of_whole_pages_are_one_piece_that_is_not_copied(tmp_path: Path) -> None:
    tokens = np.arange(1, 5_001, dtype=np.uint16)
    write_stream(tmp_path / "pretrain" / "long", tokens, shard_tokens=2048, doc_ends=[2_000, 4_500, 5_000])
    split = open_cache(tmp_path).pretrain["long"].train
    assert len(split.stream.pieces) == (1 if sys.platform in ("linux", "darwin") else 3)
    assert np.array_equal(split[1], tokens[2_000:4_500])
    if sys.platform == "linux":
        assert np.shares_memory(split[1], split.stream.pieces[0])
        assert not split[1].flags.writeable


@pytest.mark.parametrize("what", ["longer", "a folder"])
def test_a_shard_that_meta_json_lists_as_empty_is_looked_at(tmp_path: Path, what: str) -> None:
    folder = write_pretrain(tmp_path / "pretrain" / "notes")
    (empty := folder / "val/shard_00000.bin").write_bytes(b"")
    write_meta_of(folder, kind="pretrain", val_tokens=0)
    assert not open_split(folder / "val").tokens.shard_lengths.any()
    if what == "longer":
        empty.write_bytes(bytes(6))
    else:
        empty.unlink()
        empty.mkdir()
    with pytest.raises(NielsCacheError, match="shard_00000"):
        open_split(folder / "val")


def test_a_name_that_is_not_there_comes_with_the_one_that_was_meant(cache: Cache) -> None:
    with pytest.raises(NielsCacheError, match="did you mean 'notes'"):
        cache.pretrain["nots"]
    with pytest.raises(NielsCacheError, match=r"it is in \.sft"):
        cache.pretrain["chats"]
    with pytest.raises(NielsCacheError, match="choose from chats"):
        cache.sft["zzz"]
    with pytest.raises(AttributeError, match="did you mean 'notes'"):
        cache.pretrain.nots  # noqa: B018
    assert cache.pretrain.get("nots") is None
    assert "nots" not in cache.pretrain
    assert "off" in cache.pretrain


def test_names_complete_as_keys_and_as_attributes(cache: Cache) -> None:
    assert cache.pretrain._ipython_key_completions_() == ["notes", "off"]
    assert "notes" in dir(cache.pretrain)
    assert cache.pretrain.notes.train.tokens == cache.pretrain["notes"].train.tokens == 20
    assert list(copy.deepcopy(cache.pretrain)) == ["notes", "off"]


def test_a_data_set_that_cannot_be_opened_hides_no_other(cache: Cache) -> None:
    shown = repr(cache)
    assert "20 tokens in 4 documents" in shown
    assert "never built" in shown
    with pytest.raises(NielsCacheError, match="never built"):
        cache.pretrain["off"]


def test_a_data_set_that_may_not_be_read_hides_no_other(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    forbid(monkeypatch, Path(cache.pretrain["notes"].folder).parent / "off")
    assert list(cache.pretrain) == ["notes"]
    assert cache.pretrain["notes"].train.tokens == 20


@pytest.mark.parametrize("target", ["missing", "meta.json"])
def test_a_meta_json_that_leads_nowhere_is_not_taken_for_a_missing_one(cache: Cache, target: str) -> None:
    """Without it, tokens of 32 bits would be read as tokens of 16."""
    folder = Path(cache.pretrain["notes"].folder)
    (folder / "meta.json").unlink()
    (folder / "meta.json").symlink_to(target)
    with pytest.raises(NielsCacheError, match=r"meta\.json"):
        TokenLoader(str(folder / "train"), T=4, B=1, seed=0)


def test_rows_are_of_the_build_whose_sizes_were_shown(cache: Cache) -> None:
    notes, chats = cache.pretrain["notes"].train, cache.sft["chats"].train
    for split in (notes, chats):
        rewrite_meta(Path(split.dataset.folder), seed=7)
        with pytest.raises(NielsCacheError, match="rebuilt since"):
            split[0]
        with pytest.raises(NielsCacheError, match="rebuilt since"):
            split.sampler(T=7)


def test_a_folder_that_is_no_cache_comes_with_the_one_that_was_meant(tmp_path: Path) -> None:
    write_cache(tmp_path / "cache" / "quickstart")
    root = tmp_path / "cache" / "quickstart"
    for path, said in {
        "cache": ("no cache root",),
        "cache/quickstart/sft": ("folder of sft",),
        "cache/quickstart/pretrain/notes": ("pretrain data set notes",),
        "cache/quickstart/pretrain/notes/train": ("split train", "pretrain data set notes"),
        "cache/quickstart/pretrain/notes/train/shard_00000.bin": ("file train/shard_00000.bin", "pretrain data set notes"),
        "cache/quickstart/tokenizer": ("is the tokenizer",),
    }.items():
        with pytest.raises(NielsCacheError) as refused:
            open_cache(tmp_path / path)
        assert missing(refused.value, f"{tmp_path / path}: ", *said, f"; type open_cache({str(root)!r})") == []
    for path, said in {"nothing": "no such folder; build", ".": "no cache .*; build"}.items():
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(NielsCacheError, match=said):
            open_cache(tmp_path / "empty" / path)
