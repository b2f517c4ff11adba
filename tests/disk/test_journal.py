"""The files of a stopped build, and how the next build uses them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from pydantic import TypeAdapter

from niels_cache_assets.base.documents import Conversation, Document, Message, SourceReport
from niels_cache_assets.build_cache import Resume, build_pretrain_cache, build_sft_cache, sft_spool
from niels_cache_assets.build_cache import resume as resuming
from niels_cache_assets.build_cache.resume import fingerprint_of_journal, open_journal
from niels_cache_assets.disk import journal as journal_module
from niels_cache_assets.disk.journal import BYTES_VARIABLE, JOURNAL_NAME, Journal, read_journal, write_journal
from niels_cache_assets.disk.lineage_files import LineageWriter, RowSpool
from niels_cache_assets.disk.writers import Files, NpyWriter, ShardWriter
from niels_cache_assets.sources import chat_jsonl as chat
from niels_cache_assets.sources.reading import rows
from niels_cache_assets.sources.types import StreamContext
from niels_cache_assets.streaming import encode
from niels_cache_assets.streaming.feed import Feed, ValShare
from niels_cache_assets.tokenizer.kinds import SentencePieceTokenizer
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import DOC_ENDS_DTYPE, TOKEN_DTYPE, TOKEN_DTYPES
from tests.build_cache.test_determinism import conversations, digests
from tests.helpers.messages import missing
from tests.helpers.tiny import sentences


def opened(folder: Path, *, fingerprint: str = "one", afresh: bool = False, told: list[str] | None = None, **settings: Any) -> Journal:
    log = (told if told is not None else []).append
    return Journal(folder, fingerprint=fingerprint, log=log, afresh=afresh, **settings)


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A folder as a killed build leaves it: one file that has grown since the record, one that has come since, one as it was."""
    journal = opened(tmp_path)
    assert journal.state is None
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "shard").write_bytes(b"12345")
    (tmp_path / "ends").write_bytes(b"1")
    journal.record({"documents": 3}, files={"train/shard": 5, "ends": 1}, share=0.5)
    (tmp_path / "train" / "shard").write_bytes(b"123456789")
    (tmp_path / "later").write_bytes(b"x")
    return tmp_path


