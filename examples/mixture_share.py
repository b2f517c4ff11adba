"""Does a blend give every data set its configured share of tokens? 100 windows of four caches, counted and drawn.

    make cache
    python examples/mixture_share.py                    # four small data sets that are made here, 0.4, 0.1, 0.3, 0.2
    python examples/mixture_share.py --tokenizer gpt2.tiktoken --eot "<|endoftext|>"    # the same with the ranks of GPT-2
    python examples/mixture_share.py wiki=cache/pretrain/wikitext=0.7 web=cache/pretrain/fineweb_edu=0.3        # your own

Checked on every window: y is x one token later. `culled` counts the documents of each data set that deduplication removed
(`prepare = ["dedup"]`, over all four at once) before its cache was built. The lines below the table name the data set with the
remaining document. The picture shows each source's share against the configured one, and the largest distance of its count from its exact
share: always less than one window.
"""

import argparse
import ast
import calendar
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from niels_cache_runtime import NielsCacheError, TokenLoader, read_meta
from niels_cache_runtime.formats import META_NAME

QUICKSTART = "cache/quickstart"
WEIGHTS = (0.4, 0.1, 0.3, 0.2)
REMOVED = ("exact_duplicate", "near_duplicate")  # reasons in meta.json
COLOURS = [f"C{index}" for index in range(10)]


CONFIG = """
[tokenizer]
{tokenizer}

[build]
shard_bytes = 1048576
threads = 1  # so small a corpus needs no other processes

[pretrain.python_docs]
decontaminate = "off"  # dedup already keeps train and val apart
{budgets}
"""
BUDGETS = 'train_tokens = 200_000\nval_tokens = 10_000\nshuffle_buffer = 1_000\nprepare = ["dedup"]\n'


def made_texts() -> dict[str, Iterator[str]]:
    """Return three small data sets from files of every Python, name -> texts. `python_source` repeats `python_docs` on purpose."""
    numbers = torch.randint(1000, (4000, 2), generator=torch.Generator().manual_seed(0)).tolist()
    return {
        "python_source": python_source(),
        "sums": (f"{a} + {b} = {a + b}\n{a} - {b} = {a - b}\n{a} * {b} = {a * b}\n" for a, b in numbers),
        "calendars": (calendar.TextCalendar().formatyear(year) for year in range(1900, 2030)),
    }


def python_source() -> Iterator[str]:
    """Yield the docstring of each module, then its code."""
    for path in sorted(Path(os.__file__).parent.glob("c*.py")):
        code = path.read_text("utf-8", errors="replace")
        doc = ast.get_docstring(ast.parse(code))
        if doc:
            yield f"{path.stem}\n\n{doc}"
        yield code


def made_here(folder: Path, *, tokenizer: str | None = None, eot: str | None = None) -> dict[str, str]:
    """Return name -> split: four caches built in `folder`, without repeated documents.

    `tokenizer`: a file with a tokenizer of any kind (None: that of the quickstart). `eot`: the string of its token after each document.
    """
    from niels_cache_assets import load_registry
    from niels_cache_assets.artifacts.graph import graph
    from niels_cache_assets.artifacts.materialize import materialize

    model = Path(QUICKSTART, "tokenizer", "spm.model") if tokenizer is None else Path(tokenizer)
    if not model.exists() and tokenizer is not None:
        sys.exit(f"{model}: no such file; give a SentencePiece model, a tokenizer.json or ranks of tiktoken")
    if not model.exists():
        sys.exit(f"{QUICKSTART}: no tokenizer here; run `make cache` in the repository first, or give caches of your own (--help)")
    named = "" if eot is None else f"\nspecial_tokens = {{ eot = {json.dumps(eot, ensure_ascii=False)} }}"
    tables = CONFIG.format(tokenizer=f"model = {json.dumps(str(model.absolute()))}{named}", budgets=BUDGETS)
    for name, texts in made_texts().items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
        tables += f'[pretrain.{name}]\nsource = "jsonl"\nfiles = ["{name}.jsonl"]\n{BUDGETS}'
    config = folder / "niels_cache.toml"
    config.write_text(tables, encoding="utf-8")
    registry = load_registry(profile="quickstart", config=str(config))  # it has the data set python_docs
    artifacts, names = graph(registry, folder), registry.prepared()
    for artifact in (artifacts.tokenizer(), *(artifacts.corpus(name) for name in names), artifacts.duplicates()):
        materialize(artifact)
    return {name: str(materialize(artifacts.cache(name)).directory / "train") for name in names}


def parse(sources: list[str]) -> tuple[dict[str, str], dict[str, float]]:
    """Return name to split and name to weight, from NAME=FOLDER=WEIGHT each."""
    folders, weights = {}, {}
    for source in sources:
        name, _, rest = source.partition("=")
        folder, _, weight = rest.rpartition("=")
        try:
            folders[name], weights[name] = f"{folder}/train", float(weight)
        except ValueError:
            folder = ""
        if not name or not folder:
            sys.exit(f"{source}: expected NAME=FOLDER=WEIGHT, such as wiki=cache/pretrain/wikitext=0.4")
    return folders, weights


