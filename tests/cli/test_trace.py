"""The command `niels-cache trace`. Its output agrees with the batch, the files on disk, and the documents of the build.

One pretrain and one SFT data set are built once; loaders over them take a few steps and save their state in many forms.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch

from niels_cache_assets.base.documents import Document
from niels_cache_assets.build_cache.base import Provenance
from niels_cache_assets.build_cache.pretrain import PretrainBuild
from niels_cache_assets.cli import main
from niels_cache_assets.facts.lineage import Lineage, read_lineage
from niels_cache_assets.tokenizer.decoding import as_text
from niels_cache_assets.tokenizer.kinds import SentencePieceTokenizer
from niels_cache_inspection.loader_states import read_loader_state
from niels_cache_inspection.origins import TracedCache
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import META_NAME, TOKEN_DTYPE
from niels_cache_runtime.loader.loader import TokenLoader
from niels_cache_runtime.loader.packing.rows import PackedExamples
from tests.helpers.messages import missing
from tests.helpers.tiny import sentences
from tests.helpers.traced_root import QUESTION, build_notes, build_root, put_tokenizer

T = 48
TEXTS = [" ".join(sentences(1 + number % 4, seed=number)) for number in range(150)]
ANSWERS = sentences(50, seed=1_000)
STATE = {"format": "niels_cache_runtime.TokenLoader", "version": 1, "samples": 3}
ROW = re.compile(r"^--- row (\d+): (\w+), epoch (\d+), sample ([\d,]+)$", flags=re.MULTILINE)


@dataclass(frozen=True)
class Run:
    """A root with two data sets, and the batches that a loader over them made, with its state after them."""

    root: Path
    batches: list[Any]
    state: dict[str, Any]


def open_loader(root: Path) -> TokenLoader:
    """Open a loader with three rows of notes for two rows of chats. Weights count tokens. A short period makes opening a loader quick."""
    sources = {"notes": str(root / "pretrain/notes/train"), "chats": str(root / "sft/chats/train")}
    packed = PackedExamples(sources["chats"], T=T, seed=5)
    return TokenLoader(sources, T=T, B=4, seed=5, weights={"notes": 3 * T * packed.samples, "chats": 2 * packed.tokens})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tokenizer: SentencePieceTokenizer) -> Run:
    root = build_root(tmp_path_factory.mktemp("trace") / "cache", tokenizer, texts=TEXTS, answers=ANSWERS, shard_bytes=4096)
    loader = open_loader(root)
    batches = [batch for _, batch in zip(range(5), loader, strict=False)]
    return Run(root=root, batches=batches, state=loader.state_dict())


@pytest.fixture
def state_file(run: Run, tmp_path: Path) -> str:
    return saved(run.state, tmp_path)


def saved(state: Any, folder: Path) -> str:
    path = folder / "loader.json"
    path.write_text(json.dumps(state), encoding="utf-8")
    return str(path)


def traced(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the output of the command trace."""
    assert main(["trace", *arguments]) == 0, capsys.readouterr().err
    out, errors = capsys.readouterr()
    assert not errors
    return out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the one line of a refused trace."""
    assert main(["trace", *arguments]) == 2
    out, errors = capsys.readouterr()
    assert not out
    assert errors.startswith("niels-cache: error: ")
    assert errors.count("\n") == 1
    return errors


def table_rows(printed: str) -> list[list[str]]:
    """Cells of the lines that begin with a range of columns."""
    return [re.split(r" {2,}", line.strip()) for line in printed.splitlines() if re.match(r"\d+-\d+ ", line)]


def number(cell: str) -> int:
    return int(cell.replace(",", ""))


def plain(text: str) -> str:
    return re.sub(r"<\|\w+\|>", "", text)


def test_every_document_of_a_batch_is_named_with_the_source_that_it_was_built_from(
    run: Run, state_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = SentencePieceTokenizer(str(run.root / "tokenizer/spm.model"))
    seen: dict[str, int] = {"notes": 0, "chats": 0}
    shards = set()
    for step, batch in enumerate(run.batches):
        printed = traced(capsys, "--state", state_file, "--step", str(step))
        assert printed.startswith(f"step {step}, rank 0: 4 rows, columns 0 to {T}\n")
        parts = ROW.split(printed)[1:]
        for row, dataset, _, _, table in zip(*(iter(parts),) * 5, strict=True):
            folder = run.root / ("pretrain/notes" if dataset == "notes" else "sft/chats")
            last = -1
            for cells in table_rows(table):
                first, end = map(int, cells[0].split("-"))
                assert first == last + 1
                last = end
                if cells[1] == "padding":
                    assert dataset == "chats"
                    continue
                document, start, source_id, file, source_row, shard, offset = cells[1:8]
                tokens = np.fromfile(folder / shard, dtype=TOKEN_DTYPE)[number(offset) :][: end - first + 1]
                in_batch = min(end, T - 1) + 1 - first
                assert tokens[:in_batch].tolist() == batch.x[int(row), first : first + in_batch].tolist()
                if dataset == "notes":
                    assert (source_id, file, source_row) == (f"id-{document}", f"part{number(document) % 3}.jsonl", document)
                    text = TEXTS[number(document)]
                else:
                    assert (source_id, file) == (f"chat-{source_row}", "chats.jsonl")
                    text = QUESTION + ANSWERS[number(source_row)]
                assert plain(as_text(tokens.tolist(), tokenizer, continues=start != "0")) in text
                seen[dataset] += 1
                shards.add(shard)
            assert last == T
    assert min(seen.values()) > 10
    assert len(shards) > 2


def test_a_batch_is_json_for_programs(run: Run, state_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads(traced(capsys, "--state", state_file, "--step", "2", "--json"))["rows"]
    assert [row["tokens"][:-1] for row in rows] == run.batches[2].x.tolist()
    segments = [(row["data_set"], segment) for row in rows for segment in row["segments"] if not segment.get("padding")]
    assert {dataset for dataset, _ in segments} == {"notes", "chats"}
    for dataset, segment in segments:
        whole = TEXTS[segment["document"]] if dataset == "notes" else QUESTION + ANSWERS[segment["row"]]
        assert plain(segment["text"]) in whole
    one = json.loads(traced(capsys, "--state", state_file, "--step", "2", "--row", "1", "--column", "17", "--json"))["rows"]
    assert [row["token"] for row in one] == [rows[1]["tokens"][17]]
    assert len(one[0]["segments"]) == 1


def test_one_token_is_marked_in_its_neighbourhood(run: Run, state_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    row = next(row for row in range(4) if (run.batches[1].y_masked[row] >= 0).all())  # a window, where all is to be learned
    for column in (0, 1, 17, T):
        token = run.batches[1].x[row, column] if column < T else run.batches[1].y[row, T - 1]
        printed = traced(capsys, "--state", state_file, "--step", "1", "--row", str(row), "--column", str(column))
        assert f"--- row {row}, column {column}: token {token} '" in printed
        [(document,)] = [re.findall(r"^token [\d,]+ of document (\d+), ", printed, flags=re.MULTILINE)]
        [cells] = table_rows(printed)
        assert (cells[1], cells[3]) == (document, f"id-{document}")
        before, _, after = printed.rpartition("[[")
        whole = traced(capsys, "--state", state_file, "--step", "1", "--row", str(row))
        joined = "".join(re.findall(r"^columns .*:\n(.*)$", whole, flags=re.MULTILINE))
        assert before.splitlines()[-1] + after.replace("]]", "").strip("\n") == joined


def test_a_step_is_traced_on_the_ranks_it_ran_on(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = run.state
    ranks = [TokenLoader.from_state(state, B=3, world_size=2, rank=rank) for rank in range(2)]
    batches = [next(iter(loader)) for loader in ranks]
    path = saved(ranks[0].state_dict(), tmp_path)
    step = ranks[0].step - 1
    for rank, batch in enumerate(batches):
        arguments = ("--state", path, "--step", str(step), "--rank", str(rank), "--row", "2", "--column", "5")
        assert f"column 5: token {batch.x[2, 5]} " in traced(capsys, *arguments)
    assert "ran on 2 ranks" in refused(capsys, "--state", path, "--step", str(step), "--rank", "2")
    assert "ran on 1 ranks" in refused(capsys, "--state", path, "--step", "0", "--rank", "1")
    assert f"column 5: token {run.batches[0].x[3, 5]} " in traced(capsys, "--state", path, "--step", "0", "--row", "3", "--column", "5")
    taken = ranks[0].step
    assert "not taken yet" not in traced(capsys, "--state", path, "--step", str(taken - 1))
    assert f"after {taken} steps" in traced(capsys, "--state", path, "--step", str(taken))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--step", "-1"), ("--step: ", "at least 0", "-1", "counted from 0")),
        (("--step", "1", "--row", "4"), ("row=4: step 1", "0 to 3")),
        (("--step", "1", "--row", "0", "--column", str(T + 1)), (f"column={T + 1}: ", f"0 to {T}")),
        (("--step", "1", "--column", "3"), ("--column 3: ", "--row")),
        (("--step", "1", "--source", "notse=elsewhere"), ("'notse'", "'notes'")),
        (("--step", "1", "--source", "notes=elsewhere"), ("notes: elsewhere ", "seen from")),
        ((), ("required", "--step")),
    ],
)
def test_what_is_not_there_is_refused_in_one_line(
    arguments: Sequence[str], named: tuple[str, ...], state_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert missing(refused(capsys, "--state", state_file, *arguments), *named) == []


def test_a_cache_that_was_moved_is_found_by_source(run: Run, state_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = traced(capsys, "--state", state_file, "--step", "1")
    moved = Path(shutil.copytree(run.root, tmp_path / "moved"))
    state = json.loads(Path(state_file).read_text())
    for name, source in state["sources"].items():
        source["folder"] = f"gone/{name}/train"
    path = saved(state, tmp_path)
    message = refused(capsys, "--state", path, "--step", "1")
    assert missing(message, "notes: gone/notes/train ", "seen from", "--source notes=FOLDER") == []
    sources = (f"notes={moved / 'pretrain/notes/train'}", f"chats={moved / 'sft/chats/train'}")
    assert traced(capsys, "--state", path, "--step", "1", "--source", *sources) == expected
    assert traced(capsys, "--state", path, "--step", "1", "--source", sources[0], "--source", sources[1]) == expected


def test_a_cache_that_was_rebuilt_is_refused_by_name(
    run: Run, state_file: str, tmp_path: Path, tokenizer: SentencePieceTokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "cache/pretrain/notes"
    build_notes(tmp_path / "cache", tokenizer, sentences(20))
    message = refused(capsys, "--state", state_file, "--step", "1", "--source", f"notes={other / 'train'}")
    assert re.search(r"notes: .* not the cache .*\(fingerprint \w{12}, now \w{12}\)", message)


def test_a_bare_cache_still_shows_offsets_and_ids(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = Path(shutil.copytree(run.root, tmp_path / "cache"))
    for name in (META_NAME, "train_doc_ends.npy", "train_documents.parquet", "val_doc_ends.npy", "val_documents.parquet"):
        (root / "pretrain/notes" / name).unlink()
    loader = TokenLoader(str(root / "pretrain/notes/train"), T=T, B=2, seed=1)
    batch = next(iter(loader))
    path = saved(loader.state_dict(), tmp_path)
    printed = traced(capsys, "--state", path, "--step", "0")
    rows = table_rows(printed)
    assert len(rows) >= 2
    assert all(cells[1:6] == ["-"] * 5 and cells[6].startswith("train/shard_0000") for cells in rows)
    assert re.search(rf"^0-\d+: {' '.join(map(str, batch.x[0, :8].tolist()))} ", printed, flags=re.MULTILINE)
    assert re.search(r"^\(notes: source ids .*\)$", printed, flags=re.MULTILINE)
    assert re.search(r"^\(notes: .* ids.* no meta\.json .*\)$", printed, flags=re.MULTILINE)
    ids = batch.x[0].tolist()
    one = traced(capsys, "--state", path, "--step", "0", "--row", "0", "--column", "2")
    assert f"column 2: token {ids[2]}\n" in one
    assert f"{ids[0]} {ids[1]} [[{ids[2]}]] {ids[3]} {ids[4]} " in one


def test_text_and_names_cannot_drive_a_terminal(
    tmp_path: Path, tokenizer: SentencePieceTokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "cache"
    put_tokenizer(folder, tokenizer)
    documents = [Document("red \x1b[31m alarm\x07\nnext", source_id="an\x1b[2J id", file="a\nfile", row=row) for row in range(200)]
    build_notes(folder, tokenizer, documents, max_train_tokens=900)
    path = saved(TokenLoader(str(folder / "pretrain/notes/train"), T=T, B=1, seed=1).state_dict(), tmp_path)
    for arguments in ((), ("--row", "0"), ("--row", "0", "--column", "3")):
        printed = traced(capsys, "--state", path, "--step", "0", *arguments)
        assert "red \\x1b[31m" in printed
        assert "an\\x1b[2J id" in printed
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", printed)


def checkpoint(path: Path, content: Any, **settings: Any) -> str:
    torch.save(content, path, **settings)
    return str(path)


@dataclass(frozen=True)
class Arguments:
    """A class that no library tells torch to read: megatron.core, where other tests import it, does so with argparse.Namespace."""

    lr: float


WEIGHTS = {"weight": torch.zeros(3), "bias": torch.ones(2)}


ITSELF: dict[str, Any] = {"loader": STATE}
ITSELF["itself"] = [ITSELF]


@pytest.mark.parametrize(
    "content",
    [STATE, {"model": WEIGHTS, "trainer": [1, ({"data": {"train": STATE}}, None)]}, [STATE, STATE], ITSELF],
    ids=["alone", "deep", "twice the same", "contains itself"],
)
def test_a_state_is_found_at_any_level_of_a_checkpoint_and_of_json(content: Any, tmp_path: Path) -> None:
    assert read_loader_state(checkpoint(tmp_path / "step.pt", content)) == STATE
    for mark in ("", "\ufeff", "\n  "):
        (tmp_path / "state").write_text(mark + json.dumps({"run": [{"loader": STATE}]}), encoding="utf-8")
        assert read_loader_state(tmp_path / "state") == STATE


def text_file(content: bytes) -> Callable[[Path], str]:
    def write(folder: Path) -> str:
        (folder / "given").write_bytes(content)
        return str(folder / "given")

    return write


def pipe(folder: Path) -> str:
    os.mkfifo(folder / "given")
    return str(folder / "given")


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda folder: str(folder / "none.pt"), r"none\.pt: .*No such"),
        (str, r"Is a directory"),
        (pipe, r"given: .*regular file"),
        (text_file(b""), r"given: .*empty"),
        (text_file(b"hello"), r"given: neither JSON .*torch"),
        (text_file(b'{"format": '), r"given: .*JSON.*cut short"),
        (text_file(b"[" * 100_000), r"given: .*JSON"),
        (text_file(json.dumps(dict.fromkeys("abcdefghijk")).encode()), r"dict with a, .*, i and 2 more"),
        (text_file(json.dumps({"a": STATE, "b": {"c": STATE | {"T": 1}}}).encode()), r"different loaders \(b\.c, a\)"),
        (lambda folder: checkpoint(folder / "a.pt", {"model": WEIGHTS, "step": 1}), r"a\.pt: .* with model, step"),
        (
            lambda folder: checkpoint(folder / "a.pt", {"args": Arguments(lr=1), "loader": STATE}),
            r"a\.pt: .*\(tests\.cli\.test_trace\.Arguments\).* code",
        ),
    ],
)
def test_a_file_without_a_state_is_refused_with_what_was_found(
    write: Callable[[Path], str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert re.search(message, refused(capsys, "--state", write(tmp_path), "--step", "0"))


def test_a_checkpoint_cut_short_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = checkpoint(tmp_path / "step.pt", {"model": WEIGHTS, "loader": STATE})
    whole = Path(path).read_bytes()
    for size in (3, 60, len(whole) // 2, len(whole) - 40):
        Path(path).write_bytes(whole[:size])
        assert missing(refused(capsys, "--state", path, "--step", "0"), path, "torch checkpoint", "cut short") == []


@pytest.mark.parametrize("key", ["sources", "settings", "weights", "batches", "version"])
def test_a_state_that_was_edited_is_refused_in_one_line(key: str, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for state in ({name: value for name, value in run.state.items() if name != key}, {**run.state, key: "edited"}):
        refused(capsys, "--state", saved(state, tmp_path), "--step", "0")


def write_parquet(path: Path, rows: int, *, group: int) -> list[Lineage]:
    entries = [Lineage(ordinal, f"id-{ordinal}", f"file{ordinal % 7}", ordinal * 3, ordinal % 5) for ordinal in range(rows)]
    table = pyarrow.table({name: [entry[column] for entry in entries] for column, name in enumerate(Lineage._fields)})
    pyarrow.parquet.write_table(table, path, row_group_size=group)
    return entries


def test_lineage_is_looked_up_in_the_row_groups_that_hold_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = write_parquet(tmp_path / "documents.parquet", 1_000, group=64)
    read: list[int] = []
    original = pyarrow.parquet.ParquetFile.read_row_group

    def counted(self: Any, group: int, **settings: Any) -> Any:
        read.append(group)
        return original(self, group, **settings)

    monkeypatch.setattr(pyarrow.parquet.ParquetFile, "read_row_group", counted)
    found = read_lineage(tmp_path / "documents.parquet", [999, 0, 63, 64, 64, 300])
    assert found == {ordinal: entries[ordinal] for ordinal in (0, 63, 64, 300, 999)}
    assert read == [0, 1, 4, 15]
    assert read_lineage(tmp_path / "documents.parquet", []) == {}


def test_lineage_that_cannot_be_right_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "documents.parquet"
    with pytest.raises(NielsCacheError, match=r"documents\.parquet: no such"):
        read_lineage(path, [0])
    write_parquet(path, 10, group=4)
    for ordinals in ([10], [-1, 3]):
        with pytest.raises(NielsCacheError, match=r"10 rows, .*ordinal"):
            read_lineage(path, ordinals)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(NielsCacheError, match="readable parquet"):
        read_lineage(path, [0])
    pyarrow.parquet.write_table(pyarrow.table({"ordinal": [0]}), path)
    with pytest.raises(NielsCacheError, match="has no column 'source_id'"):
        read_lineage(path, [0])
    columns: dict[str, list[Any]] = {"ordinal": [5], "source_id": ["a"], "file": ["b"], "row": [1], "tokens": [1]}
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    with pytest.raises(NielsCacheError, match="not match"):
        read_lineage(path, [0])


def test_the_file_of_a_repository_that_a_token_is_from_is_shown(
    tmp_path: Path, tokenizer: SentencePieceTokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {f"oak/{name}.txt": " ".join(sentences(4, seed=number)) for number, name in enumerate("abc")}
    text = "".join(f"# {path} of unknown\n{content}\n" for path, content in files.items())
    documents = [Document(TEXTS[0], "other"), Document(text, "oak#0", "oak", 0, kept=json.dumps({"files": [*files]}))]
    root, template = tmp_path / "cache", "# {path} of {license}\n"
    put_tokenizer(root, tokenizer)
    settings: dict[str, Any] = {"max_train_tokens": 10**6, "max_val_tokens": 0, "shard_bytes": 64, "seed": 1, "shuffle_buffer": None}
    provenance = Provenance(source={"kind": "code", "streaming": True, "file_start": template})
    folder = root / "pretrain/notes"
    PretrainBuild(items=documents, out_dir=str(folder), tokenizer=tokenizer, keep=("files",), provenance=provenance, **settings).build(None)
    loader = TokenLoader(str(folder / "train"), T=16, B=8, seed=3)
    state, rows = saved(loader.state_dict(), tmp_path), loader.trace(0)
    cache = TracedCache("notes", folder / "train", np.array([0, 1]))
    found: dict[int, str | None] = {}
    for row in range(8):
        for column in range(17):
            origin = rows.token(row, column)
            if origin.document == 1 and origin.document_offset is not None:
                found[origin.document_offset] = cache.path(origin)
            else:
                assert cache.path(origin) is None
    assert {*found.values()} >= {*files}
    ends = np.cumsum([0, *(len(tokenizer.encode(f"# {path} of unknown\n{content}\n")) for path, content in files.items())])
    for offset, path in found.items():
        place = int(np.searchsorted(ends, offset, side="right"))
        assert path in (None, *files)
        if ends[place - 1] + 40 < offset < ends[place] - 5:  # not in a marker, and about a token more or less for each file before
            assert path == [*files][place - 1]
    [row, column] = next((row, column) for row in range(8) for column in range(17) if rows.token(row, column).document == 1)
    shown = json.loads(traced(capsys, "--state", state, "--step", "0", "--row", str(row), "--column", str(column), "--json"))
    assert shown["rows"][0]["path"] == cache.path(rows.token(row, column))
