"""Push: what lies at the address, after success, after errors and kills, and when two processes write at once."""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from niels_cache_assets.cli import main
from niels_cache_assets.publish import transfer
from niels_cache_assets.publish.check import check
from niels_cache_assets.publish.pull import pull
from niels_cache_assets.publish.push import LocalBuild, PushResult, open_local_build, prune, push
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import META_NAME
from niels_cache_runtime.remote import store as remote_store
from niels_cache_runtime.remote.record import read_record
from niels_cache_runtime.remote.store import MissingError, RemoteError, check_address, open_store
from tests.helpers import programs
from tests.helpers.loopback_s3 import BUCKET, CODES, PASSING, SECRETS, LoopbackS3
from tests.helpers.messages import missing
from tests.helpers.remote_caches import ADDRESS, RECORD, Caches, keys_of, letters, record_at


def require_nothing_visible() -> None:
    with pytest.raises(MissingError, match="no published cache"):
        record_at()


# one push


def test_each_file_is_one_put_with_its_sha256_and_the_record_is_last(s3: LoopbackS3, caches: Caches) -> None:
    build = letters(caches)
    assert len(build.files) > 8
    pushed = push(build, ADDRESS)
    assert (pushed.state, pushed.sent, pushed.files) == ("published", len(build.files), len(build.files))
    puts = [key for key in s3.puts() if key.startswith("at/letters/") and not key.endswith("conditional-put.txt")]
    assert sorted(puts) == sorted([*keys_of(build), RECORD])
    assert puts[-1] == RECORD
    shard = next(file for file in build.files if file.path == "train/shard_00000.bin")
    assert shard.key == f"{build.meta['content_sha256']}/train/shard_00000.bin"
    _, headers, content = s3.ask("GET", f"/{BUCKET}/at/letters/{shard.key}")
    assert content == (caches.letters / shard.path).read_bytes()
    assert {value for name, value in headers.items() if name.lower() == "x-amz-meta-sha256"} == {hashlib.sha256(content).hexdigest()}
    assert record_at() == build.record
    for each in open_store(ADDRESS).list():
        _, headers, content = s3.ask("GET", f"/{BUCKET}/at/letters/{each.key}")
        assert not any(secret in str(headers) or secret.encode() in content for secret in SECRETS.values())
    s3.requests.clear()
    again = push(build, ADDRESS)
    assert (again.state, again.sent, again.sent_bytes) == ("already there", 0, 0)
    assert {key for key in s3.puts() if "conditional" not in key} == set()


def test_an_object_that_is_cut_or_has_another_hash_is_sent_again_and_other_content_with_repair(s3: LoopbackS3, caches: Caches) -> None:
    build = letters(caches)
    assert push(build, ADDRESS, repair=True).sent == len(build.files)  # without a build at the address, it is a push
    cut, other = (file for file in build.files if file.path in ("train/shard_00000.bin", "train/shard_00001.bin"))
    s3.ask("PUT", f"/{BUCKET}/at/letters/{cut.key}", b"cut")
    s3.ask("PUT", f"/{BUCKET}/at/letters/{other.key}", bytes(other.size))
    found = check(ADDRESS).findings
    assert [finding.object.rpartition("/")[2] for finding in found] == ["shard_00000.bin", "shard_00001.bin"]
    assert push(build, ADDRESS).sent == 2
    assert check(ADDRESS, download=True).findings == []
    s3.ask("PUT", f"/{BUCKET}/at/letters/{other.key}", bytes(other.size), {"x-amz-meta-sha256": other.sha256})
    assert push(build, ADDRESS).sent == 0, "its recorded hash is right"
    (finding,) = check(ADDRESS, download=True).findings
    assert (finding.object.rpartition("/")[2], "--repair" in finding.problem) == ("shard_00001.bin", True)
    done: list[tuple[int, int]] = []
    repaired = push(build, ADDRESS, repair=True, progress=lambda *counts: done.append(counts))
    assert (repaired.state, repaired.sent, repaired.sent_bytes) == ("already there", 1, other.size)
    assert done[-1][0] == done[-1][1]
    assert check(ADDRESS, download=True).findings == []


def test_replace_exchanges_the_record_alone_and_the_old_build_stays_until_prune(s3: LoopbackS3, caches: Caches, tmp_path: Path) -> None:
    old, new = letters(caches), open_local_build(caches.other)
    push(old, ADDRESS)
    with pytest.raises(NielsCacheError, match="--replace"):
        push(new, ADDRESS)
    assert record_at() == old.record
    replaced = push(new, ADDRESS, replace_other=True)
    assert replaced.state == "replaced"
    assert record_at().previous == (old.record.content_sha256,)
    assert all(s3.content(key) is not None for key in keys_of(old) | keys_of(new))
    pruned = prune(ADDRESS)
    assert (list(pruned.builds), pruned.kept) == ([old.record.content_sha256], [])
    assert all(s3.content(key) is None for key in keys_of(old))
    assert record_at().previous == ()
    assert check(ADDRESS, download=True).findings == []
    assert pull(ADDRESS, tmp_path).meta == new.meta


