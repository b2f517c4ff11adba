"""What a person waits for: the installed `niels-cache build-all` from start to prompt, and other projects' whole commands.

    python benchmarks/command.py [--command before=OLD/bin/niels-cache --command after=NEW/bin/niels-cache]
                                 [--cases 182:deepseek 182:mistral 1000:deepseek 40x1:deepseek] [--rounds 1] [--only NAME ...]
                                 [--megatron CHECKOUT] [--install] [--output FOLDER] [--quick]

Each case is one data set of so many MB, or SETSxMB data sets, and a tokenizer of NIELS_CACHE_REAL_DATA; `trained` is a byte-level BPE that
is trained here. Each command runs in a fresh process. For niels-cache:

* first build: a new folder, Dagster home and user's cache folder, so that the tokenizer is imported and its engine proven;
* nothing to do: the same command again;
* status: `niels-cache status` in the same folder.

"builder" is `build_pretrain_cache` alone, in a process that has imported everything and proven the engine. The others get the same files,
one for each core, and as many workers as cores:

* script: `tokenizers` (or `sentencepiece`) over the batches of Parquet, and `tofile` (peers/plain_script.py);
* datatrove, litdata: their own writers (peers/datatrove_command.py, peers/litdata_command.py);
* Megatron-LM: tools/preprocess_data.py of --megatron, a checkout of core_v0.16.1 (55ac7082). megatron-core's wheel does not ship it. Its
  input are JSON lines, which are written before.

Those whose environment is missing are left out with a line; --install makes it (gigabytes). Everybody writes the same number of tokens, and
an EOT after each document. Programs take turns, after builds of a few documents that fill the caches of Python and numba. Memory is the
sum of PSS of all processes (process_tree.py), from a round of its own, because sampling takes a tenth of a core.

Texts: a document begins with its number, and joins pieces of about 125 characters from random places of the texts of build.py, 332 bytes in
the mean, and 60 at least. So no document equals another or is near to one. The page cache is warm. --output writes command.json, command.md
and memory.svg, the memory over time in the largest case.
"""

import argparse
import functools
import json
import os
import platform
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from build import SHUFFLE_BUFFER, base_texts, build
from niels_cache_assets.base.defaults import ModelKind
from niels_cache_assets.sources import PRETRAIN_SOURCES
from niels_cache_assets.tokenizer.engines import proven_engine
from niels_cache_assets.tokenizer.kinds import open_model
from niels_cache_runtime.format.layout import META_NAME, SPLITS
from niels_cache_runtime.format.reading import available_threads
from peers.compare import HERE, PEERS, Peer, as_a_model_folder, ensure_environment, installed_python
from process_tree import CommandFailedError, Run, run
from trained import EOT, train_tokenizer

TOKENIZERS = {  # below NIELS_CACHE_REAL_DATA, and the string of EOT
    "deepseek": ("tokenizers/deepseek_tokenizer.json", "<｜end▁of▁sentence｜>"),
    "mistral": ("sentencepiece/mistral_tokenizer.model.v1", "</s>"),
}
TITLES = {
    "deepseek": "DeepSeek's `tokenizer.json`",
    "mistral": "Mistral's SentencePiece BPE",
    "trained": "a byte-level BPE of 16,000 tokens",
}
CASES = ("182:deepseek", "182:mistral", "1000:deepseek", "40x1:deepseek")
WITHOUT_REAL_DATA = ("182:trained", "1000:trained", "40x1:trained")
QUICK = ("1:trained", "3x0.1:trained")

FIRST, HIT, STATUS = "first build", "nothing to do", "status"
BUILDER, SCRIPT = "builder", "script"
MEGATRON = Peer(
    script="",  # that of the checkout
    requirements=HERE.parent / "megatron-requirements.txt",
    environment=HERE.parent.parent / ".bench-env-megatron",
)

_SHORTEST, _PIECE, _LONGER = 60, 125, 50  # characters: of a document, of a piece, by which a piece may be longer to end at a blank
_MEAN_DRAWN = 256  # of the exponential distribution that is added to the shortest, so that documents have 332 bytes
_ROWS = 10_000  # of a row group
_FEW = 1.0  # MB before the measurements; the builder alone needs 100,000 tokens for val


