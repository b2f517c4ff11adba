"""The cost of the order in blocks for a model: a tiny GPT learns a corpus that is sorted by source, under several orders.

    NIELS_CACHE_REAL_DATA=folder python benchmarks/block_order.py [--quick] [--picture FILE]

The corpus has 64 shards of 16,384 bytes, and a token is a byte. Each of four sources fills 16 shards: plays, an encyclopedia, manuals,
questions with answers. A run reads the corpus once, 16 rows of 128 tokens a step, with the model and the optimizer of
examples/train_tiny.py (100,000 parameters). Every 16 steps it measures the loss on the same val tokens, a quarter from each source.
The last order reads the same text after a shuffle of its pieces of 1,024 bytes, as a build does with documents. The seed of a run decides
the order and the first weights. Losses are nats per byte. Without NIELS_CACHE_REAL_DATA, four sources of random words are made.
"""

import argparse
import gzip
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from niels_cache_runtime import Blocks, TokenLoader
from niels_cache_runtime.format.layout import DOC_ENDS_DTYPE, META_NAME, TOKEN_DTYPE, doc_ends_name, list_shards, shard_name
from niels_cache_runtime.format.meta import write_meta

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import train_tiny

SHARDS_OF_SOURCE, PIECE = 16, 1024
T, B = 128, 16
EVERY = 16  # steps from one measurement to the next


@dataclass(frozen=True, kw_only=True)
class Scale:
    shard_tokens: int
    seeds: int
    width: int
    layers: int


FULL = Scale(shard_tokens=16_384, seeds=3, width=64, layers=2)
QUICK = Scale(shard_tokens=1024, seeds=1, width=16, layers=1)


@dataclass(frozen=True, kw_only=True)
class Way:
    """An order of the corpus, and how the picture draws it."""

    name: str
    colour: str
    shuffled: bool = False
    settings: dict[str, Any]


def in_blocks(block_shards: int, lanes: int = 1) -> dict[str, Any]:
    return {"order": Blocks(shards=block_shards, lanes=lanes)}


WAYS = (
    Way(name="whole split", colour="#222222", settings={}),
    Way(name="blocks of 1 shard", colour="#4269d0", settings=in_blocks(1)),
    Way(name="blocks of 4 shards", colour="#3ca951", settings=in_blocks(4)),
    Way(name="blocks of 16 shards", colour="#ff725c", settings=in_blocks(16)),
    Way(name="blocks of 1 shard, 8 lanes", colour="#a463f2", settings=in_blocks(1, lanes=8)),
    Way(name="blocks of 16 shards, shuffled corpus", colour="#efb118", shuffled=True, settings=in_blocks(16)),
)


# The corpus


def sources(tokens: int) -> dict[str, NDArray[np.uint8]]:
    """Return the first `tokens` bytes of each source."""
    real = os.environ.get("NIELS_CACHE_REAL_DATA")
    made = _real_texts(Path(real)) if real else _made_texts(tokens)
    found = {name: np.frombuffer(text.encode()[:tokens], dtype=np.uint8) for name, text in made}
    short = [name for name, text in found.items() if len(text) < tokens]
    if short:
        raise SystemExit(f"{short[0]}: has fewer than {tokens:,} bytes; give another NIELS_CACHE_REAL_DATA")
    return found


def _real_texts(folder: Path) -> Iterator[tuple[str, str]]:
    yield "plays", next(folder.rglob("tinyshakespeare_input.txt")).read_text(encoding="utf-8")
    for name, path, where in (
        ("encyclopedia", "wikipedia/enwiki_extracted_dev.jsonl", {}),
        ("manuals", "bulk/debian_docs_dev.jsonl.gz", {"source": "python3.11-doc"}),
        ("answers", "dolly/dolly_open_qa_rebuilt.jsonl", {}),
    ):
        opener = gzip.open if path.endswith(".gz") else open
        with opener(folder / path, "rt", encoding="utf-8") as lines:
            rows = (json.loads(line) for line in lines)
            yield name, "\n".join(_text(row) for row in rows if all(row[key] == value for key, value in where.items()))


def _text(row: dict[str, str]) -> str:
    return row["text"] if "text" in row else f"{row['instruction']}\n{row['response']}\n"


