"""A project of `dg` has two components and definitions of its user, and nothing collides."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

from niels_cache_assets import NielsCacheComponent
from niels_cache_assets.defs.home.instance import ensure_instance
from niels_cache_runtime.errors import NielsCacheError
from tests.helpers.messages import missing
from tests.helpers.tiny import sentences

TABLES = """
[build]
cache_dir = "../../../../cache/nlp"

[tokenizer]
vocab_size = 330

[pretrain.words]
source = "jsonl"
files = ["words.jsonl"]
val_frac = 0.1
"""
INLINE = """
type: niels_cache_assets.NielsCacheComponent
attributes:
  key_prefix: team/chat
  group: chat
  pools: {parts: large}
  tables:
    build: {cache_dir: ../../../../cache/chat}
    tokenizer: {vocab_size: 330}
    pretrain:
      words: {source: jsonl, files: [words.jsonl], val_frac: 0.1, parts: 2}
"""
IN_ONE_PROCESS = ("--config-json", '{"execution": {"config": {"in_process": {}}}}')
OWN = """
import dagster as dg


@dg.asset
def tokenizer() -> None: ...


@dg.asset(deps=["nlp/pretrain/train_shards".split("/")])
def model() -> None: ...


@dg.definitions
def own() -> dg.Definitions:
    job = dg.define_asset_job("build_pretrain", selection=["tokenizer"])
    return dg.Definitions(assets=[tokenizer, model], jobs=[job], resources={"cache_root": "mine"})
"""


def write_words(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "words.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in sentences(400)), encoding="utf-8")


@pytest.mark.walk
def test_a_project_of_dg_builds_two_components_beside_its_own_definitions(tmp_path: Path) -> None:
    project, home = tmp_path / "demo", tmp_path / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("NIELS_CACHE")},
        "DAGSTER_DG_UPDATE_CHECK_ENABLED": "0",
        "DAGSTER_HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(project / "src"),
        "VIRTUAL_ENV": sys.prefix,
    }

    def run(module: str, *words: str, cwd: Path = project) -> str:
        command = [sys.executable, "-c", f"import sys; from {module} import main; sys.exit(main())", *words]
        ended = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def build_all(*words: str, cwd: Path = project) -> list[str]:
        found = json.loads(run("niels_cache_assets.cli", "build-all", "--json", *words, cwd=cwd))
        return [row["state"] for row in found["results"]]

    def dg_(*words: str) -> str:
        return run("dagster_dg_cli.cli", *words)

    run("create_dagster.cli", "project", "demo", "--no-uv-sync", cwd=tmp_path)
    dg_("scaffold", "defs", "niels_cache_assets.NielsCacheComponent", "nlp")
    nlp, chat = (project / "src/demo/defs" / name for name in ("nlp", "chat"))
    for folder in (nlp, chat):
        write_words(folder)
    assert '[pretrain.python_docs]\nsource = "python_docs"' in (nlp / "niels_cache.toml").read_text()
    (nlp / "niels_cache.toml").write_text(TABLES)
    (chat / "defs.yaml").write_text(INLINE)
    (chat.parent / "own.py").write_text(OWN)
    dg_("check", "defs")
    listed = json.loads(dg_("list", "defs", "--json"))
    jobs = {job["name"] for job in listed["jobs"]}
    assert jobs >= {"build_pretrain", "nlp__build_pretrain", "team__chat__build_pretrain", "team__chat__build_parts"}
    assert {each["name"] for each in listed["resources"]} >= {"cache_root", "nlp__cache_root", "team__chat__cache_root"}

    dg_("launch", "--assets", "nlp/tokenizer")  # in a process for each step
    dg_("launch", "--assets", 'key:"nlp/pretrain/*"', "--partition", "words", *IN_ONE_PROCESS)
    dg_("launch", "--assets", "model", *IN_ONE_PROCESS)
    assert {*build_all(cwd=nlp)} == {"cache_hit"}, "the file in the working folder is that of the component"
    assert {*build_all("--config", str(chat / "defs.yaml"))} == {"built"}
    dg_("launch", "--assets", "team/chat/pretrain/parts", "--partition", "words/part-00001", *IN_ONE_PROCESS)
    assert (project / "cache/nlp/pretrain/words/meta.json").is_file()

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DAGSTER_HOME", str(home))
        with ensure_instance() as instance:
            runs = [record.dagster_run for record in instance.get_run_records()]
            kept = {key.to_user_string() for key in instance.get_asset_keys()}
    assert all(each.is_success for each in runs)
    origins = {each.job_name: each.remote_job_origin for each in runs if each.job_name.startswith("team__chat__")}
    assert {*origins} >= {f"team__chat__{job}" for job in ("build_tokenizer", "plan_parts", "build_parts", "build_pretrain")}
    assert {origin and origin.location_name for origin in origins.values()} == {"demo"}
    assert kept >= {"model", "nlp/pretrain/train_shards", "team/chat/pretrain/train_shards", "team/chat/pretrain/parts"}
    assert not {"tokenizer", "pretrain/train_shards"} & kept


def component(folder: Path, **attributes: Any) -> dg.Definitions:
    """Return the definitions of a component in a folder of its own."""
    write_words(folder)
    (folder / "niels_cache.toml").write_text(TABLES)
    context: Any = SimpleNamespace(path=folder)
    return NielsCacheComponent(config="niels_cache.toml", **attributes).build_defs(context)


def test_components_collide_neither_with_each_other_nor_with_definitions_of_the_user(tmp_path: Path) -> None:
    @dg.asset(required_resource_keys={"cache_root"})
    def tokenizer() -> None: ...

    own = dg.Definitions(
        assets=[tokenizer],
        jobs=[dg.define_asset_job("build_pretrain", selection=["tokenizer"])],
        resources={"cache_root": dg.ResourceDefinition.hardcoded_resource("mine")},
        executor=dg.in_process_executor,
    )
    nlp = component(tmp_path / "nlp", key_prefix="nlp")
    both = dg.Definitions.merge(own, nlp, component(tmp_path / "chat", key_prefix="chat", group="chat"))
    found = both.get_repository_def()
    assert found.has_job("build_pretrain")
    assert found.has_job("nlp__build_pretrain")
    assert {spec.group_name for spec in both.resolve_all_asset_specs() if spec.key.path[0] == "chat"} == {"chat"}
    with pytest.raises(dg.DagsterInvariantViolationError, match="cache_root"):
        dg.Definitions.merge(own, component(tmp_path / "plain")).get_repository_def()


def test_a_wrong_table_is_refused_as_by_a_command(tmp_path: Path) -> None:
    write_words(tmp_path)
    context: Any = SimpleNamespace(path=tmp_path)
    with pytest.raises(NielsCacheError) as caught:
        NielsCacheComponent(tables={"pretrain": {"words": {"source": "txt"}}}).build_defs(context)
    assert missing(caught.value, f"{tmp_path / 'defs.yaml'}: [pretrain.words]", "txt") == []
    assert caught.value.__suppress_context__
