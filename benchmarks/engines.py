"""Compare fast engines with the reference libraries: speed, equal ids, and a whole build.

For each model (a tokenizer.json or a rank file of tiktoken):

* encoding of documents of 390 bytes and 2 kB, on two threads, by the reference and by each engine that is installed: the first pass, when
  the caches of the engine are empty, and the median of all passes. No document occurs twice;
* the seconds to load an engine and to prove it (`tokenizer prove`);
* with --build: a whole build from Parquet, in a process of its own, without the time that Python takes to import modules: with the engine
  and its proof, with the engine but without any comparison, and with the reference for a tenth of the documents. Peak memory;
* with --equality N: the ids of N texts. Half of them are documents from NIELS_CACHE_REAL_DATA, cut at random places, and half are made.

Texts: see build.py. Models: --models, or the files in NIELS_CACHE_REAL_DATA/tokenizers. This module is not named tokenizers.py, because a
script's folder is first on its path, and the name would hide the library `tokenizers`.

    python benchmarks/engines.py [--models FILE ...] [--megabytes 50] [--rounds 3] [--bytes 390 2000] [--build] [--equality 1_000_000]
"""

import argparse
import contextlib
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import psutil

from build import base_texts, build, documents, seconds, sources, write_inputs
from niels_cache_assets.tokenizer import checked, engines
from niels_cache_assets.tokenizer.kinds import HuggingFaceTokenizer, TextTokenizer, open_model
from niels_cache_assets.tokenizer.proof import Proof, compare, mixtures
from niels_cache_runtime.format.reading import available_threads

TEXTS_PER_CALL = 1_024
REFERENCE_SHARE = 10  # the reference gets a tenth of the documents
COMPARED_AT_ONCE = 65_536

EncodeFlat = Callable[[Sequence[str]], tuple[np.ndarray, np.ndarray]]


def default_models() -> list[str]:
    real = os.environ.get("NIELS_CACHE_REAL_DATA")
    if not real:
        raise SystemExit("give --models, or set NIELS_CACHE_REAL_DATA")
    return [str(path) for path in sorted(Path(real, "tokenizers").iterdir()) if path.suffix in (".json", ".tiktoken")]


def opened(path: str) -> TextTokenizer:
    """Open a model. Its eot is the special token with the usual name, or else the first one."""
    if path.endswith(".tiktoken"):
        return open_model(path, special_tokens={"eot": "<|endoftext|>"})
    model = open_model(path, special_tokens={})
    assert isinstance(model, HuggingFaceTokenizer)
    added = [each.content for each in model.library_tokenizer.get_added_tokens_decoder().values() if each.special]
    usual = [token for token in added if "end" in token.lower() or token in ("</s>", "<EOT>")]
    return open_model(path, special_tokens={"eot": (usual or added)[0]})


def encode_all(encode: EncodeFlat, texts: list[str]) -> None:
    calls = [texts[start : start + TEXTS_PER_CALL] for start in range(0, len(texts), TEXTS_PER_CALL)]
    with ThreadPoolExecutor(available_threads()) as executor:
        for _ in executor.map(encode, calls):
            pass


def tiktoken_library(tokenizer: TextTokenizer) -> EncodeFlat | None:
    """Return bare tiktoken, one call for all texts, if the model is of its kind."""
    encoding = getattr(tokenizer, "library_encoding", None)
    return None if encoding is None else lambda texts: encoding.encode_ordinary_batch(texts, num_threads=1)


def huggingface_library(tokenizer: TextTokenizer) -> EncodeFlat | None:
    library = getattr(tokenizer, "library_tokenizer", None)
    return None if library is None else lambda texts: library.encode_batch_fast(texts, add_special_tokens=False)


def megabytes(texts: Sequence[str]) -> float:
    return sum(len(text.encode()) for text in texts) / 1e6