def test_prune_leaves_a_build_that_a_push_may_be_sending(s3: LoopbackS3, caches: Caches) -> None:
    old, new = letters(caches), open_local_build(caches.other)
    push(old, ADDRESS)
    shard = new.files[-1]
    s3.ask("PUT", f"/{BUCKET}/at/letters/{shard.key}", b"begun")
    pruned = prune(ADDRESS)
    assert (pruned.builds, list(pruned.kept)) == ([], [new.record.content_sha256])
    assert s3.content(f"at/letters/{shard.key}") == b"begun"


def test_another_data_set_or_another_object_at_the_address_is_never_replaced(s3: LoopbackS3, caches: Caches) -> None:
    push(open_local_build(caches.chats), ADDRESS)
    with pytest.raises(NielsCacheError, match="sft/chats"):
        push(letters(caches), ADDRESS, replace_other=True)
    s3.ask("PUT", f"/{BUCKET}/at/letters/{META_NAME}", b'{"kind": "other"}')
    with pytest.raises(NielsCacheError, match="not the record"):
        push(letters(caches), ADDRESS, replace_other=True)
    assert s3.content(RECORD) == b'{"kind": "other"}'


def test_a_damaged_file_is_named_and_never_sent(s3: LoopbackS3, own: LocalBuild) -> None:
    shard = own.paths["train/shard_00001.bin"]
    content = bytearray(shard.read_bytes())
    content[7] ^= 1
    shard.write_bytes(content)
    with pytest.raises(NielsCacheError, match=r"shard_00001\.bin.*sha256"):
        push(own, ADDRESS)
    assert [key for key in s3.puts() if key.endswith("shard_00001.bin")] == []
    require_nothing_visible()


@pytest.fixture
def own(caches: Caches, tmp_path: Path) -> LocalBuild:
    """The build of `letters` in a folder that the test may change."""
    shutil.copytree(caches.letters.parents[1], tmp_path / "root")
    return open_local_build(tmp_path / "root/pretrain/letters")


@contextmanager
def before_shard_1(monkeypatch: pytest.MonkeyPatch, change: Callable[[], None]) -> Iterator[None]:
    """Call `change` between the hash of the shard 1 and its PUT."""
    put = remote_store.Store.put

    def late(store: Any, key: str, *arguments: Any, **settings: Any) -> None:
        if key.endswith("train/shard_00001.bin"):
            change()
        put(store, key, *arguments, **settings)

    with monkeypatch.context() as patched:
        patched.setattr(remote_store.Store, "put", late)
        yield


def test_a_file_that_changes_after_its_hash_leaves_no_object(s3: LoopbackS3, own: LocalBuild, monkeypatch: pytest.MonkeyPatch) -> None:
    build = own
    shard = next(file for file in build.files if file.path == "train/shard_00001.bin")
    content = build.paths[shard.path].read_bytes()

    def write(changed: bytes) -> None:
        with open(build.paths[shard.path], "r+b") as opened:  # in place, so the open file sees it
            opened.write(changed)

    with before_shard_1(monkeypatch, lambda: write(bytes(100))), pytest.raises(NielsCacheError, match=r"shard_00001\.bin.*changed"):
        push(build, ADDRESS)
    assert f"at/letters/{shard.key}" in s3.puts()
    assert s3.content(f"at/letters/{shard.key}") is None
    require_nothing_visible()
    write(content)
    with before_shard_1(monkeypatch, lambda: os.utime(build.paths[shard.path])):  # the same bytes may be sent
        push(build, ADDRESS)
    assert check(ADDRESS, download=True).findings == []


def test_a_cache_that_is_rebuilt_during_a_push_is_not_published(s3: LoopbackS3, caches: Caches, own: LocalBuild) -> None:
    shutil.rmtree(own.directory)
    shutil.copytree(caches.other, own.directory)
    with pytest.raises(NielsCacheError, match="was rebuilt"):
        push(own, ADDRESS)
    require_nothing_visible()


def test_a_large_file_is_sent_in_parts_with_its_hash(s3: LoopbackS3, caches: Caches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_store, "SINGLE_PUT_BYTES", 1000)
    build = letters(caches)
    push(build, ADDRESS)
    assert any(method == "POST" and key.endswith(".bin") for method, key in s3.requests)
    assert check(ADDRESS, download=True).findings == []


# cut and killed