ONE = {"bytes": 1, "sha256": "0"}


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_files_are_as_they_were_at_the_record(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(journal_module, "_BLOCK_BYTES", 2)  # they are hashed again in blocks
    journal = opened(recorded, told=told)
    assert (journal.state, journal.share, told) == ({"documents": 3}, 0.5, [])
    files = files_of(recorded)
    del files[JOURNAL_NAME]
    assert files == {"train/shard": b"12345", "ends": b"1"}


def damage_journal(folder: Path) -> None:
    content = (folder / JOURNAL_NAME).read_bytes()
    (folder / JOURNAL_NAME).write_bytes(content.replace(b'"documents": 3', b'"documents": 4'))


def write_as_before(folder: Path) -> None:
    """As the form before this one was: every file by its size, and the finished ones a second time in the state."""
    text = b'{"format": 2, "fingerprint": "one", "state": {}, "files": {"ends": 1}, "sums": {}, "share": null}'
    (folder / JOURNAL_NAME).write_bytes(hashlib.sha256(text).hexdigest().encode() + b"\n" + text + b"\n")


def lead_out(folder: Path) -> None:
    (folder / "ends").unlink()
    (folder / "ends").symlink_to("/etc/hostname")


@pytest.mark.parametrize(
    ("change", "settings", "parts"),
    [
        (lambda folder: None, {"fingerprint": "two"}, ["other settings", "other data"]),
        (lambda folder: None, {"afresh": True}, ["fresh build"]),
        (lambda folder: None, {"parse": TypeAdapter(int).validate_python}, ["another kind of"]),
        (damage_journal, {}, ["no readable journal"]),
        (write_as_before, {}, ["journal", "format of another"]),
        (lambda folder: (folder / JOURNAL_NAME).write_bytes(b""), {}, ["no readable journal"]),
        (lambda folder: (folder / "ends").unlink(), {}, [": ends ", "missing or shorter"]),
        (lambda folder: os.truncate(folder / "train" / "shard", 4), {}, [": train/shard ", "missing or shorter"]),
        (lead_out, {}, [": ends ", "missing or shorter"]),
    ],
)
def test_what_cannot_be_gone_on_with_is_cleared_and_said(
    recorded: Path, change: Callable[[Path], object], settings: dict[str, Any], parts: list[str]
) -> None:
    change(recorded)
    told: list[str] = []
    assert opened(recorded, told=told, **settings).state is None
    assert told
    assert [line for line in told if missing(line, *parts)] == []
    assert list(recorded.iterdir()) == []


def test_a_record_that_was_cut_short_leaves_the_one_before(recorded: Path) -> None:
    (recorded / f"{JOURNAL_NAME}.new").write_bytes(b"half")
    assert opened(recorded).state == {"documents": 3}
    assert not (recorded / f"{JOURNAL_NAME}.new").exists()


@pytest.mark.parametrize("name", ["/etc/passwd", "../outside", "a/../../outside", "a/" + "ü" * 128])
@pytest.mark.parametrize("how", ["files", "finished"])
def test_a_journal_names_no_file_outside_and_no_impossible_one(recorded: Path, name: str, how: str) -> None:
    (recorded / "a").mkdir()
    opened(recorded).record({"documents": 3}, **{"files": {}, how: {name: 0 if how == "files" else ONE}})  # type: ignore[arg-type]
    assert read_journal(recorded) is None


@pytest.mark.parametrize(
    "value",
    [{"share": 5}, {"share": True}, {"documents": -3}, {"attempt": -1}, {"files": {"ends": "8"}}, {"sums": {"ends": [-1, "0"]}}],
    ids=str,
)
def test_a_journal_has_no_value_of_another_type_or_out_of_range(recorded: Path, value: dict[str, Any]) -> None:
    good = read_journal(recorded)
    assert good is not None
    write_journal(recorded, good._replace(sums={"ends": (0, "0")}))
    assert read_journal(recorded) == good._replace(sums={"ends": (0, "0")})
    write_journal(recorded, good._replace(**value))
    assert read_journal(recorded) is None


def test_a_record_is_due_after_so_many_bytes_or_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Journal, "BYTES", 100)
    monkeypatch.setattr(Journal, "REST", 0)
    journal = opened(tmp_path)
    assert [journal.due(written) for written in (0, 99, 100)] == [False, False, True]
    journal.record({}, files={}, bytes_written=100)
    assert [journal.due(written) for written in (100, 199, 200)] == [False, False, True]
    again = opened(tmp_path)
    assert [again.due(written) for written in (150, 249, 250)] == [False, False, True]
    again.seconds = 0.0
    assert again.due(150)


def test_a_record_is_due_after_ten_seconds_without_many_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(journal_module.time, "monotonic", lambda: now)
    journal = opened(tmp_path)
    for now, is_due in ((9.9, False), (10.1, True)):  # noqa: B007
        assert journal.due(1) == is_due
    journal.record({}, files={}, bytes_written=1)
    for now, is_due in ((20.0, False), (20.2, True)):  # noqa: B007
        assert journal.due(2) == is_due


def test_a_record_is_due_behind_a_finished_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Journal, "REST", 0)
    journal = opened(tmp_path)
    (tmp_path / "a").write_bytes(b"1")
    assert [journal.due(0, finished=finished) for finished in (0, 1)] == [False, True]
    journal.record({"row": 1}, files={}, finished={"a": ONE})
    assert [journal.due(0, finished=finished) for finished in (1, 2)] == [False, True]
    again = opened(tmp_path)
    assert [again.due(0, finished=finished) for finished in (1, 2)] == [False, True]


