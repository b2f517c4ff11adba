"""Attempts in a store: another machine goes on after the last full shard, and who wakes up too late changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from niels_cache_assets.artifacts.parts.prune import find_garbage, remove_garbage
from niels_cache_assets.build_cache.pretrain import PretrainBuild
from niels_cache_assets.build_cache.resume import Resume
from niels_cache_assets.parts.lease import LeaseLostError
from niels_cache_assets.parts.store_attempt import StoreAttempt, read_objects, stored_attempt
from niels_cache_assets.parts.store_lease import StoreLease, hold_store_lease
from niels_cache_assets.project.running import ClusterSettings
from niels_cache_assets.streaming import encode
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import META_NAME
from niels_cache_runtime.format.meta import write_meta
from niels_cache_runtime.remote.download import append_file
from niels_cache_runtime.remote.store import Store, open_store
from tests.helpers.loopback_s3 import BUCKET, LoopbackS3
from tests.helpers.tiny import WideTokenizer, sentences

ADDRESS = f"s3://{BUCKET}/web"
LEASE, FOLDER = "leases/part-00001.json", "parts/part-00001/abc"
TIMES = ClusterSettings.model_construct(renew_seconds=1_000, lease_seconds=30)
SHARD_BYTES, BATCH_BYTES = 98_304, 81_920
TEXTS = sentences(4_000)


class Stop(Exception):
    """The end of a machine."""


@pytest.fixture
def store(s3: LoopbackS3) -> Store:
    return open_store(ADDRESS)


def texts(until: int | None, *, step: int = 1) -> Iterator[str]:
    yield from TEXTS[::step][:until]
    if until is not None:
        raise Stop


def make(out: Path, items: Any, **settings: Any) -> PretrainBuild:
    fixed = {"max_train_tokens": 10**9, "max_val_tokens": 200, "shard_bytes": SHARD_BYTES, "seed": 3, "shuffle_buffer": 64}
    return PretrainBuild(items=items, out_dir=str(out), tokenizer=WideTokenizer(), threads=1, **fixed, **settings)


@contextmanager
def machine(store: Store, folder: Path, *, over: bool = False) -> Iterator[StoreLease]:
    """A machine with the lease. `over`: the clock of the store has moved on, so the lease of any other is over."""
    with pytest.MonkeyPatch.context() as patch:
        if over:
            now = Store.now
            patch.setattr(Store, "now", lambda store, key: now(store, key).replace(year=2099))
        folder.mkdir(exist_ok=True)
        holding = hold_store_lease(store, LEASE, folder / "part-00001", times=TIMES, wait=False, log=print)
        lease = holding.__enter__()
    try:
        yield lease
    finally:
        holding.__exit__(None, None, None)


def run(
    store: Store,
    lease: StoreLease,
    *,
    until: int | None = None,
    items: Iterator[str] | None = None,
    log: Callable[[str], None] = print,
    afresh: bool = False,
    fingerprint: str = "f",
    **settings: Any,
) -> Resume:
    with stored_attempt(store, lease, FOLDER, log=log, afresh=afresh) as directory:
        assert lease.stored is not None
        resume = Resume(fingerprint=fingerprint, log=log, check=lease.check, keep=lease.stored.keep, attempt=lease.attempt)
        build = make(lease.target, items or texts(until), **settings)
        write_meta(str(directory / META_NAME), build.write(directory, resume))
    return resume


def downloaded(store: Store, folder: Path) -> dict[str, bytes]:
    found = read_objects(store, FOLDER)
    assert found
    for name, file in found.items():
        append_file(store, file, folder / name)
    return {name: (folder / name).read_bytes() for name in found}


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("local") / "part-00001"
    make(folder, texts(None)).build(None)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_another_machine_goes_on_after_the_last_full_shard(store: Store, s3: LoopbackS3, local: dict[str, bytes], tmp_path: Path) -> None:
    shards = [name for name in local if name.startswith("train/")]
    assert len(shards) > 5
    with machine(store, tmp_path / "one") as lease, pytest.raises(Stop):
        run(store, lease, until=2_000)
    assert read_objects(store, FOLDER) is None
    assert [*(tmp_path / "one").iterdir()] == []
    sent = [key for key in s3.puts() if key.endswith(".bin")]
    assert 1 < len(sent) < len(shards)
    with machine(store, tmp_path / "two") as lease:
        resumed = run(store, lease).resumed_tokens
        assert resumed >= (len(sent) - 1) * SHARD_BYTES // 4
    again = [key for key in s3.puts() if key.endswith(".bin")]
    assert len(again) == len(set(key.partition("-")[2] for key in again)) == len([name for name in local if name.endswith(".bin")])
    assert downloaded(store, tmp_path / "pulled") == local


def test_this_machine_holds_two_shards_and_little_else(
    store: Store, local: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the shards: the document ends, and 37 bytes of lineage for each document in these shards."""
    held: list[tuple[int, int]] = []
    keep = StoreAttempt.keep

    def watched(attempt: StoreAttempt, *given: Any) -> None:
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        shards = sum(path.stat().st_size for path in files if path.name.startswith("shard_"))
        held.append((shards, sum(path.stat().st_blocks * 512 for path in files) - shards))
        keep(attempt, *given)

    monkeypatch.setattr(StoreAttempt, "keep", watched)
    monkeypatch.setattr(encode, "_CHUNKS_PER_TASK", 1)  # a batch is smaller than a shard, as it is with shards of usual sizes
    with machine(store, tmp_path / "one") as lease:
        run(store, lease)
    shards = [name for name in local if name.endswith(".bin")]
    in_shards = len(TEXTS) * (2 * SHARD_BYTES + BATCH_BYTES) // sum(len(local[name]) for name in shards)
    assert len(held) > 8
    assert SHARD_BYTES < max(held)[0] <= 2 * SHARD_BYTES + BATCH_BYTES
    assert max(others for _, others in held) <= 8 * len(TEXTS) + 37 * in_shards + 8 * 4096  # blocks of the disk
    assert downloaded(store, tmp_path / "pulled") == local


