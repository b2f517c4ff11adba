"""A data set in parts: the joined cache has the bytes of one build, whatever the parts and their order, and is read like any other."""

import csv
import errno
import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.artifacts.parts.prune import prune_parts
from niels_cache_assets.cli import command as exit_codes
from niels_cache_assets.cli import main
from niels_cache_assets.disk.journal import BYTES_VARIABLE
from niels_cache_assets.facts.lineage import Lineage, read_lineage
from niels_cache_assets.parts.layout import PART_KINDS
from niels_cache_assets.parts.seal import seal
from niels_cache_assets.project.registry import load_registry
from niels_cache_assets.sources.jsonl import Jsonl
from niels_cache_assets.sources.reading import part_stream
from niels_cache_assets.sources.val_share import val_mask
from niels_cache_assets.tokenizer.kinds import SentencePieceTokenizer
from niels_cache_inspection.differences.documents import compare_documents
from niels_cache_runtime.cache.opening import open_split
from niels_cache_runtime.errors import NielsCacheError, NotWrittenError
from niels_cache_runtime.format.commit import hold_lock
from niels_cache_runtime.format.layout import list_shards
from niels_cache_runtime.format.meta import content_sha256, read_meta, write_meta
from niels_cache_runtime.verify import find_folders, notes, verify_cache
from tests.build_cache.test_determinism import digests
from tests.helpers.exports import contents, export
from tests.helpers.hub_builds import Build, build_from
from tests.helpers.hub_repositories import card, parquet
from tests.helpers.loopback_hub import LoopbackHub
from tests.helpers.messages import missing
from tests.helpers.overlaps import overlap_of
from tests.helpers.parts_project import NAME, PartsProject, build, parts_of, stream_of
from tests.helpers.tiny import sentences

SIZES = [9, 2, 30, 14, 7, 1, 21, 11]
BUDGETS = "train_tokens = 900\nval_tokens = 301\nshuffle_buffer = 20"


@pytest.fixture
def project(tmp_path: Path, tiny_model: Path) -> PartsProject:
    project = PartsProject(tmp_path, tiny_model)
    project.write(SIZES)
    return project


def lineage(cache: Path, split: str) -> list[Lineage]:
    count = read_meta(str(cache / "meta.json"))["documents"][split]
    found = read_lineage(cache / f"{split}_documents.parquet", range(count))
    return [found[ordinal] for ordinal in range(count)]


def sealed_meta(project: PartsProject, root: str = "cache") -> dict[str, Any]:
    return read_meta(str(project.cache(root) / "meta.json"))


@pytest.mark.parametrize(("dtype", "forms"), [("uint16-le", []), ("uint32-le", ["uint32"])])
def test_the_joined_stream_is_that_of_one_build_and_a_second_build_is_a_hit(
    project: PartsProject, dtype: str, forms: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("niels_cache_assets.parts.seal._BLOCK_ENDS", 5)  # a part has several blocks
    parts, of_dtype = 7, f'token_dtype = "{dtype}"'
    build(project.graph(1, root="one", build=of_dtype))
    outcomes = build(project.graph(parts, build=of_dtype))
    assert outcomes[f"pretrain/{NAME}"].state == "built"
    assert stream_of(project.cache()) == stream_of(project.cache("one"))
    assert lineage(project.cache(), "train") == lineage(project.cache("one"), "train")
    meta, one = sealed_meta(project), sealed_meta(project, "one")
    same = ("train_tokens", "val_tokens", "documents", "characters", "dropped", "facts", "cut", "dataset_revision", "tokenizer_sha256")
    assert {key: meta[key] for key in same} == {key: one[key] for key in same}
    assert (meta["forms"], one["forms"], meta["token_dtype"]) == (["parts", *forms], forms, dtype)
    assert [entry["name"] for entry in meta["parts"]] == [f"part-{number:05d}" for number in range(parts)]
    sizes = [path.stat().st_size for path in list_shards(project.cache() / "train")]
    assert any(size < 1024 for size in sizes[:-1])  # otherwise no short shard lies in the middle
    assert verify_cache(project.folder / "cache") == []
    paths = [{split: project.cache(root) / f"{split}_documents.parquet" for split in ("train", "val")} for root in ("cache", "one")]
    assert not compare_documents(*paths, shown=3).differ  # type: ignore[arg-type]
    assert {outcome.state for outcome in build(project.graph(parts, build=of_dtype)).values()} == {"cache_hit"}
    if forms:
        narrow = build(project.graph(parts))
        assert (narrow[f"plan/{NAME}"].state, narrow[f"pretrain/{NAME}"].state) == ("built", "built")
    states = {key: outcome.state for key, outcome in build(project.graph(4, build=of_dtype)).items()}
    assert states.pop("tokenizer") == "cache_hit"
    assert set(states.values()) == {"built"}, "another plan"


SEEDED = "val_frac = 0.2"
SHARE = f'{SEEDED}\nshuffle_buffer = 10\ndecontaminate = "exact"'


@pytest.mark.parametrize("settings", [BUDGETS, SHARE])
def test_the_bytes_do_not_depend_on_order_or_workers(project: PartsProject, settings: str) -> None:
    build(project.graph(5, settings))
    expected = digests(project.cache())
    assert len(expected) > 10
    found = project.graph(5, settings, root="at once")
    parts = parts_of(found)
    build(found, [key for key in found.order() if key not in parts and key != f"pretrain/{NAME}"])
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda key: materialize(found[key]), reversed(parts)))
    build(found, [f"pretrain/{NAME}"])
    assert digests(project.cache("at once")) == expected


