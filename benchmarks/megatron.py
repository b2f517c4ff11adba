"""The Megatron bridges against megatron-core in one run: index build, blends, sample reads.

    python benchmarks/megatron.py [--quick] [--only index blend reads]

Both get the same data in memory or page cache, in turns, so a busy machine slows both; a time is the best of the rounds. Arrays and
samples are compared too. megatron-core's helpers are compiled C++ on one core. Blends are ours with numba installed
(`niels_cache_runtime.megatron.blend_indices`), on one core. Needs the extra `bridges`, 2 GB of disk and memory.
"""

import argparse
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from niels_cache_runtime.megatron import IndexedDataset, IndexedWriter, MegatronGPTDataset, blend_indices
from niels_cache_runtime.megatron.blend_indices import build_blending_indices, normalize_weights
from niels_cache_runtime.megatron.gpt_indices import build_gpt_indices, build_sample_index, plan_epochs

sys.path.remove(str(Path(__file__).resolve().parent))  # in this folder `megatron` is this file
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it warns that Transformer Engine is missing
    from megatron.core.datasets import gpt_dataset, helpers_cpp, indexed_dataset
    from megatron.core.datasets.utils import Split


@dataclass(frozen=True, kw_only=True)
class Scale:
    documents: int
    read_documents: int
    samples: int
    blend: int
    rounds: int


FULL = Scale(documents=1_000_000, read_documents=200_000, samples=20_000, blend=40_000_000, rounds=7)
QUICK = Scale(documents=5_000, read_documents=1_000, samples=300, blend=200_000, rounds=1)


class Tokenizer:
    """The minimal tokenizer for megatron-core's GPTDataset: no pad token."""

    eod, vocab_size = 0, 50_000
    unique_identifiers: Mapping[str, Any] = {}


