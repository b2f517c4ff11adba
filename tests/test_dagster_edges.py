"""Dagster knows every input of the graph of artifacts. An asset depends on the assets of the inputs, partition by partition."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from niels_cache_assets.artifacts.graph import Graph, graph
from niels_cache_assets.config.registry import load_registry
from niels_cache_assets.corpus.layout import HASHES
from niels_cache_assets.defs import keys
from niels_cache_assets.defs.assembly import build_defs

PROJECT = """
[dedup]
ranges = {ranges}
[tokenizer]
train_on = ["web", "book"]
[pretrain.web]
source = "jsonl"
files = ["web/*.jsonl"]
prepare = ["clean", "dedup"]
parts = 2
[pretrain.book]
source = "jsonl"
files = ["book/*.jsonl"]
prepare = ["clean", "dedup"]
parts = 2
tokens_in_parts = true
[pretrain.plain]
source = "jsonl"
files = ["plain/*.jsonl"]
parts = 3
val_tokens = 10
[pretrain.whole]
source = "text"
files = ["whole.txt"]
[pretrain.both]
source = "interleave"
members = {{ web = 1, book = 1 }}
prepare = ["clean"]
[blend.mix]
weights = {{ plain = 1, web = 1 }}
num_samples = 10
sequence_length = 16
[sft.chat]
source = "chat_jsonl"
files = ["chat.jsonl"]
"""
ASSETS = {
    "tokenizer": keys.TOKENIZER,
    "corpus_part": keys.CORPUS_PARTS,
    "corpus": keys.DOCUMENTS,
    "corpus/duplicates": keys.DUPLICATES,
    HASHES: keys.HASHES,
    "range": keys.RANGES,
    "report": keys.REPORT,
    "plan": keys.PLAN,
    "val_part": keys.VAL_PART,
    "part": keys.PARTS,
    "pretrain": keys.TRAIN_KEYS["pretrain"],
    "sft": keys.TRAIN_KEYS["sft"],
    "index": keys.INDEX,
}
Place = tuple[dg.AssetKey, str | None]  # an asset, and its partition


@pytest.fixture(params=[1, 3], ids=["in one search", "in ranges"])
def found(tmp_path: Path, request: pytest.FixtureRequest) -> Graph:
    config = tmp_path / "niels_cache.toml"
    config.write_text(PROJECT.format(ranges=request.param), encoding="utf-8")
    return graph(load_registry(config=str(config)), tmp_path)


def test_dagster_knows_every_input(found: Graph) -> None:
    """An input of an input counts too. Dagster allows no asset that depends on itself, so the corpus of a mixture depends on no corpus. The
    corpus of a mixture may need the tokenizer, so this depends on no corpus.
    """
    assets = build_defs(registry=found.registry).get_repository_def().asset_graph
    unknown = {key: [each for each in found[key].inputs() if place(each) not in above(assets, place(key))] for key in found.keys}
    of_ranges = set() if found.registry.search_ranges else {HASHES, "range"}
    assert {key.partition("/")[0] for key in found.keys} | {"corpus/duplicates"} >= ASSETS.keys() - of_ranges
    assert {key: inputs for key, inputs in unknown.items() if inputs} == {
        "tokenizer": ["corpus/web", "corpus/book", "corpus/both", "corpus/duplicates"],
        "corpus/both": ["corpus/web", "corpus/book", "corpus/duplicates"],
    }


def place(key: str) -> Place:
    kind, _, name = key.partition("/")
    return (ASSETS[key], None) if key in ASSETS else (ASSETS[kind], name)


def above(assets: Any, below: Place) -> set[Place]:
    """Return everything that a partition of an asset depends on."""
    known: set[Place] = set()
    left = [below]
    while left:
        new = set(inputs_of(assets, left.pop())) - known
        known |= new
        left += new
    return known


def inputs_of(assets: Any, below: Place) -> Iterator[Place]:
    asset, partition = below
    node = assets.get(asset)
    chosen = node.partitions_def.subset_with_partition_keys([partition]) if partition else None
    for parent in node.parent_keys:
        partitions = assets.get(parent).partitions_def
        if partitions is None:
            yield parent, None
        else:
            mapping = assets.get_partition_mapping(asset, parent_asset_key=parent)
            mapped = mapping.get_upstream_mapped_partitions_result_for_partitions(
                chosen, node.partitions_def, partitions, datetime.now(UTC)
            )
            yield from ((parent, name) for name in mapped.partitions_subset.get_partition_keys())