def test_records_rest_fifty_times_as_long_as_they_take_and_at_most_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(journal_module.time, "monotonic", lambda: now)
    journal = opened(tmp_path)
    assert journal.due(1 << 25)
    now = 0.5  # the files are on the disk, and the journal
    journal.record({}, files={}, bytes_written=1 << 25)
    for now, is_due in ((1.0, False), (25.4, False), (25.6, True)):  # noqa: B007
        assert journal.due(1 << 26, finished=1) == is_due
        assert journal.due(1 << 25) == is_due, "the time counts without new bytes, but not before the rest"
    now = 35.6
    journal.record({}, files={}, bytes_written=1 << 26, finished={"a": ONE})
    for now, is_due in ((95.5, False), (95.7, True)):  # noqa: B007
        assert journal.due(1 << 27, finished=2) == is_due


def tokens(count: int) -> np.ndarray:
    return np.arange(count, dtype=TOKEN_DTYPE)


@pytest.mark.parametrize("dtype", TOKEN_DTYPES.values(), ids=str)
@pytest.mark.parametrize("stop", [0, 1, 31, 32, 33, 64, 100])
def test_shards_and_arrays_go_on_from_a_checkpoint(tmp_path: Path, stop: int, dtype: np.dtype) -> None:
    """Both equal the result of a run without a stop. The stop may be before, in, at the end of, or behind a shard of 32 tokens."""
    written: list[tuple[Files, dict[str, bytes]]] = []
    for folder in (tmp_path / "once", tmp_path / "twice"):
        folder.mkdir()
        files: Files = {}
        resume_at = 0
        for end in (100,) if folder.name == "once" else (stop, 100):
            shards = ShardWriter(folder, "train", dtype=dtype, shard_bytes=32 * dtype.itemsize, files=files, resume_at=resume_at)
            ends = NpyWriter(folder, "ends.npy", DOC_ENDS_DTYPE, files, resume_at=resume_at)
            shards.write(tokens(100).astype(dtype)[resume_at:end])
            ends.write(tokens(100)[resume_at:end])
            unfinished = [*shards.unfinished, ends]
            for file in unfinished:
                file.flush()
            assert all(file.path.stat().st_size == file.bytes for file in unfinished)
            if end == 100:
                shards.seal()
                ends.seal()
            for file in unfinished:
                file.abandon()
            resume_at = end
        written.append((files, files_of(folder)))
    assert written[0] == written[1]
    assert len(written[0][0]) == 5


def test_a_build_that_is_killed_again_before_its_first_record_keeps_the_one_before(tmp_path: Path) -> None:
    """An array without items has a header, which is journaled; the next run opens it and is killed before anything of it is on the disk."""
    told: list[str] = []
    killed = []  # never closed, as what was not written yet would be
    for _ in range(3):
        journal = opened(tmp_path, told=told)
        killed.append(NpyWriter(tmp_path, "ends.npy", DOC_ENDS_DTYPE, {}))
        if journal.state is None:
            killed[-1].flush()
            journal.record({"documents": 0}, files={"ends.npy": killed[-1].bytes})
    assert (journal.state, told) == ({"documents": 0}, [])
    for writer in killed:
        writer.abandon()


def test_lineage_has_the_same_bytes_however_it_came_and_whole_row_groups(tmp_path: Path) -> None:
    count, files = 70_000, Files()
    schema = {"source_id": "string", "row": "int64"}
    for name, step in (("small", 300), ("large", 66_000)):
        spool = RowSpool(tmp_path, f"{name}.arrow", schema)
        assert [*spool.read()] == []
        for first in range(0, count, step):
            rows = range(first, min(first + step, count))
            spool.write({"source_id": [f"document {row}" for row in rows], "row": rows})
        writer = LineageWriter(tmp_path, f"{name}.parquet", schema, files)
        for batch in spool.read():
            writer.write_batch(batch)
        writer.seal()
        spool.abandon()
    assert files["small.parquet"] == files["large.parquet"]
    metadata = pq.read_metadata(tmp_path / "small.parquet")
    assert [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)] == [65_536, count - 65_536]
    assert pq.read_table(tmp_path / "small.parquet")["ordinal"].to_pylist() == list(range(count))


