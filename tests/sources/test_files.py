"""Row and text files: what is found, what is read, and what a mistake in them says."""

import errno
import gzip
import lzma
import os
import pwd
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from niels_cache_assets.sources.errors import SourceUnavailableError
from niels_cache_assets.sources.huggingface import Huggingface
from niels_cache_assets.sources.jsonl import Jsonl
from niels_cache_assets.sources.parquet import Parquet
from niels_cache_assets.sources.reading.compressed import DamagedFileError
from niels_cache_assets.sources.reading.files import SourceFile, files_digest, find_files
from niels_cache_assets.sources.text import Text
from niels_cache_assets.sources.types import PretrainSource
from niels_cache_runtime.errors import NielsCacheError
from tests.helpers.hub_repositories import fineweb_row, json_lines
from tests.helpers.read_sources import COMPRESS, one_file, read

ROWS = [fineweb_row(0, row) for row in range(7)]


@pytest.mark.parametrize("suffix", [*COMPRESS, ".Bz2"])
def test_files_of_several_compressed_streams_are_read_to_the_end(tmp_path: Path, suffix: str) -> None:
    compress = COMPRESS[suffix.lower()]
    files = one_file(tmp_path, f"a.jsonl{suffix}", b"".join(compress(json_lines([row])) for row in ROWS))
    documents, _ = read(Jsonl(files=files))
    assert [(document.text, document.source_id, document.file, document.row) for document in documents] == [
        (row["text"], row["id"], f"a.jsonl{suffix}", number) for number, row in enumerate(ROWS)
    ]


@pytest.mark.parametrize("suffix", COMPRESS)
def test_large_and_highly_compressed_streams_come_out_whole(tmp_path: Path, suffix: str) -> None:
    size = 5_000_000
    content = COMPRESS[suffix](b"x" * size) + COMPRESS[suffix](b"") + COMPRESS[suffix](b"y" * size)
    ((text, *_),) = read(Text(files=one_file(tmp_path, f"a.txt{suffix}", content)))[0]
    assert text == "x" * size + "y" * size


PADDING = {".gz": 3, ".xz": 4}  # zero bytes that may follow a stream


@pytest.mark.parametrize("harm", ["header", "cut header", "garbage", "zeros", "one letter", "empty"])
@pytest.mark.parametrize("suffix", COMPRESS)
def test_damage_behind_a_whole_stream_fails_or_is_counted(tmp_path: Path, suffix: str, harm: str) -> None:
    whole = [COMPRESS[suffix](json_lines(ROWS[start : start + 3])) for start in (0, 3)]
    follows = {
        "header": b"\0\1\2\3" + whole[1][4:],
        "cut header": whole[1][:3],
        "garbage": b"GARBAGE" * 10,
        "zeros": b"\0" * 5 if suffix != ".gz" else b"\0" * 5 + b"G",
        "one letter": b"a",
    }
    content = b"" if harm == "empty" else whole[0] + follows[harm]
    files = one_file(tmp_path, f"a.jsonl{suffix}", content)
    with pytest.raises(DamagedFileError, match=rf"a\.jsonl{suffix}: damaged .* byte \d+"):
        read(Jsonl(files=files))
    documents, context = read(Jsonl(files=files, keep_damaged=True))
    assert [document.text for document in documents] == ([] if harm == "empty" else [row["text"] for row in ROWS[:3]])
    assert context.report.dropped == {"damaged_file": 1}


@pytest.mark.parametrize("suffix", PADDING)
def test_padding_of_zeros_between_and_behind_streams_is_passed_over(tmp_path: Path, suffix: str) -> None:
    padding = b"\0" * PADDING[suffix] * 10_000
    content = b"".join(COMPRESS[suffix](json_lines([row])) + padding for row in ROWS)
    assert len(read(Jsonl(files=one_file(tmp_path, f"a.jsonl{suffix}", content)))[0]) == len(ROWS)