@pytest.mark.parametrize("place", [0, 4, 9])
def test_a_push_that_was_cut_shows_nothing_and_the_next_sends_only_the_rest(
    place: int, s3: LoopbackS3, caches: Caches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "THREADS", 1)
    build, sent = letters(caches), itertools.count()

    def decide(method: str, key: str) -> str | None:
        is_file = method == "PUT" and "conditional" not in key
        return "denied" if is_file and next(sent) >= place else None

    s3.decide = decide
    with pytest.raises(RemoteError, match="access is denied"):
        push(build, ADDRESS)
    s3.decide = lambda method, key: None
    require_nothing_visible()
    pushed = push(build, ADDRESS)
    assert pushed.sent == len(build.files) - place
    assert check(ADDRESS, download=True).findings == []


@pytest.mark.remote
@pytest.mark.parametrize("place", [1, 5, 10])
def test_a_killed_push_shows_nothing_and_the_next_one_goes_on(place: int, s3: LoopbackS3, caches: Caches) -> None:
    sent, program = itertools.count(1), None

    def decide(method: str, key: str) -> str | None:
        if method == "PUT" and "conditional" not in key and next(sent) == place:
            assert program is not None
            program.kill()
        return None

    s3.decide = decide
    root = caches.letters.parents[1]
    program = programs.Program("-m", "niels_cache_assets.cli", "push", "letters", ADDRESS, "--cache-dir", root, env=dict(os.environ))
    assert program.wait(120) == -9
    s3.decide = lambda method, key: None
    build = letters(caches)
    if s3.content(RECORD) is None:
        require_nothing_visible()
    pushed = push(build, ADDRESS)
    assert pushed.sent <= len(build.files) - place + 4  # as many as were sent at once
    assert check(ADDRESS, download=True).findings == []


# requests that fail


def test_requests_that_fail_for_a_moment_are_sent_again(s3: LoopbackS3, caches: Caches, tmp_path: Path) -> None:
    number, made = itertools.count(1), []

    def decide(method: str, key: str) -> str | None:
        turn, is_due = divmod(next(number), 20)
        if is_due:
            return None
        made.append(PASSING[turn % len(PASSING)])
        return made[-1]

    s3.decide = decide
    build = letters(caches)
    push(build, ADDRESS)
    assert check(ADDRESS, download=True).findings == []
    assert pull(ADDRESS, tmp_path).meta == build.meta
    assert len(made) >= 3


def test_the_answer_to_the_record_may_be_lost(s3: LoopbackS3, caches: Caches) -> None:
    lost = iter(["lost"])
    s3.decide = lambda method, key: next(lost, None) if (method, key) == ("PUT", RECORD) else None
    assert push(letters(caches), ADDRESS).state == "published"
    assert next(lost, None) is None
    lost = iter(["lost"])
    assert push(open_local_build(caches.other), ADDRESS, replace_other=True).state == "replaced"
    assert next(lost, None) is None
    assert record_at().is_same_build(open_local_build(caches.other).record)


# two at once


def together(*pushes: Callable[[], PushResult]) -> list[PushResult | NielsCacheError]:
    """Call functions at once. Return their results or errors."""

    def call(one: Callable[[], PushResult]) -> PushResult | NielsCacheError:
        try:
            return one()
        except NielsCacheError as error:
            return error

    with ThreadPoolExecutor(len(pushes)) as pool:
        return list(pool.map(call, pushes, timeout=60))


@pytest.mark.parametrize(("first", "names"), [(None, ["letters"] * 2), (None, ["letters", "other"]), ("letters", ["other", "third"])])
def test_of_two_builds_that_are_pushed_at_once_one_wins(first: str | None, names: list[str], s3: LoopbackS3, caches: Caches) -> None:
    """Two pushes of one build both succeed."""
    if first:
        push(open_local_build(getattr(caches, first)), ADDRESS)
    barrier = threading.Barrier(2, timeout=30)

    def decide(method: str, key: str) -> str | None:
        if (method, key) == ("PUT", RECORD):
            barrier.wait()  # until both send the record
        return None

    s3.decide = decide
    builds = [open_local_build(getattr(caches, name)) for name in names]
    found = together(*[lambda build=build: push(build, ADDRESS, replace_other=bool(first)) for build in builds])
    s3.decide = lambda method, key: None
    won = [each for each in found if isinstance(each, PushResult)]
    assert [each.state for each in won] == (["replaced" if first else "published"] * (2 if len(set(names)) == 1 else 1))
    assert [str(each) for each in found if each not in won and "another process" not in str(each)] == []
    assert record_at() == won[0].record
    assert check(ADDRESS, download=True).findings == []


