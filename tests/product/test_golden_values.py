"""Golden values, on which the caches, Dagster homes, checkpoints and imports of users rely. A change of the code must not change them.

The values are JSON files in tests/golden. A failure names each value that has changed, with the old value and the new value. A changed
fingerprint or code version builds terabytes anew. A changed key or op name cuts off the history of an asset. A changed state stops a
training run that resumes. If a change is meant, write the files anew with `pytest tests/product/test_golden_values.py --write-golden`, read
their diff, and add a line to CHANGELOG.md about the builds and changes that users must make.

The small project is built with a stored tokenizer (spm.model), so that no value depends on SentencePiece's training. A name in angle
brackets stands for what depends on the machine, the time or a library's version (tests/golden/project.py). Bytes that a library decides
are in bytes.json, which is compared only with the versions that it was written with.
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from niels_cache_assets.defs.assembly import build_defs
from niels_cache_assets.exchange import FORMATS
from niels_cache_assets.exchange.formats import ExportSettings, plan_export
from niels_cache_assets.exchange.writing import write_export
from niels_cache_assets.tokenizer.byte_level import train_byte_level
from niels_cache_runtime import SFT, Blocks, DatasetLoader, PretrainTokenStreamDataset, SFTExampleDataset, TokenLoader
from niels_cache_runtime.loader.trace import BatchTrace
from niels_cache_runtime.megatron import IndexCache, open_blend
from tests.base.test_fingerprint import fingerprints
from tests.base.test_fingerprint import registry as every_kind
from tests.golden import Golden
from tests.golden.definitions import told_of
from tests.golden.imports import described_names, public_names, told_of_name
from tests.golden.project import (
    MODEL,
    Built,
    Hashed,
    build,
    digest_of,
    journal_of,
    next_batches,
    recording_often,
    records,
    sha256_of,
    small_pieces,
    stopping_at_record,
    told_of_files,
    told_of_record,
    within,
)
from tests.helpers.exports import contents
from tests.helpers.small_project import STAGES, SmallProject
from tests.helpers.tiny import sentences

BATCHES = 3
SECOND = 2  # records of a journal


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which nothing is configured."""
    folder = tmp_path_factory.mktemp("golden")
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("CONFIG", "PROFILE", "ROOT", "JOURNAL_BYTES"):
            patch.delenv(f"NIELS_CACHE_{variable}", raising=False)
        patch.setenv("DAGSTER_HOME", str(folder / "home"))
        patch.chdir(folder)
        yield folder


@pytest.fixture(scope="module")
def built(folder: Path) -> Built:
    return build(folder / "project")


# The cache root


def test_what_the_project_is_made_of(built: Built, golden: Golden) -> None:
    """If this fails, look here first: all else follows from these files."""
    project = built.root.parent
    golden.hold("inputs", {path.name: sha256_of(path.read_bytes()) for path in [*project.glob("*.jsonl"), MODEL]})


def test_fingerprints_and_what_they_are_of(built: Built, golden: Golden) -> None:
    """They are held for every artifact. The hash of an index is the name of its folder."""
    found = {}
    for path, record in records(built.root).items():
        if path.startswith("index/"):
            samples = record["parameters"].get("num_samples") or record["parameters"]["size"]
            found[f"{record['kind']} of {samples} samples"] = built.explained(Path(path).parent.name)
        elif not path.startswith("reports/"):
            found[path.removesuffix("/meta.json")] = built.explained(record["fingerprint"])
    golden.hold("fingerprints", found)


def test_fingerprints_of_every_kind_of_source_and_of_a_trained_tokenizer(golden: Golden) -> None:
    """They are taken at a fixed revision and without a build: of a tokenizer the settings count, not the bytes."""
    hashed = Hashed()
    with hashed.listening():
        found = fingerprints(every_kind())
    golden.hold("kinds", {name: {"sha256": sha256, "of": hashed.of(sha256)} for name, sha256 in found.items()})


def test_records(built: Built, golden: Golden) -> None:
    """They are meta.json of every folder, with its keys in order and its values (content_sha256, schema_version, ...), and report.json."""
    golden.hold("records", {name: told_of_record(record) for name, record in records(built.root).items()})


def test_files(built: Built, golden: Golden) -> None:
    golden.hold("files", told_of_files(built.root))


def test_bytes_that_libraries_decide(built: Built, golden: Golden) -> None:
    """They are the parquet files, and the records that name their hashes or a version."""
    found = {name: sha256_of(content) for name, content in contents(built.root).items() if name.endswith((".parquet", ".json"))}
    golden.hold("bytes", found, libraries=("pyarrow", "sentencepiece"))


