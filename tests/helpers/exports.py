"""Helpers for the tests of exports. They make caches of given documents, and have a plain reader for every format, written from the layout
of the format.
"""

import gzip
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from niels_cache_assets.exchange.formats import ExportSettings, plan_export
from niels_cache_assets.exchange.writing import ExportPlan, write_export
from niels_cache_runtime.format.layout import DOC_ENDS_DTYPE, SPLITS, TOKEN_DTYPES, Split, doc_ends_name, shard_name
from tests.helpers.hand_made import EOT, VOCAB_SIZE, write_meta_of

Documents = Sequence[Sequence[int]]
WIDE = {"token_dtype": "uint32-le", "vocab_size": 100_000}  # of a cache whose ids need 32 bits
OLMO_IMPORTS = "from olmo_core.data import NumpyDatasetDType, NumpyFSLDatasetConfig, TokenizerConfig"  # the first line of an olmo export


def random_documents(count: int, *, seed: int, mean: int = 20, vocab_size: int = VOCAB_SIZE) -> list[list[int]]:
    """Documents of made-up ids, each closed with EOT."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 2 * mean, (count,), generator=generator).tolist()
    return [[*torch.randint(EOT + 1, vocab_size, (length,), generator=generator).tolist(), EOT] for length in lengths]


def write_documents_cache(
    folder: Path, documents: Mapping[str, Documents], *, shard_tokens: int = 1000, token_dtype: str = "uint16-le", **fields: Any
) -> Path:
    """A pretrain cache of these documents by split; a split that is not given is empty."""
    totals, dtype = {}, TOKEN_DTYPES[token_dtype]
    for split in SPLITS:
        given = documents.get(split, [])
        stream = np.array([token for document in given for token in document], dtype=dtype)
        (folder / split).mkdir(parents=True, exist_ok=True)
        for index, start in enumerate(range(0, len(stream), shard_tokens)):
            stream[start : start + shard_tokens].tofile(folder / split / shard_name(index))
        np.save(folder / doc_ends_name(split), np.cumsum([len(document) for document in given]).astype(DOC_ENDS_DTYPE))
        totals[f"{split}_tokens"] = len(stream)
    counts = {split: len(documents.get(split, [])) for split in SPLITS}
    settings = {"kind": "pretrain", "append_eot": True, "documents": counts, "shard_bytes": shard_tokens * dtype.itemsize}
    write_meta_of(folder, **{**settings, "token_dtype": token_dtype, **totals, **fields})
    return folder


def export(cache: Path, format: str, out: Path, *, force: bool = False, **settings: Any) -> ExportPlan:
    """Export the cache, and check that the files have the sizes in the plan."""
    plan = plan_export(cache.name, cache, ExportSettings(format=format, out=out, **settings))
    write_export(plan, force=force)
    assert plan.files
    assert {file.name: file.bytes for file in plan.files} == {file.name: (plan.folder / file.name).stat().st_size for file in plan.files}
    return plan


def planned(cache: Path, format: str, out: Path) -> ExportPlan:
    return plan_export(cache.name, cache, ExportSettings(format=format, out=out))


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file below the folder, including hidden files."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def stream_of(documents: Documents) -> list[int]:
    return [token for document in documents for token in document]


def read_back(format: str, out: Path, split: Split, *, name: str, token_bytes: int = 2) -> list[int]:
    """The split's token stream in an export of both splits, with EOT after each document."""
    return {"megatron": _megatron, "nanogpt": _nanogpt, "llmc": _llmc, "datatrove": _datatrove, "olmo": _olmo, "npy": _npy}[format](
        out, split, name, token_bytes
    )


def _megatron(out: Path, split: Split, name: str, token_bytes: int) -> list[int]:
    stream: list[int] = []
    for path in sorted(out.parent.glob(f"{out.name}_{split}*.bin")):
        code = path.with_suffix(".idx").read_bytes()[17]
        assert code == {2: 8, 4: 4}[token_bytes], "uint16 or int32"
        stream += np.fromfile(path, dtype={8: "<u2", 4: "<i4"}[code]).tolist()
    return stream


def _nanogpt(out: Path, split: Split, name: str, token_bytes: int) -> list[int]:
    return _raw(out / f"{split}.bin", token_bytes)


def _llmc(out: Path, split: Split, name: str, token_bytes: int) -> list[int]:
    stream: list[int] = []
    for path in sorted(out.glob(f"{name}_{split}_*.bin")):
        content = path.read_bytes()
        header = struct.unpack("<256i", content[:1024])
        assert header[:2] == {2: (20240520, 1), 4: (20240801, 7)}[token_bytes]
        assert not any(header[3:])
        assert len(content) == 1024 + token_bytes * header[2]
        stream += np.frombuffer(content, dtype=f"<u{token_bytes}", offset=1024).tolist()
    assert stream[0] == EOT
    return [*stream[1:], EOT]


def _datatrove(out: Path, split: Split, name: str, token_bytes: int) -> list[int]:
    for path in (out / split).glob("*.metadata"):
        assert path.read_text().splitlines()[0].endswith(f"|{token_bytes}")
    return [token for path in sorted((out / split).glob("*.ds")) for token in _raw(path, token_bytes)]


def _olmo(out: Path, split: Split, name: str, token_bytes: int) -> list[int]:
    stream: list[int] = []
    for path in sorted((out / f"{name}_{split}").glob("*.npy")):
        tokens = _raw(path, token_bytes)
        with gzip.open(path.with_suffix(".csv.gz"), "rt") as lines:
            for begin, end in (map(int, line.split(",")) for line in lines):
                assert EOT not in tokens[begin : end - 1]
                stream += tokens[begin:end]
    return stream


def _npy(out: Path, split: Split, name: str, token_bytes: int) -> list[int]:
    arrays = [np.load(path) for path in sorted((out / split).glob("*.npy"))]
    assert {array.dtype.str for array in arrays} == {f"<u{token_bytes}"}
    return np.concatenate(arrays).tolist()


def _raw(path: Path, token_bytes: int) -> list[int]:
    return np.fromfile(path, dtype=f"<u{token_bytes}").tolist()