def test_budgets_are_met_exactly_and_val_is_the_head_of_each_part(project: PartsProject, tokenizer: SentencePieceTokenizer) -> None:
    build(project.graph(3, BUDGETS))
    meta = sealed_meta(project)
    assert (meta["train_tokens"], meta["val_tokens"]) == (900, 301)
    assert [entry["name"] for entry in meta["parts"]] == ["val", "part-00000", "part-00001", "part-00002"]
    assert meta["cut"]["val"] == len(meta["cut_document"]["val"]) <= 3
    plan = json.loads((project.folder / f"cache/pretrain/.parts/{NAME}/plan.json").read_text())
    first_files = {group["listed"][part["files"][0][0]]["name"] for group in plan["groups"] for part in group["parts"]}
    val = lineage(project.cache(), "val")
    assert {each.file for each in val if each.row == 0} == first_files
    assert not {(each.file, each.row) for each in val} & {(each.file, each.row) for each in lineage(project.cache(), "train")}
    assert sealed_meta(project)["overlap"] == overlap_of(project.cache(), tokenizer).record
    assert verify_cache(project.folder / "cache") == []


@pytest.mark.parametrize("val_tokens", [3, 301])
def test_parts_skip_exactly_what_val_has_taken(project: PartsProject, val_tokens: int) -> None:
    build(project.graph(1, root="one"))
    build(project.graph(3, f"val_tokens = {val_tokens}"))
    taken = [
        sorted((each.file, each.row) for split in splits for each in lineage(project.cache(root), split))
        for root, splits in (("cache", ("train", "val")), ("one", ("train",)))
    ]
    assert taken[0] == taken[1]
    assert sealed_meta(project)["val_tokens"] == val_tokens


def test_documents_that_encoding_drops_are_counted_once(project: PartsProject) -> None:
    path = project.folder / "texts" / "f000.jsonl"
    rows = path.read_text().splitlines()
    bad = json.dumps({"id": "bad", "text": "a \ud800 b"})
    path.write_text("\n".join([bad, rows[0], bad, rows[1], bad, *rows[2:]]) + "\n")
    build(project.graph(1, root="one"))
    build(project.graph(3, SHARE))
    assert sealed_meta(project)["dropped"] == sealed_meta(project, "one")["dropped"] == {"invalid_unicode": 3}


def copies(project: PartsProject, *places: tuple[int, int]) -> None:
    """Add the texts at these places (file, row) to the end of the last file, once as they are and once in capitals."""
    texts = [json.loads((project.folder / f"texts/f{file:03d}.jsonl").read_text().splitlines()[row])["text"] for file, row in places]
    with open(project.folder / "texts/f007.jsonl", "a") as last:
        last.writelines(json.dumps({"id": f"copy-{at}", "text": text}) + "\n" for at, text in enumerate([*texts, *map(str.upper, texts)]))


@pytest.mark.parametrize(("damage", "said"), [("lost", "no such file"), ("of another part", "rows")])
def test_a_lineage_of_other_parts_than_meta_json_lists_is_refused(
    project: PartsProject, tokenizer: SentencePieceTokenizer, damage: str, said: str
) -> None:
    copies(project, (0, 0), (0, 1))
    build(project.graph(3, "val_tokens = 120"))
    folder = project.cache() / "train_documents"
    assert overlap_of(project.cache(), tokenizer, threshold=None).record["exact"] == 4
    assert len({part.stat().st_size for part in folder.iterdir()}) == 3
    if damage == "lost":
        (folder / "part-00001.parquet").unlink()
    else:
        shutil.copy(folder / "part-00000.parquet", folder / "other")
        os.replace(folder / "other", folder / "part-00001.parquet")
    paths: Any = {split: project.cache() / f"{split}_documents.parquet" for split in ("train", "val")}
    last = sealed_meta(project)["documents"]["train"] - 1
    for read in (
        lambda: read_lineage(paths["train"], [last]),
        lambda: compare_documents(paths, paths, shown=3),
        lambda: overlap_of(project.cache(), tokenizer, threshold=None),
    ):
        with pytest.raises(NielsCacheError, match=rf"part-00001.*{said}"):
            read()  # type: ignore[no-untyped-call]