def best(ways: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    seconds = dict.fromkeys(ways, float("inf"))
    for way in ways.values():
        way()
    for _ in range(rounds):
        for name, way in ways.items():
            begin = time.perf_counter()
            way()
            seconds[name] = min(seconds[name], time.perf_counter() - begin)
    return seconds


def line(what: str, ours: float, theirs: float, unit: str) -> str:
    return f"{what:<72} {ours:>9.2f} {theirs:>9.2f} {unit:<10} {theirs / ours:>6.2f}x"


def lengths_of(documents: int, mean: float) -> np.ndarray:
    """Return the tokens of each document, int32, with an exponential distribution of that mean."""
    drawn = torch.empty(documents).exponential_(1 / mean, generator=torch.Generator().manual_seed(0))
    return (drawn.int() + 1).numpy()


def index(scale: Scale) -> Iterator[str]:
    lengths = lengths_of(scale.documents, 1000)
    tokens = int(lengths.sum(dtype=np.int64))
    documents = np.arange(scale.documents, dtype=np.int32)
    order = build_gpt_indices(lengths, range(scale.documents), num_samples=None, sequence_length=1024, seed=1)["document_index"]
    for length in (1024, 2048, 4096, 8192):
        samples = plan_epochs(tokens, num_samples=None, sequence_length=length).samples

        def theirs(length: int = length) -> np.ndarray:
            made: np.ndarray = helpers_cpp.build_sample_idx_int32(lengths, order, length, 1, tokens, True, 1)
            return made

        def ours(length: int = length, samples: int = samples) -> np.ndarray:
            return build_sample_index(lengths, order, samples=samples, sequence_length=length)

        assert np.array_equal(ours(), theirs())
        found = best({"ours": ours, "theirs": theirs}, scale.rounds)
        what = f"sample index, {scale.documents:,} documents, {tokens:,} tokens, S={length}"
        yield line(what, found["ours"] * 1e3, found["theirs"] * 1e3, "ms")

    def all_theirs() -> object:
        random_state = np.random.RandomState(1)
        document_index = gpt_dataset._build_document_index(documents, 3, random_state, True)
        sample_index = helpers_cpp.build_sample_idx_int32(lengths.copy(), document_index, 2048, 3, tokens, True, 1)
        before = (2 * tokens - 1) // 2048
        return document_index, sample_index, gpt_dataset._build_shuffle_index(before, len(sample_index) - 1, random_state)

    def all_ours() -> object:
        wanted = (2 * tokens - 1) // 2048 + 100
        made = build_gpt_indices(lengths, range(scale.documents), num_samples=wanted, sequence_length=2048, seed=1)
        return tuple(made.values())

    assert all(np.array_equal(mine, its) for mine, its in zip(all_ours(), all_theirs(), strict=True))  # type: ignore[call-overload]
    found = best({"ours": all_ours, "theirs": all_theirs}, scale.rounds)
    yield line("all three indices, 3 epochs of them, S=2048", found["ours"] * 1e3, found["theirs"] * 1e3, "ms")


def blend(scale: Scale) -> Iterator[str]:
    generator = torch.Generator().manual_seed(0)
    for datasets in (2, 4, 10, 30, 100, 1000):
        weights = normalize_weights(torch.rand(datasets, generator=generator, dtype=torch.float64).tolist())
        size = max(scale.blend // (datasets + 8), scale.blend // 200)

        def theirs(weights: list[float] = weights, size: int = size) -> tuple[np.ndarray, np.ndarray]:
            made = np.zeros(size, dtype=np.int16), np.zeros(size, dtype=np.int64)
            helpers_cpp.build_blending_indices(*made, weights, len(weights), size, False)
            return made

        def ours(weights: list[float] = weights, size: int = size) -> tuple[np.ndarray, np.ndarray]:
            return build_blending_indices(weights, size)

        assert all(np.array_equal(mine, its) for mine, its in zip(ours(), theirs(), strict=True))
        found = best({"ours": ours, "theirs": theirs}, min(scale.rounds, 3))
        what = f"blend of {datasets} data sets, {size:,} samples"
        yield line(what, found["ours"] / size * 1e9, found["theirs"] / size * 1e9, "ns/sample")


def reads(scale: Scale, folder: Path) -> Iterator[str]:
    prefix, length = folder / "data", 1024
    generator = torch.Generator().manual_seed(0)
    with IndexedWriter(prefix) as writer:
        for tokens in lengths_of(scale.read_documents, 600).tolist():
            writer.add_document(torch.randint(50_000, (tokens,), generator=generator, dtype=torch.int32).numpy())
    config = gpt_dataset.GPTDatasetConfig(
        random_seed=1,
        sequence_length=length,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
        split="1",
        blend=([str(prefix)], None),
        tokenizer=Tokenizer(),
        path_to_cache=str(folder / "indices"),
    )
    low = indexed_dataset.IndexedDataset(str(prefix))
    theirs = gpt_dataset.GPTDataset(low, str(prefix), np.arange(len(low), dtype=np.int32), scale.samples, Split.train, config)
    ours = MegatronGPTDataset(IndexedDataset(prefix), num_samples=scale.samples, sequence_length=length, seed=1)
    assert all(torch.equal(ours[k][name], tensor) for k in range(0, scale.samples, 97) for name, tensor in theirs[k].items())
    for batch, workers in ((1, 0), (8, 0), (32, 0), (64, 0), (8, 1), (64, 1)):

        def read(dataset: Any, batch: int = batch, workers: int = workers) -> Callable[[], None]:
            loader = DataLoader(dataset, batch_size=batch, num_workers=workers, sampler=range(scale.samples))

            def run() -> None:
                for _ in loader:
                    pass

            return run

        found = best({"ours": read(ours), "theirs": read(theirs)}, min(scale.rounds, 3))
        yield line(
            f"reads through DataLoader, S={length}, batch_size={batch}, num_workers={workers}",
            found["ours"] / scale.samples * 1e6,
            found["theirs"] / scale.samples * 1e6,
            "us/sample",
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small, to see that it runs")
    parser.add_argument("--only", nargs="+", choices=["index", "blend", "reads"], default=["index", "blend", "reads"])
    arguments = parser.parse_args()
    scale = QUICK if arguments.quick else FULL
    if blend_indices.compiled_blend() is None:
        raise SystemExit("numba is not installed, or switched off")
    print(f"{'':<72} {'ours':>9} {'theirs':>9} {'':<10} {'ratio':>7}")
    with tempfile.TemporaryDirectory() as folder:
        sections = {"index": lambda: index(scale), "blend": lambda: blend(scale), "reads": lambda: reads(scale, Path(folder))}
        for name in arguments.only:
            for row in sections[name]():
                print(row, flush=True)


if __name__ == "__main__":
    main()