# Inputs


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is built: data sets of this size, with this tokenizer."""

    sets: int
    megabytes: float
    tokenizer: str

    @classmethod
    def parse(cls, text: str) -> "Case":
        size, _, tokenizer = text.partition(":")
        sets, _, each = size.rpartition("x")
        return cls(sets=int(sets or 1), megabytes=float(each), tokenizer=tokenizer)


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """The files of a case. files: of each data set. bytes: of text."""

    files: Mapping[str, Sequence[Path]]
    documents: int
    bytes: int
    model: Path
    eot: str


def random_documents(text: str, seed: int) -> Iterator[str]:
    """Yield documents without end. The same text and seed give the same documents."""
    drawn, number = random.Random(seed), 0
    while True:
        pieces, left = [f"{seed}-{number}"], _SHORTEST + drawn.expovariate(1 / _MEAN_DRAWN)
        while left > 0:
            start = text.find(" ", drawn.randrange(len(text) - 2 * _PIECE)) + 1
            size = min(int(left) + 1, _PIECE)
            end = text.find(" ", start + size, start + size + _LONGER)
            pieces.append(text[start : end if end >= 0 else start + size])
            left -= len(pieces[-1])
        yield " ".join(pieces)
        number += 1


def write_files(folder: Path, text: str, *, megabytes: float, files: int, seed: int) -> tuple[list[Path], int, int]:
    """Write documents of together so many MB as Parquet. Return the files, the number of documents and the bytes of text."""
    folder.mkdir(parents=True)
    paths, count, size = [], 0, 0
    documents = random_documents(text, seed)
    schema = pyarrow.schema([("id", pyarrow.string()), ("text", pyarrow.string())])
    for part in range(files):
        paths.append(folder / f"part_{part}.parquet")
        with pyarrow.parquet.ParquetWriter(paths[-1], schema) as writer:
            while size < megabytes * 1e6 * (part + 1) / files:
                texts: list[str] = []
                while len(texts) < _ROWS and size < megabytes * 1e6 * (part + 1) / files:
                    texts.append(next(documents))
                    size += len(texts[-1].encode())
                ids = [str(number) for number in range(count, count + len(texts))]
                writer.write_table(pyarrow.table({"id": ids, "text": texts}, schema), row_group_size=_ROWS)
                count += len(texts)
    return paths, count, size


@functools.cache
def library_text() -> str:
    return " ".join(base_texts())


def write_inputs(case: Case, folder: Path) -> Inputs:
    """Write the files of a case, and choose or train its tokenizer."""
    model, eot = tokenizer_of(case.tokenizer, folder)
    written = {
        f"set_{number:02d}": write_files(
            folder / f"set_{number:02d}",
            library_text(),
            megabytes=case.megabytes,
            files=available_threads() if case.sets == 1 else 1,
            seed=number,
        )
        for number in range(case.sets)
    }
    return Inputs(
        files={name: files for name, (files, _, _) in written.items()},
        documents=sum(documents for _, documents, _ in written.values()),
        bytes=sum(size for _, _, size in written.values()),
        model=model,
        eot=eot,
    )


def tokenizer_of(name: str, folder: Path) -> tuple[Path, str]:
    """Return a tokenizer's file and the string of its EOT."""
    if name == "trained":
        folder.mkdir(parents=True, exist_ok=True)
        train_tokenizer(base_texts(), folder / "tokenizer.json")
        return folder / "tokenizer.json", EOT
    real = os.environ.get("NIELS_CACHE_REAL_DATA")
    if not real:
        raise SystemExit(f"{name}: set NIELS_CACHE_REAL_DATA, or choose a case with the tokenizer `trained`, such as --cases 182:trained")
    path, eot = TOKENIZERS[name]
    return Path(real, path).resolve(), eot


# Programs


@dataclass(frozen=True, kw_only=True)
class Program:
    """Another project's command.

    Attributes:
        command: Returns its command line for the inputs and a new folder.
        tokens: Returns the number of tokens that it wrote into the folder, for the bytes of a token.
        environment: Returns variables for the same arguments.
        prints_seconds: Whether the seconds that it prints last count, and not those of the whole command.
    """

    command: Callable[[Inputs, Path], Sequence[str | Path]]
    tokens: Callable[[Path, int], int | None]
    environment: Callable[[Inputs, Path], Mapping[str, str]] = lambda inputs, folder: {}
    prints_seconds: bool = False