def test_a_push_during_whose_end_its_build_is_pruned_changes_nothing(s3: LoopbackS3, caches: Caches) -> None:
    old, new = letters(caches), open_local_build(caches.other)
    push(old, ADDRESS)
    push(new, ADDRESS, replace_other=True)
    pruned: list[list[str]] = []

    def decide(method: str, key: str) -> str | None:
        if (method, key) == ("PUT", RECORD):
            s3.decide = lambda method, key: None
            pruned.append(list(prune(ADDRESS).builds))
            s3.decide = lambda method, key: "denied" if method == "PUT" else None  # the push ends here
        return None

    s3.decide = decide
    with pytest.raises(RemoteError, match="during the push"):
        push(old, ADDRESS, replace_other=True)
    s3.decide = lambda method, key: None
    assert pruned == [[old.record.content_sha256]]
    assert record_at().is_same_build(new.record)
    assert check(ADDRESS, download=True).findings == []


def test_a_prune_says_that_a_build_was_published_while_its_last_objects_were_deleted(s3: LoopbackS3, caches: Caches) -> None:
    old, new = letters(caches), open_local_build(caches.other)
    push(old, ADDRESS)
    push(new, ADDRESS, replace_other=True)

    def decide(method: str, key: str) -> str | None:
        if method == "POST" and "delete" in key:
            s3.ask("PUT", f"/{BUCKET}/{RECORD}", old.record.content())
        return None

    s3.decide = decide
    with pytest.raises(NielsCacheError, match="published again"):
        prune(ADDRESS)


# stores that refuse


@pytest.mark.parametrize("how", ["unconditional", "not implemented"])
def test_a_bucket_without_conditional_put_is_refused_by_name(how: str, s3: LoopbackS3, caches: Caches) -> None:
    s3.decide = lambda method, key: how if method == "PUT" and "conditional" in key else None
    with pytest.raises(RemoteError, match=rf"^{ADDRESS}: .*conditional PUT"):
        push(letters(caches), ADDRESS)
    assert [key for key in s3.puts() if "conditional" not in key] == []


@pytest.mark.parametrize(("command", "fault"), [("push", "expired"), ("pull", "denied"), ("verify", "unknown key")])
def test_a_refusal_is_one_line_without_secrets(
    fault: str, command: str, s3: LoopbackS3, caches: Caches, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if command != "push":
        push(letters(caches), ADDRESS)
    s3.decide = lambda method, key: fault
    root = str(caches.letters.parents[1])
    more = {"push": ["--cache-dir", root], "pull": ["--out", str(tmp_path / "out")], "verify": []}[command]
    assert main([command, *(["letters"] if command == "push" else []), ADDRESS, *more, "--verbose"]) == 1
    output, errors = capfd.readouterr()
    (line,) = [line for line in errors.splitlines() if line.startswith("niels-cache: error:")]
    assert missing(line, ADDRESS, CODES[fault][1]) == []
    assert not any(secret in output + errors for secret in SECRETS.values())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("address", "keyword"),
    [
        ("s3://user:hidden@bucket/prefix", "password"),
        ("s3://hidden@bucket/prefix", "password"),
        ("s3://bucket/prefix?X-Amz-Signature=hidden", "query"),
        ("ftp://bucket/prefix", "s3://"),
        ("s3://", "bucket"),
        ("s3://bucket", "prefix"),
        ("s3://bucket/a/../b", "stay"),
        ("s3://bucket/a\nb", "character"),
        ("file://host/path", "absolute"),
    ],
)
def test_an_address_that_no_store_has_is_refused(address: str, keyword: str) -> None:
    with pytest.raises(NielsCacheError, match=keyword) as raised:
        check_address(address)
    assert "hidden" not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_missing_bucket_a_dead_endpoint_and_the_missing_extra_are_named(
    s3: LoopbackS3, caches: Caches, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RemoteError, match="no such bucket"):
        push(letters(caches), "s3://nowhere/at/letters")
    monkeypatch.setattr(remote_store, "_RETRIES", 0)
    monkeypatch.setenv("AWS_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(RemoteError, match="cannot be reached"):
        push(letters(caches), ADDRESS)
    monkeypatch.setenv("AWS_ALLOW_HTTP", "false")
    with pytest.raises(RemoteError, match="AWS_ALLOW_HTTP"):
        push(letters(caches), ADDRESS)
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(NielsCacheError, match=r"niels-cache\[remote\]"):
        open_store(ADDRESS)


def test_a_record_that_was_edited_is_refused(s3: LoopbackS3, caches: Caches) -> None:
    push(letters(caches), ADDRESS)
    edited = (s3.content(RECORD) or b"").replace(b'"name": "letters"', b'"name": "lettres"')
    s3.ask("PUT", f"/{BUCKET}/{RECORD}", edited)
    with pytest.raises(NielsCacheError, match="record_sha256"):
        read_record(open_store(ADDRESS))
