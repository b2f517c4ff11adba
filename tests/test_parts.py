"""A data set in parts: the joined cache has the bytes of one build, whatever the parts and their order."""

import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.build_cache import base as resuming
from niels_cache_assets.config.registry import load_registry
from niels_cache_assets.disk.journal import BYTES_VARIABLE
from niels_cache_assets.disk.lineage import Lineage, read_lineage
from niels_cache_assets.parts.seal import seal
from niels_cache_assets.show.differences.documents import compare_documents
from niels_cache_assets.sources.jsonl import Jsonl
from niels_cache_assets.sources.val_share import HashRule
from niels_cache_assets.streaming.disjoint import splits_disjoint
from niels_cache_assets.tokenizer.kinds import SentencePieceTokenizer
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import list_shards
from niels_cache_runtime.format.meta import content_sha256, read_meta, write_meta
from niels_cache_runtime.verify import verify_cache
from tests.parts_project import NAME, PartsProject, build, is_val, parts_of, stream_of
from tests.test_cache_determinism import digests
from tests.tokenizer_files import EOT, WORDS_PATTERN, write_ranks

BUDGETS = "train_tokens = 900\nval_tokens = 301\nshuffle_buffer = 20"


@pytest.fixture
def project(tmp_path: Path, tiny_model: Path) -> PartsProject:
    project = PartsProject(tmp_path, tiny_model)
    project.write([9, 2, 30, 14, 7, 1, 21, 11])
    return project


def lineage(cache: Path, split: str) -> list[Lineage]:
    count = read_meta(str(cache / "meta.json"))["documents"][split]
    found = read_lineage(cache / f"{split}_documents.parquet", range(count))
    return [found[ordinal] for ordinal in range(count)]


def sealed_meta(project: PartsProject, root: str = "cache") -> dict[str, Any]:
    return read_meta(str(project.cache(root) / "meta.json"))


def test_the_joined_stream_is_that_of_one_build_and_a_second_build_is_a_hit(project: PartsProject) -> None:
    parts = 7
    build(project.graph(1, root="one"))
    outcomes = build(project.graph(parts))
    assert outcomes[f"pretrain/{NAME}"].state == "built"
    assert stream_of(project.cache()) == stream_of(project.cache("one"))
    assert lineage(project.cache(), "train") == lineage(project.cache("one"), "train")
    meta, one = sealed_meta(project), sealed_meta(project, "one")
    same = ("train_tokens", "val_tokens", "documents", "characters", "dropped", "facts", "cut", "dataset_revision", "tokenizer_sha256")
    assert {key: meta[key] for key in same} == {key: one[key] for key in same}
    assert meta["forms"] == ["parts"]
    assert one["forms"] == []
    assert [entry["name"] for entry in meta["parts"]] == [f"part-{number:05d}" for number in range(parts)]
    sizes = [path.stat().st_size for path in list_shards(project.cache() / "train")]
    assert any(size < 1024 for size in sizes[:-1])  # otherwise no short shard lies in the middle
    assert verify_cache(project.folder / "cache") == []
    paths = [{split: project.cache(root) / f"{split}_documents.parquet" for split in ("train", "val")} for root in ("cache", "one")]
    assert not compare_documents(*paths, shown=3).differ  # type: ignore[arg-type]
    assert {outcome.state for outcome in build(project.graph(parts)).values()} == {"cache_hit"}
    states = {key: outcome.state for key, outcome in build(project.graph(4)).items()}
    assert states.pop("tokenizer") == "cache_hit"
    assert set(states.values()) == {"built"}, "another plan"


HASHED = 'val_frac = 0.2\nshuffle_buffer = 10\ndecontaminate = "exact"'


@pytest.mark.parametrize("settings", [BUDGETS, HASHED])
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


def test_parts_hold_wide_tokens_too(project: PartsProject) -> None:
    wide = 'token_dtype = "uint32-le"'
    build(project.graph(1, root="one", build=wide))
    build(project.graph(3, build=wide))
    assert sealed_meta(project)["token_dtype"] == "uint32-le"
    assert sealed_meta(project)["forms"] == ["parts", "uint32"]
    assert stream_of(project.cache()) == stream_of(project.cache("one"))
    assert verify_cache(project.folder / "cache") == []
    narrow = build(project.graph(3))
    assert narrow[f"plan/{NAME}"].state == "cache_hit"
    assert narrow[f"pretrain/{NAME}"].state == "built"