def tokens_of_files(pattern: str) -> Callable[[Path, int], int]:
    """Return a function that counts the tokens of headerless files."""
    return lambda folder, width: sum(path.stat().st_size for path in folder.glob(pattern)) // width


def tokens_of_chunks(folder: Path, width: int) -> int:
    return sum(chunk["dim"] for chunk in json.loads((folder / "out" / "index.json").read_text())["chunks"])


def tokens_of_caches(folder: Path, width: int) -> int:
    metas = [json.loads(path.read_text()) for path in folder.glob(f"cache/pretrain/*/{META_NAME}")]
    return sum(meta[f"{split}_tokens"] for meta in metas for split in SPLITS)


def all_files(inputs: Inputs) -> list[Path]:
    return [path for files in inputs.files.values() for path in files]


def script(inputs: Inputs, folder: Path) -> list[str | Path]:
    return [sys.executable, HERE / "plain_script.py", inputs.model, inputs.eot, folder / "out.bin", *all_files(inputs)]


def builder(inputs: Inputs, folder: Path) -> list[str | Path]:
    return [sys.executable, Path(__file__), "--builder", inputs.model, inputs.eot, folder, *all_files(inputs)]


def datatrove(inputs: Inputs, folder: Path) -> list[str | Path]:
    files = all_files(inputs)
    return [
        installed("datatrove"),
        HERE / "datatrove_command.py",
        inputs.model,
        inputs.eot,
        folder / "out",
        str(len(files)),
        files[0].parent,
    ]


def litdata(inputs: Inputs, folder: Path) -> list[str | Path]:
    files = all_files(inputs)
    return [installed("litdata"), HERE / "litdata_command.py", inputs.model, inputs.eot, folder / "out", str(len(files)), *files]


def megatron(checkout: Path, inputs: Inputs, folder: Path) -> list[str | Path]:
    lines = all_files(inputs)[0].with_name("texts.jsonl")
    if not lines.exists():  # not measured
        with lines.open("w", encoding="utf-8") as out:
            for path in all_files(inputs):
                for batch in pyarrow.parquet.ParquetFile(path).iter_batches(columns=["text"]):
                    out.writelines(json.dumps({"text": text}) + "\n" for text in batch["text"].to_pylist())
    model = as_a_model_folder(inputs.model, inputs.eot, folder / "model")
    kind = ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", model]
    output = ["--output-prefix", folder / "out", "--append-eod", "--workers", str(available_threads())]
    return [installed("Megatron-LM"), "-W", "ignore", checkout / "tools" / "preprocess_data.py", "--input", lines, *kind, *output]


def peer_of(name: str) -> Peer:
    return MEGATRON if name == "Megatron-LM" else PEERS[name]


def installed(name: str) -> Path:
    python = installed_python(peer_of(name))
    assert python is not None  # `programs` asks before
    return python


def programs(checkout: Path | None, *, install: bool) -> dict[str, Program]:
    """Return the other commands by name, without those whose environment or checkout is missing, which are named in a line."""
    found = {
        BUILDER: Program(
            command=builder, tokens=lambda folder, width: None, prints_seconds=True
        ),  # its val has a budget, which cuts a document
        SCRIPT: Program(command=script, tokens=tokens_of_files("out.bin")),
    }
    peers = {
        "datatrove": Program(command=datatrove, tokens=tokens_of_files("out/*.ds")),
        "litdata": Program(command=litdata, tokens=tokens_of_chunks),
    }
    if checkout is None:
        print("Megatron-LM: left out; give a checkout of core_v0.16.1 with --megatron", flush=True)
    else:
        peers["Megatron-LM"] = Program(
            command=functools.partial(megatron, checkout),
            tokens=tokens_of_files("out_text_document.bin"),
            environment=lambda inputs, folder: {"PYTHONPATH": str(checkout)},
        )
    for name, program in peers.items():
        if install:
            ensure_environment(peer_of(name))
        if installed_python(peer_of(name)) is None:
            print(f"{name}: left out, because {peer_of(name).environment.name} is missing or outdated; --install makes it", flush=True)
        else:
            found[name] = program
    return found