class Stopped(Exception):
    """Raised in a source to stop a build."""


BATCH = 40


def batches(context: StreamContext, *, stop_at: int | None, opened_at: list[int]) -> Iterator[list[Document]]:
    """A source that seeks: 1,000 documents with one that is dropped before each batch."""
    first = context.start["row"] if context.start else 0
    opened_at.append(first)
    texts = sentences(1_000)
    for start in range(first, len(texts), BATCH):
        if stop_at is not None and start >= stop_at:
            raise Stopped
        context.report.dropped["empty"] += 1
        context.report.facts["batches"] = context.report.facts.get("batches", 0) + 1
        rows = range(start, min(start + BATCH, len(texts)))
        context.report.position = {"file": "a", "row": rows.stop}
        yield [Document(texts[row], f"{row}", "a", row) for row in rows]


def share(counted: list[int]) -> ValShare:
    return ValShare(val_frac=0.2, seed=3, count=lambda: counted.append(1_000) or 1_000)  # type: ignore[func-returns-value]


BUDGETS: dict[str, Any] = {"max_train_tokens": 9_000, "max_val_tokens": 700, "shard_bytes": 4_096, "seed": 1, "shuffle_buffer": None}


def build(folder: Path, texts: Any, tokenizer: SentencePieceTokenizer, *, resume: Resume | None = None, **changes: Any) -> dict[str, str]:
    resume = resume or Resume(fingerprint="texts")
    build_pretrain_cache(texts, str(folder), tokenizer=tokenizer, resume=resume, threads=1, **{**BUDGETS, **changes})
    return digests(folder)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record after every chunk, and small chunks."""
    monkeypatch.setenv(BYTES_VARIABLE, "0")
    monkeypatch.setattr(encode, "_CHUNK_ITEMS", 30)
    monkeypatch.setattr(encode, "_CHUNKS_PER_TASK", 1)
    monkeypatch.setattr(rows, "BATCH_DOCUMENTS", 30)


@pytest.mark.parametrize("changed", ["python", "sentencepiece", "mwparserfromhell", "langdetect-rs", "numba"])
def test_another_version_of_what_decides_the_bytes_starts_afresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str) -> None:
    told: list[str] = []

    def journal() -> Journal:
        resume = Resume(fingerprint="texts", log=told.append)
        kept = open_journal(tmp_path, resume, fingerprint_of_journal(resume, {}), name="x", state=dict[str, int])
        assert kept is not None
        return kept

    journal().record({"documents": 1}, files={})
    assert journal().state == {"documents": 1}
    installed = resuming.installed_version
    monkeypatch.setattr(resuming, "installed_version", lambda name: "99" if name == changed else installed(name))
    if changed == "python":
        monkeypatch.setattr(resuming.platform, "python_version", lambda: "99")
    assert journal().state is None
    assert missing(told[-1], "starting afresh: ", "another version") == []


@pytest.mark.usefixtures("often")
def test_a_build_of_conversations_says_how_much_of_its_files_it_has_and_how_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizer: SentencePieceTokenizer
) -> None:
    monkeypatch.setattr(rows, "BATCH_DOCUMENTS", 20)
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps({"messages": conversation}) + "\n" for conversation in conversations(400)))
    source = chat.ChatJsonl(files=[str(path)])
    stopping = Feed(lambda context: until(10, source.conversations(context)), StreamContext(seed=1))
    shown: list[float | None] = []
    settings: dict[str, Any] = {"val_frac": 0.1, "seed": 1, "threads": 1, "progress": lambda done: shown.append(done.share)}
    with pytest.raises(Stopped):
        build_sft_cache(stopping, str(tmp_path / "x"), tokenizer=tokenizer, resume=Resume(fingerprint="chats"), **settings)
    recorded = read_journal(tmp_path / ".x.partial")
    assert recorded is not None
    assert recorded.documents in range(100, 201)
    assert recorded.share == pytest.approx(recorded.documents / 400, abs=0.1)
    assert recorded.share in shown


def until(stop_at: int, items: Iterable[Any]) -> Iterator[Any]:
    for number, item in enumerate(items):
        if number == stop_at:
            raise Stopped
        yield item


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"shuffle_buffer": 90},
        {"max_train_tokens": 10**9},
        {"decontaminate": "near", "max_val_tokens": 5_000},
        {"decontaminate": "exact", "max_val_tokens": 100},
    ],
)
def test_a_builder_that_is_given_plain_texts_goes_on(tmp_path: Path, tokenizer: SentencePieceTokenizer, changes: dict[str, Any]) -> None:
    """And says how many tokens were there, so that what it did in so many seconds can be told."""
    texts, told = [*sentences(900), *sentences(300)], list[str]()
    resume = Resume(fingerprint="texts", log=told.append)
    whole = build(tmp_path / "whole" / "x", texts, tokenizer, **changes)
    for stop_at in (20, 300, 400, 560):
        with pytest.raises(Stopped):
            build(tmp_path / "x", until(stop_at, texts), tokenizer, resume=resume, **changes)
    recorded = read_journal(tmp_path / ".x.partial")
    assert recorded is not None
    assert build(tmp_path / "x", iter(texts), tokenizer, resume=resume, **changes) == whole
    assert resume.resumed_tokens == sum(split["tokens"] for split in recorded.state["writer"]["splits"].values()) > 0
    assert sum("resuming x" in line for line in told) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == [".x.lock", "whole", "x"]


@pytest.mark.usefixtures("often")
def test_a_builder_opens_a_source_that_seeks_where_it_was_and_counts_it_once(tmp_path: Path, tokenizer: SentencePieceTokenizer) -> None:
    opened_at: list[int] = []
    counted: list[int] = []

    def feed(stop_at: int | None = None) -> Feed[Document]:
        source = partial(batches, stop_at=stop_at, opened_at=opened_at)
        return Feed(source, StreamContext(seed=0), share=share(counted))

    budgets = {"max_train_tokens": 10**9, "max_val_tokens": 0}
    whole = build(tmp_path / "whole" / "x", feed(), tokenizer, **budgets)
    opened_at.clear()
    counted.clear()
    for stop_at in (600, 900):
        with pytest.raises(Stopped):
            build(tmp_path / "x", feed(stop_at), tokenizer, **budgets)
    assert build(tmp_path / "x", feed(), tokenizer, **budgets) == whole
    assert counted == [1_000]
    assert opened_at[0] == 0
    assert opened_at == sorted(set(opened_at)), "each run begins behind the one before"
    assert json.loads((tmp_path / "x" / "meta.json").read_text())["dropped"] == {"empty": 25}


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("split_by", ["example", "group"])
def test_a_builder_of_conversations_goes_on(
    tmp_path: Path, tokenizer: SentencePieceTokenizer, monkeypatch: pytest.MonkeyPatch, split_by: str
) -> None:
    """In the same bytes, whatever the blocks in which the spool is read."""
    invalid: list[Message] = [{"role": "user", "content": "and then?"}]
    examples = [
        Conversation(invalid if row % 50 == 0 else messages, f"{row}", "a", row, group=f"{row // 3}" if row % 7 else None)
        for row, messages in enumerate(conversations(1_500))
    ]

    def sft(folder: Path, items: Iterable[Conversation], told: list[str]) -> dict[str, str]:
        settings: dict[str, Any] = {"val_frac": 0.2, "seed": 1, "split_by": split_by, "on_invalid": "drop", "threads": 1}
        build_sft_cache(items, str(folder), tokenizer=tokenizer, resume=Resume(fingerprint="a", log=told.append), **settings)
        return digests(folder)

    told: list[str] = []
    whole = sft(tmp_path / "whole" / "x", examples, [])
    monkeypatch.setattr(sft_spool, "_TOKENS_PER_BLOCK", 100)
    monkeypatch.setattr(sft_spool, "_EXAMPLES_PER_BLOCK", 7)
    for stop_at in (800, 1_400):
        with pytest.raises(Stopped):
            sft(tmp_path / "x", until(stop_at, examples), told)
    assert sft(tmp_path / "x", examples, told) == whole
    assert sum("resuming x" in line for line in told) == 2
    assert json.loads((tmp_path / "x" / "meta.json").read_text())["dropped"] == {"no_assistant": 30}


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("damaged", ["train/shard_*", "train_doc_ends.npy", "scratch/train.arrow"])
def test_an_unfinished_file_that_was_damaged_meanwhile_starts_afresh(
    tmp_path: Path, tokenizer: SentencePieceTokenizer, damaged: str
) -> None:
    """And is not hashed as good."""
    texts, told = sentences(1_000), list[str]()
    resume = Resume(fingerprint="texts", log=told.append)
    with pytest.raises(Stopped):
        build(tmp_path / "x", until(900, texts), tokenizer, max_train_tokens=10**9)
    path = max((tmp_path / ".x.partial").glob(damaged))
    content = bytearray(path.read_bytes())
    assert len(content) > 200
    content[200] ^= 0x40
    path.write_bytes(content)
    again = build(tmp_path / "x", texts, tokenizer, max_train_tokens=10**9, resume=resume)
    name = path.relative_to(tmp_path / ".x.partial")
    assert missing(told[0], f"starting afresh: {name} ", "damaged") == []
    assert again == build(tmp_path / "whole" / "x", texts, tokenizer, max_train_tokens=10**9)


def test_a_spool_that_is_damaged_while_it_is_used_is_one_line(tmp_path: Path) -> None:
    spool = RowSpool(tmp_path, "a.arrow", {"row": "int64"})
    spool.write({"row": range(100)})
    spool.flush()
    content = bytearray((tmp_path / "a.arrow").read_bytes())
    content[8:40] = b"\xff" * 32
    (tmp_path / "a.arrow").write_bytes(content)
    with pytest.raises(NielsCacheError, match=r"a\.arrow: the rows .*differ .*--force"):
        [*spool.read()]
    spool.abandon()


@pytest.mark.usefixtures("often")
def test_a_source_that_has_become_shorter_says_so_and_the_build_can_go_on_with_the_right_one(
    tmp_path: Path, tokenizer: SentencePieceTokenizer
) -> None:
    texts = sentences(1_000)
    with pytest.raises(Stopped):
        build(tmp_path / "x", until(950, texts), tokenizer, max_train_tokens=10**9)
    with pytest.raises(NielsCacheError, match=r"shorter .*--force"):
        build(tmp_path / "x", texts[:10], tokenizer, max_train_tokens=10**9)
    whole = build(tmp_path / "whole" / "x", texts, tokenizer, max_train_tokens=10**9)
    assert build(tmp_path / "x", texts, tokenizer, max_train_tokens=10**9) == whole


def test_a_build_without_resume_keeps_no_journal(tmp_path: Path, tokenizer: SentencePieceTokenizer, often: None) -> None:
    with pytest.raises(Stopped):
        build_pretrain_cache(until(300, sentences(1_000)), str(tmp_path / "x"), tokenizer=tokenizer, report=SourceReport(), **BUDGETS)
    assert [path.name for path in tmp_path.iterdir()] == [".x.lock"]
