"""The command `niels-cache prebuild-index`. Training only maps the indices that it builds, for blends of the configuration and of
Megatron-LM's files.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from niels_cache_assets.artifacts.index import BlendPlan, prebuild, read_blend_file
from niels_cache_assets.cli import main
from niels_cache_assets.cli.progress import array_progress
from niels_cache_assets.project.registry import Registry, load_registry
from niels_cache_runtime import NielsCacheError
from niels_cache_runtime.megatron import IndexCache, gpt_dataset, open_blend, write_indexed
from tests.helpers import megatron_core
from tests.helpers.exports import random_documents, write_documents_cache
from tests.helpers.messages import missing

CONFIG = """
[build]
cache_dir = "cache"
[pretrain.notes]
source = "jsonl"
files = ["notes.jsonl"]
[pretrain.books]
source = "text"
files = ["books.txt"]
[pretrain.roam]
source = "roam"
{blend}
"""
MIX = """
[blend.mix]
weights = {{ notes = {notes}, books = 1 }}
sequence_length = 16
num_samples = 60
seed = 7
"""
RUN: dict[str, Any] = {"num_samples": 60, "sequence_length": 16, "seed": 7}
OPTIONS = ("--num-samples", "60", "--sequence-length", "16", "--seed", "7")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with two caches, the working directory."""
    monkeypatch.chdir(tmp_path)
    for variable in ("NIELS_CACHE_CONFIG", "NIELS_CACHE_PROFILE", "NIELS_CACHE_ROOT"):
        monkeypatch.delenv(variable, raising=False)
    write_cache("notes", seed=1)
    write_cache("books", seed=2)
    configure(MIX.format(notes=3))
    return tmp_path


def write_cache(name: str, *, seed: int) -> None:
    write_documents_cache(Path("cache/pretrain") / name, {"train": random_documents(100, seed=seed)}, shard_tokens=1 << 20)


def configure(blend: str) -> None:
    Path("niels_cache.toml").write_text(CONFIG.format(blend=blend), encoding="utf-8")


def registry() -> Registry:
    return load_registry(profile="quickstart", config="niels_cache.toml")


def train(name: str) -> Path:
    return Path("cache/pretrain") / name / "train"


