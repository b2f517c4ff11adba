"""The val of a data set in parts: that of one process, whatever the parts, and the files of a plan that keep the choice."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.artifacts.parts.prune import prune_parts
from niels_cache_assets.base.documents import Document
from niels_cache_assets.facts.lineage import read_lineage
from niels_cache_assets.sources.val_share import FractionSplitter, val_mask
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.meta import read_meta
from tests.helpers.parts_project import NAME, PartsProject, build, stream_of
from tests.helpers.tiny import sentences

PLAN = f"plan/{NAME}"


@pytest.fixture
def project(tmp_path: Path, tiny_model: Path) -> PartsProject:
    return PartsProject(tmp_path, tiny_model)


def files_of(cache: Path, split: str) -> list[tuple[str, int]]:
    found = read_lineage(cache / f"{split}_documents.parquet", range(read_meta(str(cache / "meta.json"))["documents"][split]))
    return [(each.file, each.row) for each in found.values()]


def write(folder: Path, number: int, rows: list[dict[str, Any]], ending: str) -> None:
    path = folder / f"f{number:03d}.{ending}"
    if ending == "parquet":
        return pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=9)
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    packed = {"zst": zstandard.compress, "gz": gzip.compress}.get(ending.rpartition(".")[2])
    path.write_bytes(packed(content) if packed else content)


@pytest.mark.parametrize(
    ("source", "ending", "more"),
    [
        ("jsonl", "jsonl", ""),
        ("jsonl", "jsonl.zst", 'decontaminate = "exact"'),
        ("parquet", "parquet", 'where = "number != 3"'),
        ("huggingface", "parquet", 'dataset = "of/pages"\nshuffle_buffer = 0'),
        ("huggingface", "jsonl.gz", 'dataset = "of/pages"\ndecontaminate = "near"'),
    ],
)
def test_val_and_train_are_those_of_one_process(project: PartsProject, source: str, ending: str, more: str) -> None:
    """Among the rows are empty and blank texts, nulls, and copies of the first documents."""
    for number, size in enumerate([9, 2, 30, 14, 7, 1, 21, 11]):
        texts = [*sentences(size, seed=number), "", None, " \n", *sentences(3)]
        write(project.folder / "texts", number, [{"number": row, "text": text} for row, text in enumerate(texts)], ending)
    caches = {}
    for parts in (1, 3, 4):
        build(project.graph(parts, f"val_frac = 0.2\n{more}", source=source, root=f"{parts}"))
        caches[parts] = project.cache(str(parts))
    metas = {parts: read_meta(str(cache / "meta.json")) for parts, cache in caches.items()}
    assert metas[1]["documents"]["val"] == (119 - 8 * ("where" in more)) // 5
    is_shuffled = ending == "jsonl.gz"
    for parts in (3, 4):
        for split in ("val", "train"):
            found, expected = (sorted(files) if is_shuffled else files for files in (files_of(caches[each], split) for each in (parts, 1)))
            assert found == expected
        for key in ("split_rule", "dropped", "documents", "val_tokens", "train_tokens"):
            assert metas[parts][key] == metas[1][key]
        assert is_shuffled or stream_of(caches[parts]) == stream_of(caches[1])


def test_each_addition_has_a_choice_of_its_own(project: PartsProject) -> None:
    project.write([9, 12, 20])
    project.write([12, 8, 15], first=8, folder="more")
    settings = f'val_frac = 0.2\n[[pretrain.{NAME}.added]]\nfiles = ["more/*"]\nparts = {{}}\n'
    build(project.graph(2, "val_frac = 0.2"))
    old = files_of(project.cache(), "val")
    documents = [(f"more/f{file:03d}.jsonl", row) for file, size in ((8, 12), (9, 8), (10, 15)) for row in range(size)]
    added = [documents[at] for at in np.flatnonzero(val_mask(35, val_frac=0.2, seed=7 + 1))]
    for parts in (1, 3):
        build(project.graph(2, settings.format(parts)))
        assert files_of(project.cache(), "val") == old + added
    folder = project.folder / f"cache/pretrain/.parts/{NAME}"
    assert len([*folder.glob("val-*.npy")]) == 2
    build(project.graph(1, "val_frac = 0.2"))
    prune_parts(project.graph(1, "val_frac = 0.2"), NAME)
    assert not folder.exists()


def test_lost_and_damaged_bits_are_refused_and_made_again_with_the_plan(project: PartsProject) -> None:
    project.write([9, 12, 20])
    found = project.graph(2, "val_frac = 0.2")
    build(found)
    (bits,) = found[PLAN].directory.glob("val-*.npy")
    content, part = bits.read_bytes(), found[f"part/{NAME}/part-00001"]
    for damaged in (None, content[:-1] + bytes([content[-1] ^ 255]), content[:-1]):
        bits.unlink() if damaged is None else bits.write_bytes(damaged)
        with pytest.raises(NielsCacheError, match=rf"{bits.name}.*damaged.*plan.json"):
            materialize(part, force=True)
        (bits.parent / "plan.json").unlink()
        assert [key for key, outcome in build(project.graph(2, "val_frac = 0.2")).items() if outcome.state == "built"] == [PLAN]
        assert bits.read_bytes() == content
    project.write([3], first=3)
    build(project.graph(2, "val_frac = 0.2"))
    assert not bits.exists()


def test_any_run_of_documents_has_its_bits() -> None:
    mask = val_mask(61, val_frac=0.3, seed=1).tolist()
    whole = FractionSplitter.of(61, val_frac=0.3, seed=1)
    for first in range(61):
        part = replace(whole, ordinals=range(first, 61))
        sizes = [3, 1, 9, *[1] * 40, 61 - first - 53] if first < 8 else [61 - first]
        batches = part.batches([Document("")] * size for size in sizes)
        assert [document.split == "val" for batch in batches for document in batch] == mask[first:]
