"""Every export can be read by the other project. Its own reader is used if it is installed, and otherwise its layout."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from niels_cache_assets.base.beside import load_beside
from niels_cache_assets.exchange import FORMATS
from niels_cache_formats.datatrove import human_tokens
from niels_cache_runtime import DatasetLoader, NielsCacheError
from niels_cache_runtime.format.layout import SPLITS
from tests.helpers import megatron_core
from tests.helpers.exports import WIDE, export, planned, random_documents, read_back, stream_of, write_documents_cache
from tests.helpers.hand_made import EOT, TOKENIZER_SHA256
from tests.helpers.saying import Saying

DATATROVE = "compares with datatrove, which is not installed"
DOCUMENTS = {"train": random_documents(300, seed=1), "val": random_documents(40, seed=2)}

LARGE = {"train": random_documents(300, seed=1, vocab_size=100_000), "val": random_documents(40, seed=2, vocab_size=100_000)}


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Some 6,000 tokens for train in shards of 1,000, some 800 for val."""
    return write_documents_cache(tmp_path / "cache" / "notes", DOCUMENTS)


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    """The same with ids that need 32 bits."""
    return write_documents_cache(tmp_path / "wide" / "notes", LARGE, **WIDE)


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_gives_the_same_tokens_back(cache: Path, wide: Path, tmp_path: Path, format: str) -> None:
    plan = export(cache, format, tmp_path / "narrow" / "x")
    for split in SPLITS:
        assert read_back(format, tmp_path / "narrow" / "x", split, name="notes") == stream_of(DOCUMENTS[split])
    assert sum(file.tokens or 0 for file in plan.files) == len(stream_of(DOCUMENTS["train"])) + len(stream_of(DOCUMENTS["val"]))
    assert not [path.name for path in (tmp_path / "narrow").rglob(".*")]
    limit = {} if format == "nanogpt" else {"max_bytes": 6_000}
    plan = export(wide, format, tmp_path / "out" / "x", **limit)
    for split in SPLITS:
        assert max(stream_of(LARGE[split])) > 1 << 16
        assert read_back(format, tmp_path / "out" / "x", split, name="notes", token_bytes=4) == stream_of(LARGE[split])
    assert format == "nanogpt" or 900 < max(file.tokens or 0 for file in plan.files) <= 1_500, "the limit counts four bytes for each"


def test_the_usual_size_of_a_file_is_a_number_of_tokens_or_of_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for format, limit in (("llmc", {"max_tokens": 1_000}), ("npy", {"max_tokens": 1_000}), ("megatron", {"max_bytes": 2_000})):
        module = load_beside("formats", format)
        monkeypatch.setattr(module, "FORMAT", replace(module.FORMAT, **limit))
    most: dict[str, list[int]] = {}
    for name, fields in (("narrow", {}), ("wide", WIDE)):
        cache = write_documents_cache(tmp_path / name / "notes", DOCUMENTS, **fields)
        for format in ("llmc", "npy", "megatron"):
            plan = planned(cache, format, tmp_path / name / "out" / "x")
            most.setdefault(format, []).append(max(file.tokens or 0 for file in plan.files))
    assert most["llmc"] == most["npy"] == [1_000, 1_000]
    assert 900 < most["megatron"][0] <= 1_000
    assert 400 < most["megatron"][1] <= 500


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=30),
    shard_tokens=st.integers(1, 40),
    file_tokens=st.integers(9, 60),
    format=st.sampled_from([name for name in FORMATS if name != "nanogpt"]),
    token_bytes=st.sampled_from([2, 4]),
)
def test_tokens_come_back_however_shards_and_files_are_cut(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], shard_tokens: int, file_tokens: int, format: str, token_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    documents = [[*range(10, 9 + length), EOT] for length in lengths]
    fields = WIDE if token_bytes == 4 else {}
    cache = write_documents_cache(folder / "cut", {"train": documents, "val": documents[:1]}, shard_tokens=shard_tokens, **fields)
    plan = export(cache, format, folder / "out" / "x", max_bytes=file_tokens * token_bytes)
    assert max(file.tokens or 0 for file in plan.files) <= file_tokens
    assert read_back(format, folder / "out" / "x", "train", name="cut", token_bytes=token_bytes) == stream_of(documents)


# megatron


def test_a_large_megatron_export_is_several_prefixes_of_whole_documents(cache: Path, tmp_path: Path) -> None:
    plan = export(cache, "megatron", tmp_path / "big", splits=("train",), max_bytes=4_000)
    names = [file.name for file in plan.files]
    assert len(names) >= 6
    assert names[:2] == ["big_00000.bin", "big_00000.idx"]
    core = megatron_core.load().indexed
    parts = [core.IndexedDataset(str(tmp_path / name.removesuffix(".bin"))) for name in names if name.endswith(".bin")]
    assert [document.tolist() for part in parts for document in part] == DOCUMENTS["train"]