def test_the_seal_finds_copies_of_val_in_every_part_and_says_so(project: PartsProject, capsys: pytest.CaptureFixture[str]) -> None:
    copies(project, (0, 0), (0, 1))
    settings = "val_tokens = 120"
    built = build(project.graph(3, settings))[f"pretrain/{NAME}"].meta
    assert (built["overlap"]["exact"], built["overlap"]["compared"]) == (4, built["documents"]["train"])
    command = ["part", NAME, "--seal", "--config", str(project.folder / "cache.toml"), "--cache-dir", str(project.folder / "cache")]
    for state in ("cache_hit", "built", "cache_hit"):
        assert main(command) == 0
        result = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert result["state"] == state
        assert missing(result["warning"], "splits_disjoint: 4 documents", "decontaminate") == []
        project.graph(3, settings, build='near_check = "all"')
    assert sealed_meta(project)["overlap"] == built["overlap"]


def test_every_part_is_compared_with_a_val_that_val_frac_chooses(
    project: PartsProject, tokenizer: SentencePieceTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("niels_cache_assets.artifacts.parts.part._TEXTS_AT_A_TIME", 2)
    monkeypatch.setattr("niels_cache_assets.artifacts.parts.part._GROUP_CHARACTERS", 100)
    copies(project, *((2, row) for row in range(14)))
    mask = val_mask(95 + 28, val_frac=0.2, seed=7).tolist()  # file 2 begins with document 11
    equal = [[mask[at] for at in (11 + row, 95 + row, 109 + row)] for row in range(14)]
    in_train = sum(copies.count(False) for copies in equal if any(copies))
    assert in_train
    outcomes = build(project.graph(3, SHARE))
    meta, val = sealed_meta(project), lineage(project.cache(), "val")
    assert meta["dropped"] == {"in_val": in_train}
    assert outcomes[f"val_part/{NAME}"].meta["documents"] == {"train": 0, "val": len(val)}
    assert overlap_of(project.cache(), tokenizer, threshold=None).is_disjoint
    assert verify_cache(project.folder / "cache") == []
    build(project.graph(3, SHARE.replace("exact", "off"), root="off"))
    assert not overlap_of(project.cache("off"), tokenizer, threshold=None).is_disjoint
    assert {(each.file, each.row) for each in val} == {(each.file, each.row) for each in lineage(project.cache("off"), "val")}


@pytest.mark.parametrize(
    ("source", "ending", "more"),
    [
        ("jsonl", "jsonl", ""),
        ("jsonl", "jsonl.zst", 'decontaminate = "exact"'),
        ("parquet", "parquet", 'where = "number != 3"'),
        ("jsonl", "json", 'where = "number != 3"'),
        ("csv", "csv", 'where = "number != 3"'),
        ("arrow", "arrow", 'where = "number != 3"'),
        ("huggingface", "parquet", 'dataset = "of/pages"\nshuffle_buffer = 0\ndecontaminate = "near"'),
        ("huggingface", "jsonl", 'dataset = "of/pages"'),  # this kind shuffles by default
    ],
)
def test_val_and_train_are_those_of_one_process(project: PartsProject, source: str, ending: str, more: str) -> None:
    """Among the rows are blank texts, nulls, and copies of the first documents."""
    shutil.rmtree(project.folder / "texts")
    (project.folder / "texts").mkdir()
    for number, size in enumerate(SIZES):
        texts = [*sentences(size, seed=number), "", None, " \n", *sentences(3)]
        rows, path = [{"number": row, "text": text} for row, text in enumerate(texts)], project.folder / f"texts/f{number}.{ending}"
        lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
        if ending == "parquet":
            pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=9)
        elif ending == "arrow":
            with pa.ipc.new_stream(path, (table := pa.Table.from_pylist(rows)).schema) as writer:
                writer.write_table(table, max_chunksize=9)
        elif ending == "csv":
            with path.open("w", newline="") as file:
                csv.writer(file).writerows([["number", "text"], *([row["number"], row["text"]] for row in rows)])
        elif ending == "json":
            path.write_text(json.dumps(rows, indent=1))
        else:
            path.write_bytes(zstandard.compress(lines) if ending.endswith("zst") else lines)
    found, order = {}, sorted if source == "huggingface" and ending == "jsonl" else list
    for parts in (1, 3, 4):
        build(project.graph(parts, f"{SEEDED}\n{more}", source=source, root=f"{parts}"))
        cache = project.cache(f"{parts}")
        meta = read_meta(str(cache / "meta.json"))
        same = [meta[key] for key in ("split_rule", "dropped", "documents", "val_tokens", "train_tokens")]
        found[parts] = [
            same,
            *(order((each.file, each.row) for each in lineage(cache, split)) for split in ("val", "train")),
            order is list and stream_of(cache),
        ]
    assert len(found[1][1]) == (119 - 8 * ("where" in more)) // 5
    assert found[1] == found[3] == found[4]


