"""TokenLoader over an address: the batches of a local cache through a bounded local copy."""

from __future__ import annotations

import errno
import gc
import io
import itertools
import os
import pickle
import signal
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from niels_cache_assets.publish.push import open_local_build, prune, push
from niels_cache_runtime import FIM, BestFit, Blocks, Copy, NielsCacheError, TokenLoader
from niels_cache_runtime.format.layout import DOC_ENDS_DTYPE, file_edges_name
from niels_cache_runtime.loader.remote.windows import RangeWindows
from niels_cache_runtime.loader.trace import BatchTrace
from niels_cache_runtime.remote import fetcher, local_copy
from niels_cache_runtime.remote.ledger import Ledger, Reader
from niels_cache_runtime.remote.local_copy import LocalCopy
from niels_cache_runtime.remote.maintenance import trim
from niels_cache_runtime.remote.store import RemoteError
from tests.helpers.copied_caches import (
    ADDRESS,
    OVERHEAD,
    SHARDS,
    Published,
    T,
    Watch,
    bytes_of,
    copied,
    only_shards,
    room,
    rows,
    wait_until,
    write_notes,
)
from tests.helpers.hand_made import write_meta_of, write_stream
from tests.helpers.loopback_s3 import BUCKET, LoopbackS3
from tests.helpers.remote_caches import Caches

pytestmark = pytest.mark.usefixtures("fetching_thread")


def test_workers_of_a_dataloader_share_the_copy(published: Published) -> None:
    expected = rows(published.local(epochs=1))
    remote = published.remote(epochs=1)
    assert rows(DataLoader(remote, batch_size=None, num_workers=2)) == expected
    counts = copied(remote).copy.counts()
    assert counts["files"] == SHARDS + 1  # each shard once, and the document ends; a tail has the shard of one token
    wait_until(lambda: [reader.pid for reader in readers(published)] == [os.getpid()])


def test_a_state_moves_between_a_folder_and_an_address(published: Published) -> None:
    local = published.local()
    before = rows(local, 7)
    state = local.state_dict()
    remote = TokenLoader.from_state(state, f"{ADDRESS}/train", remote=Copy(dir=published.copy, limit=room(3)))
    after = rows(remote, 7)
    again = published.local()
    assert before + after == rows(again, 14)
    state = remote.state_dict()
    assert state["sources"]["notes"]["folder"] == f"{ADDRESS}/train"
    assert rows(TokenLoader.from_state(state, str(published.folder / "train")), 5) == rows(again, 5)
    assert rows(pickle.loads(pickle.dumps(remote)), 3) == rows(remote, 3)


@pytest.mark.parametrize("changes", [{}, {"order": "split", "remote": Copy(fetch="windows")}])
def test_goldfish_reads_the_tokens_before_a_block_from_the_store(published: Published, changes: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"goldfish": (2, 40), "epochs": 1, "B": 96, "order": changes.get("order", Blocks(shards=2))}
    masked = 0
    count = 1 if changes else 8  # batches
    for ours, theirs in islice(zip(published.remote(**{**changes, **settings}), published.local(**settings), strict=True), count):
        assert torch.equal(ours.x, theirs.x)
        assert ours.y_masked is not None
        assert theirs.y_masked is not None
        assert torch.equal(ours.y_masked, theirs.y_masked)
        masked += int((theirs.y_masked[:, :8] == -100).sum())  # these need the tokens before the row
    assert masked > 300 * count


def test_trace_reads_through_the_copy(published: Published) -> None:
    local, remote = published.local(), published.remote()
    ours, theirs = remote.trace(40), local.trace(40)
    assert isinstance(ours, BatchTrace)
    assert isinstance(theirs, BatchTrace)
    assert (ours.tokens == theirs.tokens).all()
    assert (ours.offsets == theirs.offsets).all()
    assert (local.as_dataset()[77]["x"] == remote.as_dataset()[77]["x"]).all()