def test_a_byte_level_bpe_that_is_trained(folder: Path, golden: Golden) -> None:
    sample, model = folder / "sample.txt", folder / "tokenizer.json"
    sample.write_text("".join(f"{text}\n" for text in sentences(400, seed=1)), encoding="utf-8")
    train_byte_level({"sample": str(sample), "model": str(model), "vocab_size": 400, "special_tokens": ["<|endoftext|>", "<|sys|>"]})
    golden.hold(
        "bytelevel_bpe", {"sample": sha256_of(sample.read_bytes()), "model": sha256_of(model.read_bytes())}, libraries=("tokenizers",)
    )


# The files of a stopped build


STOPPED: dict[str, tuple[str, tuple[str, ...]]] = {  # by stage: what it builds, and what is there before
    "corpus": ("corpus/notes", ("tokenizer",)),
    "duplicates": ("duplicates", ("tokenizer", "corpus")),
    "pretrain": ("pretrain/letters", ("tokenizer", "corpus", "duplicates")),
    "prepared pretrain": ("pretrain/notes", ("tokenizer", "corpus", "duplicates")),
    "sft": ("sft/chats", ("tokenizer", "corpus", "duplicates")),
}


def stopped(project: SmallProject, stage: str, root: Path) -> dict[str, Any]:
    """Return what the stage leaves in a new root if it is stopped behind its second record."""
    target, before = STOPPED[stage]
    for name in before:
        shutil.copytree(project.root / name, root / name)
    hashed = Hashed()
    with small_pieces(), recording_often(), hashed.listening(), stopping_at_record(SECOND), pytest.raises(KeyboardInterrupt):
        STAGES[stage](project.in_root(root))
    path = root / target
    return journal_of(path.with_name(f".{path.name}.partial"), hashed)


def test_journals_of_stopped_builds(built: Built, folder: Path, golden: Golden) -> None:
    golden.hold("journals", {stage: stopped(built.project, stage, folder / "stopped" / stage) for stage in STOPPED})


# The records of Dagster


def test_definitions(built: Built, golden: Golden) -> None:
    """Held are keys, partitions, edges, versions, ops, jobs, checks, sensors and schedules."""
    golden.hold("definitions", told_of(build_defs(registry=built.project.registry)))


# The values that training reads

FIELDS = ("document_ids", "position_ids", "cu_seqlens", "dataset_ids")
LETTERS, NOTES, CHATS = "pretrain/letters/train", "pretrain/notes/train", "sft/chats/train"
LOADERS: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "windows": ({"letters": LETTERS}, {}),
    "in order, rank 1 of 2, two epochs, strided": (
        {"letters": LETTERS},
        {"shuffle": False, "rank": 1, "world_size": 2, "epochs": 2, "drop_last": True, "stride": 8},
    ),
    "documents": ({"notes": NOTES}, {"fields": FIELDS, "mask_cross_document_targets": True}),
    "a blend that changes": (
        {"letters": LETTERS, "notes": NOTES, "chats": CHATS},
        {"weights": [(0, {"letters": 1, "notes": 2, "chats": 0}), (6, {"letters": 1, "notes": 1, "chats": 1})], "fields": FIELDS},
    ),
    "packed conversations": ({"chats": CHATS}, {"T": 64, "sft": SFT(loss_on="last_assistant")}),
    "a blend in blocks, rank 3 of 4 on 2 machines": (
        {"letters": LETTERS, "chats": CHATS},
        {
            "weights": {"letters": 2, "chats": 1},
            "order": Blocks(shards=2, lanes=4, machines=2),
            "rank": 3,
            "world_size": 4,
        },
    ),
    "conversations, long ones dropped": ({"chats": CHATS}, {"T": 48, "sft": SFT(overflow="drop", weigh_by="examples")}),
}


@pytest.mark.filterwarnings("ignore:.*no assistant target|.*dropped|.*longer:UserWarning")
def test_batches_and_states_of_loaders(built: Built, golden: Golden) -> None:
    """Held are the order of each loader, its first batches, the state after them, and where the tokens of the next batch come from."""
    found = {}
    for name, (sources, settings) in LOADERS.items():
        given = {label: str(built.root / split) for label, split in sources.items()}
        loader = TokenLoader(given, **{"T": 32, "B": 4, "seed": 5, **settings})
        batches = next_batches(loader, BATCHES)
        traces = [cast(BatchTrace, loader.trace(step)) for step in range(BATCHES + 1)]
        found[name] = {
            "samples of an epoch": loader.samples_per_epoch,
            "order": [_order(trace) for trace in traces],
            "batches": batches,
            "state": within(loader.state_dict(), built.root),
            "trace": within({field: _numbers(value) for field, value in vars(traces[-1]).items()}, built.root),
            "row": [int(token) for token in traces[0].tokens[0]],
        }
    assert all(len(set(each["batches"])) == BATCHES for each in found.values())
    golden.hold("loaders", found)