def test_a_single_shard_may_be_linked_instead_of_copied(tmp_path: Path) -> None:
    cache = write_documents_cache(tmp_path / "cache" / "one", DOCUMENTS, shard_tokens=100_000)
    shard = cache / "train" / "shard_00000.bin"
    for link in ("copy", "reflink", "hardlink"):
        export(cache, "megatron", tmp_path / "x", splits=("train",), link=link, force=True)
        assert (tmp_path / "x.bin").read_bytes() == shard.read_bytes()
        assert (tmp_path / "x.bin").samefile(shard) == (link == "hardlink")
    export(cache, "megatron", tmp_path / "x", splits=("train",), link="hardlink", force=True)
    assert (tmp_path / "x.bin").samefile(shard)


def test_an_export_onto_a_prefix_that_is_there_says_that_indices_of_megatron_core_are_stale(cache: Path, tmp_path: Path) -> None:
    first = export(cache, "megatron", tmp_path / "x", splits=("train",))
    again = export(cache, "megatron", tmp_path / "x", splits=("train",), force=True)
    assert [any("--data-cache-path" in note for note in plan.notes) for plan in (first, again)] == [False, True]


# datatrove


@pytest.mark.parametrize("token_size", [2, 4])
def test_datatroves_writer_writes_the_same_bytes(
    cache: Path, wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token_size: int
) -> None:
    pytest.importorskip("datatrove", reason=DATATROVE)
    _stand_in_for_tokenizers(monkeypatch)
    from datatrove.pipeline.tokens.tokenizer import TokenizedFile, get_output_filename

    export(cache if token_size == 2 else wide, "datatrove", tmp_path / "out", splits=("val",))
    name = get_output_filename("notes", 0, "unshuffled")
    file = TokenizedFile(
        str(tmp_path / "theirs"), name, save_final_metadata=True, tokenizer_name_or_path=f"sha256:{TOKENIZER_SHA256}", token_size=token_size
    )
    for document in (DOCUMENTS if token_size == 2 else LARGE)["val"]:
        file.write(document, None)
    file.close()
    theirs = {path.name: path.read_bytes() for path in (tmp_path / "theirs").iterdir()}
    assert len(theirs) == 3
    assert {path.name: path.read_bytes() for path in (tmp_path / "out" / "val").iterdir()} == theirs


def _stand_in_for_tokenizers(monkeypatch: pytest.MonkeyPatch) -> None:
    """datatrove's writer and merger import `tokenizers` by name and use none of it on tokens that are there already."""
    if "tokenizers" not in sys.modules:
        package, processors = ModuleType("tokenizers"), ModuleType("tokenizers.processors")
        for module, name in ((package, "Tokenizer"), (package, "Encoding"), (processors, "TemplateProcessing")):
            setattr(module, name, object)
        monkeypatch.setitem(sys.modules, "tokenizers", package)
        monkeypatch.setitem(sys.modules, "tokenizers.processors", processors)


@given(st.integers(0, 10**15))
@example(9_995)
@example(999_500)
@example(10**15)
def test_datatroves_tokens_for_people_are_what_it_prints(tokens: int) -> None:
    humanize = pytest.importorskip("humanize", reason=DATATROVE)
    assert human_tokens(tokens) == humanize.metric(tokens, unit="T")


# llm.c, nanoGPT, NumPy


def test_llmc_has_eot_before_each_document_and_shards_of_whole_size(cache: Path, tmp_path: Path) -> None:
    plan = export(cache, "llmc", tmp_path, max_bytes=2_000)
    train = [file for file in plan.files if "_train_" in file.name]
    assert [file.name for file in train] == [f"notes_train_{index:06d}.bin" for index in range(len(train))]
    assert len(train) >= 3
    assert {file.bytes for file in train[:-1]} == {1024 + 2_000}
    stream = np.concatenate([np.fromfile(tmp_path / file.name, dtype="<u2")[512:] for file in train]).tolist()
    assert stream == stream_of([[EOT, *document[:-1]] for document in DOCUMENTS["train"]])
    assert plan.notes[0].startswith(f"EOT ({EOT}) is before")


def test_train_llama3_of_llmc_reads_tokens_of_32_bits(wide: Path, tmp_path: Path) -> None:
    """As its _load_data_shard reads a file: magic and version of the header, then all of the rest as uint32."""
    plan = export(wide, "llmc", tmp_path)
    assert Saying("llm.c", "train_llama3.py", "uint32") in plan.notes
    content = (tmp_path / "notes_train_000000.bin").read_bytes()
    header, tokens = np.frombuffer(content[:1024], dtype=np.int32), np.frombuffer(content[1024:], dtype=np.uint32)
    assert header[:3].tolist() == [20240801, 7, len(tokens)]
    assert tokens.tolist() == stream_of([[EOT, *document[:-1]] for document in LARGE["train"]])