def test_lost_and_damaged_bits_are_refused_and_made_again_with_the_plan(project: PartsProject) -> None:
    found = project.graph(2, SEEDED)
    build(found)
    (bits,) = found[f"plan/{NAME}"].directory.glob("val-*.npy")
    content, part = bits.read_bytes(), found[f"part/{NAME}/part-00001"]
    for damaged in (None, content[:-1] + bytes([content[-1] ^ 255]), content[:-1]):
        bits.unlink() if damaged is None else bits.write_bytes(damaged)
        with pytest.raises(NielsCacheError, match=rf"{bits.name}.*damaged.*plan.json"):
            materialize(part, force=True)
        (bits.parent / "plan.json").unlink()
        assert [key for key, outcome in build(project.graph(2, SEEDED)).items() if outcome.state == "built"] == [f"plan/{NAME}"]
        assert bits.read_bytes() == content
    project.write([3], first=8)
    build(project.graph(2, SEEDED))
    assert not bits.exists()


def test_processes_count_the_documents_of_each_file(project: PartsProject, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Jsonl(files=[str(project.folder / "texts")])
    stream = part_stream.part_stream(source, source.list_files(None), revision=None, text_field="text")
    monkeypatch.setattr(part_stream, "_BYTES_PER_PROCESS", 1)
    assert [*part_stream.count_unsplit(stream, processes=2)] == SIZES


def test_damaged_texts_of_val_are_named_and_the_next_build_mends_them(project: PartsProject) -> None:
    found = project.graph(3, SHARE)
    build(found)
    expected = digests(project.cache())
    path = found[f"val_part/{NAME}"].directory / "val_texts/part-00001.parquet"
    path.write_bytes(bytes(path.stat().st_size))
    shutil.rmtree(found[f"part/{NAME}/part-00002"].directory)
    with pytest.raises(NielsCacheError, match=r"val_texts.part-00001.*build-all --only pages --force"):
        build(found)
    build(project.graph(3, SHARE, build='verify_parts = "sha256"'))
    assert digests(project.cache()) == expected


def test_every_part_is_compared_with_the_val_of_upstream(project: PartsProject, tokenizer: SentencePieceTokenizer) -> None:
    copies(project, (0, 0), (1, 1))
    (project.folder / "val").mkdir()
    for number in (0, 1):
        (project.folder / f"texts/f{number:03d}.jsonl").rename(project.folder / f"val/f{number:03d}.jsonl")
    upstream = 'dataset = "local/pages"\nval_files = ["val/*"]\nshuffle_buffer = 0\ndecontaminate = "exact"'
    for parts, root in ((1, "one"), (3, "cache")):
        build(project.graph(parts, upstream, source="huggingface", root=root))
    assert sealed_meta(project)["dropped"] == sealed_meta(project, "one")["dropped"] == {"in_val": 4}
    assert stream_of(project.cache()) == stream_of(project.cache("one"))
    assert overlap_of(project.cache(), tokenizer, threshold=None).is_disjoint


def test_a_part_whose_files_end_early_is_listed_as_short(project: PartsProject) -> None:
    outcomes = build(project.graph(2, "train_tokens = 1000000"))
    short = [entry["short"] for entry in sealed_meta(project)["parts"]]
    assert all(short)
    assert sum(short) == 1_000_000 - sealed_meta(project)["train_tokens"]
    assert "part-00001" in str(outcomes[f"pretrain/{NAME}"].warning)


def test_shards_are_links_and_a_folder_without_links_gets_copies(project: PartsProject, monkeypatch: pytest.MonkeyPatch) -> None:
    build(project.graph(3))
    shard = project.cache() / "train/shard_00000.bin"
    assert shard.stat().st_nlink == 2
    expected = digests(project.cache())

    def refused(*args: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    found = project.graph(3, root="copied")
    build(found, found.order()[:-1])
    monkeypatch.setattr(os, "link", refused)
    with monkeypatch.context() as full:
        full.setattr("niels_cache_assets.disk.space.free_bytes", lambda target: 0)
        with pytest.raises(NielsCacheError, match="no hard links"):
            build(found, [found.order()[-1]])
    said: list[str] = []
    build(found, [found.order()[-1]], log=said.append)
    assert (project.cache("copied") / "train/shard_00000.bin").stat().st_nlink == 1
    assert digests(project.cache("copied")) == expected
    assert any("copying" in line for line in said)


class Stopped(Exception):
    pass


@pytest.mark.parametrize(
    ("key", "settings"),
    [
        (f"part/{NAME}/part-00001", "train_tokens = 15000\nval_tokens = 600\nshuffle_buffer = 50"),
        (f"val_part/{NAME}", SHARE),
    ],
)
def test_a_stopped_part_resumes_to_the_same_bytes(project: PartsProject, key: str, settings: str, monkeypatch: pytest.MonkeyPatch) -> None:
    project.write([400, 300, 500, 300], first=8)
    build(project.graph(3, settings))
    expected = digests(project.cache())
    monkeypatch.setenv(BYTES_VARIABLE, "1")
    found = project.graph(3, settings, root="stopped")
    order = found.order()
    build(found, order[: order.index(key)])
    steps = 0

    def stop(progress: object) -> None:
        nonlocal steps
        steps += 1
        if steps == 2:
            raise Stopped

    with pytest.raises(Stopped):
        materialize(found[key], on_progress=stop)
    outcomes = build(found)
    assert outcomes[key].resumed > 0
    assert digests(project.cache("stopped")) == expected


SHARD, ENDS = "train/shard_00000.bin", "train_doc_ends.npy"


def change_a_byte(path: Path, *, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] = 0xFF
    with open(path, "r+b") as file:  # in place, as the cache links it
        file.write(content)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (shutil.rmtree, "does not exist"),
        (lambda part: os.truncate(part / SHARD, 10), "has 10 bytes"),
        (lambda part: os.unlink(part / SHARD), "missing"),
        (lambda part: (part / "meta.json").write_text((part / "meta.json").read_text().replace('"seed": ', '"seed": 1')), "meta_sha256"),
        (lambda part: change_a_byte(part / SHARD, at=0), "sha256"),
        (lambda part: change_a_byte(part / ENDS, at=-8), "verify_parts"),
    ],
)
def test_a_bad_part_is_named_and_the_next_build_mends_it(project: PartsProject, damage: Callable[[Path], None], said: str) -> None:
    """Without verify_parts too, if the join sees it: its message says how to mend the part."""
    found = project.graph(3, build='verify_parts = "sha256"')
    build(found)
    expected = digests(project.cache())
    damage(found[f"part/{NAME}/part-00001"].directory)
    if said == "sha256":
        assert len({finding.folder for finding in verify_cache(found.root)}) == 2, "the cache links the shard"
    shutil.rmtree(project.cache())
    with pytest.raises(NielsCacheError, match=said) as caught:
        build(project.graph(3) if said == "verify_parts" else found, [f"pretrain/{NAME}"])
    assert "part-00001" in str(caught.value)
    assert "\n" not in str(caught.value)
    states = {key: outcome.state for key, outcome in build(found).items()}
    assert [key for key in parts_of(found) if states[key] == "built"] == [f"part/{NAME}/part-00001"]
    assert digests(project.cache()) == expected