def count(loader: TokenLoader, *, windows: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the source of each window (windows,), and the number of inputs in it at which a new document begins (windows,)."""
    sources, seams = [], []
    for batch in loader:
        if not torch.equal(batch.y[:, :-1], batch.x[:, 1:]):
            raise AssertionError("y is not x one token later")
        sources.append(batch.dataset_ids.numpy())
        seams.append(batch.document_ids.max(dim=1).values.numpy())
        if sum(map(len, sources)) >= windows:
            break
    return np.concatenate(sources)[:windows], np.concatenate(seams)[:windows]


def culled(folder: str) -> int | None:
    """Return the number of documents that deduplication removed before the build of a split; None if no meta.json has it."""
    meta = Path(folder).parent / META_NAME
    dropped = read_meta(str(meta))["dropped"] if meta.exists() else None
    return None if dropped is None else sum(dropped.get(reason, 0) for reason in REMOVED)


def removed_because_of(folder: str) -> Counter[str]:
    """Return these documents by the data set of the remaining document; empty without a drop list of the cache."""
    name, root = Path(folder).parent.name, Path(folder).parent.parent.parent
    meta = root / "duplicates" / META_NAME
    datasets = read_meta(str(meta))["datasets"] if meta.exists() else {}
    removed: Counter[str] = Counter()
    for pair in datasets.get(name, {"pairs": []})["pairs"]:
        removed[pair["because_dataset"]] += pair["documents"]
    return removed


def draw(path: str, *, names: list[str], shares: NDArray[np.float64], sources: NDArray[np.int64]) -> None:
    taken = np.cumsum(sources[:, None] == np.arange(len(names)), axis=0)  # (windows, sources)
    windows = np.arange(1, len(sources) + 1)[:, None]
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(2, 3))
    left.barh(names, 100 * taken[-1] / len(sources), color=COLOURS[: len(names)], height=0.6)
    left.vlines(100 * shares, np.arange(len(names)) - 0.42, np.arange(len(names)) + 0.42, color="black", linewidth=2, label="configured")
    left.invert_yaxis()
    left.set(xlabel="share of tokens, %", title=f"After {len(sources)} windows")
    left.legend(loc="lower right", frameon=False)
    for index, name in enumerate(names):
        right.step(windows[:, 0], (taken - windows * shares)[:, index], where="post", color=COLOURS[index % 10], linewidth=1.2, label=name)
    for bound in (-1, 1):
        right.axhline(bound, color="black", linewidth=0.8, linestyle=":")
    right.set(xlabel="windows read", ylabel="windows", ylim=(-1.25, 1.25), title="Taken so far, less the exact share: never a whole window")
    for panel in (left, right):
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def show(folders: dict[str, str], weights: dict[str, float], *, windows: int, T: int, out: str) -> None:
    loader = TokenLoader(folders, T=T, B=10, seed=0, weights=weights, fields=("document_ids", "dataset_ids"))
    sources, seams = count(loader, windows=windows)
    names = list(folders)
    shares = np.array([weights[name] for name in names]) / sum(weights.values())
    print(f"{'data set':<16}{'configured':>12}{'tokens':>10}{'actual':>9}{'document seams':>16}{'culled':>9}")
    for index, name in enumerate(names):
        own = sources == index
        copies = culled(folders[name])
        left_out = "?" if copies is None else f"{copies:,}"
        print(f"{name:<16}{shares[index]:>12.1%}{own.sum() * T:>10,}{own.mean():>9.1%}{seams[own].sum():>16,}{left_out:>9}")
    for name in names:
        for other, documents in sorted(removed_because_of(folders[name]).items()):
            print(f"{documents:,} documents of {name} are culled: they repeat {'others of it' if other == name else f'those of {other}'}")
    print(f"{len(sources)} windows of {T} tokens, y is x one token later in each")
    print(f"{seams.sum():,} document seams inside {(seams > 0).sum()} of them")
    draw(out, names=names, shares=shares, sources=sources)
    print(f"picture: {out}")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "sources", nargs="*", metavar="NAME=FOLDER=WEIGHT", help="folders of pretrain data sets; their train splits are read"
    )
    parser.add_argument("--windows", type=int, default=100, help="how many to look at (default: %(default)s)")
    parser.add_argument("-T", type=int, default=512, help="tokens a window (default: %(default)s)")
    parser.add_argument("--out", default="cache/mixture_share.png", help="the picture (default: %(default)s)")
    parser.add_argument("--tokenizer", metavar="FILE", help="tokenizer of the small data sets (default: that of the quickstart)")
    parser.add_argument("--eot", metavar="TEXT", help="the string of its token after each document, such as <|endoftext|>")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as made:
        if args.sources:
            folders, weights = parse(args.sources)
        else:
            try:
                folders = made_here(Path(made), tokenizer=args.tokenizer, eot=args.eot)
            except NielsCacheError as error:
                sys.exit(str(error))
            weights = dict(zip(folders, WEIGHTS, strict=True))
        try:
            show(folders, weights, windows=args.windows, T=args.T, out=args.out)
        except NielsCacheError as error:
            sys.exit(str(error))


if __name__ == "__main__":
    main()