def run_encoding(tokenizer: TextTokenizer, texts: list[str], rounds: int) -> float:
    """Print the speed of the reference and of each engine. Return the reference's MB/s."""
    few = texts[: len(texts) // REFERENCE_SHARE]
    bare = tiktoken_library(tokenizer) or huggingface_library(tokenizer)
    assert bare is not None
    reference = megabytes(few) / statistics.median(seconds(lambda: encode_all(bare, few)) for _ in range(rounds))
    print(f"  {engines.reference_of(tokenizer):34} {reference:8.1f} MB/s")
    size = megabytes(texts)
    for name, load in engines.ENGINES.items():
        started = time.perf_counter()
        engine = load(tokenizer)
        loading = time.perf_counter() - started
        if engine is None:
            print(f"  {name:34} not installed, or it cannot load the model")
            continue
        speeds = [size / seconds(lambda engine=engine: encode_all(engine.encode_flat, texts)) for _ in range(rounds)]
        speed = statistics.median(speeds)
        said = f"first pass {speeds[0]:.0f}, {speed / reference:.0f} x the reference, loaded in {loading:.1f} s"
        print(f"  {name + ' ' + engine.version:34} {speed:8.1f} MB/s  ({said})")
    return reference


def run_proof(tokenizer: TextTokenizer) -> None:
    for load in engines.ENGINES.values():
        engine = load(tokenizer)
        if engine is not None:
            started = time.perf_counter()
            print(f"  proof: {said(engines.prove(tokenizer, engine))}, {time.perf_counter() - started:.1f} s")


def said(proof: Proof) -> str:
    first = "" if proof.first is None else f"; first {proof.first.text[:80]!r} at id {proof.first.first}"
    return f"{proof.texts:,} texts, {proof.differing:,} differ{first}"


def child(folder: Path, model: str, mode: str) -> None:
    """Build from `folder` and print the seconds. mode: auto, unchecked or reference."""
    tokenizer = opened(model)
    tokenizer.engine = "reference" if mode == "reference" else "auto"
    source = sources(folder)["parquet"]
    with contextlib.ExitStack() as changes:
        if mode == "unchecked":
            changes.enter_context(mock.patch.object(checked, "FIRST_CHECKED", 0))
            changes.enter_context(mock.patch.object(checked, "CHECKED_EVERY", 2**62))
        started = time.perf_counter()
        engines.proven_engine(tokenizer, print)
        proof = time.perf_counter() - started
        started = time.perf_counter()
        build(source, tokenizer, folder)
        print(json.dumps({"proof": proof, "build": time.perf_counter() - started}))


def built(folder: Path, model: str, mode: str) -> dict[str, float]:
    """Build in a process of its own. Return its seconds, and its peak resident memory in MB, sampled every hundredth of a second."""
    process = psutil.Popen([sys.executable, __file__, "--child", str(folder), model, mode], stdout=subprocess.PIPE, text=True)
    peak = 0
    while process.poll() is None:
        with contextlib.suppress(psutil.NoSuchProcess):
            peak = max(peak, process.memory_info().rss)
        time.sleep(0.01)
    if process.returncode:
        raise SystemExit(f"the build with {mode} failed")
    return {**json.loads(process.stdout.read().splitlines()[-1]), "peak": peak / 1e6}


def run_build(model: str, texts: list[str], folder: Path, reference: float, rounds: int) -> None:
    """Print the speed of whole builds. reference: the bare reference's MB/s."""
    write_inputs(folder, texts)
    size = megabytes(texts)
    results: dict[str, list[dict[str, float]]] = {"auto": [], "unchecked": []}
    for _ in range(rounds):
        for mode, found in results.items():
            found.append(built(folder, model, mode))
    (folder / "few").mkdir()
    few = texts[: len(texts) // REFERENCE_SHARE]
    write_inputs(folder / "few", few)
    slow = megabytes(few) / built(folder / "few", model, "reference")["build"]
    times = {mode: statistics.median(each["build"] for each in found) for mode, found in results.items()}
    speed = size / times["auto"]
    print(f"  build of {size:.0f} MB: {speed:.1f} MB/s, {speed / reference:.1f} x the bare reference; with the reference {slow:.1f} MB/s")
    proof = statistics.median(each["proof"] for each in results["auto"])
    print(f"  comparison while it builds: {times['auto'] / times['unchecked'] - 1:+.1%}; proof before the build: {proof:.1f} s")
    print(f"  peak memory: {max(each['peak'] for each in results['auto']):.0f} MB")


def real_texts(count: int) -> Iterator[str]:
    """Yield pieces of all texts below NIELS_CACHE_REAL_DATA, of up to 800 characters, again and again at other places."""
    chosen = random.Random(22)
    texts = [text for text in base_texts() if len(text) > 1]
    for path in sorted(Path(os.environ.get("NIELS_CACHE_REAL_DATA", "/nowhere")).rglob("*")):
        if path.suffix in (".md", ".txt", ".raw", ".jsonl"):
            texts.append(path.read_text(encoding="utf-8", errors="replace"))
    for text in itertools.islice(itertools.cycle(texts), count):
        size = chosen.randrange(1, 800)
        start = chosen.randrange(max(1, len(text) - size // 2))
        yield text[start : start + size]


def run_equality(tokenizer: TextTokenizer, count: int) -> None:
    pieces = [text for piece in tokenizer.piece_bytes() if (text := piece.decode(errors="ignore"))]
    for load in engines.ENGINES.values():
        engine = load(tokenizer)
        if engine is None:
            continue
        for name, texts in {
            "real": real_texts(count // 2),
            "made": mixtures(count - count // 2, pieces=pieces, seed=23),
        }.items():
            proof, compared = Proof(texts=0), partial(compare, reference=tokenizer.encode_flat, engine=engine.encode_flat)
            with ThreadPoolExecutor(available_threads()) as executor:
                while some := list(itertools.islice(texts, COMPARED_AT_ONCE)):
                    parts = [some[start :: available_threads()] for start in range(available_threads())]
                    proof = sum(executor.map(compared, parts), proof)
            print(f"  {engine.name} {engine.version}, {name}: {said(proof)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", help="tokenizer.json or rank files")
    parser.add_argument("--megabytes", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--bytes", type=int, nargs="+", default=[390, 2000], help="sizes of documents")
    parser.add_argument("--build", action="store_true", help="also build caches")
    parser.add_argument("--equality", type=int, default=0, metavar="N", help="compare the ids of N texts, and measure nothing")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments: Any = parser.parse_args()
    if arguments.child:
        folder, model, mode = arguments.child
        return child(Path(folder), model, mode)
    for model in arguments.models or default_models():
        tokenizer = opened(model)
        print(f"{Path(model).name}: {tokenizer.vocab_size:,} ids, {available_threads()} cores", flush=True)
        if arguments.equality:
            run_equality(tokenizer, arguments.equality)
            continue
        run_proof(tokenizer)
        for size in arguments.bytes:
            texts = documents(base_texts(), size=size, megabytes=arguments.megabytes)
            print(f"  {len(texts):,} documents of {size} bytes")
            reference = run_encoding(tokenizer, texts, arguments.rounds)
            if arguments.build:
                with tempfile.TemporaryDirectory() as temporary:
                    run_build(model, texts, Path(temporary), reference, arguments.rounds)


if __name__ == "__main__":
    main()