def kind_of(model: str | Path) -> ModelKind:
    return "tokenizer.json" if Path(model).suffix == ".json" else "sentencepiece"


def run_builder(model: str, eot: str, folder: str, *files: str) -> None:
    """Build in this process, and print the seconds without those of imports and of the proof."""
    import pandas  # noqa: F401  # Arrow imports it with its first array, within the measured time

    tokenizer = open_model(model, kind=kind_of(model), special_tokens={"eot": eot})
    source = PRETRAIN_SOURCES["parquet"].model_validate({"source": "parquet", "files": list(files), "shuffle_buffer": SHUFFLE_BUFFER})
    if isinstance(engine := proven_engine(tokenizer, print), str):
        print(f"no fast engine: {engine}")
    began = time.perf_counter()
    build(source, tokenizer, Path(folder))
    print(f"\n{time.perf_counter() - began}")


# Measurements


@dataclass(frozen=True, kw_only=True)
class Row:
    """The runs of one command in one case.

    Attributes:
        program: Name of the program.
        step: What niels-cache did, or an empty string.
        tokens: Tokens that it wrote, or None for a command that writes none.
        timed: Runs whose seconds count.
        sampled: Runs whose memory was sampled. Their seconds count if no other run is timed.
    """

    program: str
    step: str
    tokens: int | None
    timed: list[Run] = field(default_factory=list)
    sampled: list[Run] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.program}, {self.step}" if self.step else self.program

    @property
    def runs(self) -> list[Run]:
        return self.timed or self.sampled

    @property
    def seconds(self) -> float:
        return statistics.median(run.seconds for run in self.runs)

    @property
    def cpu(self) -> float:
        return statistics.median(run.cpu for run in self.runs)

    @property
    def peak(self) -> float:
        return max((run.peak for run in self.sampled), default=0.0)

    @property
    def peak_without_files(self) -> float:
        return max((run.peak_without_files for run in self.sampled), default=0.0)


def new_folder(path: Path) -> Path:
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    return path


def project_file(inputs: Inputs) -> str:
    """Return niels_cache.toml for these inputs."""
    model, eot = (json.dumps(value, ensure_ascii=False) for value in (str(inputs.model), inputs.eot))
    tables = [f'[tokenizer]\nmodel = {model}\nkind = "{kind_of(inputs.model)}"\nspecial_tokens = {{ eot = {eot} }}\n']
    for name, files in inputs.files.items():
        tables.append(f'[pretrain.{name}]\nsource = "parquet"\nfiles = {json.dumps([str(path) for path in files])}\n')
    return "\n".join(tables)


def run_ours(executable: Path, inputs: Inputs, folder: Path, *, is_sampled: bool) -> Iterator[tuple[str, Run]]:
    """Build in a new project, build again, and ask for the status."""
    new_folder(folder)
    (folder / "niels_cache.toml").write_text(project_file(inputs), encoding="utf-8")
    own = {name: str(folder / name.lower()) for name in ("DAGSTER_HOME", "HOME", "XDG_CACHE_HOME")}
    for path in own.values():
        Path(path).mkdir()
    own["MPLCONFIGDIR"] = str(folder.parent / "matplotlib")  # a user makes matplotlib's list of fonts once
    for step, command in ((FIRST, "build-all"), (HIT, "build-all"), (STATUS, "status")):
        yield step, run([executable, command], folder=folder, environment=own, is_sampled=is_sampled)


def run_other(program: Program, inputs: Inputs, folder: Path, *, is_sampled: bool) -> Run:
    new_folder(folder)
    environment = program.environment(inputs, folder)
    found = run(program.command(inputs, folder), folder=folder, environment=environment, is_sampled=is_sampled)
    return replace(found, seconds=float(found.output.splitlines()[-1])) if program.prints_seconds else found