def _made_texts(tokens: int) -> Iterator[tuple[str, str]]:
    for source in range(4):
        generator = torch.Generator().manual_seed(source)
        letters = torch.randint(97, 123, (200, 6), generator=generator).tolist()
        words = ["".join(map(chr, word)) for word in letters]
        drawn = torch.randint(len(words), (tokens // 6,), generator=generator).tolist()
        yield f"source {source}", " ".join(words[word] for word in drawn)


def write_split(folder: Path, tokens: NDArray[np.uint8], *, shard_tokens: int) -> Path:
    """Write the tokens as a split of one document, with a meta.json that lists sizes but no hashes. Return the split's folder."""
    split = folder / "train"
    split.mkdir(parents=True)
    for index, start in enumerate(range(0, len(tokens), shard_tokens)):
        tokens[start : start + shard_tokens].astype(TOKEN_DTYPE).tofile(split / shard_name(index))
    np.save(folder / doc_ends_name("train"), np.array([len(tokens)], dtype=DOC_ENDS_DTYPE))
    paths = [folder / doc_ends_name("train"), *list_shards(split)]
    files = {path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": "0" * 64} for path in paths}
    write_meta(str(folder / META_NAME), {"kind": "pretrain", "built": True, "files": files})
    return split


def write_corpus(folder: Path, scale: Scale) -> dict[str, Path]:
    """Write the corpus sorted by source, the same corpus shuffled, and the val tokens. Return their folders."""
    train = SHARDS_OF_SOURCE * scale.shard_tokens
    val = 2 * B * T + 1
    texts = sources(train + val).values()
    by_source = np.concatenate([text[:train] for text in texts])
    pieces = by_source.reshape(-1, PIECE)
    mixed = pieces[torch.randperm(len(pieces), generator=torch.Generator().manual_seed(0)).numpy()].ravel()
    held_out = np.concatenate([text[train:] for text in texts])
    splits = {"sorted": by_source, "shuffled": mixed, "val": held_out}
    return {name: write_split(folder / name, tokens, shard_tokens=scale.shard_tokens) for name, tokens in splits.items()}


# Training


def train(way: Way, folders: dict[str, Path], *, seed: int, scale: Scale) -> list[float]:
    """Return the val losses of one run, the first before training."""
    fields = ("document_ids", "position_ids")
    val = list(TokenLoader(str(folders["val"]), T=T, B=B, seed=0, shuffle=False, epochs=1, drop_last=True, fields=fields))
    torch.manual_seed(seed)
    model = train_tiny.GPT(vocab_size=256, T=T, width=scale.width, layers=scale.layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=train_tiny.LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.1)
    corpus = folders["shuffled" if way.shuffled else "sorted"]
    loader = TokenLoader(str(corpus), T=T, B=B, seed=seed, epochs=1, drop_last=True, fields=fields, **way.settings)

    @torch.no_grad()
    def measure() -> float:
        return statistics.mean(train_tiny.loss_of(model, batch).item() for batch in val)

    losses = [measure()]
    for step, batch in enumerate(loader, start=1):
        train_tiny.learn(model, optimizer, batch, step=step)
        if step % EVERY == 0:
            losses.append(measure())
    return losses


def table(found: dict[str, list[list[float]]]) -> Iterator[str]:
    yield "| order | loss at the end | mean of the second half | largest rise |"
    yield "|---|---|---|---|"
    for name, runs in found.items():
        second = [run[len(run) // 2 :] for run in runs]
        rises = [max(later - min(run[: at + 1]) for at, later in enumerate(run)) for run in runs]
        figures = ([run[-1] for run in runs], [statistics.mean(run) for run in second], rises)
        yield f"| {name} | {' | '.join(f'{statistics.mean(each):.3f} ({min(each):.3f} to {max(each):.3f})' for each in figures)} |"


def draw(found: dict[str, list[list[float]]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5, 4.2), layout="constrained")
    panel = figure.subplots()
    for way in WAYS:
        runs = np.array(found[way.name])
        steps = EVERY * np.arange(runs.shape[1])
        panel.plot(steps, runs.mean(axis=0), color=way.colour, linewidth=1.6, label=way.name)
        panel.fill_between(steps, runs.min(axis=0), runs.max(axis=0), color=way.colour, alpha=0.15, linewidth=0)
    best = min(min(map(min, runs)) for runs in found.values())
    panel.set(xlabel="step", ylabel="val loss, nats per byte", xlim=(0, int(steps[-1])), ylim=(best - 0.1, best + 1.6))
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend(frameon=False, fontsize=9)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it runs")
    parser.add_argument("--picture", type=Path, help="draw the curves into this file")
    parser.add_argument("--threads", type=int, default=1, help="of torch (default: 1)")
    settings = parser.parse_args(arguments)
    torch.set_num_threads(settings.threads)
    scale = QUICK if settings.quick else FULL
    found: dict[str, list[list[float]]] = {way.name: [] for way in WAYS}
    began = time.process_time()
    with tempfile.TemporaryDirectory() as temporary:
        folders = write_corpus(Path(temporary), scale)
        for seed, way in itertools.product(range(scale.seeds), WAYS):
            found[way.name].append(train(way, folders, seed=seed, scale=scale))
    print(f"torch {torch.__version__}, {scale.seeds} seeds, {time.process_time() - began:.0f} s of processor time")
    print("\n".join(table(found)))
    if settings.picture:
        draw(found, settings.picture)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
