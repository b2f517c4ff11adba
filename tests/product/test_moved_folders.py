"""Folders of data sets that were exchanged, renamed or copied. They are found, and refused if they are opened by name. They still open by
path.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.artifacts.index import blend_plan
from niels_cache_assets.cli import main
from niels_cache_assets.exchange.hf import to_hf_dataset
from niels_cache_assets.reports.cache import cache_report, find_items
from niels_cache_assets.reports.history import History
from niels_cache_assets.tokenizer.measures import characters_per_token_by_source
from niels_cache_runtime import NielsCacheError, TokenLoader, open_cache, read_meta
from niels_cache_runtime.verify import verify_cache, verify_dataset
from niels_cache_runtime.verify.__main__ import main as runtime_verify
from tests.helpers.builds import build_dataset, prepare_corpus
from tests.helpers.hand_made import exchange, rewrite_meta, write_cache, write_pretrain, write_sft
from tests.helpers.messages import missing
from tests.helpers.small_project import SmallProject, small_project

OTHER = "dataset_name is 'notes'"  # of the folder letters


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> SmallProject:
    project = small_project(tmp_path_factory.mktemp("place"), tiny_model)
    project.build_all()
    return project


@pytest.fixture
def swapped(built: SmallProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallProject:
    """`letters` and `notes` have changed places."""
    for variable in ("NIELS_CACHE_PROFILE", "NIELS_CACHE_CONFIG", "NIELS_CACHE_ROOT"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    project = built.in_root(tmp_path / "cache")
    shutil.copytree(built.root, project.root)
    exchange(project.root / "pretrain/letters", project.root / "pretrain/notes")
    return project


def run(project: SmallProject, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    config = str(project.registry.origin)
    code = main([*words, "--config", config, "--profile", "quickstart", "--cache-dir", str(project.root)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_exchanged_folders_are_findings_of_a_root_and_none_of_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_cache(tmp_path / "cache")
    write_pretrain(root / "pretrain/more", append_eot=True)
    assert verify_cache(root) == []
    exchange(root / "pretrain/notes", root / "pretrain/more")
    assert runtime_verify([str(root)]) == 1
    lines = capsys.readouterr().out.splitlines()[:2]
    for line, folder, name in zip(lines, ("more", "notes"), ("notes", "more"), strict=True):
        assert line.startswith(f"{root}/pretrain/{folder}/meta.json: dataset_name is '{name}', ")
        assert missing(line, f"called '{folder}'", "--force") == []
    assert [finding.kind for finding in verify_cache(root, names=["notes"], quick=True)] == ["content"]

    folder = root / "pretrain/notes"
    assert verify_dataset(folder) == verify_cache(folder) == verify_dataset(folder, name="more") == []
    assert [finding.path for finding in verify_dataset(folder, name="notes")] == ["meta.json"]
    assert runtime_verify([str(folder)]) == 0
    assert missing(capsys.readouterr().out, f"note: {folder}: ", "'more'") == []


@pytest.mark.parametrize("place", ["pretrain/notes", "sft/chats"])
def test_a_copy_under_another_name_is_a_finding_and_a_data_set_without_a_name_is_none(tmp_path: Path, place: str) -> None:
    root = write_cache(tmp_path / "cache")
    copy = shutil.copytree(root / place, root / f"{place}_again")
    (finding,) = verify_cache(root)
    assert finding.folder == str(copy)
    family, name = copy.parent.name, copy.name
    with pytest.raises(NielsCacheError, match=f"called '{name}'"):
        getattr(open_cache(root), family)[name]
    rewrite_meta(copy, dataset_name=None)
    assert verify_cache(root) == verify_dataset(copy, name=name) == []
    opened = getattr(open_cache(root), family)[name]
    assert repr(opened).startswith(f"{family}/{name}: {name}\n")


def test_open_cache_shows_why_and_refuses(swapped: SmallProject, tmp_path: Path) -> None:
    root = write_cache(tmp_path / "other")
    write_sft(root / "pretrain/chats")
    with pytest.raises(NielsCacheError, match=r"kind is 'sft', .*pretrain/"):
        open_cache(root).pretrain["chats"]
    folder, *_ = sorted((swapped.root / "index").glob("[!.]*"))
    folder.rename(folder.with_name("0" * 32))
    (finding,) = verify_cache(swapped.root, names=[f"index/{'0' * 32}"])
    assert finding.problem.startswith(f"is the index {folder.name}, ")
    cache = open_cache(swapped.root)
    assert OTHER in repr(cache)
    with pytest.raises(NielsCacheError, match=OTHER):
        cache.pretrain["letters"]
    with pytest.raises(NielsCacheError, match=OTHER):
        cache.pretrain.letters  # noqa: B018
    with pytest.raises(NielsCacheError, match=OTHER):
        to_hf_dataset("letters", cache_dir=swapped.root)
    assert cache.sft["chats"].train.rows > 0


@pytest.mark.parametrize(
    "words",
    [
        ("show", "letters"),
        ("sample", "letters"),
        ("export", "npy", "letters", "--out", "out", "--dry-run"),
        ("tokenizer", "compare", "cache", "cache", "--only", "letters"),
        ("prebuild-index", "mix"),
    ],
    ids=" ".join,
)
def test_a_command_that_is_given_the_name_refuses(
    swapped: SmallProject, words: Sequence[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, errors = run(swapped, capsys, *words)
    assert (code, out) == (2, "")
    assert OTHER in errors
    assert errors.count("\n") == 1
    exchange(swapped.root / "pretrain/letters", swapped.root / "pretrain/notes")
    assert run(swapped, capsys, *words)[0] == 0


def test_what_looks_at_all_of_them_says_which_is_another(swapped: SmallProject, capsys: pytest.CaptureFixture[str]) -> None:
    states = {state.name: state for state in graph(swapped.registry, swapped.root).states()}
    for name in ("letters", "notes"):
        assert (states[name].state, states[name].condition) == ("other data set", "broken")
    assert OTHER in states["letters"].advice
    code, out, _ = run(swapped, capsys, "status", "--json")
    listed = {row["name"]: row for row in json.loads(out)["data_sets"]}
    assert (code, listed["letters"]["state"], listed["letters"]["counts"], listed["letters"]["sha256"]) == (1, "other data set", {}, None)
    code, out, _ = run(swapped, capsys, "status", "letters")
    assert code == 1
    assert OTHER in " ".join(out.split())
    code, out, _ = run(swapped, capsys, "verify", "--quick")
    assert code == 1
    assert out.count("dataset_name is") == 2

    items = find_items(swapped.registry, root=swapped.root)
    report = cache_report(swapped.registry, items, root=swapped.root, history=History(source="none"))
    item = next(item for item in items if item.name == "letters")
    assert (item.status.partition(": "), item.counts, item.bytes) == (("broken", ": ", "other data set"), {}, 0)
    (mixture,) = report.mixtures
    assert OTHER in mixture.left_out["letters"]
    with pytest.raises(NielsCacheError, match=OTHER):
        blend_plan(swapped.registry, "mix", root=swapped.root)
    assert characters_per_token_by_source(swapped.root, read_meta(str(swapped.root / "tokenizer/meta.json"))) == {}


def test_a_path_still_opens_and_shows_its_real_name(swapped: SmallProject, capsys: pytest.CaptureFixture[str]) -> None:
    folder = swapped.root / "pretrain/letters"
    assert next(iter(TokenLoader(str(folder / "train"), T=16, B=1, seed=0))).x.shape == (1, 16)
    code, out, _ = run(swapped, capsys, "show", str(folder))
    assert code == 0
    assert out.startswith(f"notes  (pretrain, {folder})\n")
    assert json.loads(run(swapped, capsys, "show", str(folder), "--json")[1])["name"] == "notes"
    rewrite_meta(folder, dataset_name=None)
    assert run(swapped, capsys, "show", str(folder))[1].startswith("letters  (pretrain, ")
    code, _, errors = run(swapped, capsys, "show", str(swapped.root))
    assert (code, missing(errors, "cache root", f"niels-cache status --cache-dir {swapped.root}")) == (2, [])


def test_a_build_neither_takes_nor_replaces_another_data_set(swapped: SmallProject) -> None:
    folder = swapped.root / "pretrain/letters"
    before = read_meta(str(folder / "meta.json"))
    with pytest.raises(NielsCacheError, match=f"{OTHER}, .* --force"):
        build_dataset(swapped.registry, "letters", root=swapped.root)
    assert read_meta(str(folder / "meta.json")) == before
    outcome = build_dataset(swapped.registry, "letters", root=swapped.root, force=True)
    assert (outcome.state, outcome.meta["dataset_name"]) == ("built", "letters")
    assert graph(swapped.registry, swapped.root).dataset_state("letters").state == "in sync"


def test_another_corpus_is_neither_read_nor_replaced(swapped: SmallProject, capsys: pytest.CaptureFixture[str]) -> None:
    registry, root = swapped.registry, swapped.root
    exchange(root / "pretrain/letters", root / "pretrain/notes")
    rewrite_meta(root / "corpus/notes", dataset_name="books")
    other = "dataset_name is 'books'"
    with pytest.raises(NielsCacheError, match=other):
        graph(registry, root).corpus("notes").current()
    with pytest.raises(NielsCacheError, match=other):
        prepare_corpus(registry, "notes", root=root, processes=1)
    with pytest.raises(NielsCacheError, match=other):
        build_dataset(registry, "notes", root=root)
    (finding,) = verify_cache(root)
    assert finding.problem.startswith(other)
    states = {state.name: state.state for state in graph(registry, root).states()}
    assert states["corpus/notes"] == "other data set"
    for words in (("sample", "notes", "--stage", "corpus"), ("clean", "--dropped", "notes"), ("duplicates", "notes"), ("show", "notes")):
        code, _, errors = run(swapped, capsys, *words)
        assert (code, other in errors) == (2, True), words
    assert "dataset_name is" in run(swapped, capsys, "status")[1]
    assert prepare_corpus(registry, "notes", root=root, processes=1, force=True).meta["dataset_name"] == "notes"