def measure(
    case: Case,
    inputs: Inputs,
    work: Path,
    *,
    commands: Mapping[str, Path],
    others: Mapping[str, Program],
    rounds: int,
) -> list[Row]:
    """Let all programs take turns, `rounds` times, and once more to sample their memory.

    A case of several data sets is for niels-cache only, because the others know no data sets.
    """
    rows: dict[tuple[str, str], Row] = {}
    width = 2 if open_model(inputs.model, kind=kind_of(inputs.model), special_tokens={}).vocab_size <= 65_536 else 4

    def add(program: str, step: str, found: Run, tokens: int | None) -> None:
        row = rows.setdefault((program, step), Row(program=program, step=step, tokens=tokens))
        (row.sampled if found.samples else row.timed).append(found)
        memory = f", {found.peak:.0f} MB" if found.samples else ""
        print(f"  {row.name}: {found.seconds:.1f} s, {found.cpu:.1f} s of processors{memory}", flush=True)

    for is_sampled in [False] * rounds + [True]:
        for name, executable in commands.items():
            folder = work / name
            for step, found in run_ours(executable, inputs, folder, is_sampled=is_sampled):
                add(name, step, found, tokens_of_caches(folder, width) if step == FIRST else None)
        for name, program in others.items() if case.sets == 1 else ():
            if is_supported(name, case):
                folder = work / name
                try:
                    found = run_other(program, inputs, folder, is_sampled=is_sampled)
                except CommandFailedError as error:  # the others are measured nevertheless
                    print(f"  {name}: {error}", flush=True)
                    continue
                add(name, "", found, program.tokens(folder, width))
    return list(rows.values())


def is_supported(name: str, case: Case) -> bool:
    """Return whether a program can use the tokenizer: datatrove, litdata's README and Megatron's AutoTokenizer want a tokenizer.json."""
    return case.tokenizer != "mistral" or name in (SCRIPT, BUILDER)


# Results


def title_of(case: Case, inputs: Inputs) -> str:
    size = f"{inputs.bytes / 1e6:,.0f} MB in {inputs.documents:,} documents"
    return f"{f'{case.sets} data sets, ' if case.sets > 1 else ''}{size}, {TITLES[case.tokenizer]}"