def _order(trace: BatchTrace) -> list[list[int]]:
    """Return for each row its sample in the run, its source, and the epoch and the number that it has there."""
    return np.stack([trace.samples, trace.dataset_ids, trace.epochs, trace.numbers], axis=1).tolist()


def _numbers(value: Any) -> Any:
    """Return type, shape and hash of an array, and anything else as it is."""
    if isinstance(value, np.ndarray):
        return {"type": str(value.dtype), "shape": list(value.shape), "sha256": sha256_of(np.ascontiguousarray(value).tobytes())}
    return value


def test_batches_and_states_of_samplers(built: Built, golden: Golden) -> None:
    conversations = built.root / "sft" / "chats"
    eot = records(built.root)["tokenizer/meta.json"]["special_token_ids"]["eot"]
    pretrain = PretrainTokenStreamDataset(str(built.root / LETTERS), T=32, device="cpu")
    pair = [str(conversations / name) for name in ("train_tokens.bin", "train_idx.npy")]
    sft = SFTExampleDataset(*pair, T=64, device="cpu", eot_id=eot)
    sequential = DatasetLoader(batch=2, seq_len=16, process_rank=1, num_processes=2, dataset_dir=str(built.root / LETTERS), device="cpu")
    generator = torch.Generator().manual_seed(3)
    golden.hold(
        "samplers",
        {
            "windows": {"total": pretrain.total_windows, "batches": _drawn(lambda: pretrain.get_batch(B=4, generator=generator))},
            "examples": {"batches": _drawn(lambda: sft.get_batch(B=4, generator=generator))},
            "sequential": {"batches": next_batches(sequential, 7), "state": sequential.state_dict(), "files": sequential.files},
        },
    )


def _drawn(draw: Callable[[], Any]) -> list[str]:
    return [digest_of(draw()) for _ in range(BATCHES)]


def test_indices_in_the_order_of_megatron(built: Built, golden: Golden) -> None:
    """Held are the arrays of every index, and the samples of their blend."""
    found = {}
    for path in sorted((built.root / "index").glob("*/*.npy")):
        array = np.load(path)
        found[path.relative_to(built.root).as_posix()] = {**_numbers(array), "first": array.reshape(-1)[:24].tolist()}
    paths = [built.root / split for split in (LETTERS, NOTES)]
    cache = IndexCache(built.root / "index")
    blend = open_blend(paths, [1.0, 2.0], num_samples=100, sequence_length=16, seed=1234, index_cache=cache)
    samples = [blend[number] for number in range(len(blend))]
    found["blend"] = {
        "order": [int(sample["dataset_id"]) for sample in samples],
        "keys": sorted(samples[0]),
        "samples": sha256_of(
            b"".join(np.ascontiguousarray(samples[row][key]).tobytes() for row in range(100) for key in sorted(samples[row]))
        ),
    }
    assert len({path.parent for path in (built.root / "index").glob("*/*.npy")}) == 3, "the blend was in the cache"
    golden.hold("indices", found)


@pytest.mark.parametrize("most", ["in one file", "in parts"])
def test_exports(built: Built, folder: Path, golden: Golden, most: str) -> None:
    found = {}
    for format in FORMATS:
        if most == "in parts" and format == "nanogpt":
            continue
        out = folder / most / format / "letters"
        settings = ExportSettings(format=format, out=out, max_bytes=3_000 if most == "in parts" else None)
        write_export(plan_export("letters", built.root / "pretrain" / "letters", settings))
        for name, content in contents(out.parent).items():
            found[f"{format}: {name}"] = content.decode().splitlines() if name.endswith(".files") else sha256_of(content)
    golden.hold(f"exports_{most.replace(' ', '_')}", found)


# The names that other code imports


def test_public_names_and_their_parameters(golden: Golden) -> None:
    """Held are `__all__` of the four packages, what docs/api/ describes, and the parameters of both."""
    public, described = public_names(), described_names()
    assert len(public) > 30
    assert len(described) > 40
    parameters = {name: told_of_name(name) for name in public | described}
    golden.hold("public_names", {"public": sorted(public), "described": sorted(described), "parameters": parameters})
