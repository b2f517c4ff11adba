"""Fast engines and data sets in parts: what a difference in one part means for the other parts, and which engines encoded them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from niels_cache_assets.artifacts.graph import Graph
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.artifacts.parts.prune import prune_parts
from niels_cache_assets.cli import main
from niels_cache_assets.defs.assets.parts import part_metadata
from niels_cache_assets.disk.journal import BYTES_VARIABLE
from niels_cache_assets.parts.engines import refuse, refused
from niels_cache_assets.parts.layout import engines_file, refusals_dir
from niels_cache_assets.tokenizer.checked import EngineUse
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import list_shards
from niels_cache_runtime.verify import verify_cache
from tests.parts_project import NAME, PartsProject, build, parts_of
from tests.test_cache_determinism import digests
from tests.test_engines import (
    GPT2_WORDS,
    ODD,
    Engine,
    Stopped,
    equal,
    install,  # noqa: F401  a fixture
    odd,
    small_batches,  # noqa: F401  a fixture
    stop_at,
    write_ranks,
)

pytestmark = pytest.mark.usefixtures("small_batches")
SETTINGS = "val_frac = 0.0\nshuffle_buffer = 0"
Install = Callable[..., None]


@pytest.fixture
def project(tmp_path: Path, tiny_model: Path) -> PartsProject:
    """Three parts of eight documents. The first four documents of a part are compared, and the others are not."""
    project = PartsProject(tmp_path, tiny_model)
    project.write([8, 8, 8])
    return project


def make_odd(project: PartsProject, file: int, row: int, folder: str = "texts") -> None:
    path = project.folder / folder / f"f{file:03d}.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines()
    lines[row] = json.dumps({"id": "odd", "text": f"An {ODD} text."})
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def graph_of(project: PartsProject, root: str = "cache", settings: str = SETTINGS, parts: int = 3) -> Graph:
    ranks = write_ranks(project.folder / "tiny.tiktoken")
    given = f"model = {json.dumps(str(ranks))}\npattern = '''{GPT2_WORDS}'''\nspecial_tokens = {{ eot = '<|endoftext|>' }}"
    return project.graph(parts, settings, root=root, tokenizer=given)


@pytest.fixture
def expected(project: PartsProject, install: Install) -> dict[str, str]:  # noqa: F811
    """The bytes of the cache that the reference makes. The first and the last part have a text that the engine encodes differently."""
    make_odd(project, 0, 5)
    make_odd(project, 2, 1)
    install(None)
    build(graph_of(project, "slow"))
    return digests(project.cache("slow"))


def test_a_difference_in_one_part_lets_the_engine_encode_no_part_of_the_seal(
    project: PartsProject,
    expected: dict[str, str],
    install: Install,  # noqa: F811
) -> None:
    install(odd)
    found = graph_of(project)
    first, second, third = parts_of(found)
    build(found, [key for key in found.order() if key not in (second, third, f"pretrain/{NAME}")])
    wrong = digests(found[first].directory)
    said: list[str] = []
    install(odd)  # as in another process
    build(found, [third], log=said.append)
    assert [line for line in said if "hasty" in line and "again" in line]
    assert not [line for line in said if ODD in line], "text stays in the cache"
    assert ODD in "".join(path.read_text(encoding="utf-8") for path in refusals_dir(found.root).glob("*.json"))
    install(odd)
    build(found, [second])
    assert Engine.asked == 0, "the process of this part has not seen the difference itself"
    with pytest.raises(NielsCacheError) as caught:
        materialize(found[f"pretrain/{NAME}"])
    assert "part-00000:" in str(caught.value)
    assert "hasty 1.2" in str(caught.value)
    assert "build-all" in str(caught.value)
    outcomes = build(graph_of(project))
    assert [outcomes[key].state for key in (first, second, third)] == ["built", "cache_hit", "cache_hit"]
    assert digests(found[first].directory) != wrong
    assert Engine.asked == 0
    assert digests(project.cache()) == expected
    assert "hasty" not in (project.cache() / "meta.json").read_text(encoding="utf-8")
    assert {outcome.state for key, outcome in build(graph_of(project)).items() if key.startswith("pretrain/")} == {"cache_hit"}
    assert verify_cache(project.folder / "cache") == []


def test_a_part_that_is_resumed_starts_again_after_its_engine_differed_in_another_part(
    project: PartsProject,
    install: Install,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    project.write([16], first=0)
    make_odd(project, 0, 5)  # in its second batch, which is not compared
    make_odd(project, 2, 1)
    install(None)
    build(graph_of(project, "slow"))
    install(odd)
    found = graph_of(project)
    first, _, third = parts_of(found)
    build(found, [key for key in found.order() if key not in parts_of(found) and key != f"pretrain/{NAME}"])
    with monkeypatch.context() as patched:
        patched.setenv(BYTES_VARIABLE, "1")
        stop_at(2, patched)
        with pytest.raises(Stopped):
            build(found, [first])
    build(found, [third])
    install(odd)  # as in another process
    said: list[str] = []
    outcome = build(graph_of(project), [first], log=said.append)[first]
    assert outcome.state == "built"
    assert outcome.resumed == 0
    assert [line for line in said if "hasty 1.2" in line and "afresh" in line]
    assert Engine.asked == 0
    build(graph_of(project))
    assert digests(project.cache()) == digests(project.cache("slow"))


def test_parts_that_an_engine_encoded_are_joined_again_when_it_differs_later(
    project: PartsProject,
    install: Install,  # noqa: F811
) -> None:
    make_odd(project, 0, 5)  # in a batch that is not compared
    install(None)
    build(graph_of(project, "slow"))
    install(odd)
    found = graph_of(project)
    build(found)
    wrong = digests(project.cache())
    sha256 = found[parts_of(found)[0]].finished()["tokenizer_sha256"]  # type: ignore[index]
    refuse(refusals_dir(found.root), EngineUse(name="hasty", version="1.2"), model_sha256=sha256, found_in=f"pretrain/{NAME}")
    install(odd)
    states = {key: outcome.state for key, outcome in build(graph_of(project)).items()}
    assert {states[key] for key in (*parts_of(found), f"pretrain/{NAME}")} == {"built"}
    assert wrong != digests(project.cache()) == digests(project.cache("slow"))


def test_a_cache_that_one_process_built_stays_whatever_engine_differed(project: PartsProject, install: Install) -> None:  # noqa: F811
    make_odd(project, 0, 1)
    install(odd)
    said: list[str] = []
    build(graph_of(project, parts=1), log=said.append)
    assert [line for line in said if "hasty" in line and "again" in line]
    places = {path.name: path.stat().st_ino for path in list_shards(project.cache() / "train")}
    project.write([8], first=8, folder="more")
    make_odd(project, 8, 1, "more")
    added = f'{SETTINGS}\n[[pretrain.{NAME}.added]]\nfiles = ["more/*"]\nparts = 1\n'
    install(odd)
    build(graph_of(project, parts=1, settings=added))
    assert {name: (project.cache() / "train" / name).stat().st_ino for name in places} == places


def test_a_record_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError) as caught:  # noqa: PT011  the name of the file decides
        refuse(tmp_path / "file", EngineUse(name="hasty", version="1.2"), model_sha256=None, found_in="pretrain/a")
    assert caught.value.filename == str(tmp_path / "file")


def test_two_processes_record_the_same_difference_at_the_same_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one writes its whole record while the first one has written its own, and not yet moved it to its place."""
    use = EngineUse(name="hasty", version="1.2", differed=True)
    replace = os.replace

    def other_first(*paths: Path) -> None:
        monkeypatch.setattr(os, "replace", replace)
        refuse(tmp_path, use, model_sha256=None, found_in="pretrain/a")
        replace(*paths)

    monkeypatch.setattr(os, "replace", other_first)
    refuse(tmp_path, use, model_sha256=None, found_in="pretrain/a")
    assert refused(tmp_path, model_sha256=None) == [use]
    assert len(list(tmp_path.iterdir())) == 1