def test_a_journal_of_other_settings_or_with_a_damaged_piece_starts_afresh(
    store: Store, s3: LoopbackS3, local: dict[str, bytes], tmp_path: Path
) -> None:
    said: list[str] = []
    with machine(store, tmp_path / "one") as lease, pytest.raises(Stop):
        run(store, lease, until=2_000)
    piece = next(key for key in s3.puts() if "doc_ends.npy.0" in key)
    s3.ask("PUT", f"/{BUCKET}/{piece}", bytes(len(s3.content(piece) or b"")))
    with machine(store, tmp_path / "two") as lease:
        assert run(store, lease, log=said.append).resumed_tokens == 0
    assert any("starting afresh" in line and "sha256" in line for line in said)
    assert downloaded(store, tmp_path / "pulled") == local


@pytest.mark.parametrize(
    ("place", "then"),
    [(place, then) for place in ("before the last check", "between the last shard and the record") for then in ("", "forced", "pruned")],
)
def test_a_machine_that_freezes_before_its_record_and_wakes_changes_nothing(
    place: str, then: str, store: Store, local: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished: list[dict[str, Any]] = []

    def freeze() -> None:
        """Another machine takes over and finishes, while this one stands still."""
        if not finished:
            finished.append({})
            with machine(store, tmp_path / "two", over=True) as other:
                run(store, other)
            if then:
                monkeypatch.setattr(Store, "now", lambda store, key: datetime(2099, 1, 1, tzinfo=UTC))
                remove_garbage(store, find_garbage(store, [FOLDER] if then == "forced" else []))
            if then == "forced":
                with machine(store, tmp_path / "two") as other, pytest.raises(Stop):
                    run(store, other, until=2_000, afresh=True)
            finished.append(dict(read_objects(store, FOLDER) or {}))

    commit, write_if = StoreAttempt.commit, Store.write_if

    def late_commit(attempt: StoreAttempt, publish: Any) -> None:
        freeze()
        commit(attempt, publish)

    def late_record(store: Store, key: str, content: bytes, *, state: str | None) -> str | None:
        if b"meta.json" in content:
            freeze()
        return write_if(store, key, content, state=state)

    if place == "before the last check":
        monkeypatch.setattr(StoreAttempt, "commit", late_commit)
    else:
        monkeypatch.setattr(Store, "write_if", late_record)
    with ExitStack() as stack:
        frozen = stack.enter_context(machine(store, tmp_path / "one"))
        with pytest.raises(LeaseLostError, match="has taken over"):
            run(store, frozen)
    assert len(finished) == 2
    assert (read_objects(store, FOLDER) or {}) == finished[1]
    if then == "pruned":
        assert finished[1] == {}, "the record of the one that was frozen would name objects that are gone"
        with machine(store, tmp_path / "three") as other:
            run(store, other)
        assert downloaded(store, tmp_path / "pulled") == local
        return
    assert {file.key.split("/")[3].partition("-")[0] for file in finished[1].values()} <= {"00001", "00002"}
    assert downloaded(store, tmp_path / "pulled") == local


@pytest.mark.parametrize("is_building", [False, True])
def test_a_machine_that_freezes_between_its_lease_and_its_signature_changes_nothing(
    is_building: bool, store: Store, local: dict[str, bytes], tmp_path: Path
) -> None:
    with machine(store, tmp_path / "one") as frozen:

        def wake() -> None:
            with pytest.raises(LeaseLostError, match="has taken over"):
                run(store, frozen)

        def items() -> Iterator[str]:
            for number, text in enumerate(TEXTS):
                if is_building and number == 1_500:
                    wake()
                yield text

        with machine(store, tmp_path / "two", over=True) as other:
            run(store, other, items=items())
        wake()
    assert downloaded(store, tmp_path / "pulled") == local


def test_a_forced_attempt_that_fails_leaves_the_finished_part(store: Store, local: dict[str, bytes], tmp_path: Path) -> None:
    with machine(store, tmp_path / "one") as lease:
        run(store, lease)
    finished = read_objects(store, FOLDER)
    assert finished
    for name in ("two", "three"):
        with machine(store, tmp_path / name) as lease, pytest.raises(Stop):
            run(store, lease, until=2_000, afresh=True)
        assert read_objects(store, FOLDER) == finished
        assert find_garbage(store, [FOLDER]) == []
    assert downloaded(store, tmp_path / "pulled") == local
    with machine(store, tmp_path / "four") as lease:
        run(store, lease, afresh=True)
    assert {file.key for file in finished.values()} <= {each.key for each in find_garbage(store, [FOLDER])}
    assert downloaded(store, tmp_path / "again") == local


def test_after_a_journal_that_the_builder_rejects_its_own_records_are_resumed(store: Store, tmp_path: Path) -> None:
    with machine(store, tmp_path / "one") as lease, pytest.raises(Stop):
        run(store, lease, until=2_000)
    with machine(store, tmp_path / "two") as lease, pytest.raises(Stop):
        run(store, lease, items=texts(2_000, step=-1), fingerprint="of another Python")
    with machine(store, tmp_path / "three") as lease:
        assert run(store, lease, items=texts(None, step=-1), fingerprint="of another Python").resumed_tokens > 0


def test_a_machine_that_freezes_while_it_builds_cannot_move_the_journal(
    store: Store, local: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def items() -> Iterator[str]:
        for number, text in enumerate(TEXTS):
            if number == 1_500:
                with machine(store, tmp_path / "two", over=True) as other:
                    run(store, other)
            yield text

    with machine(store, tmp_path / "one") as frozen:
        monkeypatch.setattr(frozen, "check", lambda: None)  # it notices nothing by itself
        with pytest.raises(LeaseLostError):
            run(store, frozen, items=items())
    assert downloaded(store, tmp_path / "pulled") == local


def test_a_shard_that_changes_on_the_disk_is_not_sent_as_good(store: Store, tmp_path: Path) -> None:
    def damage(progress: Any) -> None:
        for path in tmp_path.rglob("shard_00001.bin"):
            with open(path, "r+b") as opened:
                opened.write(b"\xff\xff\xff\xff")

    with machine(store, tmp_path / "one") as lease, pytest.raises(NielsCacheError, match=r"shard_00001\.bin: its bytes have changed"):
        run(store, lease, progress=damage)
    assert read_objects(store, FOLDER) is None
