"""Tokens of Megatron-LM become a cache that passes `verify`. It has the known facts about the tokens, and no others."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from niels_cache_assets.cli import main
from niels_cache_formats.megatron_import import Vocabulary, import_megatron
from niels_cache_runtime import NielsCacheError, read_meta
from niels_cache_runtime.format.layout import SPLITS, TOKEN_DTYPE, TOKEN_DTYPES, doc_ends_name, list_shards
from niels_cache_runtime.format.meta import Meta
from niels_cache_runtime.megatron import IndexedDataset, IndexedWriter
from niels_cache_runtime.verify import verify_cache, verify_dataset
from tests.helpers.exports import export, random_documents, stream_of, write_documents_cache
from tests.helpers.hand_made import EOT, IDS, TOKENIZER_SHA256, VOCAB_SIZE, write_cache
from tests.helpers.messages import missing
from tests.helpers.saying import Saying

KNOWN = Vocabulary(tokenizer_sha256=TOKENIZER_SHA256, vocab_size=VOCAB_SIZE, special_ids=IDS)
UNKNOWN = Vocabulary()


def write_indexed(prefix: Path, documents: Any, *, dtype: Any = np.uint16, lengths: dict[int, list[int]] | None = None) -> Path:
    with IndexedWriter(prefix, dtype=dtype) as writer:
        for number, document in enumerate(documents):
            writer.add_document(np.asarray(document, dtype=dtype), lengths=(lengths or {}).get(number))
    return prefix


def imported(folder: Path, *, vocabulary: Vocabulary = UNKNOWN, shard_bytes: int = 1 << 10, **prefixes: Path) -> Meta:
    meta = import_megatron(prefixes, folder, vocabulary=vocabulary, shard_bytes=shard_bytes)  # type: ignore[arg-type]
    assert verify_dataset(folder) == []
    stored = read_meta(str(folder / "meta.json"))
    assert {key: stored[key] for key in meta} == meta
    return meta


def tokens_of(folder: Path, split: str, dtype: np.dtype = TOKEN_DTYPE) -> list[int]:
    return [token for path in list_shards(folder / split) for token in np.fromfile(path, dtype=dtype).tolist()]


def test_an_export_that_comes_back_is_the_same_cache(tmp_path: Path) -> None:
    documents = {"train": random_documents(400, seed=1), "val": random_documents(30, seed=2)}
    cache = write_documents_cache(tmp_path / "cache" / "notes", documents, shard_tokens=1000)
    export(cache, "megatron", tmp_path / "x")
    prefixes = {split: tmp_path / f"x_{split}" for split in SPLITS}
    meta = imported(tmp_path / "back", vocabulary=KNOWN, shard_bytes=2000, **prefixes)
    assert meta["append_eot"] is True
    before = read_meta(str(cache / "meta.json"))
    for key in ("train_tokens", "val_tokens", "documents", "content_sha256", "vocab_size", "special_token_ids", "tokenizer_sha256"):
        assert meta[key] == before[key]
    export(tmp_path / "back", "megatron", tmp_path / "y")
    for ending in ("bin", "idx"):
        assert (tmp_path / f"y_train.{ending}").read_bytes() == (tmp_path / f"x_train.{ending}").read_bytes()


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16, np.uint16, np.int32, np.int64])
def test_every_dtype_becomes_uint16(tmp_path: Path, dtype: Any) -> None:
    documents = [[100, 2], [3], [4, 5, 6]]
    meta = imported(tmp_path / "a", train=write_indexed(tmp_path / "x", documents, dtype=dtype))
    assert meta["token_dtype"] == "uint16-le"
    assert tokens_of(tmp_path / "a", "train") == stream_of(documents)
    assert np.load(tmp_path / "a" / doc_ends_name("train")).tolist() == [2, 3, 6]


@pytest.mark.parametrize(
    ("largest", "vocabulary", "dtype"),
    [
        (65_535, UNKNOWN, "uint16-le"),
        (65_536, UNKNOWN, "uint32-le"),
        (2**31 - 1, UNKNOWN, "uint32-le"),
        (9, Vocabulary(special_ids={"eot": 100_257}), "uint32-le"),
        (9, Vocabulary(vocab_size=65_536), "uint16-le"),
        (9, Vocabulary(vocab_size=65_537), "uint32-le"),
        (99_999, Vocabulary(vocab_size=100_000, special_ids={"eot": 99_999}), "uint32-le"),
    ],
)
@pytest.mark.parametrize("split", SPLITS)
def test_the_vocabulary_or_else_the_largest_token_decides_the_dtype(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, largest: int, vocabulary: Vocabulary, dtype: str, split: str
) -> None:
    monkeypatch.setattr("niels_cache_formats.megatron_import._TOKENS", 2)
    documents = {name: [[5, 6], [7, 8, 9], [largest if name == split else 9]] for name in SPLITS}
    prefixes = {name: write_indexed(tmp_path / name, documents[name], dtype=np.int32) for name in SPLITS}
    meta = imported(tmp_path / "a", vocabulary=vocabulary, **prefixes)
    assert (meta["token_dtype"], meta["vocab_size"]) == (dtype, vocabulary.vocab_size)
    for name in SPLITS:
        assert tokens_of(tmp_path / "a", name, TOKEN_DTYPES[dtype]) == stream_of(documents[name])


def test_a_wider_dtype_may_be_asked_for_and_a_narrow_one_must_hold_all(tmp_path: Path) -> None:
    prefix = write_indexed(tmp_path / "x", [[5, 65_535]], dtype=np.int32)
    narrow = imported(tmp_path / "narrow", train=prefix)
    wide = import_megatron({"train": prefix}, tmp_path / "wide", vocabulary=UNKNOWN, shard_bytes=1 << 10, token_dtype="uint32-le")
    assert (narrow["token_dtype"], wide["token_dtype"]) == ("uint16-le", "uint32-le")
    assert narrow["fingerprint"] != wide["fingerprint"]
    assert tokens_of(tmp_path / "wide", "train", TOKEN_DTYPES["uint32-le"]) == [5, 65_535]
    large = write_indexed(tmp_path / "y", [[5, 65_536]], dtype=np.int32)
    for vocabulary, message in ((UNKNOWN, "token 1 is 65536; .*uint16"), (Vocabulary(vocab_size=65_537), "too narrow .* 65,537")):
        with pytest.raises(NielsCacheError, match=message):
            import_megatron({"train": large}, tmp_path / "z", vocabulary=vocabulary, shard_bytes=1 << 10, token_dtype="uint16-le")
    with pytest.raises(NielsCacheError, match=r"shard_bytes is 1026; .*multiple of 4"):
        import_megatron({"train": large}, tmp_path / "z", vocabulary=UNKNOWN, shard_bytes=1026)


def test_blocks_of_tokens_and_documents_do_not_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = random_documents(200, seed=3)
    prefix = write_indexed(tmp_path / "x", documents, dtype=np.int32)
    whole = imported(tmp_path / "whole" / "a", vocabulary=KNOWN, train=prefix)
    monkeypatch.setattr("niels_cache_formats.megatron_import._TOKENS", 7)
    monkeypatch.setattr("niels_cache_formats.megatron_import._DOCUMENTS", 3)
    assert imported(tmp_path / "blocks" / "a", vocabulary=KNOWN, train=prefix) == whole
    assert whole["documents"] == {"train": 200, "val": 0}
    hint = imported(tmp_path / "hint" / "a", train=prefix)["facts"]
    assert hint == {"every_document_ends_with": EOT}


def test_empty_documents_go_counted_and_sequences_of_a_document_are_joined(tmp_path: Path) -> None:
    prefix = write_indexed(tmp_path / "x", [[], [7, 8, 9], [], [5], []], lengths={1: [1, 2], 2: [], 4: [0, 0]})
    assert len(IndexedDataset(prefix)) == 6
    meta = imported(tmp_path / "a", train=prefix)
    assert meta["dropped"] == {"empty": 3}
    assert meta["facts"] == {"documents_of_several_sequences": 1}
    assert tokens_of(tmp_path / "a", "train") == [7, 8, 9, 5]
    assert np.load(tmp_path / "a" / doc_ends_name("train")).tolist() == [3, 4]


def test_lineage_names_the_documents_of_the_index(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    imported(tmp_path / "a", train=write_indexed(tmp_path / "x", [[7, 8], [], [5]]))
    rows = pq.read_table(tmp_path / "a" / "train_documents.parquet").to_pylist()
    assert rows == [
        {"ordinal": 0, "source_id": "0", "file": "x.bin", "row": 0, "tokens": 2},
        {"ordinal": 1, "source_id": "2", "file": "x.bin", "row": 2, "tokens": 1},
    ]


@pytest.mark.parametrize(
    ("documents", "eot", "append_eot", "facts"),
    [
        ([[7, 2], [8, 2]], 2, True, {}),
        ([[7, 2], [8, 9]], 2, False, {"documents_without_eot": 1, "eot_inside_documents": 0}),
        ([[7, 2, 8, 2], [8, 2]], 2, False, {"documents_without_eot": 0, "eot_inside_documents": 1}),
        ([[7, 2], [8, 2]], None, False, {"every_document_ends_with": 2}),
        ([[7, 2], [8, 9]], None, False, {}),
    ],
)
def test_what_is_said_of_eot_is_what_the_tokens_hold(
    tmp_path: Path, documents: list[list[int]], eot: int | None, append_eot: bool, facts: dict[str, int]
) -> None:
    meta = imported(tmp_path / "a", vocabulary=Vocabulary(special_ids={"eot": eot}), train=write_indexed(tmp_path / "x", documents))
    assert meta["append_eot"] is append_eot
    assert meta["facts"] == facts
    assert meta["special_token_ids"] == {"sys": None, "usr": None, "asst": None, "eot": eot}


@pytest.mark.parametrize(
    ("documents", "dtype", "vocabulary", "message"),
    [
        ([[7], [70_000]], np.int32, Vocabulary(vocab_size=70_000), r"x\.bin: token 1 is 70000; .* 70000"),
        ([[7], [2**31]], np.int64, UNKNOWN, r"x\.bin: token 1 is 2147483648; .*uint32, below 2147483648"),
        ([[7, 8], [-1]], np.int64, UNKNOWN, r"x\.bin: token 2 is -1; .*uint16"),
        ([[7, 50]], np.uint16, KNOWN, r"x\.bin: token 1 is 50; .* 50"),
        ([[7, IDS["usr"], EOT]], np.uint16, KNOWN, r"not imported, .*train/shard_00000\.bin: .* 1 role"),
        ([[]], np.uint16, UNKNOWN, "tokens for train"),
        ([[7]], np.uint16, Vocabulary(vocab_size=2**31 + 1), "vocab_size=2147483649: .*1 to 2147483648"),
        ([[7]], np.uint16, Vocabulary(vocab_size=50, special_ids={"eot": 50}), "eot=50: .*0 to 49"),
    ],
)
def test_what_no_cache_can_hold_is_refused_and_nothing_is_left(
    tmp_path: Path, documents: Any, dtype: Any, vocabulary: Vocabulary, message: str
) -> None:
    with pytest.raises(NielsCacheError, match=message):
        imported(tmp_path / "caches" / "a", vocabulary=vocabulary, train=write_indexed(tmp_path / "x", documents, dtype=dtype))
    assert not (tmp_path / "caches" / "a").exists()
    assert not list((tmp_path / "caches").glob("*.partial")) if (tmp_path / "caches").exists() else True


def test_multimodal_data_sets_are_refused(tmp_path: Path) -> None:
    write_indexed(tmp_path / "x", [[7, 8]])
    with (tmp_path / "x.idx").open("ab") as idx:
        idx.write(b"\1")  # the mode of the sequence
    with pytest.raises(NielsCacheError, match="multimodal"):
        imported(tmp_path / "a", train=tmp_path / "x")


# the command


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache root with a tokenizer, and x.bin and x.idx beside it."""
    for variable in ("NIELS_CACHE_CONFIG", "NIELS_CACHE_ROOT"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("NIELS_CACHE_PROFILE", "quickstart")
    monkeypatch.chdir(tmp_path)
    for prefix in ("x", "y"):
        write_indexed(tmp_path / prefix, [[7, 8, EOT], [9, EOT]])
    return write_cache(tmp_path / "cache")


def run(*arguments: str) -> int:
    return main(["import", "megatron", "x", "--cache-dir", "cache", *arguments])


def test_what_is_unknown_is_said_plainly_and_the_cache_verifies(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--name", "pile", "--val", "y") == 0
    output, errors = capsys.readouterr()
    assert not errors
    assert output.splitlines() == [
        Saying("pile: 5 tokens in 2 documents", "5 in 2 for val", "verified", "cache/pretrain/pile"),
        Saying("tokenizer: unknown (--tokenizer, --tokenizer-sha256): "),
        Saying("vocabulary: unknown (--vocab-size): ", "uint16"),
        Saying("EOT: unknown (--eot)", f"ends with {EOT}"),
    ]
    assert verify_cache(root) == []
    assert main(["status", "--cache-dir", "cache"]) == 1  # nothing of the profile is built
    listed = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.split()}
    assert missing(" ".join(listed["pile"].split()), "pile pretrain complete 5 tokens 5", "not in niels_cache.toml") == []
    assert main(["sample", "pile", "-n", "1", "--tokens", "4", "--seed", "1", "--cache-dir", "cache"]) == 0
    assert "7 8 4 9" in capsys.readouterr().out


def test_the_tokenizer_of_the_cache_root_is_known_by_its_sha256(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--name", "pile", "--tokenizer-sha256", TOKENIZER_SHA256) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        f"tokenizer: {TOKENIZER_SHA256}",
        f"vocabulary: {VOCAB_SIZE} ids",
        Saying(f"EOT: {EOT}, after"),
    ]
    assert verify_cache(root) == []


def test_a_model_says_its_vocabulary_and_eot(tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_indexed(tmp_path / "y", [[7, 8, 9]])
    arguments = ("--profile", "quickstart", "--cache-dir", str(tmp_path / "new"), "--tokenizer", str(tiny_model))
    assert main(["import", "megatron", str(tmp_path / "y"), "--name", "pile", *arguments]) == 0
    output = capsys.readouterr().out
    assert missing(output, "vocabulary: 400 ids", "1 document without it", "0 times inside documents") == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--name", "python_docs"), "configured data set"),
        (("--name", "notes"), "cache/pretrain/notes: "),
        (("--name", "chats"), "cache/sft/chats: "),
        (("--name", "../up"), "letters, digits, _ - ."),
        (("--name", "a", "--tokenizer-sha256", "12"), "64 digits"),
        (("--name", "a", "--tokenizer-sha256", "0" * 64), "another tokenizer"),
        (("--name", "a", "--tokenizer-sha256", TOKENIZER_SHA256, "--vocab-size", "9"), "--vocab-size 9: the tokenizer"),
        (("--name", "a", "--tokenizer", "nowhere.model"), "--tokenizer nowhere.model: "),
        (("--name", "a", "--tokenizer", "x.bin"), "another tokenizer"),
        (("--name", "a", "--tokenizer", "cache"), "--tokenizer cache: "),
        (("--name", "a", "--vocab-size", "0"), "vocab_size=0: "),
        (("--name", "a", "--val", "x"), "for val"),
        (("--name", "a", "--val", "./x"), "./x: "),
        (("--name", "a", "--val", "nowhere"), "nowhere.idx: "),
    ],
)
def test_wrong_use_is_one_line_and_exit_2(root: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str) -> None:
    assert run(*arguments) == 2
    output, errors = capsys.readouterr()
    assert not output
    assert errors.startswith("niels-cache: error: ")
    assert errors.count("\n") == 1
    assert message in errors
    assert not (root / "pretrain" / "a").exists()


def test_a_file_of_the_pair_may_be_given_for_its_prefix(root: Path) -> None:
    assert main(["import", "megatron", "x.idx", "--val", "y.bin", "--name", "pile", "--cache-dir", "cache"]) == 0
    assert read_meta(str(root / "pretrain" / "pile" / "meta.json"))["source"]["prefixes"] == {"train": "x", "val": "y"}


def test_an_imported_data_set_is_replaced_by_force_alone(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--name", "pile") == 0
    assert run("--name", "pile") == 2
    assert missing(capsys.readouterr().err, "exists", "--name", "--force") == []
    assert run("--name", "pile", "--force", "--eot", str(EOT)) == 0
    assert read_meta(str(root / "pretrain" / "pile" / "meta.json"))["append_eot"] is True


def test_files_that_cannot_be_read_are_one_line_and_exit_1(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("x.idx").write_bytes(b"cut")
    assert run("--name", "a") == 1
    errors = capsys.readouterr().err
    assert "x.idx" in errors
    assert errors.count("\n") == 1