def test_a_part_without_a_record_of_its_engines_counts_as_encoded_by_the_one_that_differed(
    project: PartsProject,
    expected: dict[str, str],
    install: Install,  # noqa: F811
) -> None:
    install(odd)
    found = graph_of(project)
    build(found, [key for key in found.order() if not key.startswith("pretrain/")])
    engines_file(found[parts_of(found)[1]].directory).unlink()  # as of an earlier version
    outcomes = build(graph_of(project))
    assert [outcomes[key].state for key in parts_of(found)] == ["built", "built", "cache_hit"]
    assert digests(project.cache()) == expected


def test_a_refusal_of_another_data_set_version_or_model_leaves_parts_as_they_are(project: PartsProject, install: Install) -> None:  # noqa: F811
    install(equal)
    found = graph_of(project)
    build(found)
    folder = refusals_dir(project.folder / "cache")
    folder.mkdir()
    part = found[parts_of(found)[0]]
    sha256 = part.finished()["tokenizer_sha256"]  # type: ignore[index]

    def states(**changes: str) -> set[str]:
        told = {"name": "hasty", "version": "1.2", "model_sha256": sha256, "found_in": f"pretrain/{NAME}", **changes}
        (folder / "one.json").write_text(json.dumps(told), encoding="utf-8")
        again = graph_of(project)
        return {outcome.state for outcome in build(again, parts_of(again)).values()}

    assert states(found_in="pretrain/others") == {"cache_hit"}
    assert states(version="1.1") == {"cache_hit"}
    assert states(model_sha256="0" * 64) == {"cache_hit"}
    (folder / "two.json").write_text("[", encoding="utf-8")  # a damaged record
    assert states() == {"built"}
    assert states() == {"cache_hit"}, "they are of the reference now"