def hash_of_all(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().out.strip().splitlines()[-1].removeprefix("hash of all: ")


def test_what_is_built_ahead_is_only_mapped_by_training(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["prebuild-index", "mix"]) == 0
    printed = capsys.readouterr().out
    built = sorted(path.name for path in Path("cache/index").iterdir() if path.is_dir())
    assert len(built) == 3
    assert all(name in printed for name in (*built, "notes", "books", "blend", "cache/index: built in"))

    def refuse(*arguments: Any, **settings: Any) -> None:
        raise AssertionError("training builds")

    monkeypatch.setattr(gpt_dataset, "build_gpt_indices", refuse)
    monkeypatch.setattr("niels_cache_runtime.megatron.blended.build_blending_indices", refuse)
    blend = open_blend([train("notes"), train("books")], [3, 1], index_cache=IndexCache("cache/index"), **RUN)
    assert len(blend) == 60
    assert [int(sample["dataset_id"]) for sample in (blend[index] for index in range(60))].count(0) == 45

    assert main(["prebuild-index", "mix"]) == 0
    assert "already built" in capsys.readouterr().out


def test_a_file_an_export_and_a_table_that_say_the_same_have_one_hash(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prebuild-index", "mix"]) == 0
    first = hash_of_all(capsys)
    Path("blend.txt").write_text(f"3 {train('notes')}\n1 {train('books')}\n", encoding="utf-8")
    assert main(["prebuild-index", "--blend", "blend.txt", *OPTIONS]) == 0
    assert hash_of_all(capsys) == first
    for name in ("notes", "books"):
        write_indexed(folder / f"{name}_text_document", train(name))
    Path("blend.txt").write_text("0.75 notes_text_document 0.25 books_text_document", encoding="utf-8")
    assert main(["prebuild-index", "--blend", "blend.txt", *OPTIONS]) == 0
    assert hash_of_all(capsys) == first
    assert len([path for path in Path("cache/index").iterdir() if path.is_dir()]) == 3


SETTINGS = {"num_samples": None, "sequence_length": 16, "seed": 1, "split": "1", "part": "train"}


def test_without_weights_each_sample_comes_once(folder: Path) -> None:
    Path("blend.txt").write_text(f"{train('notes')} {train('books')}", encoding="utf-8")
    paths, weights = read_blend_file("blend.txt")
    plan = BlendPlan(labels=tuple(paths), paths=tuple(map(Path, paths)), weights=None, settings=SETTINGS)
    assert weights is None
    outcome = prebuild(load_registry(), plan, root=Path("cache"))
    *members, blend = outcome.meta["indices"]
    assert outcome.state == "built"
    assert blend.label == "blend"
    assert blend.samples == sum(member.samples for member in members)
    alone = BlendPlan(labels=("notes",), paths=(train("notes"),), weights=None, settings=SETTINGS)
    assert [index.label for index in prebuild(load_registry(), alone, root=Path("cache")).meta["indices"]] == ["notes"]


@pytest.mark.parametrize(
    "text", ["a", "a b", "a b c", "1 a", "0.3 a 0.7 b", "30 a\n70 b\n", "1 a 2 b 3 c", "  .5\ta\n\n.5 b ", "1e-1 a 2 b", "data/a_1 b2"]
)
def test_a_file_is_read_as_megatron_reads_it(tmp_path: Path, text: str) -> None:
    megatron_core.load()
    from megatron.core.datasets.utils import get_blend_from_list

    (tmp_path / "blend.txt").write_text(text, encoding="utf-8")
    assert read_blend_file(tmp_path / "blend.txt") == get_blend_from_list(text.split())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "no data set"),
        ("1 a 2", "1 is a weight"),
        ("a 1", "1 is a weight"),
        ("1 a b c", "1 is a weight"),
        ("0 a 1 b", "weight 0: .*above 0"),
        ("1 a -2 b", "weight -2: .*above 0"),
        ("nan a 1 b", "weight nan: .*above 0"),
        ("inf a 1 b", "weight inf: .*above 0"),
    ],
)
def test_a_file_that_says_nothing_clear_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "blend.txt").write_text(text, encoding="utf-8")
    with pytest.raises(NielsCacheError, match=rf"blend\.txt: .*{expected}"):
        read_blend_file(tmp_path / "blend.txt")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "(niels_cache.toml has: mix)"),
        (["mx"], "did you mean 'mix'?"),
        (["mix", "--seed", "3"], "--seed: [blend.mix]"),
        (["mix", "--blend", "blend.txt"], "--blend: [blend.mix]"),
        (["--blend", "blend.txt"], "--blend needs --sequence-length"),
        (["--blend", "blend.txt", "--sequence-length", "16"], "--num-samples"),
        (["--blend", "none.txt", *OPTIONS], "none.txt: "),
        (["--blend", "blend.txt", *OPTIONS, "--part", "trian"], "did you mean 'train'?"),
        (["--blend", "blend.txt", *OPTIONS, "--split", "x"], "split='x'"),
        (["--blend", "blend.txt", *OPTIONS, "--part", "test"], "leaves no sequence"),
        (["--blend", "blend.txt", "--sequence-length", "0", "--num-samples", "5"], "sequence_length=0"),
        (["--blend", "blend.txt", "--sequence-length", "4", "--num-samples=-1"], "num_samples=-1"),
    ],
)
def test_wrong_use_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str) -> None:
    Path("blend.txt").write_text(f"1 {train('notes')}", encoding="utf-8")
    assert main(["prebuild-index", *arguments]) == 2
    printed = capsys.readouterr()
    assert expected in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_a_folder_that_cannot_be_written_is_no_wrong_use(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("cache/index").write_text("")
    assert main(["prebuild-index", "mix"]) == 1
    printed = capsys.readouterr()
    assert missing(printed.err, "index", "written") == []
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_a_member_that_is_not_built_says_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configure("[blend.mix]\nweights = { notes = 1, roam = 1 }\nsequence_length = 16\nnum_samples = 9\n")
    assert main(["prebuild-index", "mix"]) == 2
    assert missing(capsys.readouterr().err, "roam/train.idx; ", "build") == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("weights = { nots = 1 }", r"\[blend.mix\] .* 'nots'; .*'notes'\?"),
        ("weights = {}", r"\[blend.mix\] weights"),
        ("weights = { notes = 0 }", r"\[blend.mix\] weights.notes = 0"),
        ("weights = { notes = nan }", r"\[blend.mix\] weights.*more than 0"),
        ("weights = { notes = inf }", r"\[blend.mix\] weights.*infinity"),
        ('weights = { notes = 1 }\nsplit = "0,0"', r"\[blend.mix\] split"),
        ('weights = { notes = 1 }\npart = "val"', r"\[blend.mix\] part"),
        ("weights = { notes = 1 }\nseed = 4294967296", r"\[blend.mix\] seed"),
        ("weights = { notes = 1 }\nsequnce_length = 5", r"'sequnce_length'; .*'sequence_length'\?"),
    ],
)
def test_a_table_that_cannot_be_meant_is_refused(folder: Path, line: str, expected: str) -> None:
    configure(f"[blend.mix]\nsequence_length = 16\nnum_samples = 9\n{line}\n")
    with pytest.raises(NielsCacheError, match=expected) as caught:
        registry()
    assert "\n" not in str(caught.value)


def test_a_blend_is_a_partition_once_its_members_can_be_built(folder: Path) -> None:
    roam = MIX.format(notes=3).replace("blend.mix", "blend.all").replace("notes =", "roam = 1, notes =")
    configure(MIX.format(notes=3) + roam)
    assert list(registry().blend) == ["mix", "all"]
    assert registry().blend_keys() == ["mix"]


def test_without_a_terminal_a_line_is_printed_every_ten_seconds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([0.0, 3.0, 10.5, 15.0, 21.0])
    monkeypatch.setattr("niels_cache_assets.cli.progress.monotonic", lambda: next(times))
    with array_progress() as progress:
        for done in range(4):
            progress("sample_index", done * 1000, 5000)
    assert capsys.readouterr().err.splitlines() == ["sample_index: 1,000 of 5,000", "sample_index: 3,000 of 5,000"]


def test_a_blend_stands_in_status_as_its_indices_are(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def told(*words: str) -> Any:
        main([*words, "--json"])
        return json.loads(capsys.readouterr().out)

    def state() -> tuple[str, str]:
        (row,) = told("status", "mix")["data_sets"]
        return row["condition"], row["state"]

    assert state() == ("missing", "missing")
    assert told("prebuild-index", "mix")["state"] == "built"
    assert state() == ("complete", "in sync")
    main(["status"])
    assert "mix" in capsys.readouterr().out
    blend = told("prebuild-index", "mix")["indices"][-1]["directory"]
    Path(blend).rename(folder / "aside")
    assert state() == ("missing", "missing"), "the last of three is not there"
    (folder / "aside").rename(blend)
    assert state() == ("complete", "in sync")
    configure(MIX.format(notes=4))
    assert state() == ("missing", "missing"), "of other weights there is no index yet"
    (folder / "cache/pretrain/notes/meta.json").unlink()
    (row,) = told("status", "mix")["data_sets"]
    assert row["advice"] == "build notes first"
