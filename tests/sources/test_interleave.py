"""One stream mixed from others."""

from collections import Counter
from pathlib import Path
from typing import Any, Literal

import datasets
import numpy as np
import pytest
from pydantic import ValidationError

from niels_cache_assets.sources.fineweb_edu import FinewebEdu
from niels_cache_assets.sources.interleave import Interleave
from niels_cache_assets.sources.jsonl import Jsonl
from niels_cache_assets.sources.text import Text
from niels_cache_assets.sources.types import PretrainSource
from niels_cache_assets.sources.val_share import val_mask
from niels_cache_runtime.errors import NielsCacheError
from tests.helpers.hub_repositories import fineweb_row, json_lines, parquet
from tests.helpers.messages import missing
from tests.helpers.read_sources import read


@pytest.fixture
def siblings(tmp_path: Path) -> dict[str, PretrainSource]:
    (tmp_path / "web.jsonl").write_bytes(json_lines([fineweb_row(0, row) for row in range(60)]))
    (tmp_path / "poem.txt").write_text("\n".join(f"line {row}" for row in range(20)))
    (tmp_path / "mirror.parquet").write_bytes(parquet([fineweb_row(1, row) for row in range(40)]))
    web = Jsonl(files=[str(tmp_path / "web.jsonl")], val_frac=0)
    poem = Text(files=[str(tmp_path / "poem.txt")], sample_by="line", val_frac=0)
    mirror = FinewebEdu(files=[str(tmp_path / "mirror.parquet")], shuffle_buffer=10)
    return {"web": web, "poem": poem, "mirror": mirror, "mix": Interleave(members={"web": 1.0})}


def test_members_are_drawn_by_weight_in_their_own_order(siblings: dict[str, PretrainSource]) -> None:
    source = Interleave(members={"web": 3, "poem": 1})
    documents, _ = read(source, siblings=siblings, revision=source.revision(siblings))
    again, _ = read(source, siblings=siblings)
    other, _ = read(source, seed=43, siblings=siblings)
    assert documents == again
    assert [document.file for document in documents] != [document.file for document in other]
    drawn = Counter(document.file for document in documents)
    assert drawn["web/web.jsonl"] > 1.5 * drawn["poem/poem.txt"] > 0
    assert drawn["web/web.jsonl"] == 60 or drawn["poem/poem.txt"] == 20, "it ends with the first member that ends"
    web = [document for document in documents if document.file == "web/web.jsonl"]
    assert web[0].source_id == fineweb_row(0, 0)["id"]
    assert web[0].text == fineweb_row(0, 0)["text"]


@pytest.mark.parametrize("strategy", ["first_exhausted", "all_exhausted"])
def test_shares_and_the_end_are_those_of_the_library(strategy: Literal["first_exhausted", "all_exhausted"]) -> None:
    counts = {"web": 9_000, "poem": 4_000}
    ours = Interleave(members={"web": 3, "poem": 1}, stopping_strategy=strategy, val_frac=0)
    members: list[Any] = [[(name, row) for row in range(count)] for name, count in counts.items()]
    drawn: list[Any] = [*ours._drawn(members, seed=42)]
    rows = [datasets.Dataset.from_dict({"row": range(count), "of": [name] * count}) for name, count in counts.items()]
    of_library = datasets.interleave_datasets(
        [each.to_iterable_dataset() for each in rows], probabilities=[0.75, 0.25], seed=42, stopping_strategy=strategy
    )
    for found in (drawn, [(row["of"], row["row"]) for row in of_library]):
        assert Counter(name for name, _ in found)["web"] / len(found) == pytest.approx(0.75, abs=0.015), "four deviations"
        last, row = found[-1]
        assert row == counts[last] - 1
        assert last == ("web" if strategy == "first_exhausted" else "poem")
        for name, count in counts.items():
            rows_of = [row for of, row in found if of == name]
            assert rows_of == [number % count for number in range(len(rows_of))], "in their own order, and again from the first one"


def test_all_exhausted_repeats_short_members(siblings: dict[str, PretrainSource]) -> None:
    documents, _ = read(Interleave(members={"mirror": 1, "poem": 1}, stopping_strategy="all_exhausted", val_frac=0), siblings=siblings)
    drawn = Counter(document.source_id for document in documents)
    assert len(drawn) == 60
    assert max(drawn[f"poem.txt#{row}"] for row in range(20)) > 1


@pytest.mark.parametrize("keys", [{}, {"val_frac": 0.1}, {"train_tokens": 5}, {"train_tokens": 5, "val_tokens": 2}])
def test_repeated_documents_cannot_have_a_val_split(keys: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match=r"train and val.* set val_"):
        Interleave(members={"web": 1}, stopping_strategy="all_exhausted", **keys)
    Interleave(members={"web": 1}, stopping_strategy="all_exhausted", train_tokens=5, val_tokens=0)


@pytest.mark.parametrize("rule", [{"val_frac": 0}, {"train_tokens": 9, "val_tokens": 3}])
def test_the_seeded_val_of_members_is_left_out_as_their_own_build_chooses_it(
    siblings: dict[str, PretrainSource], tmp_path: Path, rule: dict[str, float]
) -> None:
    seeded = {**siblings, "poem": Text(files=[str(tmp_path / "poem.txt")], sample_by="line", val_frac=0.3)}
    mix = Interleave(members={"poem": 1, "web": 1}, stopping_strategy="all_exhausted", val_frac=0)
    documents, context = read(mix, seed=7, siblings=seeded)
    val = {f"poem.txt#{row}" for row in np.flatnonzero(val_mask(20, val_frac=0.3, seed=7)).tolist()}
    assert len(val) == 6
    assert {document.source_id for document in documents if document.file == "poem/poem.txt"} == {
        f"poem.txt#{row}" for row in range(20)
    } - val
    assert context.report.dropped == {"member_val": 6}, "counted once, however often the member starts again"
    assert mix.revision(seeded) != mix.revision(siblings)
    whole, _ = read(mix, seed=7, siblings={**seeded, "poem": Text(files=[str(tmp_path / "poem.txt")], sample_by="line", **rule)})
    assert val < {document.source_id for document in whole}


def test_the_revision_follows_the_members(siblings: dict[str, PretrainSource], tmp_path: Path) -> None:
    source = Interleave(members={"web": 1, "poem": 1})
    before = source.revision(siblings)
    (tmp_path / "poem.txt").write_text("another poem")
    assert source.revision(siblings) != before
    with pytest.raises(NielsCacheError, match="changed upstream"):
        read(source, siblings=siblings, revision=before)


@pytest.mark.parametrize(
    ("members", "parts"),
    [
        ({"wbe": 1}, ["'wbe'", "did you mean 'web'?"]),
        ({"mix": 1}, ["'mix'", "itself"]),
        ({"web": 0}, ["weight of 'web'", "is 0"]),
        ({"web": -1}, ["weights", "above 0"]),
    ],
)
def test_members_that_cannot_be_mixed_are_an_error(
    siblings: dict[str, PretrainSource], members: dict[str, float], parts: list[str]
) -> None:
    with pytest.raises(NielsCacheError) as error:
        read(Interleave(members=members), siblings=siblings)
    assert missing(error.value, *parts) == []