def test_the_engines_of_parts_reach_the_result_line_the_metadata_and_the_seal(
    project: PartsProject,
    install: Install,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    install(equal)
    found = graph_of(project)
    build(found, [key for key in found.order() if not key.startswith(("part/", "pretrain/"))])
    where = ["--config", str(project.folder / "cache.toml"), "--cache-dir", str(project.folder / "cache")]
    for number in range(3):
        assert main(["part", NAME, str(number), *where]) == 0
        (result,) = [line for line in map(json.loads, capsys.readouterr().out.splitlines()) if line["event"] == "result"]
        (use,) = result["engines"]
        assert (use["name"], use["texts"], use["checked"]) == ("hasty", 8, 4)
    outcome = materialize(graph_of(project)[f"pretrain/{NAME}"])
    (sum_of_parts,) = outcome.engines
    assert (sum_of_parts.name, sum_of_parts.texts, sum_of_parts.checked) == ("hasty", 24, 12)
    part = materialize(graph_of(project)[parts_of(found)[0]], force=True)
    assert part_metadata(part)["encoded_by"] == part.engines[0].said()
    assert "50.00%" in part.engines[0].said()
    assert verify_cache(project.folder / "cache") == []


@pytest.mark.parametrize("settings", [SETTINGS, "val_tokens = 40\ntrain_tokens = 100000\nshuffle_buffer = 6", "val_frac = 0.3"])
def test_verify_encodes_documents_of_all_parts_again(
    project: PartsProject,
    install: Install,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
    settings: str,
) -> None:
    install(equal)
    build(graph_of(project, settings=settings))
    command = ["verify", "--tokens", "1000", "--config", str(project.folder / "cache.toml"), "--cache-dir", str(project.folder / "cache")]
    capsys.readouterr()
    assert main([*command, "--json"]) == 0
    (note,) = [note for note in json.loads(capsys.readouterr().out)["notes"] if "again" in note]
    assert f"pretrain/{NAME}: 2" in note, "all of the 24 documents, or all but a few that a budget has cut"
    shard = sorted((project.cache() / "train").glob("*.bin"))[-1]  # of the last part
    content = bytearray(shard.read_bytes())
    content[0] ^= 1
    shard.write_bytes(content)
    assert main([*command, "--json"]) == 1
    problems = [finding["problem"] for finding in json.loads(capsys.readouterr().out)["findings"]]
    assert [problem for problem in problems if "f002.jsonl" in problem]


def test_pruned_parts_leave_no_record(project: PartsProject, install: Install) -> None:  # noqa: F811
    install(equal)
    build(graph_of(project))
    build(graph_of(project, parts=2))
    folder = project.folder / "cache/pretrain/.parts" / NAME
    assert (folder / ".engines/part-00002.json").exists()
    prune_parts(graph_of(project, parts=2), NAME)
    assert sorted(path.name for path in folder.glob(".engines/*")) == ["part-00000.json", "part-00001.json"]
    build(graph_of(project, parts=1))
    prune_parts(graph_of(project, parts=1), NAME)
    assert not folder.exists()
