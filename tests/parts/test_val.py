"""The val of a data set in parts is that of one process, and its plan keeps the choice in a file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.artifacts.parts.prune import prune_parts
from niels_cache_assets.sources.jsonl import Jsonl
from niels_cache_assets.sources.reading import part_stream
from niels_cache_assets.sources.val_share import val_mask
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.meta import read_meta
from tests.helpers.parts_project import NAME, PartsProject, build, stream_of
from tests.helpers.tiny import sentences
from tests.parts.test_growth import files_of

PLAN, SHARE = f"plan/{NAME}", "val_frac = 0.2"


@pytest.fixture
def project(tmp_path: Path, tiny_model: Path) -> PartsProject:
    return PartsProject(tmp_path, tiny_model)


@pytest.mark.parametrize(
    ("source", "ending", "more"),
    [
        ("jsonl", "jsonl", ""),
        ("jsonl", "jsonl.zst", 'decontaminate = "exact"'),
        ("parquet", "parquet", 'where = "number != 3"'),
        ("huggingface", "parquet", 'dataset = "of/pages"\nshuffle_buffer = 0\ndecontaminate = "near"'),
        ("huggingface", "jsonl", 'dataset = "of/pages"'),  # this kind shuffles by default
    ],
)
def test_val_and_train_are_those_of_one_process(project: PartsProject, source: str, ending: str, more: str) -> None:
    """Among the rows are blank texts, nulls, and copies of the first documents."""
    for number, size in enumerate([9, 2, 30, 14, 7, 1, 21, 11]):
        texts = [*sentences(size, seed=number), "", None, " \n", *sentences(3)]
        rows, path = [{"number": row, "text": text} for row, text in enumerate(texts)], project.folder / f"texts/f{number}.{ending}"
        lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
        if ending == "parquet":
            pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=9)
        else:
            path.write_bytes(zstandard.compress(lines) if ending.endswith("zst") else lines)
    found, order = {}, sorted if source == "huggingface" and ending == "jsonl" else list
    for parts in (1, 3, 4):
        build(project.graph(parts, f"{SHARE}\n{more}", source=source, root=f"{parts}"))
        cache = project.cache(f"{parts}")
        meta = read_meta(str(cache / "meta.json"))
        same = [meta[key] for key in ("split_rule", "dropped", "documents", "val_tokens", "train_tokens")]
        found[parts] = [same, *(order(files_of(cache, split)) for split in ("val", "train")), order is list and stream_of(cache)]
    assert len(found[1][1]) == (119 - 8 * ("where" in more)) // 5
    assert found[1] == found[3] == found[4]


def test_each_addition_has_a_choice_of_its_own(project: PartsProject) -> None:
    project.write([9, 12, 20])
    project.write([12, 8, 15], first=8, folder="more")
    build(project.graph(2, SHARE))
    documents = [(f"more/f{file:03d}.jsonl", row) for file, size in ((8, 12), (9, 8), (10, 15)) for row in range(size)]
    val = files_of(project.cache(), "val") + [documents[at] for at in np.flatnonzero(val_mask(35, val_frac=0.2, seed=7 + 1))]
    for parts in (1, 3):
        build(project.graph(2, f'{SHARE}\n[[pretrain.{NAME}.added]]\nfiles = ["more/*"]\nparts = {parts}\n'))
        assert files_of(project.cache(), "val") == val
    folder = project.folder / f"cache/pretrain/.parts/{NAME}"
    assert len([*folder.glob("val-*.npy")]) == 2
    build(project.graph(1, SHARE))
    prune_parts(project.graph(1, SHARE), NAME)
    assert not folder.exists()


def test_lost_and_damaged_bits_are_refused_and_made_again_with_the_plan(project: PartsProject) -> None:
    project.write([9, 12, 20])
    found = project.graph(2, SHARE)
    build(found)
    (bits,) = found[PLAN].directory.glob("val-*.npy")
    content, part = bits.read_bytes(), found[f"part/{NAME}/part-00001"]
    for damaged in (None, content[:-1] + bytes([content[-1] ^ 255]), content[:-1]):
        bits.unlink() if damaged is None else bits.write_bytes(damaged)
        with pytest.raises(NielsCacheError, match=rf"{bits.name}.*damaged.*plan.json"):
            materialize(part, force=True)
        (bits.parent / "plan.json").unlink()
        assert [key for key, outcome in build(project.graph(2, SHARE)).items() if outcome.state == "built"] == [PLAN]
        assert bits.read_bytes() == content
    project.write([3], first=3)
    build(project.graph(2, SHARE))
    assert not bits.exists()


def test_processes_count_the_documents_of_each_file(project: PartsProject, monkeypatch: pytest.MonkeyPatch) -> None:
    project.write([9, 0, 20])
    source = Jsonl(files=[str(project.folder / "texts")])
    stream = part_stream.part_stream(source, source.list_files(None), revision=None, text_field="text")
    monkeypatch.setattr(part_stream, "_BYTES_PER_PROCESS", 1)
    assert [*part_stream.count_unsplit(stream, processes=2)] == [9, 0, 20]