@pytest.mark.parametrize(
    ("T", "shard_tokens", "packing", "fim"),
    [
        (32, 2048, BestFit(bos_on_pieces=True, pad_documents_to=8), None),
        (600, 256, BestFit(), None),
        (600, 256, BestFit(bos_on_pieces=True), FIM(rate=1, pre=21, suf=22, mid=23)),
    ],
)
def test_packed_documents_come_through_the_copy(
    s3: LoopbackS3, tmp_path: Path, T: int, shard_tokens: int, packing: BestFit, fim: FIM | None
) -> None:
    """In the last two cases, a piece is longer than a block. The text has the tokens of FIM, and documents have two files there."""
    lanes = 2
    folder = tmp_path / "published" / "pretrain" / "notes"
    count = SHARDS * shard_tokens + 7
    lengths = torch.randint(2, 90, (count // 45,), generator=torch.Generator().manual_seed(1)).tolist()
    ends = [end for end in itertools.accumulate([*lengths, 5000]) if end < count - 1]
    write_stream(folder, np.arange(count) % 60_000, shard_tokens=shard_tokens, doc_ends=[*ends, count])
    numbers = {"train_tokens": count, "val_tokens": 0, "documents": {"train": len(ends) + 1, "val": 0}, "tokenizer_sha256": None}
    numbers["special_token_ids"] = {"sys": None, "usr": None, "asst": None, "eot": 4, "bos": 5}
    if fim:
        files = [(begin + 1, end - 5, end - 4, end - 1) for begin, end in itertools.pairwise([0, *ends, count]) if end - begin > 7]
        np.save(folder / file_edges_name("train"), np.array(files, dtype=DOC_ENDS_DTYPE).ravel())
    write_meta_of(folder, kind="pretrain", append_eot=True, shard_bytes=2 * shard_tokens, **numbers)
    push(open_local_build(folder), ADDRESS)
    published = Published(s3, folder, tmp_path / "copy")
    copy = Copy(dir=published.copy, limit=room(2 + lanes))
    settings: dict[str, Any] = {"T": T, "B": 16, "seed": 3, "packing": packing, "fim": fim, "order": Blocks(shards=2, lanes=lanes)}
    settings["epochs"] = 2
    local, remote = TokenLoader(str(folder), **settings), TokenLoader(ADDRESS, **settings, remote=copy)
    expected = rows(local)
    assert len(expected) > 10
    assert rows(remote) == expected
    assert rows(pickle.loads(pickle.dumps(remote)), 3) == rows(local, 3)
    settings["goldfish"] = (2, 40)
    masking = TokenLoader(ADDRESS, **settings, remote=copy)
    masks = [[batch.y_masked for batch in loader] for loader in (masking, TokenLoader(str(folder), **settings))]
    assert all(map(torch.equal, *masks))
    assert fim or bool(copied(masking)._heads) == (T == 32)  # some pieces begin with a block, and the tokens before them decide
    ours, theirs = remote.trace(0), local.trace(0)
    assert all(np.array_equal(getattr(ours, name), getattr(theirs, name)) for name in ("tokens", "offsets", "documents"))
    with pytest.raises(NielsCacheError, match="packing"):
        TokenLoader(ADDRESS, **settings, remote=Copy(fetch="windows"))


def readers(published: Published) -> list[Reader]:
    with Ledger(published.copy).changing() as state:
        return [*state.readers.values()]


def used_bytes(published: Published) -> int:
    """Return the bytes of the copy when all its downloads are done."""
    with Ledger(published.copy).changing() as state:
        return state.used_bytes()


def test_a_forked_process_goes_on_with_the_iterator(published: Published) -> None:
    iterator = iter(published.remote())
    assert rows(iterator, 3) == rows(published.local(), 3)
    expected = rows(islice(published.local(), 3, 9))
    child = os.fork()
    if not child:
        status = 1
        with suppress(BaseException):
            status = int(rows(iterator, 6) != expected)
        os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_windows_come_by_one_request_each_without_a_copy(published: Published, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"order": "split", "fields": ("document_ids",)}
    local, remote = published.local(**settings), published.remote(**settings, remote=Copy(fetch="windows"))
    assert list(tmp_path.iterdir()) == []
    for ours, theirs in zip(islice(remote, 5), islice(local, 5), strict=True):
        assert (ours.x == theirs.x).all()
        assert ours.document_ids is not None
        assert theirs.document_ids is not None
        assert torch.equal(ours.document_ids, theirs.document_ids)
    (source,) = remote._sources.values()
    assert isinstance(source, RangeWindows)
    assert 5 * remote.B < source.requests <= 2 * 5 * remote.B + 1
    assert rows(pickle.loads(pickle.dumps(remote)), 1) == rows(remote, 1)
    assert remote.names == ("notes",)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"order": "split"}, r"order=Blocks\(\)"),
        ({"remote": None}, r"remote=Copy\(dir"),
        ({"dir": None}, "give dir"),
        ({"remote": Copy(fetch="windows"), "limit": 1}, "give dir"),
        ({"limit": None}, "limit"),
        ({"limit": -1}, "limit"),
        ({"limit": room(1.4) - OVERHEAD}, "2 blocks"),
        ({"limit": room(2.4) - OVERHEAD, "lanes": 2}, "3 blocks"),
        ({"fetch": "rows"}, "fetch"),
    ],
)
def test_settings_that_do_not_fit_are_refused(published: Published, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(NielsCacheError, match=words):
        published.remote(**settings)


def test_other_addresses_and_folders_are_refused(published: Published) -> None:
    settings: dict[str, Any] = {"T": T, "B": 4, "seed": 3, "order": Blocks(), "remote": Copy(dir=published.copy, limit=room(3))}
    with pytest.raises(NielsCacheError, match="pull it"):
        TokenLoader("hf://datasets/someone/notes/train", **settings)
    with pytest.raises(NielsCacheError, match="no published cache"):
        TokenLoader(f"s3://{BUCKET}/at/nothing/train", **settings)
    with pytest.raises(NielsCacheError, match=r"remote=Copy.*is a path"):
        published.local(dir=published.copy)
    with pytest.raises(NielsCacheError, match=r"fetch='windows'.*is a path"):
        published.local(fetch="windows")
    published.copy.parent.joinpath("file").write_text("")
    with pytest.raises(NielsCacheError, match="cannot be written"):
        published.remote(dir=published.copy.parent / "file/below")


def test_without_a_network_the_copy_is_enough(published: Published) -> None:
    expected = rows(published.local(epochs=1))
    limit = room(8)
    assert rows(published.remote(epochs=1, limit=limit)) == expected
    gc.collect()
    published.s3.decide = lambda method, key: "expired"
    published.s3.requests.clear()
    with pytest.warns(RuntimeWarning, match="expired"):
        assert rows(published.remote(epochs=1, limit=limit)) == expected
    assert {key for _, key in published.s3.requests} == {"at/notes/meta.json"}


@pytest.mark.parametrize(("fault", "keyword"), [("expired", "expired"), ("skewed", "clock")])
def test_a_store_that_refuses_ends_the_run_with_one_line(published: Published, fault: str, keyword: str) -> None:
    remote = published.remote(epochs=1)
    published.s3.decide = only_shards(fault)
    with pytest.raises(RemoteError, match=keyword) as raised:
        rows(remote)
    assert "\n" not in str(raised.value)
    published.s3.decide = lambda method, key: None
    assert rows(published.remote(epochs=1)) == rows(published.local(epochs=1))


def test_a_flipped_byte_is_fetched_again(published: Published) -> None:
    published.s3.decide = only_shards("flip", times=1, name="/train/shard_00003")
    remote = published.remote(epochs=1)
    assert rows(remote) == rows(published.local(epochs=1))
    assert copied(remote).copy.counts()["again"] == 1


def test_a_shard_that_is_damaged_in_the_store_is_named(published: Published) -> None:
    published.s3.decide = only_shards("flip", name="/train/shard_00003")
    with pytest.raises(RemoteError, match=r"shard_00003\.bin.*sha256"):
        rows(published.remote(epochs=1, shuffle=False))
    assert list(published.copy.rglob("*00003*")) == []


@pytest.mark.parametrize("fault", ["500", "cut"])
def test_requests_that_fail_for_a_moment_are_repeated(published: Published, fault: str) -> None:
    published.s3.decide = only_shards(fault, times=3)
    remote = published.remote(epochs=1)
    assert rows(remote) == rows(published.local(epochs=1))
    assert copied(remote).copy.counts()["again"] == 0


def test_a_run_goes_on_with_its_build_until_it_is_pruned(published: Published, tmp_path: Path) -> None:
    local, remote = published.local(), published.remote()
    assert rows(remote, 2) == rows(local, 2)
    other = write_notes(tmp_path / "other/pretrain/notes", first=5)
    push(open_local_build(other), ADDRESS, replace_other=True)
    assert rows(remote, 40) == rows(local, 40)
    newer = published.remote()
    assert rows(newer, 2) == rows(TokenLoader(str(other / "train"), T=T, B=4, seed=3, order=Blocks(shards=2)), 2)
    del newer
    prune(ADDRESS)
    with pytest.raises(RemoteError, match="is gone"):
        rows(remote, 400)


@pytest.mark.parametrize("settings", [{"shuffle": False}, {"order": "split", "remote": Copy(fetch="windows")}])
def test_a_shard_that_is_gone_is_named_by_whatever_asks_for_it(published: Published, settings: dict[str, Any]) -> None:
    remote = published.remote(**settings, epochs=1)
    build = open_local_build(published.folder).record.content_sha256
    gone = f"/{BUCKET}/at/notes/{build}/train/shard_00002.bin"  # its head is the tail of a block
    assert published.s3.ask("HEAD", gone)[0] == 200
    published.s3.ask("DELETE", gone)
    with pytest.raises(RemoteError, match=r"shard_00002\.bin.*is gone"):
        rows(remote)


def test_files_of_others_stay(published: Published) -> None:
    stranger = published.copy / "builds/keep.bin"
    stranger.parent.mkdir(parents=True)
    stranger.write_bytes(b"mine")
    remote = published.remote(epochs=1)
    rows(remote)
    assert stranger.read_bytes() == b"mine"
    place = published.copy / copied(remote).build.path_in_copy("train/shard_00000.bin")
    del remote
    gc.collect()
    assert trim(published.copy, 0) > 0
    assert not place.exists()
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(b"mine")
    with pytest.raises(NielsCacheError, match="has not downloaded"):
        rows(published.remote(epochs=1))
    assert place.read_bytes() == b"mine"


def test_the_smaller_of_two_limits_counts(published: Published) -> None:
    large = published.remote(limit=room(6))
    assert rows(large, 200) == rows(published.local(), 200)
    assert bytes_of(published.copy) > room(3)
    small = published.remote(limit=room(3), epochs=1, seed=4)
    wait_until(lambda: used_bytes(published) <= room(3))  # a download may have begun before the smaller limit
    with Watch(published.copy) as watch:
        pairs = zip(islice(large, 60), islice(small, 60), strict=True)
        assert sum(1 for _ in pairs) == 60
        watch.most = max(watch.most, bytes_of(published.copy))
    assert 0 < watch.most <= room(3)


def test_a_reader_that_was_killed_holds_nothing(published: Published) -> None:
    remote = published.remote()
    child = os.fork()
    if not child:
        iterator = iter(remote)
        next(iterator)
        os.write(1, b"")
        signal.pause()
    wait_until(lambda: any(reader.pid == child and len(reader.maps) > 3 for reader in readers(published)))
    ledger = Ledger(published.copy)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with ledger.changing() as state:
        assert [reader.pid for reader in state.readers.values()] == [os.getpid()]
    assert rows(remote, 100) == rows(published.local(), 100)


def test_whole_data_sets_come_as_folders(published: Published, caches: Caches) -> None:
    push(open_local_build(caches.chats), f"s3://{BUCKET}/at/chats")
    copy = LocalCopy(published.copy, limit=10_000_000)
    folder = copy.fetch_split(f"{ADDRESS}/train")
    assert rows(TokenLoader(str(folder), T=T, B=4, seed=3), 5) == rows(TokenLoader(str(published.folder / "train"), T=T, B=4, seed=3), 5)
    root = copy.fetch_of(copy.open(f"s3://{BUCKET}/at/chats")[0], ["tokenizer/"]).parents[1]
    assert {path.name for path in root.iterdir()} == {"sft", "tokenizer"}
    with pytest.raises(NielsCacheError, match="no file"):
        copy.fetch_of(copy.open(ADDRESS)[0], ["train/none.bin"])
    settings: dict[str, Any] = {"T": 64, "B": 2, "seed": 1}
    chats = TokenLoader(f"s3://{BUCKET}/at/chats/train", **settings, remote=Copy(dir=published.copy, limit=10_000_000))
    assert rows(chats, 3) == rows(TokenLoader(str(caches.chats / "train"), **settings), 3)
    copy.close()
    with pytest.raises(NielsCacheError, match="limit"):
        LocalCopy(published.copy.parent / "small", limit=room(2)).fetch_split(f"{ADDRESS}/train")


def small_disk(copy: Path, size: int) -> type[io.FileIO]:
    """Return a replacement of `open` for the process that downloads: the copy cannot grow above `size` bytes."""

    class Writing(io.FileIO):
        refused = 0

        def write(self, piece: Any) -> int:
            if bytes_of(copy) + len(piece) > size:
                Writing.refused += 1
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(piece)

    return Writing


def test_a_full_disk_counts_as_a_smaller_limit(published: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = small_disk(published.copy, room(2))
    monkeypatch.setattr(fetcher, "open", disk, raising=False)
    assert rows(published.remote(epochs=1, limit=room(8))) == rows(published.local(epochs=1))
    assert disk.refused > 0  # type: ignore[attr-defined]


def test_a_disk_that_is_too_small_for_a_batch_is_named(published: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = published.remote(epochs=1, limit=room(8))
    monkeypatch.setattr(fetcher, "open", small_disk(published.copy, bytes_of(published.copy) + 2_000), raising=False)
    with pytest.raises(NielsCacheError, match="disk is full"):
        rows(remote)


def test_a_loader_that_waits_gives_its_shards_to_another(published: Published, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A rank evaluates on another split while the loaders of all ranks stand still."""
    monkeypatch.setattr(local_copy, "_LOOK_AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(local_copy, "GIVE_UP_SECONDS", 60.0)
    other = f"s3://{BUCKET}/at/other"
    push(open_local_build(write_notes(tmp_path / "pretrain/other", first=7)), other)
    remote, local = published.remote(limit=room(8)), published.local()
    ours, theirs = iter(remote), iter(local)
    batches = remote.samples_per_epoch["notes"] // remote.B + 40
    assert rows(islice(ours, batches)) == rows(islice(theirs, batches))
    copy = LocalCopy(published.copy, limit=room(8))
    folder = copy.fetch_split(f"{other}/train")
    assert len(list(folder.iterdir())) == SHARDS + 1
    assert bytes_of(published.copy) <= room(8)
    copy.close()
    assert rows(islice(ours, batches)) == rows(islice(theirs, batches))