@pytest.mark.parametrize("settings", ["val_frac = 0.2", "train_tokens = 900\nval_tokens = 60"])
def test_parts_without_files_are_empty_and_listed(project: PartsProject, settings: str) -> None:
    lines: list[str] = []
    build(project.graph(11, settings), log=lines.append)
    assert [line for line in lines if "8 files" in line and "11 parts" in line and "part-000" in line]
    build(project.graph(8, settings, root="full"))
    assert stream_of(project.cache())["val"] == stream_of(project.cache("full"))["val"]
    meta, full = sealed_meta(project), sealed_meta(project, "full")
    assert meta["documents"]["train"] == full["documents"]["train"] > 10
    assert [entry["documents"]["train"] for entry in meta["parts"]].count(0) >= 3


@pytest.mark.parametrize(
    ("settings", "more", "said"),
    [
        ("decontaminate = 'exact'", {}, "decontaminate"),
        ("", {"build": "token_dtype = 'uint32-le'"}, "token_dtype"),
        ("", {"tokenizer": "vocab_size = 330"}, "tokenizer"),
    ],
)
def test_a_part_and_a_seal_refuse_what_they_were_not_planned_with(
    project: PartsProject, settings: str, more: dict[str, str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    build(project.graph(2, "val_frac = 0.2"))
    found = project.graph(2, f"val_frac = 0.2\n{settings}", **more)
    build(found, ["tokenizer"])
    for step in ("0", "--seal"):
        where = ["--config", str(project.folder / "cache.toml"), "--cache-dir", str(found.root)]
        assert main(["part", NAME, step, *where]) == exit_codes.WRONG_USE
        assert missing(capsys.readouterr().err, "plan.json", said, "build-all") == []
    build(found)


@pytest.mark.parametrize(("changed", "said"), [("plan", "another plan"), ("files", "revision"), ("tokenizer", "tokenizer")])
def test_parts_of_another_plan_revision_or_tokenizer_are_refused(project: PartsProject, changed: str, said: str) -> None:
    build(project.graph(3))
    if changed == "files":
        project.write([5], first=8)
    if changed == "plan":
        for other, key in ((project.graph(4), "parts"), (project.graph(3, "val_frac = 0.5"), "val_frac")):
            with pytest.raises(NielsCacheError, match=rf"plan\.json.*{key}"):
                build(other, [f"part/{NAME}/part-00000"])
    settings = "val_frac = 0.5" if changed == "plan" else "val_frac = 0.0"
    found = project.graph(3, settings, tokenizer="vocab_size = 330" if changed == "tokenizer" else None)
    build(found, ["tokenizer", f"plan/{NAME}", *([f"part/{NAME}/part-00000"] if changed == "plan" else [])])
    with pytest.raises(NielsCacheError, match=rf"part-0000{int(changed == 'plan')}.*{said}"):
        build(found, [f"pretrain/{NAME}"])
    build(found)
    assert verify_cache(project.folder / "cache") == []


def test_a_file_that_changed_since_the_plan_is_named(project: PartsProject) -> None:
    found = project.graph(3)
    build(found, ["tokenizer", f"plan/{NAME}"])
    with_val = project.graph(3, "val_tokens = 700", root="val")
    build(with_val, ["tokenizer", f"plan/{NAME}"])
    project.write([3], first=1)  # the second file of the first part
    for graph_of, keys in ((found, parts_of(found)), (with_val, [f"val_part/{NAME}"])):
        with pytest.raises(NielsCacheError, match=r"f001.jsonl: has changed"):
            build(graph_of, keys)
    (project.folder / "texts/f001.jsonl").unlink()
    with pytest.raises(NielsCacheError, match=r"f001.jsonl.*missing"):
        build(found, parts_of(found))
    project.write([2], first=1)
    project.write([3], first=7)  # no head ends here, so val does not read it
    build(with_val, [f"val_part/{NAME}"])
    build(found)
    assert verify_cache(project.folder / "cache") == []


def test_remote_files_are_listed_once_and_a_change_is_mended_with_force(project: PartsProject, monkeypatch: pytest.MonkeyPatch) -> None:
    project.graph(3)
    config = project.folder / "cache.toml"
    config.write_text(config.read_text().replace("texts/*", f"file://{project.folder}/texts/*"))
    found = graph(load_registry(config=str(config)), project.folder / "cache")
    build(found)
    part, texts = found[parts_of(found)[0]], project.folder / "texts/f000.jsonl"
    with monkeypatch.context() as patched:
        patched.setattr(Jsonl, "list_files", lambda *args, **settings: pytest.fail("the files are listed again"))
        texts.write_text(texts.read_text() + json.dumps({"id": "new", "text": "something new"}) + "\n")
        assert {outcome.state for outcome in build(found).values()} == {"cache_hit"}
        shutil.rmtree(part.directory)
        with pytest.raises(NielsCacheError, match=r"f000.jsonl: has changed.*--force"):
            build(found)
    for key in found.order():
        materialize(found[key], force=key != "tokenizer")
    assert "new" in {each.source_id for each in lineage(project.cache(), "train")}
    assert verify_cache(found.root) == []


@pytest.mark.parametrize("replaced", ["part-00001", "plan.json"])
def test_a_build_that_ends_while_the_parts_are_joined_is_not_mixed_in(
    project: PartsProject, replaced: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = project.graph(3)
    build(found, found.order()[:-1])
    folder = found[f"plan/{NAME}"].directory

    def exchanged(*args: Any, **settings: Any) -> dict[str, Any]:
        if replaced == "plan.json":
            build(project.graph(3, "val_frac = 0.5"), [f"plan/{NAME}"])
        else:
            for path in (project.folder / "texts").iterdir():
                path.write_text(path.read_text().replace('"id": "', '"id": "new '))  # other lineage, and the same tokens
            other = project.graph(3, root="other")
            build(other, other.order()[:-1])
            shutil.rmtree(folder / replaced)
            shutil.copytree(other[f"part/{NAME}/{replaced}"].directory, folder / replaced)
        return seal(*args, **settings)

    monkeypatch.setattr("niels_cache_assets.artifacts.parts.seal.seal", exchanged)
    with pytest.raises(NielsCacheError, match=replaced) as caught:
        build(found, [f"pretrain/{NAME}"])
    assert "\n" not in str(caught.value)
    assert not project.cache().exists()


def test_verify_checks_exactly_where_parts_end(project: PartsProject) -> None:
    build(project.graph(3))
    meta = sealed_meta(project)

    def problems(**changes: object) -> str:
        changed = {**meta, **changes}
        changed["content_sha256"] = content_sha256(changed["files"])
        write_meta(str(project.cache() / "meta.json"), changed)
        return " ".join(map(str, verify_cache(project.folder / "cache")))

    assert problems() == ""
    moved = json.loads(json.dumps(meta["parts"]))
    moved[0]["shards"]["train"] -= 1
    moved[1]["shards"]["train"] += 1
    assert "part-00000" in problems(parts=moved)
    moved = json.loads(json.dumps(meta["parts"]))
    moved[0]["documents"]["train"] -= 1
    moved[1]["documents"]["train"] += 1
    assert "part-00000" in problems(parts=moved)
    assert "shards" in problems(parts=meta["parts"][:-1])
    assert "entry" in problems(parts=[{}])
    write_meta(str(project.cache() / "meta.json"), {**meta, "forms": []})
    with pytest.raises(NielsCacheError, match=r"'parts'"):
        sealed_meta(project)
    without = {key: value for key, value in meta.items() if key != "parts"}
    write_meta(str(project.cache() / "meta.json"), {**without, "forms": []})
    assert "shard_bytes" in " ".join(map(str, verify_cache(project.folder / "cache")))


def test_verify_reads_each_byte_once_and_finds_a_damaged_part_and_one_in_the_wrong_place(project: PartsProject) -> None:
    found = project.graph(3, "val_tokens = 60")
    build(found)
    root = found.root
    names = [path.name for path in find_folders(root)]
    assert names[-4:] == ["part-00000", "part-00001", "part-00002", "val"]
    totals: list[tuple[int, int]] = []
    assert verify_cache(root, progress=lambda done, total: totals.append((done, total))) == []
    read = [path for path in root.rglob("*") if path.suffix in (".bin", ".parquet", ".npy", ".model")]
    inodes = {path.stat().st_ino: path.stat().st_size for path in read}
    assert totals[-1] == (sum(inodes.values()), sum(inodes.values()))
    assert not [line for line in notes(root) if "parts" in line]
    first, second, _ = (found[key].directory for key in parts_of(found))
    os.rename(first, first.with_name("part-00009"))
    assert "part-00000" in str(verify_cache(root)[0])
    os.rename(first.with_name("part-00009"), first)
    shutil.rmtree(project.cache())  # which links the shards
    (second / SHARD).write_bytes(b"\xff" * (second / SHARD).stat().st_size)
    (finding,) = verify_cache(root)
    assert "part-00001" in str(finding)


def test_the_plan_and_the_parts_have_states_of_their_own(project: PartsProject) -> None:
    found = project.graph(3, "val_tokens = 60")
    keys = [key for key in found.order() if key.partition("/")[0] in PART_KINDS]
    assert len(keys) == 5
    assert {found.state(key).state for key in keys} == {"missing"}
    build(found)
    assert {found.state(key).state for key in keys} == {"in sync"}
    assert [found.state(key).name for key in keys] == keys
    other = project.graph(3, "val_tokens = 61")
    assert {other.state(key).state for key in keys} == {"other settings"}
    build(other, keys[:3])
    assert [other.state(key).state for key in keys] == ["in sync"] * 3 + ["other settings"] * 2
    advice = other.dataset_state(NAME).advice
    assert "1 of 3 parts" in advice
    assert "2 stale" in advice
    os.truncate(other[keys[1]].directory / "val/shard_00000.bin", 2)
    assert other.state(keys[1]).state == "damaged"


@pytest.mark.parametrize("format", ["megatron", "npy"])
def test_an_export_of_a_joined_cache_is_that_of_one_build(project: PartsProject, format: str, tmp_path: Path) -> None:
    exported = []
    for parts, root in ((1, "one"), (3, "joined")):
        build(project.graph(parts, root=root))
        export(project.cache(root), format, tmp_path / f"of {root}" / "out")
        files = contents(tmp_path / f"of {root}")
        exported.append({name: each for name, each in files.items() if not name.endswith((".json", ".py", ".md", ".lock"))})
    assert exported[0]
    assert exported[0] == exported[1]


def rows(count: int, seed: int) -> list[dict[str, object]]:
    return [{"id": f"{seed}-{row}", "text": text} for row, text in enumerate(sentences(count, seed=seed))]


def test_a_data_set_of_the_hub_comes_in_parts(hub: LoopbackHub, tmp_path: Path, tiny_model: Path) -> None:
    odd: list[dict[str, object]] = [{"id": "odd", "text": "b\0c"}]  # files of the hub are not judged, whatever they hold
    files = {f"data/{number}.parquet": parquet(odd + rows(10 + 7 * number, number)) for number in range(5)}
    hub.repositories["owner/pages"] = {"README.md": card({"default": {"train": "data/*"}}), **files}
    root = tmp_path / "root"
    root.mkdir()
    (root / "tokenizer").symlink_to(tiny_model.parent)
    table = {"source": "huggingface", "dataset": "owner/pages", "val_frac": 0.0, "shuffle_buffer": 0}
    whole, parts, nothing = Build(table, name="one"), Build({**table, "parts": 3}, name="joined"), Build({**table, "dataset": "owner/none"})
    (one, joined, _, again, _), _ = build_from(hub, root, [whole, parts, nothing, parts, nothing])
    assert "error" not in joined, joined
    assert again == {**joined, "log": again["log"]}
    same = ("train_doc_ends.npy", "val_doc_ends.npy")
    assert {name: joined["files"][name] for name in same} == {name: one["files"][name] for name in same}
    keys = ("train_tokens", "documents", "dataset_revision", "characters")
    metas = [json.loads(each["meta"]) for each in (joined, one)]
    assert metas[1]["documents"]["train"] == sum(11 + 7 * number for number in range(5))
    assert {key: metas[0][key] for key in keys} == {key: metas[1][key] for key in keys}
    plan = json.loads((root / "pretrain/.parts/joined/plan.json").read_text())
    assert [file["name"] for file in plan["groups"][0]["listed"]] == sorted(files)
    assert [file["bytes"] for file in plan["groups"][0]["listed"]] == [len(files[name]) for name in sorted(files)]
    assert plan["dataset_revision"] == hub.commit("owner/pages")
    paths = [path for _, path, _ in hub.requests]
    assert any("paths-info" in path or "/tree/" in path for path in paths)
    after = paths[next(number for number, path in enumerate(paths) if "owner/none" in path) :]
    assert not [path for path in after if "owner/pages" in path], "a second build reads the plan and asks the hub for nothing"


def test_too_many_shards_for_the_kernel_are_named(project: PartsProject, monkeypatch: pytest.MonkeyPatch) -> None:
    build(project.graph(3))
    folder = project.cache() / "train"
    open_split(folder)
    monkeypatch.setattr("niels_cache_runtime.cache.mmap._max_maps", lambda: 2)
    with pytest.raises(NielsCacheError, match=r"vm.max_map_count") as caught:
        open_split(folder)
    assert "shard_bytes" in str(caught.value)
    monkeypatch.setattr("niels_cache_runtime.cache.mmap._max_maps", lambda: None)
    open_split(folder)


def test_prune_removes_parts_of_earlier_plans_only(
    project: PartsProject, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    build(project.graph(4, "val_tokens = 60"))
    found = project.graph(3)
    with pytest.raises(NielsCacheError, match=NAME):
        prune_parts(found, NAME)
    build(found)
    leftover = found.root / f"pretrain/.parts/{NAME}/part-00003"
    with monkeypatch.context() as patched:
        patched.setattr("niels_cache_runtime.format.commit.shutil.rmtree", refused)
        with hold_lock(leftover), pytest.raises(NielsCacheError, match="another build"):
            prune_parts(found, NAME)
        assert leftover.exists()
        with pytest.raises(NotWrittenError) as caught:
            prune_parts(found, NAME)
    assert missing(caught.value, str(leftover), "cannot be removed", "Permission denied") == []
    assert [part.directory.name for part in prune_parts(found, NAME)] == ["part-00003", "val"]
    assert prune_parts(found, NAME) == []
    left = found.root / f"pretrain/.parts/{NAME}/.part-00050.partial"  # of a killed build
    left.mkdir()
    (left / "journal").write_bytes(b"12345")
    left.with_name(".part-00060.lock").touch()
    assert [tuple(part) for part in prune_parts(found, NAME)] == [(left, 5)]
    assert not left.with_name(".part-00060.lock").exists()
    assert {outcome.state for outcome in build(found).values()} == {"cache_hit"}
    assert verify_cache(found.root) == []
    one = project.graph(1)
    build(one)
    monkeypatch.chdir(project.folder)
    assert main(["part", NAME, "--prune", "--config", "cache.toml", "--cache-dir", "cache", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["removed"]) == 3
    assert not (found.root / f"pretrain/.parts/{NAME}").exists()
    assert {outcome.state for outcome in build(one).values()} == {"cache_hit"}
