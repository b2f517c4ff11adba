"""The files of `export olmo`. OLMo-core reads them token by token with the lines that the command prints, and document by document."""

import gzip
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from niels_cache_assets.exchange.writing import ExportPlan
from niels_cache_formats import olmo
from niels_cache_runtime import NielsCacheError
from niels_cache_runtime.format.layout import SPLITS, Split
from tests.helpers import olmo_env
from tests.helpers.exports import OLMO_IMPORTS, WIDE, export, planned, random_documents, read_back, stream_of, write_documents_cache
from tests.helpers.hand_made import EOT, VOCAB_SIZE
from tests.helpers.saying import Saying

DOCUMENTS = {"train": random_documents(300, seed=1), "val": random_documents(40, seed=2)}
LARGE = {"train": random_documents(100, seed=1, vocab_size=100_000), "val": random_documents(20, seed=2, vocab_size=100_000)}
LENGTH = 64  # of a sequence, which its packing wants to be a power of 2; no document is longer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("olmo")


@pytest.fixture(scope="module")
def plan(folder: Path) -> ExportPlan:
    """Some 6,000 tokens for train in shards of 1,000, in four files; beside them another data set whose name begins alike."""
    other = write_documents_cache(folder / "cache" / "notes_train", {"train": random_documents(50, seed=3)})
    export(other, "olmo", folder / "out")
    cache = write_documents_cache(folder / "cache" / "notes", DOCUMENTS)
    assert len(list((cache / "train").iterdir())) >= 6
    return export(cache, "olmo", folder / "out", max_bytes=4_000)


@pytest.fixture(scope="module")
def wide(folder: Path) -> ExportPlan:
    """An export whose ids need 32 bits."""
    return export(write_documents_cache(folder / "cache" / "wide", LARGE, **WIDE), "olmo", folder / "wide")


@pytest.fixture(scope="module")
def answers(plan: ExportPlan, wide: ExportPlan, folder: Path) -> list[Any]:
    """OLMo-core's, for all exports. It runs in a separate process, because it needs older versions of libraries that we use too. It
    overwrites the .csv.gz of what it reads, which is therefore a copy.
    """
    shutil.copytree(folder / "out", folder / "read")
    lines = [line.replace(str(folder / "out"), str(folder / "read")) for line in plan.lines]
    requests = [{"lines": asked, "sequence_length": LENGTH} for asked in (lines, list(wide.lines))]
    return list(olmo_env.ask("olmo_reader.py", requests, package="olmo_core", title="OLMo-core", folder=folder))


@pytest.fixture(scope="module")
def theirs(answers: list[Any]) -> Any:
    return answers[0]


def files_of(plan: ExportPlan, split: Split) -> list[str]:
    names = [file.name for file in plan.files if file.name.startswith(f"notes_{split}/") and file.name.endswith(".npy")]
    assert len(names) == (4 if split == "train" else 1)
    return names


@pytest.mark.parametrize("split", SPLITS)
def test_its_windows_are_the_caches_tokens(plan: ExportPlan, theirs: Any, split: Split) -> None:
    expected, left = [], 0
    stream = stream_of(DOCUMENTS[split])
    for file in plan.files:  # windows do not cross files, and the end of a file that fills none is left out
        if file.name in files_of(plan, split):
            assert file.tokens
            tokens, stream = stream[: file.tokens], stream[file.tokens :]
            expected += [tokens[start : start + LENGTH] for start in range(0, len(tokens) - LENGTH + 1, LENGTH)]
            left += len(tokens) % LENGTH
    assert not stream
    assert theirs["splits"][split]["windows"] == expected
    assert len(expected) * LENGTH + left == len(stream_of(DOCUMENTS[split]))
    assert len(expected) > (80 if split == "train" else 8)
    assert theirs["splits"][split]["vocab_size"] == VOCAB_SIZE