def test_nanogpt_reads_tokens_of_32_bits_with_the_line_that_is_printed(wide: Path, tmp_path: Path) -> None:
    """Its get_batch maps the file of the split again for each batch."""
    plan = export(wide, "nanogpt", tmp_path / "data")
    size, read = plan.lines
    assert size.startswith("meta_vocab_size = 100000 ")
    names: dict[str, Any] = {"os": os, "np": np, "data_dir": str(tmp_path / "data")}
    for split in SPLITS:
        exec(read, {**names, "split": split}, names)
        x = torch.stack([torch.from_numpy((names["data"][start : start + 16]).astype(np.int64)) for start in (0, 5)])
        assert x.tolist() == [stream_of(LARGE[split])[start : start + 16] for start in (0, 5)]


def test_nanogpt_gets_no_line_where_the_vocabulary_is_unknown(tmp_path: Path) -> None:
    plan = export(write_documents_cache(tmp_path / "cache" / "x", DOCUMENTS, vocab_size=None), "nanogpt", tmp_path / "data")
    assert plan.lines == ()
    wide = planned(write_documents_cache(tmp_path / "wide" / "x", LARGE, **{**WIDE, "vocab_size": None}), "nanogpt", tmp_path / "data")
    assert len(wide.lines) == 1, "how to read uint32"
    assert plan.notes[-1].endswith("unknown")


@pytest.mark.parametrize("token_bytes", [2, 4])
def test_npy_files_are_those_of_numpy_and_our_loader_reads_them_like_the_cache(
    cache: Path, wide: Path, tmp_path: Path, token_bytes: int
) -> None:
    cache, documents = (cache, DOCUMENTS) if token_bytes == 2 else (wide, LARGE)
    plan = export(cache, "npy", tmp_path / "out", max_bytes=1_000 * token_bytes)
    train = [plan.folder / file.name for file in plan.files if file.name.startswith("train/")]
    assert len(train) >= 3
    stream = np.array(stream_of(documents["train"]), dtype=f"<u{token_bytes}")
    for index, path in enumerate(train):
        np.save(tmp_path / "numpy.npy", stream[index * 1000 : (index + 1) * 1000])
        assert path.read_bytes() == (tmp_path / "numpy.npy").read_bytes()
    loaders = [DatasetLoader(2, 16, 0, 1, str(folder), "cpu") for folder in (cache / "train", tmp_path / "out" / "train")]
    assert loaders[0].steps_per_epoch == loaders[1].steps_per_epoch > 50
    for _ in range(loaders[0].steps_per_epoch):
        (x, y), (x_exported, y_exported) = (loader.get_batch() for loader in loaders)
        assert x.equal(x_exported)
        assert y.equal(y_exported)


# what cannot be said, and what is said


def test_without_eot_in_the_cache_tokens_stay_as_they_are_and_that_is_said(tmp_path: Path) -> None:
    cache = write_documents_cache(tmp_path / "cache" / "open", {"train": [[10, 11], [12]], "val": [[13]]}, append_eot=False)
    plan = export(cache, "llmc", tmp_path / "out")
    assert np.fromfile(tmp_path / "out" / "open_train_000000.bin", dtype="<u2")[512:].tolist() == [10, 11, 12]
    assert plan.notes[0].startswith("no EOT: ")


def test_an_empty_split_is_left_out_and_an_empty_export_refused(tmp_path: Path) -> None:
    cache = write_documents_cache(tmp_path / "cache" / "half", {"train": [[10, EOT]]})
    plan = export(cache, "nanogpt", tmp_path / "out")
    assert [file.name for file in plan.files] == ["train.bin"]
    assert Saying("val is empty") in plan.notes
    with pytest.raises(NielsCacheError, match="val is empty"):
        export(cache, "nanogpt", tmp_path / "out", splits=("val",))


@pytest.mark.parametrize(
    ("format", "wrong", "message"),
    [
        ("nanogpt", {"max_bytes": 100}, "nanogpt"),
        ("npy", {"max_bytes": 1}, "at least 2"),
        ("llmc", {"max_bytes": 2**33}, r"llm\.c .*int32"),
        ("olmo", {"max_bytes": 4}, r"document \d+ has \d+ tokens, \d+ bytes: raise max_bytes"),
        ("datatrove", {"max_bytes": 4}, r"document \d+ has \d+ tokens, \d+ bytes: raise max_bytes"),
        ("megatron", {"max_bytes": 4}, r"document \d+ has \d+ tokens, \d+ bytes: raise max_bytes"),
    ],
)
def test_a_setting_that_a_format_cannot_keep_is_refused(
    cache: Path, tmp_path: Path, format: str, wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(NielsCacheError, match=message):
        export(cache, format, tmp_path / "out", **wrong)
    assert not (tmp_path / "out").exists()