@pytest.mark.parametrize(
    ("kind", "name", "content", "problem"),
    [
        *((Text, name, b"PK", r": \.\w+ files .*unpack .* \.gz, \.bz2, \.xz, \.zst") for name in ("a.zip", "a.TAR.gz", "a.tgz", "a.lz4")),
        (Jsonl, "a.jsonl", b'{"n": 1, "m": null}', r": .*no field 'text'.*fields: n \(.*\), m \(null\)"),
        *((Jsonl, "a.jsonl", b'{"text": "a"}\n\n' + bad + b"\n", ": line 3 is ") for bad in (b'{"text": "cut', b"[1, 2]", b"not json")),
        (Parquet, "a.parquet", b"garbage" * 100, ""),
        (Huggingface, "a.jsonl.zst", zstandard.compress(json_lines(ROWS)) + zstandard.compress(json_lines(ROWS))[:-8], ": damaged"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_what_is_wrong(
    tmp_path: Path, kind: Callable[..., PretrainSource], name: str, content: bytes, problem: str
) -> None:
    with pytest.raises(NielsCacheError, match=name + problem):
        read(kind(files=one_file(tmp_path, name, content), **({"dataset": "a/b"} if kind is Huggingface else {})))


def test_a_pipe_is_read_once_and_refused_where_it_would_be_read_twice(tmp_path: Path) -> None:
    for name, compress in (("a.jsonl", bytes), ("b.jsonl.gz", gzip.compress)):
        os.mkfifo(tmp_path / name)
        with pytest.raises(NielsCacheError, match=rf"{name}: .*pipe.* text_field"):
            read(Jsonl(files=[str(tmp_path / name)]))
        source = Jsonl(files=[str(tmp_path / name)], text_field="text")
        writer = Thread(target=(tmp_path / name).write_bytes, args=(compress(json_lines(ROWS)),))
        writer.start()
        assert len(read(source)[0]) == len(ROWS)
        writer.join()
        with pytest.raises(NielsCacheError, match=rf"{name}: .*regular file"):
            source.revision({})


@pytest.mark.parametrize("kind", [Jsonl, Parquet])
def test_rows_without_usable_text_are_dropped_and_counted(tmp_path: Path, kind: type[Jsonl | Parquet]) -> None:
    rows: list[dict[str, Any]] = [{"body": "good text", "n": 1}, {"body": None, "n": 2}, {"body": "  ", "n": 3}, {"body": "", "n": 4}]
    content = json_lines([*rows, {"body": 3}, {"body": ["a"]}, {"other": "b"}])
    if kind is Parquet:
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
        content = (tmp_path / "rows.parquet").read_bytes()
    documents, context = read(kind(files=one_file(tmp_path, "rows.any", content)))
    assert [(document.text, document.source_id) for document in documents] == [("good text", "rows.any#0")]
    assert context.report.dropped == {"null_text": 1, "empty": 2} | (
        {} if kind is Parquet else {"non_string_text": 2, "missing_text_field": 1}
    )


@pytest.mark.parametrize("kind", [Jsonl, Parquet])
def test_a_text_field_that_no_row_has_is_an_error_that_lists_the_fields(tmp_path: Path, kind: type[Jsonl | Parquet]) -> None:
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "rows.parquet")
    (tmp_path / "rows.jsonl").write_bytes(json_lines(ROWS))
    files = [str(tmp_path / f"rows.{kind.__name__.lower()}")]
    with pytest.raises(NielsCacheError, match=r"rows\.\w+: no field 'body'; .*text_field .* text, id, dump"):
        read(kind(files=files, text_field="body"))
    documents, _ = read(kind(files=files, text_field="url", id_field="file_path"))
    assert [(document.text, document.source_id) for document in documents] == [(row["url"], row["file_path"]) for row in ROWS]


@pytest.mark.parametrize(
    ("sample_by", "expected"),
    [
        ("document", [("one\ntwo\r\n\n\nthree\n", 0)]),
        ("paragraph", [("one\ntwo", 0), ("three", 1)]),
        ("line", [("one", 0), ("two", 1), ("three", 4)]),
    ],
)
def test_text_files_are_sampled_by_document_paragraph_or_line(tmp_path: Path, sample_by: str, expected: list[tuple[str, int]]) -> None:
    files = one_file(tmp_path, "a.txt", b"one\ntwo\r\n\n\nthree\n")
    documents, context = read(Text.model_validate({"source": "text", "files": files, "sample_by": sample_by}))
    assert [(document.text, document.row) for document in documents] == expected
    assert context.report.dropped == ({"blank_line": 2} if sample_by == "line" else {})
    empty = Text.model_validate({"source": "text", "files": one_file(tmp_path, "b.txt", b""), "sample_by": sample_by})
    assert read(empty)[1].report.dropped == {"empty": 1}


def test_large_documents_do_not_pile_up_in_a_batch(tmp_path: Path) -> None:
    files = one_file(tmp_path, "a.txt", b"\n".join([b"x" * 400_000] * 7))
    from niels_cache_assets.sources.types import StreamContext

    batches = Text(files=files, sample_by="line").documents(StreamContext(seed=1))
    assert [len(batch) for batch in batches] == [3, 3, 1]


@pytest.mark.parametrize("kind", [Jsonl, Parquet, Text])
def test_a_glob_without_a_match_is_an_error_that_names_it(tmp_path: Path, kind: type[Jsonl | Parquet | Text]) -> None:
    source: PretrainSource = kind(files=[str(tmp_path / "*.nothing")])
    for use in (lambda: source.revision({}), lambda: read(source)):
        with pytest.raises(NielsCacheError, match=r"\*\.nothing' .*no file"):
            use()


def test_a_folder_where_files_are_expected_says_what_to_write(tmp_path: Path) -> None:
    with pytest.raises(NielsCacheError, match=rf"{tmp_path}.* folder; name"):
        find_files([str(tmp_path)])


@pytest.mark.parametrize("pattern", ["closed/*.txt", "closed/a.txt", "*/a.txt", "closed/**/*.txt", "open.txt"])
def test_a_folder_or_file_that_may_not_be_read_is_named(pattern: str) -> None:
    """Read as another user, because root may read every file."""
    with tempfile.TemporaryDirectory() as folder:  # pytest's own is closed to other users
        os.chmod(folder, 0o755)
        Path(folder, "closed").mkdir()
        one_file(Path(folder), "closed/a.txt", b"secret")
        one_file(Path(folder), "open.txt", b"secret")
        for name in ("closed", "open.txt"):
            os.chmod(Path(folder, name), 0)
        root = os.geteuid()
        os.seteuid(pwd.getpwnam("nobody").pw_uid if root == 0 else root)
        try:
            with pytest.raises(NielsCacheError, match=rf"{pattern if pattern == 'open.txt' else 'closed'}: .*Permission denied"):
                read(Text(files=[f"{folder}/{pattern}"]))
        finally:
            os.seteuid(root)


def test_a_file_that_vanishes_after_it_was_found_is_named(tmp_path: Path) -> None:
    files = find_files(one_file(tmp_path, "a.txt", b"here"))
    os.remove(files[0].url)
    with pytest.raises(NielsCacheError, match=r"a\.txt: .* \(No such file"):
        files_digest(files)


def test_names_are_relative_to_the_common_folder_before_the_wildcards(tmp_path: Path) -> None:
    for name in ("x/b/2.txt", "x/b/1.txt", "x/a/1.txt", "y/1.txt", "odd[1].txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)

    def names(*patterns: str) -> list[str]:
        return [file.name for file in find_files([str(tmp_path / pattern) for pattern in patterns])]

    assert names("x/*/*.txt") == ["a/1.txt", "b/1.txt", "b/2.txt"]
    assert names("x/b/*.txt") == ["1.txt", "2.txt"]
    assert names("x/b/1.txt") == ["1.txt"]
    assert names("x/**/1.txt", "y/*.txt") == ["x/a/1.txt", "x/b/1.txt", "y/1.txt"]
    assert names("x/b/*.txt", "x/*/1.txt") == ["a/1.txt", "b/1.txt", "b/2.txt"], "each once"
    assert names("odd[1].txt") == ["odd[1].txt"], "a file that is there is meant literally"


def test_fsspec_urls_are_read_like_paths(tmp_path: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe({"/corpus/b.jsonl": json_lines(ROWS[3:]), "/corpus/a.jsonl.gz": gzip.compress(json_lines(ROWS[:3]))})
    source = Jsonl(files=["memory://corpus/*.jsonl*"])
    first = source.revision({})
    documents, _ = read(source)
    assert [document.text for document in documents] == [row["text"] for row in ROWS]
    assert [document.file for document in documents] == ["a.jsonl.gz"] * 3 + ["b.jsonl"] * 4
    memory.pipe("/corpus/b.jsonl", json_lines(ROWS))
    assert source.revision({}) != first
    with pytest.raises(NielsCacheError, match="cannot be mixed"):
        find_files(["memory://corpus/*", *one_file(tmp_path, "a.txt", b"a")])


HTTPClientError = type("HTTPClientError", (Exception,), {"__module__": "botocore.exceptions"})  # of the client of a store


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (TimeoutError(), r".* reached now \(TimeoutError\)"),
        (HTTPClientError("no route"), r".* reached now \(HTTPClientError\)"),
        (OSError(errno.EHOSTUNREACH, os.strerror(errno.EHOSTUNREACH)), r".* reached now \(OSError\)"),
        (OSError(errno.EIO, "Input/output error"), r".* read \(Input/output error\)"),
        (ValueError("no bucket\nand more"), ".* ValueError: no bucket"),
        (RuntimeError("key hf_abcdefghijk is refused"), r".* RuntimeError: key \*\*\* is refused"),
    ],
)
def test_only_what_is_of_the_network_is_called_unreachable(error: Exception, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe("/errors/a.jsonl", json_lines(ROWS))

    def failing(*_: Any, **settings: Any) -> Any:
        raise error

    for method, act in (
        ("_open", lambda: read(Jsonl(files=["memory://errors/a.jsonl"]))),
        ("info", lambda: find_files(["memory://errors/a.jsonl"])),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(type(memory), method, failing)
            with pytest.raises(NielsCacheError, match=rf"a\.jsonl: {message}") as caught:
                act()
        assert isinstance(caught.value, SourceUnavailableError) == ("reached" in message)
        assert "\n" not in str(caught.value)


def test_the_revision_follows_names_and_content_and_not_the_place(tmp_path: Path) -> None:
    revisions = []
    for folder, name, content in (("a", "n.txt", b"one"), ("b", "n.txt", b"one"), ("c", "m.txt", b"one"), ("d", "n.txt", b"two")):
        (tmp_path / folder).mkdir()
        one_file(tmp_path / folder, name, content)
        revisions.append(Text(files=[str(tmp_path / folder / "*.txt")]).revision({}))
    assert revisions[0] == revisions[1]
    assert len(set(revisions)) == 3
    assert Text(files=[str(tmp_path / "a/*.txt")]).identity() == Text(files=[str(tmp_path / "b/*.txt")]).identity()


def test_what_is_no_address_is_one_line() -> None:
    with pytest.raises(NielsCacheError, match=r"'\[::1/x\.jsonl' .*address: .*IPv6"):
        find_files(["http://me:secret@[::1/x.jsonl?key=1"])


def zstd_with_window(content: bytes, log: int) -> bytes:
    """Compress as `zstd --long=LOG` does a stream of unknown size. From 2^32 on, which no compressor writes, the frame is made by hand."""
    if log < 32:
        stream = zstandard.ZstdCompressor(compression_params=zstandard.ZstdCompressionParameters(window_log=log)).compressobj()
        return stream.compress(content) + stream.flush()
    header = b"\x28\xb5\x2f\xfd\x00" + bytes([(log - 10) << 3])
    return header + (len(content) << 3 | 1).to_bytes(3, "little") + content


def xz_with_dictionary(content: bytes, size: int) -> bytes:
    """Compress with a small dictionary, and write a larger one into the header of the block, whose checksum follows it."""
    found = bytearray(lzma.compress(content, filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 20}]))
    assert found[14:16] == b"\x21\x01"  # LZMA2, with one byte of properties
    found[16] = next(bits for bits in range(41) if (2 | bits & 1) << (bits // 2 + 11) >= size)
    end = 12 + (found[12] + 1) * 4 - 4
    found[end : end + 4] = zlib.crc32(found[12:end]).to_bytes(4, "little")
    return bytes(found)


LONG_WINDOWS: dict[str, tuple[Callable[[bytes, int], bytes], tuple[int, ...]]] = {
    ".zst": (zstd_with_window, (27, 28, 31)),
    ".xz": (xz_with_dictionary, (1 << 26, 1 << 29, 1 << 31)),
}


@pytest.mark.parametrize("suffix", LONG_WINDOWS)
def test_windows_of_up_to_2_gib_are_read_whole(tmp_path: Path, suffix: str) -> None:
    compress, sizes = LONG_WINDOWS[suffix]
    for size in sizes:
        file = SourceFile(str(tmp_path / f"a.jsonl{suffix}"), f"a.jsonl{suffix}")
        (tmp_path / file.name).write_bytes(compress(json_lines(ROWS[:3]), size) + compress(json_lines(ROWS[3:]), size))
        assert [document.text for document in read(Jsonl(files=[file.url]))[0]] == [row["text"] for row in ROWS]
        documents, _ = read(Huggingface(dataset="a/b", files=[file.url], shuffle_buffer=0))
        assert len(documents) == len(ROWS)


@pytest.mark.parametrize("suffix", LONG_WINDOWS)
@pytest.mark.parametrize("keep_damaged", [False, True])
def test_a_window_above_2_gib_is_an_error_that_keep_damaged_does_not_hide(tmp_path: Path, suffix: str, keep_damaged: bool) -> None:
    content = zstd_with_window(b'{"text": "a"}\n', 32) if suffix == ".zst" else xz_with_dictionary(b'{"text": "a"}\n', 3 << 30)
    files = one_file(tmp_path, f"a.jsonl{suffix}", COMPRESS[suffix](json_lines(ROWS)) + content)
    with pytest.raises(NielsCacheError, match=r"a\.jsonl.*2 GiB") as raised:
        read(Jsonl(files=files, keep_damaged=keep_damaged))
    assert not isinstance(raised.value, DamagedFileError)
