"""Pull and verify of an address: what arrives, after success, after errors and kills."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from niels_cache_assets.build_cache import build_pretrain_cache
from niels_cache_assets.cli import main
from niels_cache_assets.publish import pull as pull_module
from niels_cache_assets.publish import transfer
from niels_cache_assets.publish.check import check
from niels_cache_assets.publish.pull import pull
from niels_cache_assets.publish.push import open_local_build, push
from niels_cache_assets.publish.transfer import Tally
from niels_cache_runtime.cache.opening import open_split
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import META_NAME, SPLITS
from niels_cache_runtime.format.meta import content_sha256, encode_meta, write_meta
from niels_cache_runtime.remote import download as pieces_module
from niels_cache_runtime.remote import store as store_module
from niels_cache_runtime.remote.download import stream_with_retries
from niels_cache_runtime.remote.local_copy import LocalCopy
from niels_cache_runtime.remote.record import Record, RemoteFile
from niels_cache_runtime.remote.store import MissingError, RemoteError
from niels_cache_runtime.verify import verify_cache
from tests.helpers import programs
from tests.helpers.loopback_s3 import BUCKET, LoopbackS3
from tests.helpers.parts_project import PartsProject, build
from tests.helpers.remote_caches import ADDRESS, Caches, letters
from tests.helpers.tiny import WideTokenizer, sentences


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_pulled_cache_is_the_pushed_one_and_stands_alone(
    s3: LoopbackS3, caches: Caches, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    push(letters(caches), ADDRESS)
    pulled = pull(ADDRESS, tmp_path / "root")
    assert (pulled.state, pulled.directory) == ("pulled", tmp_path / "root/pretrain/letters")
    assert files_of(pulled.directory) == files_of(caches.letters)
    assert files_of(tmp_path / "root/tokenizer") == files_of(caches.letters.parents[1] / "tokenizer")
    assert verify_cache(tmp_path / "root") == []
    assert main(["verify", "--cache-dir", str(tmp_path / "root")]) == 0
    assert main(["sample", "letters", "--cache-dir", str(tmp_path / "root"), "--seed", "1"]) == 0
    assert len(capfd.readouterr().out) > 500


def test_sft_wide_tokens_and_parts_travel(s3: LoopbackS3, caches: Caches, tmp_path: Path, tiny_model: Path) -> None:
    wide = tmp_path / "wide/pretrain/letters"
    wide.parent.mkdir(parents=True)
    settings = {"max_train_tokens": 3_000, "max_val_tokens": 500, "shard_bytes": 1024, "seed": 1, "shuffle_buffer": None}
    build_pretrain_cache(sentences(80), str(wide), tokenizer=WideTokenizer(), **settings)
    project = PartsProject(tmp_path / "parts", tiny_model)
    project.write([20, 30, 25])
    build(project.graph(2, "val_frac = 0.2"))
    sources = {"sft": caches.chats, "wide": wide, "parts": project.cache()}
    metas = {}
    for name, folder in sources.items():
        address = f"s3://{BUCKET}/{name}"
        push(open_local_build(folder), address)
        assert check(address, download=True).findings == []
        pulled = pull(address, tmp_path / "pulled" / name)
        assert files_of(pulled.directory) == files_of(folder)
        assert verify_cache(tmp_path / "pulled" / name) == []
        metas[name] = pulled.meta
    assert [metas[name]["forms"] for name in sources] == [[], ["uint32"], ["parts"]]
    assert metas["parts"]["val_tokens"] > 0


@pytest.mark.parametrize(("name", "split"), [("letters", "train"), ("chats", "val"), ("pages", "val")])
def test_one_split_is_a_cache_whose_other_split_is_empty(
    name: str, split: str, s3: LoopbackS3, caches: Caches, tmp_path: Path, tiny_model: Path
) -> None:
    folder = {"letters": caches.letters, "chats": caches.chats}.get(name)
    if folder is None:
        project = PartsProject(tmp_path / "parts", tiny_model)
        project.write([20, 30, 25])
        build(project.graph(2, "val_frac = 0.2"))
        folder = project.cache()
    push(open_local_build(folder), ADDRESS)
    (other,) = (each for each in SPLITS if each != split)
    s3.requests.clear()
    pulled = pull(ADDRESS, tmp_path / "root", split=split)  # type: ignore[arg-type]
    assert not any(f"/{other}" in key for method, key in s3.requests)
    assert verify_cache(tmp_path / "root") == []
    whole = json.loads((folder / META_NAME).read_text(encoding="utf-8"))
    assert (pulled.meta[f"{split}_tokens"], pulled.meta[f"{other}_tokens"]) == (whole[f"{split}_tokens"], 0)
    assert whole[f"{other}_tokens"] > 0
    assert pulled.meta["content_sha256"] != whole["content_sha256"]
    if name != "chats":
        assert (open_split(pulled.directory / split).tokens.shard_lengths == open_split(folder / split).tokens.shard_lengths).all()
    assert pull(ADDRESS, tmp_path / "root", split=split).state == "already there"  # type: ignore[arg-type]
    assert pull(ADDRESS, tmp_path / "root", replace_other=True).meta == whole


def test_a_second_pull_fetches_nothing_and_another_build_needs_replace(s3: LoopbackS3, caches: Caches, tmp_path: Path) -> None:
    push(letters(caches), ADDRESS)
    pull(ADDRESS, tmp_path)
    assert (pull(ADDRESS, tmp_path).state, pull(ADDRESS, tmp_path).fetched_bytes) == ("already there", 0)
    push(open_local_build(caches.other), ADDRESS, replace_other=True)
    with pytest.raises(NielsCacheError, match="--replace"):
        pull(ADDRESS, tmp_path)
    assert files_of(tmp_path / "pretrain/letters") == files_of(caches.letters)
    assert pull(ADDRESS, tmp_path, replace_other=True).state == "replaced"
    assert files_of(tmp_path / "pretrain/letters") == files_of(caches.other)


@pytest.mark.parametrize("place", [0, 4])
def test_a_pull_that_was_cut_leaves_the_old_cache_and_goes_on(
    place: int, s3: LoopbackS3, caches: Caches, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "THREADS", 1)
    push(letters(caches), ADDRESS)
    pull(ADDRESS, tmp_path)
    push(open_local_build(caches.other), ADDRESS, replace_other=True)
    fetched, cut = itertools.count(), []

    def decide(method: str, key: str) -> str | None:
        if method == "GET" and f"{open_local_build(caches.other).record.content_sha256}/" in key and "beside" not in key:
            number = next(fetched)
            if number == place:
                return "cut"
            if number > place:
                cut.append(key)
                return "expired"
        return None

    s3.decide = decide
    with pytest.raises(RemoteError, match="expired"):
        pull(ADDRESS, tmp_path, replace_other=True)
    assert cut
    assert files_of(tmp_path / "pretrain/letters") == files_of(caches.letters)
    s3.decide = lambda method, key: None
    pulled = pull(ADDRESS, tmp_path, replace_other=True)
    whole = sum(file.size for file in open_local_build(caches.other).files)
    assert 0 < pulled.fetched_bytes < whole
    assert files_of(tmp_path / "pretrain/letters") == files_of(caches.other)
    assert sorted(path.name for path in (tmp_path / "pretrain").iterdir()) == [".letters.lock", "letters"]


def test_a_changed_byte_is_fetched_once_more_and_then_named(s3: LoopbackS3, caches: Caches, tmp_path: Path) -> None:
    push(letters(caches), ADDRESS)
    shard = next(file for file in letters(caches).files if file.path.endswith("shard_00001.bin"))
    s3.ask("PUT", f"/{BUCKET}/at/letters/{shard.key}", bytes(shard.size), {"x-amz-meta-sha256": shard.sha256})
    s3.requests.clear()
    with pytest.raises(RemoteError, match=r"shard_00001\.bin.*sha256"):
        pull(ADDRESS, tmp_path)
    assert s3.requests.count(("GET", f"at/letters/{shard.key}")) == 2
    assert not (tmp_path / "pretrain/letters").exists()
    assert check(ADDRESS).findings == []
    (found,) = check(ADDRESS, download=True).findings
    assert found.object.endswith("shard_00001.bin")


def test_verify_names_what_is_missing_and_says_what_proves_content(
    s3: LoopbackS3, caches: Caches, capfd: pytest.CaptureFixture[str]
) -> None:
    push(letters(caches), ADDRESS)
    assert main(["verify", ADDRESS]) == 0
    assert "--download" in capfd.readouterr().out
    assert main(["verify", ADDRESS, "--download"]) == 0
    assert "--download" not in capfd.readouterr().out
    gone = letters(caches).files[2]
    s3.ask("DELETE", f"/{BUCKET}/at/letters/{gone.key}")
    assert main(["verify", ADDRESS, "--json"]) == 1
    said = json.loads(capfd.readouterr().out)
    assert [finding["object"] for finding in said["findings"]] == [f"{ADDRESS}/{gone.key}"]
    assert main(["verify", ADDRESS, "--quick"]) == 2
    assert main(["verify", "--download"]) == 2


def test_a_build_that_was_pruned_during_a_pull_is_named(s3: LoopbackS3, caches: Caches, tmp_path: Path) -> None:
    push(letters(caches), ADDRESS)
    gone = letters(caches).files[0]
    s3.ask("DELETE", f"/{BUCKET}/at/letters/{gone.key}")
    with pytest.raises(MissingError, match="is gone"):
        pull(ADDRESS, tmp_path)
    assert not (tmp_path / "pretrain/letters").exists()


def test_a_root_with_another_tokenizer_or_an_unfinished_build_is_refused(s3: LoopbackS3, caches: Caches, tmp_path: Path) -> None:
    push(letters(caches), ADDRESS)
    partial = tmp_path / "busy/pretrain/.letters.partial"
    partial.mkdir(parents=True)
    (partial / "journal.json").write_text("{}", encoding="utf-8")
    with pytest.raises(NielsCacheError, match="unfinished build"):
        pull(ADDRESS, tmp_path / "busy")
    assert (partial / "journal.json").exists()
    pull(ADDRESS, tmp_path / "other")
    shutil.rmtree(tmp_path / "other/pretrain")
    path = tmp_path / "other/tokenizer" / META_NAME
    meta = json.loads(path.read_text(encoding="utf-8"))
    write_meta(str(path), {**{key: value for key, value in meta.items() if key != "meta_sha256"}, "sha256": "0" * 64})
    with pytest.raises(NielsCacheError, match="tokenizer"):
        pull(ADDRESS, tmp_path / "other")


@pytest.mark.remote
@pytest.mark.parametrize("place", [1, 5, 10])
def test_a_killed_pull_goes_on_where_it_stopped(place: int, s3: LoopbackS3, caches: Caches, tmp_path: Path) -> None:
    push(letters(caches), ADDRESS)
    fetched, program = itertools.count(1), None

    def decide(method: str, key: str) -> str | None:
        if method == "GET" and key.count("/") > 2 and next(fetched) == place:
            assert program is not None
            program.kill()
        return None

    s3.decide = decide
    program = programs.Program("-m", "niels_cache_assets.cli", "pull", ADDRESS, "--out", tmp_path / "root", env=dict(os.environ))
    assert program.wait(120) == -9
    assert not (tmp_path / "root/pretrain/letters").exists()
    s3.decide = lambda method, key: None
    pull(ADDRESS, tmp_path / "root")
    assert files_of(tmp_path / "root/pretrain/letters") == files_of(caches.letters)


def test_a_folder_is_an_address_too(s3: LoopbackS3, caches: Caches, tmp_path: Path) -> None:
    address = f"file://{tmp_path}/published/letters"
    with pytest.raises(RemoteError, match="no such folder"):
        pull(address, tmp_path / "root")
    build = letters(caches)
    assert push(build, address).state == "published"
    assert push(build, address).sent == 0
    assert push(open_local_build(caches.other), address, replace_other=True).state == "replaced"
    assert check(address, download=True).findings == []
    assert files_of(pull(address, tmp_path / "root").directory) == files_of(caches.other)


def test_a_pull_writes_no_more_bytes_than_the_record_says() -> None:
    class Longer:
        def name_of(self, key: str) -> str:
            return f"s3://x/{key}"

        def stream(self, key: str, *, start: int = 0) -> Iterator[memoryview]:
            yield from [memoryview(bytes(4))] * 3

    file = RemoteFile("a.bin", "a.bin", 6, "0" * 64)
    found: list[int] = []
    with pytest.raises(RemoteError, match="more than 6 bytes"):
        found.extend(map(len, stream_with_retries(Longer(), file, start=0, tally=Tally(6, None))))
    assert found == [4]


# a store that sends almost nothing


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "STALL_SECONDS", 0.2)
    monkeypatch.setattr(pieces_module, "_FIRST_WAIT_SECONDS", 0.001)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("name", ["meta.json", "train/shard_00000.bin"])
def test_a_store_that_sends_a_byte_now_and_then_ends_a_pull(s3: LoopbackS3, caches: Caches, tmp_path: Path, name: str) -> None:
    push(letters(caches), ADDRESS)
    s3.decide = lambda method, key: "drip" if key.endswith(name) else None
    progress: list[int] = []
    with pytest.raises(RemoteError, match=rf"{name}.*sent only") as raised:
        pull(ADDRESS, tmp_path, progress=lambda done, total: progress.append(done))
    assert raised.value.is_transient
    if "shard" in name:
        dripped = [after - before for before, after in itertools.pairwise(progress) if 0 < after - before < 8]
        assert len(dripped) > 10, "the line of the command shows each byte"


def test_requests_that_fail_are_repeated_after_longer_waits_and_not_for_ever() -> None:
    """Progress of a few bytes does not renew the patience."""
    requests, waits = list[int](), list[float]()

    class Breaking:
        def name_of(self, key: str) -> str:
            return key

        def stream(self, key: str, *, start: int = 0) -> Iterator[memoryview]:
            requests.append(start)
            yield memoryview(b"x")
            raise RemoteError("broken", is_transient=True)

    class Waiting:
        def add(self, count: int) -> None: ...

        def wait(self, seconds: float) -> None:
            waits.append(seconds)

    with pytest.raises(RemoteError, match="broken"):
        list(stream_with_retries(Breaking(), RemoteFile("a.bin", "a.bin", 10**6, "0" * 64), start=0, tally=Waiting()))
    assert requests == [*range(pieces_module._MAX_FAILURES + 1)]
    assert len(waits) == pieces_module._MAX_FAILURES
    assert waits == sorted(set(waits))


# crafted caches and planted files


def publish_crafted(folder: Path, cache: Path, added: dict[str, bytes], *, beside: dict[str, bytes] | None = None) -> str:
    """Publish a cache whose meta.json also lists the files `added`, as objects in a folder. All hashes are right. Return the address."""
    meta = json.loads((cache / META_NAME).read_text(encoding="utf-8"))
    contents = {path: (cache / path).read_bytes() for path in meta["files"]} | added
    meta["files"] = {path: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()} for path, content in contents.items()}
    meta["content_sha256"] = content_sha256(meta["files"])
    written = encode_meta("crafted", meta)
    tokenizer = cache.parents[1] / "tokenizer"
    besides = {f"tokenizer/{path.name}": path.read_bytes() for path in tokenizer.iterdir()} | (beside or {}) | {META_NAME: written}
    record = Record(
        family="pretrain",
        name=cache.name,
        content_sha256=meta["content_sha256"],
        meta_sha256=json.loads(written)["meta_sha256"],
        beside={path: {"bytes": len(each), "sha256": hashlib.sha256(each).hexdigest()} for path, each in besides.items()},
    )
    for file in record.files(json.loads(written)):
        place = folder / file.key
        with suppress(FileExistsError, NotADirectoryError):  # no folder can hold the files of a crafted list
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(contents.get(file.path, b"") if file.path in contents else besides[file.path])
    (folder / META_NAME).write_bytes(record.content())
    return f"file://{folder}"


CRAFTED = {
    "journal.json": b'{"pulled": "x"}',
    "train/shard_00000.bin.part": b"x",
    "train/shard_00000.bin/below": b"x",
    "train/shard_00099.bin": b"xx",
    "train/.hidden": b"x",
    "train_documents/.hidden.parquet": b"x",
    "notes.md": b"x",
}


@pytest.mark.parametrize("name", CRAFTED)
def test_a_crafted_list_of_files_is_refused(caches: Caches, tmp_path: Path, name: str) -> None:
    address = publish_crafted(tmp_path / "published", caches.letters, {name: CRAFTED[name]})
    with pytest.raises(NielsCacheError, match=re.escape(name)):
        pull(address, tmp_path / "root")
    with pytest.raises(NielsCacheError, match=re.escape(name)):
        LocalCopy(tmp_path / "copy").open(address)
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer/journal.json", "tokenizer/below/spm.model", "notes.md"])
def test_a_crafted_list_of_tokenizer_files_is_refused(caches: Caches, tmp_path: Path, name: str) -> None:
    address = publish_crafted(tmp_path / "published", caches.letters, {}, beside={name: b"x"})
    with pytest.raises(NielsCacheError, match="no record"):
        pull(address, tmp_path / "root")
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize(
    ("place", "kind"),
    [
        *(("train/shard_00000.bin", kind) for kind in ("link", "link to nothing", "hard link", "folder", "pipe")),
        ("train/shard_00000.bin.part", "link"),
        ("meta.json.new", "hard link"),
        ("train", "link to a folder"),
        ("notes", "link"),
        (".notes", "pipe"),
        ("", "link to a folder"),
        ("", "pipe"),
    ],
)
def test_what_is_planted_where_a_pull_writes_is_refused(caches: Caches, tmp_path: Path, place: str, kind: str) -> None:
    address = publish_crafted(tmp_path / "published", caches.letters, {})
    (outside := tmp_path / "outside").mkdir()
    (victim := outside / "precious").write_bytes(b"precious")
    cut = tmp_path / "root/pretrain/.letters.partial"
    cut.mkdir(parents=True)
    pull_module._start_journal(cut, json.loads((caches.letters / META_NAME).read_text(encoding="utf-8")))
    if not place:
        shutil.rmtree(cut)
    (planted := cut / place).parent.mkdir(exist_ok=True)
    if kind == "hard link":
        os.link(victim, planted)
    elif kind == "pipe":
        os.mkfifo(planted)
    elif kind == "folder":
        planted.mkdir()
    else:
        planted.symlink_to({"link": victim, "link to nothing": outside / "made", "link to a folder": outside}[kind])
    before = [path.name for path in outside.iterdir()]
    if place:
        with pytest.raises(NielsCacheError, match=re.escape(planted.name)):
            pull(address, tmp_path / "root")
    else:  # the staging folder itself: a pull removes what is there, and begins again
        pull(address, tmp_path / "root")
    assert [path.name for path in outside.iterdir()] == before
    assert victim.read_bytes() == b"precious"
