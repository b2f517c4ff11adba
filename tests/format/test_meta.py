"""meta.json: canonical, self-hashed, and read back or refused."""

from pathlib import Path
from typing import Any

import pytest

from niels_cache_runtime import NielsCacheError, read_meta, sha256_file, write_meta
from niels_cache_runtime.cache.opening import listed_files
from niels_cache_runtime.format.layout import list_shards, shard_name
from niels_cache_runtime.format.meta import content_sha256, sha256_text
from niels_cache_runtime.verify import verify_dataset

META: dict[str, Any] = {"dataset_name": "notes", "seed": 42, "source": {"kind": "text", "größe": None}, "dropped": {}}


def test_what_is_written_is_read_back_with_version_and_hash(tmp_path: Path) -> None:
    path = str(tmp_path / "meta.json")
    write_meta(path, META)
    meta = read_meta(path)
    assert {key: meta[key] for key in META} == META
    assert meta["schema_version"] == 1
    assert len(meta["meta_sha256"]) == 64
    assert [file.name for file in tmp_path.iterdir()] == ["meta.json"]


def test_equal_meta_gives_equal_bytes_whatever_the_order_of_keys(tmp_path: Path) -> None:
    write_meta(str(tmp_path / "a"), META)
    write_meta(str(tmp_path / "b"), dict(reversed(META.items())))
    write_meta(str(tmp_path / "c"), read_meta(str(tmp_path / "a")))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes() == (tmp_path / "c").read_bytes()
    assert (tmp_path / "a").read_bytes().endswith(b"}\n")


def test_meta_cut_at_any_byte_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "meta.json"
    write_meta(str(path), META)
    whole = path.read_bytes()
    assert len(whole) > 100
    for kept in range(len(whole) - 1):  # without its last line break it is still whole
        path.write_bytes(whole[:kept])
        with pytest.raises(NielsCacheError, match=r"meta\.json"):
            read_meta(str(path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "no schema_version"),
        ("{}", "no schema_version"),
        ('{"schema_version": "1"}', "no schema_version"),
        ('{"schema_version": 99}', "schema_version is 99"),
        ('{"schema_version": 1}', "meta_sha256"),
        ("\xff", "not valid JSON"),
        ("[" * 100_000, "nested too deeply"),
        ('{"schema_version": 1, "x": NaN}', "a value that"),
        ('{"schema_version": 1, "x": "\\ud800"}', "a value that"),
    ],
    ids=lambda value: value[:40],
)
def test_what_is_not_our_meta_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "meta.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(NielsCacheError, match=message) as caught:
        read_meta(str(tmp_path / "meta.json"))
    assert len(str(caught.value).splitlines()) == 1
    (finding,) = verify_dataset(tmp_path)
    assert finding.path == "meta.json"
    assert message in str(finding)


def test_an_edited_value_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "meta.json"
    write_meta(str(path), META)
    path.write_text(path.read_text().replace("42", "43"))
    with pytest.raises(NielsCacheError, match="edited by hand"):
        read_meta(str(path))


def test_a_missing_file_and_a_folder_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NielsCacheError, match=r"meta\.json.*build"):
        read_meta(str(tmp_path / "meta.json"))
    with pytest.raises(NielsCacheError, match="cannot be read"):
        read_meta(str(tmp_path))
    with pytest.raises(NielsCacheError, match="cannot be hashed"):
        sha256_file(str(tmp_path / "nothing"))


def test_numbers_that_json_does_not_have_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_meta(str(tmp_path / "meta.json"), {"share": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_content_hash_covers_tokens_and_offsets_and_no_lineage() -> None:
    files = {"train/shard_00000.bin": {"bytes": 2, "sha256": "aa"}, "train_doc_ends.npy": {"bytes": 3, "sha256": "bb"}}
    expected = sha256_text("train/shard_00000.bin 2 aa\ntrain_doc_ends.npy 3 bb\n")
    assert content_sha256(files) == expected
    assert content_sha256({"a.parquet": {"bytes": 9, "sha256": "cc"}, **files}) == expected
    assert content_sha256({**files, "train_doc_ends.npy": {"bytes": 4, "sha256": "bb"}}) != expected


@pytest.mark.parametrize("files", [None, [], {"a": 1}, {"a": {"bytes": "1", "sha256": "x"}}, {"a": {"bytes": 1}}])
def test_malformed_file_lists_are_refused(files: object) -> None:
    with pytest.raises(NielsCacheError, match="paths"):
        listed_files({"files": files}, "folder")


def test_shards_are_listed_by_index_and_a_gap_is_refused(tmp_path: Path) -> None:
    assert list_shards(tmp_path) == []
    for name in [shard_name(0), shard_name(1), "shard_00001 copy.bin", "shard_1.bin", "notes.bin"]:
        (tmp_path / name).touch()
    assert [path.name for path in list_shards(tmp_path)] == [shard_name(0), shard_name(1)]
    (tmp_path / shard_name(3)).touch()
    with pytest.raises(NielsCacheError, match=r"shard_00002\.bin is missing"):
        list_shards(tmp_path)