def test_each_part_shuffles_in_its_own_order(project: PartsProject) -> None:
    build(project.graph(1, root="one"))
    build(project.graph(2, "val_frac = 0.0\nshuffle_buffer = 100"))
    joined, one = lineage(project.cache(), "train"), lineage(project.cache("one"), "train")
    first = sealed_meta(project)["parts"][0]["documents"]["train"]
    assert 20 < first < len(one) - 20
    keys = [[(each.file, each.row) for each in every] for every in (joined, one)]
    assert keys[0][:first] != keys[1][:first]
    assert sorted(keys[0][:first]) == keys[1][:first]
    assert sorted(keys[0][first:]) == keys[1][first:]


def test_val_by_hash_does_not_depend_on_the_parts(project: PartsProject) -> None:
    found = {}
    for parts in (2, 7):
        build(project.graph(parts, "val_frac = 0.2", root=f"p{parts}"))
        found[parts] = [{(each.file, each.row) for each in lineage(project.cache(f"p{parts}"), split)} for split in ("train", "val")]
    assert found[2] == found[7]
    train, val = found[2]
    assert 5 < len(val) < len(train)
    assert not train & val


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
    assert splits_disjoint(project.cache(), tokenizer, threshold=None).val_documents == len(val)
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
    build(project.graph(3, HASHED))
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
    assert splits_disjoint(project.cache(), tokenizer, threshold=None).exact == 4
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
        lambda: splits_disjoint(project.cache(), tokenizer, threshold=None),
    ):
        with pytest.raises(NielsCacheError, match=rf"part-00001.*{said}"):
            read()  # type: ignore[no-untyped-call]


def test_every_part_is_compared_with_the_one_val(project: PartsProject, tokenizer: SentencePieceTokenizer) -> None:
    kind = "near"
    copies(project, (0, 0), (0, 1))
    budgets = f'val_tokens = 120\nshuffle_buffer = 10\ndecontaminate = "{kind}"'
    build(project.graph(3, budgets))
    meta = sealed_meta(project)
    assert meta["dropped"] == {"in_val": 4}
    assert meta["decontaminate"]["kind"] == kind
    assert splits_disjoint(project.cache(), tokenizer, threshold=None).disjoint
    build(project.graph(3, budgets.replace(kind, "off")))
    assert not splits_disjoint(project.cache(), tokenizer, threshold=None).disjoint
    assert sealed_meta(project)["dropped"] == {}


def test_every_part_is_compared_with_a_val_that_a_hash_chooses(project: PartsProject, tokenizer: SentencePieceTokenizer) -> None:
    rule = HashRule(val_frac=0.2, seed=7)
    chosen = [(file, row) for file in (2, 3) for row in range(14) if is_val(rule, f"f{file:03d}.jsonl", row)]
    assert len(chosen) > 2
    copies(project, *chosen)
    in_train = [row for row in range(11, 11 + 2 * len(chosen)) if not is_val(rule, "f007.jsonl", row)]
    assert in_train
    outcomes = build(project.graph(3, HASHED))
    meta, val = sealed_meta(project), lineage(project.cache(), "val")
    assert meta["dropped"] == {"in_val": len(in_train)}
    assert outcomes[f"val_part/{NAME}"].meta["documents"] == {"train": 0, "val": len(val)}
    assert splits_disjoint(project.cache(), tokenizer, threshold=None).disjoint
    assert verify_cache(project.folder / "cache") == []
    build(project.graph(3, HASHED.replace("exact", "off"), root="off"))
    assert not splits_disjoint(project.cache("off"), tokenizer, threshold=None).disjoint
    assert {(each.file, each.row) for each in val} == {(each.file, each.row) for each in lineage(project.cache("off"), "val")}


def test_damaged_texts_of_val_are_named_and_the_next_build_mends_them(project: PartsProject) -> None:
    found = project.graph(3, HASHED)
    build(found)
    expected = digests(project.cache())
    path = found[f"val_part/{NAME}"].directory / "val_texts/part-00001.parquet"
    path.write_bytes(bytes(path.stat().st_size))
    shutil.rmtree(found[f"part/{NAME}/part-00002"].directory)
    with pytest.raises(NielsCacheError, match=r"val_texts.part-00001.*build-all --only pages --force"):
        build(found)
    build(project.graph(3, HASHED, build='verify_parts = "sha256"'))
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
    assert splits_disjoint(project.cache(), tokenizer, threshold=None).disjoint


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
    said: list[str] = []
    build(found, [found.order()[-1]], log=said.append)
    assert (project.cache("copied") / "train/shard_00000.bin").stat().st_nlink == 1
    assert digests(project.cache("copied")) == expected
    assert any("copying" in line for line in said)