def table_of(case: Case, inputs: Inputs, rows: Sequence[Row]) -> list[str]:
    """Return the lines of a Markdown table, with a line above it and one about tokens below it."""
    script_seconds = next((row.seconds for row in rows if row.program == SCRIPT), None)
    seconds, others = sum(run.seconds for row in rows for run in row.runs), sum(run.others for row in rows for run in row.runs)
    lines = [
        f"{title_of(case, inputs)}; other programs used {others / seconds:.1f} of the {available_threads()} cores",
        "",
        "| command | seconds | MB/s | compared with the script | processor seconds | peak memory, MB | without pages of files |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        is_build = row.step in ("", FIRST)
        speed = f"{inputs.bytes / 1e6 / row.seconds:.1f}" if is_build else "-"
        ratio = f"{script_seconds / row.seconds:.2f}x" if is_build and script_seconds is not None else "-"
        used = ["-"] * 3 if row.program == BUILDER else [f"{row.cpu:.1f}", f"{row.peak:.0f}", f"{row.peak_without_files:.0f}"]
        lines.append(f"| {' | '.join([row.name, f'{row.seconds:.2f}', speed, ratio, *used])} |")
    lines += ["", describe_tokens(rows)]
    firsts = [row for row in rows if row.step == FIRST]
    alone = [row for row in rows if row.program == BUILDER]
    lines += [f"{row.name}: {alone[0].seconds / row.seconds:.2f} of the speed of the builder alone." for row in firsts if alone]
    return lines


def describe_tokens(rows: Sequence[Row]) -> str:
    counts = {row.name: row.tokens for row in rows if row.tokens is not None}
    if len({*counts.values()}) == 1:
        return f"All wrote {next(iter(counts.values())):,} tokens."
    return f"TOKENS DIFFER: {', '.join(f'{name} {tokens:,}' for name, tokens in counts.items())}"


def as_json(case: Case, inputs: Inputs, rows: Sequence[Row]) -> dict[str, Any]:
    """Return what was measured, with the memory over time."""
    measured = []
    for row in rows:
        numbers = ("seconds", "rest", "cpu", "others", "sampling", "peak", "peak_without_files")
        timed, sampled = (
            [{number: round(getattr(run, number), 3) for number in numbers} for run in runs] for runs in (row.timed, row.sampled)
        )
        memory = [[round(value, 2) for value in asdict(sample).values()] for run in row.sampled for sample in run.samples]
        measured.append(
            {"program": row.program, "step": row.step, "tokens": row.tokens, "timed": timed, "sampled": sampled, "memory": memory}
        )
    return {**asdict(case), "documents": inputs.documents, "bytes": inputs.bytes, "rows": measured}


def draw(title: str, rows: Sequence[Row], path: Path) -> None:
    """Draw the memory of each build over time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.add_subplot(xlabel="seconds", ylabel="MB (PSS of all processes)", title=title)
    for row in rows:
        if row.step in ("", FIRST) and row.program != BUILDER and row.sampled:
            samples = row.sampled[0].samples
            axes.plot([sample.seconds for sample in samples], [sample.memory for sample in samples], label=row.name, linewidth=1)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, metadata={"Date": None})


def named_command(text: str) -> tuple[str, Path]:
    name, _, path = text.rpartition("=")
    return name or "niels-cache", Path(path).absolute()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    own = f"niels-cache={Path(sys.executable).with_name('niels-cache')}"
    parser.add_argument("--command", type=named_command, action="append", metavar="NAME=PATH", help="an installed niels-cache; repeatable")
    parser.add_argument("--cases", type=Case.parse, nargs="+", metavar="[SETSx]MB:TOKENIZER", help=f"default: {' '.join(CASES)}")
    parser.add_argument("--rounds", type=int, default=1, help="before the one that samples memory; 0: time that one (default: 1)")
    parser.add_argument("--only", nargs="*", help="only these of the other programs", metavar="NAME")
    parser.add_argument("--megatron", type=Path, metavar="CHECKOUT", help="Megatron-LM at core_v0.16.1")
    parser.add_argument("--install", action="store_true", help="make the environments of other projects (gigabytes)")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="write command.json, command.md and memory.svg")
    parser.add_argument("--quick", action="store_true", help="small, to see that it runs")
    parser.add_argument("--builder", nargs="+", help=argparse.SUPPRESS)
    settings = parser.parse_args()
    if settings.builder:
        return run_builder(*settings.builder)
    usual = CASES if os.environ.get("NIELS_CACHE_REAL_DATA") else WITHOUT_REAL_DATA
    cases: list[Case] = settings.cases or [*map(Case.parse, QUICK if settings.quick else usual)]
    commands = dict(settings.command or [named_command(own)])
    others = programs(settings.megatron and settings.megatron.absolute(), install=settings.install)
    if settings.only is not None:
        others = {name: program for name, program in others.items() if name in settings.only}
    lines, results, largest = [], [], -1.0
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        if not settings.quick:
            few = replace(cases[0], sets=1, megabytes=_FEW)
            print("first runs, which do not count", flush=True)
            measure(few, write_inputs(few, work / "few"), work / "runs", commands=commands, others=others, rounds=0)
        for case in cases:
            inputs = write_inputs(case, work / "texts")
            print(title_of(case, inputs), flush=True)
            rows = measure(case, inputs, work / "runs", commands=commands, others=others, rounds=settings.rounds)
            table = table_of(case, inputs, rows)
            print("\n".join(["", *table, ""]), flush=True)
            lines += [*table, ""]
            results.append(as_json(case, inputs, rows))
            if settings.output is not None:
                settings.output.mkdir(parents=True, exist_ok=True)
                machine = {"cores": available_threads(), "python": platform.python_version(), "system": platform.platform()}
                (settings.output / "command.json").write_text(json.dumps({**machine, "cases": results}) + "\n")
                (settings.output / "command.md").write_text("\n".join(lines))
                if case.sets == 1 and case.megabytes > largest:
                    draw(title_of(case, inputs), rows, settings.output / "memory.svg")
                    largest = case.megabytes
            shutil.rmtree(work / "texts")
    if any("TOKENS DIFFER" in line for line in lines):
        raise SystemExit("the numbers of tokens differ")


if __name__ == "__main__":
    try:
        main()
    except CommandFailedError as error:
        raise SystemExit(str(error)) from error
