"""`tokens_in_parts`: the parts of a corpus become the parts of its cache. Nothing but the shards differs from a cache of one process."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from niels_cache_assets.artifacts.forecast.steps import forecast
from niels_cache_assets.artifacts.graph import Graph
from niels_cache_assets.artifacts.materialize import materialize
from niels_cache_assets.cli import command as exit_codes
from niels_cache_assets.cli import main
from niels_cache_assets.corpus.layout import corpus_dir
from niels_cache_assets.disk.journal import Journal
from niels_cache_assets.streaming import encode
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.meta import read_meta
from niels_cache_runtime.verify import verify_cache
from tests.helpers import children
from tests.helpers.exports import contents
from tests.helpers.messages import missing
from tests.helpers.parts_project import NAME, PartsProject, build, parts_of, stream_of

WHOLE = 'prepare = ["dedup"]\nval_frac = 0.1\n'
TABLE = f"{WHOLE}tokens_in_parts = true\n"
PARTS, FILES = 3, 8


@pytest.fixture
def project(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> PartsProject:
    """Seven files. The last is a copy of the first, so it gives nothing to the cache; one file has a near copy of a text."""
    project = PartsProject(tmp_path, tiny_model)
    project.write([30, 2, 40, 30, 3, 50])
    shutil.copy(tmp_path / "texts" / "f000.jsonl", tmp_path / "texts" / "f006.jsonl")
    return project


def cache(found: Graph) -> dict[str, bytes]:
    return contents(found.dataset(NAME).directory)


@pytest.mark.parametrize("parts", [PARTS, FILES])
def test_the_tokens_are_those_of_one_process(project: PartsProject, parts: int) -> None:
    """With a part for each file, one part has no document, and one has no document of train: all of them are duplicates."""
    (project.folder / "texts" / "f007.jsonl").touch()
    whole, divided = project.graph(1, WHOLE, root="whole"), project.graph(parts, TABLE)
    build(whole)
    outcomes = build(divided)
    assert [key for key in outcomes if key.startswith("part/")] == [f"part/{NAME}/part-{number:05d}" for number in range(parts)]
    expected, found = stream_of(project.cache("whole")), stream_of(project.cache())
    assert found == expected
    assert len(found["train"]) > 1000
    assert len(found["val"]) > 100
    of_whole, meta = (read_meta(str(folder / "meta.json")) for folder in (project.cache("whole"), project.cache()))
    for key in ("documents", "characters", "dropped", "facts", "split_rule", "dataset_revision", "tokenizer_sha256"):
        assert meta[key] == of_whole[key], key
    assert meta["dropped"]["exact_duplicate"] == 30
    if parts == FILES:
        assert [part["documents"]["train"] for part in meta["parts"]][-2:] == [0, 0]
        assert meta["parts"][-1]["documents"] == {"train": 0, "val": 0}
    assert verify_cache(divided.root) == []
    assert divided.state(f"pretrain/{NAME}").state == "in sync"


def test_a_shuffle_is_that_of_each_part(project: PartsProject) -> None:
    streams = []
    for root, order in (("cache", (0, 1, 2)), ("other", (2, 0, 1))):
        found = project.graph(PARTS, f"{TABLE}shuffle_buffer = 20\n", root=root)
        steps = [key for key in found.order() if not key.startswith(("part/", "pretrain/"))]
        build(found, [*steps, *(f"part/{NAME}/part-{number:05d}" for number in order), f"pretrain/{NAME}"])
        streams.append(cache(found))
    assert streams[0] == streams[1]
    build(project.graph(1, WHOLE, root="whole"))
    one, other = stream_of(project.cache("whole")), stream_of(project.cache())
    assert one["train"] != other["train"]
    assert len(one["train"]) == len(other["train"])


def kill_at_record(found: Graph, key: str, number: int) -> None:
    """Build a part in this process, and kill the process when its journal records for the `number`th time."""
    record, count = Journal.record, [0]

    def killing(*arguments: Any, **options: Any) -> None:
        record(*arguments, **options)
        count[0] += 1
        if count[0] == number:
            os.kill(os.getpid(), signal.SIGKILL)

    Journal.BYTES, Journal.REST, encode._CHUNK_ITEMS = 0, 0, 5
    Journal.record = killing  # type: ignore[method-assign]
    materialize(found[key])


def test_a_part_that_is_killed_resumes_to_the_same_bytes(project: PartsProject, monkeypatch: pytest.MonkeyPatch) -> None:
    record = 3
    monkeypatch.setattr(Journal, "BYTES", 0)
    monkeypatch.setattr(Journal, "REST", 0)
    monkeypatch.setattr(encode, "_CHUNK_ITEMS", 5)
    found = project.graph(PARTS, TABLE)
    build(found)
    expected, key = cache(found), parts_of(found)[1]
    part = found[key].directory
    of_part = contents(part)
    shutil.rmtree(part)
    assert children.run(kill_at_record, found, key, record) == -signal.SIGKILL
    assert not part.exists()
    log: list[str] = []
    outcome = materialize(found[key], log=log.append)
    assert outcome.resumed > 0
    assert any(line.startswith("resuming") for line in log)
    assert contents(part) == of_part
    shutil.rmtree(found.dataset(NAME).directory)
    materialize(found[f"pretrain/{NAME}"])
    assert cache(found) == expected


def test_a_corpus_that_changes_makes_the_parts_again(project: PartsProject) -> None:
    found = project.graph(PARTS, TABLE)
    build(found)
    before = stream_of(project.cache())
    assert {outcome.state for outcome in build(found).values()} == {"cache_hit"}
    project.write([4], first=7)
    steps = {step.key: step.action for step in forecast(found)}
    assert steps[f"pretrain/{NAME}"] == "build"
    states = {key: outcome.state for key, outcome in build(found).items()}
    assert {states[key] for key in (*parts_of(found), f"pretrain/{NAME}")} == {"built"}
    assert len(stream_of(project.cache())["train"]) > len(before["train"])
    assert verify_cache(found.root) == []


def test_a_corpus_that_is_replaced_during_the_join_is_noticed(project: PartsProject, monkeypatch: pytest.MonkeyPatch) -> None:
    from niels_cache_assets.artifacts.parts import seal

    found = project.graph(PARTS, TABLE)
    build(found)
    before, meta = cache(found), corpus_dir(found.root, NAME) / "meta.json"
    join = seal.seal

    def replacing(*arguments: Any, **options: Any) -> Any:
        joined = join(*arguments, **options)
        project.write([4], first=7)
        build(found, [f"plan/{NAME}", f"corpus/{NAME}"])
        return joined

    monkeypatch.setattr(seal, "seal", replacing)
    old = meta.read_bytes()
    with pytest.raises(NielsCacheError) as caught:
        materialize(found[f"pretrain/{NAME}"], force=True)
    assert meta.read_bytes() != old
    assert missing(caught.value, "replaced", "again") == []
    assert cache(found) == before


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("tokens_in_parts = true\nval_frac = 0.1\n", ["tokens_in_parts", "prepare"]),
        ('prepare = ["clean"]\ntokens_in_parts = true\ndecontaminate = "exact"\n', ["decontaminate", "dedup"]),
    ],
)
def test_what_cannot_be_divided_is_refused_in_one_line(project: PartsProject, table: str, words: list[str]) -> None:
    with pytest.raises(NielsCacheError) as caught:
        project.graph(PARTS, table)
    assert missing(caught.value, "tokens_in_parts", *words) == []


def test_budgets_are_met_exactly_by_shares_of_all_parts(project: PartsProject) -> None:
    build(project.graph(PARTS, TABLE.replace("val_frac = 0.1", "train_tokens = 901\nval_tokens = 100")))
    meta = read_meta(str(project.cache() / "meta.json"))
    assert (meta["train_tokens"], meta["val_tokens"]) == (901, 100)
    assert all(entry["tokens"]["train"] > 100 for entry in meta["parts"])


def test_the_key_changes_no_other_cache(project: PartsProject) -> None:
    build(project.graph(1, WHOLE))
    assert build(project.graph(1, TABLE))[f"pretrain/{NAME}"].state == "cache_hit"
    build(project.graph(PARTS, WHOLE))
    states = {key: outcome.state for key, outcome in build(project.graph(PARTS, TABLE)).items()}
    assert {states[key] for key in (f"corpus/{NAME}", "corpus/duplicates")} == {"cache_hit"}
    assert states[f"pretrain/{NAME}"] == "built"
    assert build(project.graph(PARTS, WHOLE))[f"pretrain/{NAME}"].state == "built"


def test_commands_build_the_parts_and_join_them(project: PartsProject, capsys: pytest.CaptureFixture[str]) -> None:
    found = project.graph(PARTS, TABLE)
    where = ["--config", str(project.folder / "cache.toml"), "--cache-dir", str(found.root)]
    build(found, ["tokenizer"])
    assert main(["part", NAME, "0", *where]) == exit_codes.WRONG_USE
    assert "corpus" in capsys.readouterr().err
    for number in range(PARTS):
        assert main(["part", NAME, str(number), "--corpus", *where]) == 0
    assert main(["part", NAME, "--seal", *where]) == 0
    assert main(["part", NAME, "0", *where]) == exit_codes.WRONG_USE
    assert "duplicates" in capsys.readouterr().err
    build(found, ["corpus/duplicates", f"part/{NAME}/part-00001", f"part/{NAME}/part-00002"])
    assert main(["part", NAME, "0", *where]) == main(["part", NAME, "--seal", *where]) == 0
    assert build(found)[f"pretrain/{NAME}"].state == "cache_hit"