@pytest.mark.parametrize("split", SPLITS)
def test_its_windows_have_tokens_of_32_bits(wide: ExportPlan, answers: list[Any], split: Split) -> None:
    assert all(line.endswith("dtype=NumpyDatasetDType.uint32)") for line in wide.lines[2:])
    theirs, stream = answers[1]["splits"][split], stream_of(LARGE[split])
    assert [token for window in theirs["windows"] for token in window] == stream[: len(stream) // LENGTH * LENGTH]
    assert max(stream) > 1 << 16
    (ends,) = theirs["documents_by_eos"].values()
    assert len(ends) == len(LARGE[split])


@pytest.mark.parametrize("split", SPLITS)
def test_documents_are_the_same_by_their_eot_and_by_the_metadata(theirs: Any, split: Split) -> None:
    found = theirs["splits"][split]
    assert found["documents_by_metadata"] == found["documents_by_eos"]
    documents = [
        np.fromfile(path, dtype="<u2")[begin:end].tolist() for path in found["paths"] for begin, end in found["documents_by_metadata"][path]
    ]
    assert documents == DOCUMENTS[split]


@pytest.mark.parametrize("split", SPLITS)
def test_the_metadata_is_what_it_writes_itself(plan: ExportPlan, theirs: Any, folder: Path, split: Split) -> None:
    for name in files_of(plan, split):
        ours, written = ((folder / place / name).with_suffix(".csv.gz").read_bytes() for place in ("out", "read"))
        assert gzip.decompress(ours) == gzip.decompress(written)


# without OLMo-core


def test_metadata_of_many_documents_is_one_gzip_of_known_size_and_bytes(tmp_path: Path) -> None:
    lengths = [1 + index % 7 for index in range(5 * olmo._DOCUMENTS_IN_BLOCK + 3)]
    documents = [[*range(10, 9 + length), EOT] for length in lengths]
    cache = write_documents_cache(tmp_path / "many", {"train": documents}, shard_tokens=5_000)
    export(cache, "olmo", tmp_path / "out", splits=("train",))  # which compares sizes
    ends = np.cumsum(lengths).tolist()
    written = (tmp_path / "out" / "many_train" / "part-00000.csv.gz").read_bytes()
    assert gzip.decompress(written).decode() == "".join(f"{begin},{end}\n" for begin, end in zip([0, *ends[:-1]], ends, strict=True))
    assert written[:10] == b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
    assert written[10:15] == b"\0" + len(rows := written[15 : 15 + int.from_bytes(written[11:13], "little")]).to_bytes(2, "little") + bytes(
        byte ^ 0xFF for byte in written[11:13]
    )
    assert rows.count(b"\n") == olmo._DOCUMENTS_IN_BLOCK
    assert read_back("olmo", tmp_path / "out", "train", name="many") == stream_of(documents)


def test_the_lines_are_python_and_leave_open_what_meta_json_does_not_say(tmp_path: Path) -> None:
    known = planned(write_documents_cache(tmp_path / "cache" / "known", DOCUMENTS), "olmo", tmp_path / "it's")
    assert known.lines == (
        OLMO_IMPORTS,
        f"tokenizer = TokenizerConfig(vocab_size={VOCAB_SIZE}, eos_token_id={EOT}, pad_token_id={EOT})",
        *(
            f'{split} = NumpyFSLDatasetConfig.glob("{tmp_path}/it\'s/known_{split}/*.npy", tokenizer=tokenizer, sequence_length=1024, '
            "dtype=NumpyDatasetDType.uint16)"
            for split in SPLITS
        ),
    )
    assert not any("no value for" in note for note in known.notes)
    documents = {"train": [[10, 11], [12]]}
    without_eot = planned(write_documents_cache(tmp_path / "cache" / "joined", documents, append_eot=False), "olmo", tmp_path / "out")
    assert without_eot.lines[1] == known.lines[1], "the tokenizer has one"
    assert not any("no value for" in note for note in without_eot.notes)
    assert any("OLMO_DATA_PREP_USE_ARRAY_IF_LOCAL=false" in note for note in without_eot.notes)
    fields = {"append_eot": False, "vocab_size": None, "special_token_ids": {"eot": None}}
    cache = write_documents_cache(tmp_path / "cache" / "open", documents, **fields)
    unknown = planned(cache, "olmo", tmp_path / "out")
    assert unknown.lines[1] == "tokenizer = TokenizerConfig(vocab_size=VOCAB_SIZE, eos_token_id=EOS, pad_token_id=EOS)"
    assert Saying("meta.json", "no value for", "VOCAB_SIZE and EOS") in unknown.notes
    assert any("OLMO_DATA_PREP_USE_ARRAY_IF_LOCAL=false" in note for note in unknown.notes)
    for line in (*known.lines, *unknown.lines):
        compile(line, "line", "exec")
    export(cache, "olmo", tmp_path / "out")
    assert gzip.decompress((tmp_path / "out" / "open_train" / "part-00000.csv.gz").read_bytes()) == b"0,2\n2,3\n"


def test_a_file_that_its_positions_cannot_count_is_refused(tmp_path: Path) -> None:
    cache = write_documents_cache(tmp_path / "cache" / "notes", DOCUMENTS)
    with pytest.raises(NielsCacheError, match=r"OLMo-core.* uint32;.* 8589934590"):
        export(cache, "olmo", tmp_path / "out", max_bytes=2**33)
    export(cache, "olmo", tmp_path / "out", max_bytes=2**33 - 2)