def test_copies_are_refused_before_any_if_there_is_no_room(project: PartsProject, monkeypatch: pytest.MonkeyPatch) -> None:
    found = project.graph(3)
    build(found, found.order()[:-1])
    monkeypatch.setattr(os, "link", lambda *args: (_ for _ in ()).throw(PermissionError(1, "no")))
    monkeypatch.setattr("niels_cache_assets.disk.space.free_bytes", lambda target: 0)
    with pytest.raises(NielsCacheError, match="no hard links"):
        build(found, [f"pretrain/{NAME}"])
    assert not project.cache().exists()
    monkeypatch.undo()
    build(found, [f"pretrain/{NAME}"])
    assert verify_cache(project.folder / "cache") == []


class Stopped(Exception):
    pass


@pytest.mark.parametrize(
    ("key", "settings"),
    [
        (f"part/{NAME}/part-00001", "train_tokens = 15000\nval_tokens = 600\nshuffle_buffer = 50"),
        (f"val_part/{NAME}", HASHED),
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


@pytest.mark.parametrize("library", ["tiktoken", "tokenizers"])
def test_a_val_part_does_not_resume_with_another_version_of_the_library_that_defines_its_ids(
    project: PartsProject, library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = json.dumps(str(write_ranks(tmp_path / "x.tiktoken")))
    tokenizer = f"model = {ranks}\npattern = '{WORDS_PATTERN[3:]}'\nspecial_tokens = {{ eot = {json.dumps(EOT)} }}"
    mixture = '[pretrain.mix]\nsource = "interleave"\nmembers = { pages = 1 }\nprepare = ["clean"]\n'
    found = project.graph(3, f"val_tokens = 300\n{mixture}", tokenizer=tokenizer)
    key, said = f"val_part/{NAME}", list[str]()
    build(found, ["tokenizer", f"plan/{NAME}"])

    def stop(progress: object) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        materialize(found[key], on_progress=stop)
    installed = resuming.installed_version
    monkeypatch.setattr(resuming, "installed_version", lambda name: "99" if name == library else installed(name))
    outcome = materialize(found[key], log=said.append)
    assert (outcome.resumed == 0) == (library == "tiktoken")
    assert any("tiktoken" in line and "99" in line for line in said) == (library == "tiktoken")
    versions = found["corpus/mix"].journal(None).made_of["versions"]  # type: ignore[index]
    assert ("tiktoken" in versions, "tokenizers" in versions) == (True, False)


SHARD = "train/shard_00000.bin"


def change_a_byte(part: Path) -> None:
    with open(part / SHARD, "r+b") as file:
        file.write(b"\xff")


def edit_meta(part: Path) -> None:
    path = part / "meta.json"
    path.write_text(path.read_text().replace('"seed": ', '"seed": 1'))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (shutil.rmtree, "does not exist"),
        (lambda part: os.truncate(part / SHARD, 10), "has 10 bytes"),
        (lambda part: os.unlink(part / SHARD), "missing"),
        (edit_meta, "meta_sha256"),
        (change_a_byte, "sha256"),
    ],
)
def test_a_bad_part_is_named_and_the_next_build_mends_it(project: PartsProject, damage: Callable[[Path], None], said: str) -> None:
    found = project.graph(3, build='verify_parts = "sha256"')
    build(found)
    expected = digests(project.cache())
    part = found[f"part/{NAME}/part-00001"].directory
    damage(part)
    if damage is change_a_byte:
        assert len({finding.folder for finding in verify_cache(found.root)}) == 2, "the cache links the shard"
    shutil.rmtree(project.cache())
    with pytest.raises(NielsCacheError, match=said) as caught:
        build(found, [f"pretrain/{NAME}"])
    assert "part-00001" in str(caught.value)
    assert "\n" not in str(caught.value)
    states = {key: outcome.state for key, outcome in build(found).items()}
    assert [key for key in parts_of(found) if states[key] == "built"] == [f"part/{NAME}/part-00001"]
    assert digests(project.cache()) == expected


def test_a_seal_that_finds_other_document_ends_tells_how_to_mend_them(project: PartsProject) -> None:
    found = project.graph(3)
    build(found)
    expected = digests(project.cache())
    path = found[f"part/{NAME}/part-00001"].directory / "train_doc_ends.npy"
    shutil.rmtree(project.cache())
    with open(path, "r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(b"\xff")
    with pytest.raises(NielsCacheError, match=r"part-00001.*verify_parts"):
        build(found)
    build(project.graph(3, build='verify_parts = "sha256"'))
    assert digests(project.cache()) == expected


def test_parts_of_two_plans_are_refused(project: PartsProject) -> None:
    build(project.graph(3))
    found = project.graph(3, "val_frac = 0.5")
    with pytest.raises(NielsCacheError, match=r"plan\.json.*val_frac"):
        build(found, [f"part/{NAME}/part-00000"])
    with pytest.raises(NielsCacheError, match=r"plan\.json.*parts"):
        build(project.graph(4), [f"part/{NAME}/part-00003"])
    found = project.graph(3, "val_frac = 0.5")
    build(found, [f"plan/{NAME}", f"part/{NAME}/part-00000"])
    with pytest.raises(NielsCacheError, match=r"part-00001.*another plan"):
        build(found, [f"pretrain/{NAME}"])
    build(found)
    assert verify_cache(project.folder / "cache") == []


@pytest.mark.parametrize(("changed", "said"), [("files", "revision"), ("tokenizer", "tokenizer")])
def test_parts_of_another_revision_or_tokenizer_are_refused(project: PartsProject, changed: str, said: str) -> None:
    build(project.graph(3))
    if changed == "files":
        project.write([5], first=8)
    found = project.graph(3, tokenizer="vocab_size = 330" if changed == "tokenizer" else None)
    build(found, ["tokenizer", f"plan/{NAME}"])
    with pytest.raises(NielsCacheError, match=rf"part-00000.*{said}"):
        build(found, [f"pretrain/{NAME}"])
    build(found)
    assert verify_cache(project.folder / "cache") == []


def test_a_file_that_changed_since_the_plan_is_named(project: PartsProject) -> None:
    found = project.graph(3)
    build(found, ["tokenizer", f"plan/{NAME}"])
    project.write([3], first=1)
    with pytest.raises(NielsCacheError, match=r"f001.jsonl: has changed"):
        build(found, parts_of(found))
    (project.folder / "texts/f001.jsonl").unlink()
    with pytest.raises(NielsCacheError, match=r"f001.jsonl.*missing"):
        build(found, parts_of(found))
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


def test_val_is_not_built_from_a_file_that_changed_since_the_plan(project: PartsProject) -> None:
    settings = "val_tokens = 700"
    found = project.graph(3, settings)
    build(found, ["tokenizer", f"plan/{NAME}"])
    project.write([3], first=1)  # the second file of the first part
    with pytest.raises(NielsCacheError, match=r"f001.jsonl: has changed"):
        build(found, [f"val_part/{NAME}"])
    project.write([2], first=1)
    project.write([3], first=7)  # no head ends here, so val does not read it
    build(found, [f"val_part/{NAME}"])


def test_a_part_is_not_compared_with_a_val_file_that_changed_since_the_plan(project: PartsProject) -> None:
    (project.folder / "val").mkdir()
    for number in (0, 1, 2):
        (project.folder / f"texts/f{number:03d}.jsonl").rename(project.folder / f"val/f{number:03d}.jsonl")
    upstream = 'dataset = "local/pages"\nval_files = ["val/*"]\nshuffle_buffer = 0\ndecontaminate = "exact"'
    found = project.graph(3, upstream, source="huggingface")
    build(found, ["tokenizer", f"plan/{NAME}"])
    with open(project.folder / "val/f000.jsonl", "a") as file:
        file.write(json.dumps({"id": "new", "text": "something new"}) + "\n")
    assert found[f"part/{NAME}/part-00002"].planned.files[0].name != "f000.jsonl"  # type: ignore[attr-defined]
    with pytest.raises(NielsCacheError, match=r"f000.jsonl: has changed"):
        build(found, [f"part/{NAME}/part-00002"])


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
