"""Compare fast engines with the reference libraries: speed, equal ids, and a whole build.

For each model (a tokenizer.json, a rank file of tiktoken, or the SentencePiece model of a project):

* encoding of documents of 390 bytes and 2 kB, on two threads, by the reference and by each engine that is installed: the first pass, when
  the caches of the engine are empty, and the median of all passes. No document occurs twice;
* the seconds to load an engine and to prove it (`tokenizer prove`);
* with --build: a whole build from Parquet, in a process of its own, without the time that Python takes to import modules. Every build uses
  the engine: as users build, with a comparison of the first batches only, and without any comparison. Because whole builds differ by some
  percent from run to run, another build measures the processor time of the comparison itself. Peak memory;
* with --build --megatron: the speed of Megatron-LM's way from a .jsonl file to its indexed data set, for a tenth of the documents;
* with --equality N: the ids of N texts. Half of them are documents from NIELS_CACHE_REAL_DATA, cut at random places, and half are made.

Texts: see build.py. Models: --models, or the files in NIELS_CACHE_REAL_DATA/tokenizers. This module is not named tokenizers.py, because a
script's folder is first on its path, and the name would hide the library `tokenizers`.

    python benchmarks/engines.py [--models FILE ...] [--megabytes 50] [--rounds 3] [--bytes 390 2000] [--build [--megatron]]
                                 [--equality 1_000_000]
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
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import psutil

from build import base_texts, build, documents, peak_of, sources, write_inputs
from niels_cache_assets.tokenizer import encoder as checked
from niels_cache_assets.tokenizer import engines
from niels_cache_assets.tokenizer.kinds import HuggingFaceTokenizer, SentencePieceTokenizer, TextTokenizer, open_model
from niels_cache_assets.tokenizer.proof import EngineProof, compare, mixtures
from niels_cache_runtime.format.reading import available_threads

TEXTS_PER_CALL = 1_024
REFERENCE_SHARE = 10  # the reference gets a tenth of the documents
COMPARED_AT_ONCE = 65_536

TIMED = "timed"  # as "auto", with the comparison timed; the reference then encodes in the thread that compares
MODES = ("auto", "first", "unchecked")  # what is compared: as in every build; only the first batches; nothing

EncodeFlat = Callable[[Sequence[str]], tuple[np.ndarray, np.ndarray]]


def default_models() -> list[str]:
    real = os.environ.get("NIELS_CACHE_REAL_DATA")
    if not real:
        print("left out, because there is no --models, and NIELS_CACHE_REAL_DATA is not set")
        return []
    return [str(path) for path in sorted(Path(real, "tokenizers").iterdir()) if path.suffix in (".json", ".tiktoken")]


def opened(path: str) -> TextTokenizer:
    """Open a model. Its eot is the special token with the usual name, or else the first one."""
    if path.endswith(".model"):
        return SentencePieceTokenizer(path, special_tokens={})
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


def sentencepiece_library(tokenizer: TextTokenizer) -> EncodeFlat | None:
    processor = getattr(tokenizer, "library_processor", None)
    return None if processor is None else lambda texts: processor.encode_as_numpy(texts, num_threads=1)


def megabytes(texts: Sequence[str]) -> float:
    return sum(len(text.encode()) for text in texts) / 1e6


class Stopwatch:
    """The seconds since it was made, and the seconds of processors that this process used since then. Other processes do not count in the
    latter.
    """

    def __init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def stop(self) -> None:
        self.wall, self.cpu = time.perf_counter() - self.wall, time.process_time() - self.cpu


class Speed(NamedTuple):
    """MB a second, and MB a second of processor time."""

    wall: float
    cpu: float

    def __str__(self) -> str:
        return f"{self.wall:8.1f} MB/s, {self.cpu:6.1f} MB a core-second"


def speed_of(texts: list[str], encode: EncodeFlat) -> Speed:
    watch = Stopwatch()
    encode_all(encode, texts)
    watch.stop()
    return Speed(megabytes(texts) / watch.wall, megabytes(texts) / watch.cpu)


def median(speeds: Sequence[Speed]) -> Speed:
    return Speed(*(statistics.median(column) for column in zip(*speeds, strict=True)))


def run_encoding(tokenizer: TextTokenizer, texts: list[str], rounds: int) -> Speed:
    """Print the speed of the reference and of each engine. Return that of the reference."""
    few = texts[: len(texts) // REFERENCE_SHARE]
    bare = tiktoken_library(tokenizer) or huggingface_library(tokenizer) or sentencepiece_library(tokenizer)
    assert bare is not None
    reference = median([speed_of(few, bare) for _ in range(rounds)])
    print(f"  {engines.reference_of(tokenizer):34} {reference}", flush=True)
    for name, load in engines.engines_for(tokenizer).items():
        watch = Stopwatch()
        engine = load(tokenizer)
        watch.stop()
        if isinstance(engine, str):
            print(f"  {name:34} {engine}")
            continue
        speeds = [speed_of(texts, engine.encode_flat) for _ in range(rounds)]
        speed = median(speeds)
        said = f"first pass {speeds[0].cpu:.0f}, {speed.cpu / reference.cpu:.0f} x the reference, loaded in {watch.cpu:.1f} core-seconds"
        print(f"  {name + ' ' + engine.version:34} {speed} ({said})", flush=True)
    return reference


def run_proof(tokenizer: TextTokenizer) -> None:
    for load in engines.engines_for(tokenizer).values():
        engine = load(tokenizer)
        if not isinstance(engine, str):
            started = time.perf_counter()
            print(f"  proof: {said(engines.prove(tokenizer, engine))}, {time.perf_counter() - started:.1f} s")


def said(proof: EngineProof) -> str:
    first = "" if proof.first is None else f"; first {proof.first.text[:80]!r} at id {proof.first.first}"
    return f"{proof.texts:,} texts, {proof.differing:,} differ{first}"


def compared_first(compared: Callable[..., slice], batch: int | None, size: int) -> slice:
    """Return the texts of a batch that a build compares, without those that it compares after the first batches."""
    chosen = compared(batch, size)
    return chosen if chosen == slice(None) else slice(0, 0)


def timed(compare: Callable[..., int], seconds: dict[str, list[float]]) -> Callable[..., int]:
    """Return the method that compares a batch, which also adds its processor time to `seconds`: of first batches, or of later ones."""

    def compare_timed(encoder: checked.BuildEncoder, texts: Sequence[str], found: Any, chosen: slice) -> int:
        started = time.thread_time()
        count = compare(encoder, texts, found, chosen)
        seconds["first" if chosen == slice(None) else "later"].append(time.thread_time() - started)
        return count

    return compare_timed


def child(folder: Path, model: str, mode: str) -> None:
    """Build from `folder` and print the seconds. mode: TIMED, or one of MODES."""
    import pandas  # noqa: F401  # Arrow imports it with its first array, within the measured time

    tokenizer = opened(model)
    source = sources(folder)["parquet"]
    compared: dict[str, list[float]] = {"first": [], "later": []}
    with contextlib.ExitStack() as changes:
        if mode == TIMED:
            changes.enter_context(mock.patch.dict(os.environ, {"TOKENIZERS_PARALLELISM": "false"}))
            changes.enter_context(mock.patch.object(checked.BuildEncoder, "_compare", timed(checked.BuildEncoder._compare, compared)))
        if mode == "first":
            changes.enter_context(mock.patch.object(checked, "_texts_to_compare", partial(compared_first, checked._texts_to_compare)))
        if mode == "unchecked":
            changes.enter_context(mock.patch.object(checked, "_texts_to_compare", return_value=slice(0, 0)))
        proof = Stopwatch()
        engines.proven_engine(tokenizer, print)
        proof.stop()
        whole = Stopwatch()
        build(source, tokenizer, folder)
        whole.stop()
        spent = {name: sum(each) for name, each in compared.items()}
        print(json.dumps({"proof": proof.wall, "build": whole.wall, "build_cpu": whole.cpu, **spent}))


def built(folder: Path, model: str, mode: str) -> dict[str, float]:
    """Build in a process of its own. Return its seconds, and its peak resident memory in MB."""
    process = psutil.Popen([sys.executable, __file__, "--child", str(folder), model, mode], stdout=subprocess.PIPE, text=True)
    peak = peak_of(process)
    return {**json.loads(process.stdout.read().splitlines()[-1]), "peak": peak}


def run_build(model: str, texts: list[str], folder: Path, reference: Speed, rounds: int) -> Speed:
    """Print the speed of whole builds, and return that of builds with proof. reference: the speed of the bare reference."""
    write_inputs(folder, texts)
    size = megabytes(texts)
    results: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
    for _ in range(rounds):
        for mode, found in results.items():
            found.append(built(folder, model, mode))
    speeds = {mode: median([Speed(size / each["build"], size / each["build_cpu"]) for each in found]) for mode, found in results.items()}
    speed = speeds["auto"]
    ratios = f"{speed.wall / reference.wall:.1f} x the bare reference, {speed.cpu / reference.cpu:.1f} x in core-seconds"
    print(f"  build of {size:.0f} MB: {speed} ({ratios})")
    proof = statistics.median(each["proof"] for each in results["auto"])
    continuous, first = (speeds[less].cpu / speeds[more].cpu - 1 for more, less in itertools.pairwise(MODES))
    print(
        f"  comparison while it builds: {continuous:+.1%} core-seconds; before it, the first batches {first:+.1%}, the proof {proof:.1f} s"
    )
    measured = [built(folder, model, TIMED) for _ in range(rounds)]
    first, later = (statistics.median(each[name] / each["build_cpu"] for each in measured) for name in ("first", "later"))
    print(f"  the comparison itself, as a share of the core-seconds of the build: {later:.1%}; the first batches {first:.1%}")
    print(f"  peak memory: {max(each['peak'] for each in results['auto']):.0f} MB", flush=True)
    return speed


def run_megatron(model: str, tokenizer: HuggingFaceTokenizer, texts: list[str], folder: Path, build: Speed) -> None:
    """Print the speed of Megatron-LM's preprocessing with two processes. build: the speed of our whole build."""
    few = texts[: len(texts) // REFERENCE_SHARE]
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in few), encoding="utf-8")
    script = Path(__file__).with_name("peers") / "megatron_preprocess.py"
    eot = tokenizer.special_tokens["eot"]
    command = [sys.executable, "-W", "ignore", str(script), str(folder / "texts.jsonl"), model, eot, str(folder / "megatron")]
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    speed = megabytes(few) / json.loads(printed.splitlines()[-1])["seconds"]
    print(f"  Megatron's preprocess_data, 2 processes: {speed:.1f} MB/s ({build.wall / speed:.1f} x)", flush=True)


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
    for load in engines.engines_for(tokenizer).values():
        engine = load(tokenizer)
        if isinstance(engine, str):
            continue
        for name, texts in {
            "real": real_texts(count // 2),
            "made": mixtures(count - count // 2, pieces=pieces, seed=23),
        }.items():
            proof, compared = EngineProof(texts=0), partial(compare, reference=tokenizer.encode_flat, engine=engine.encode_flat)
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
    parser.add_argument("--megatron", action="store_true", help="with --build: also Megatron's preprocess_data (tokenizer.json only)")
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
        run_proof(opened(model))  # another one, because the library remembers the words of the proof, and is slower afterwards
        for size in arguments.bytes:
            texts = documents(base_texts(), size=size, megabytes=arguments.megabytes)
            print(f"  {len(texts):,} documents of {size} bytes")
            reference = run_encoding(tokenizer, texts, arguments.rounds)
            if arguments.build:
                with tempfile.TemporaryDirectory() as temporary:
                    speed = run_build(model, texts, Path(temporary), reference, arguments.rounds)
                    if arguments.megatron and isinstance(tokenizer, HuggingFaceTokenizer):
                        run_megatron(model, tokenizer, texts, Path(temporary), speed)


if __name__ == "__main__":
    main()
