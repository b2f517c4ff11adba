"""All definitions as literal data. A change of a key, a dependency or a check is a decision, so it must be made here too."""

import importlib
import sys
from pathlib import Path

import dagster as dg
import pytest

from niels_cache_assets.config.registry import cache_root, load_registry
from niels_cache_assets.defs.resources import CacheRoot
from niels_cache_runtime.errors import NielsCacheError
from tests.dagster_tools import Project
from tests.messages import missing

# key: (group, kinds, code version, partitions, dependencies, checks)
ASSETS = {
    "tokenizer": ("tokenizer", {"file"}, "1", None, [], ["special_tokens_are_one_id_each", "text_survives_a_round_trip"]),
    "upstream/pretrain": ("upstream", {"huggingface", "file"}, None, ["notes", "books"], [], []),
    "upstream/sft": ("upstream", {"huggingface", "file"}, None, ["chats"], [], []),
    "pretrain/train_shards": ("pretrain", {"numpy"}, "1", ["notes", "books"], ["tokenizer", "upstream/pretrain"], []),
    "pretrain/val_shards": ("pretrain", {"numpy"}, "1", ["notes", "books"], ["tokenizer", "upstream/pretrain"], []),
    "pretrain/meta_json": (
        "pretrain",
        {"json"},
        "1",
        ["notes", "books"],
        ["pretrain/train_shards", "pretrain/val_shards", "tokenizer", "upstream/pretrain"],
        ["budgets_met", "caches_in_sync", "files_match_meta", "invariants_hold", "splits_disjoint", "tokenizer_is_current"],
    ),
    "sft/train_pair": ("sft", {"numpy"}, "1", ["chats"], ["tokenizer", "upstream/sft"], []),
    "sft/val_pair": ("sft", {"numpy"}, "1", ["chats"], ["tokenizer", "upstream/sft"], []),
    "sft/meta_json": (
        "sft",
        {"json"},
        "1",
        ["chats"],
        ["sft/train_pair", "sft/val_pair", "tokenizer", "upstream/sft"],
        ["caches_in_sync", "files_match_meta", "invariants_hold", "tokenizer_is_current"],
    ),
    "reports/mixture": (
        "reports",
        {"report"},
        "1",
        None,
        ["pretrain/meta_json"],
        ["no_data_set_is_read_too_often"],
    ),
    "reports/cache": ("reports", {"report"}, "1", None, ["pretrain/meta_json", "sft/meta_json", "tokenizer"], []),
}
BLOCKING = {
    "special_tokens_are_one_id_each": True,
    "text_survives_a_round_trip": True,
    "files_match_meta": True,
    "invariants_hold": True,
    "tokenizer_is_current": True,
    "caches_in_sync": False,
    "splits_disjoint": False,
    "budgets_met": False,
    "no_data_set_is_read_too_often": False,
}
JOBS = {"build_tokenizer", "build_pretrain", "build_sft", "write_reports", "observe_upstream", "verify_caches"}


@pytest.fixture
def defs(tmp_path: Path, tiny_model: Path) -> dg.Definitions:
    return Project(tmp_path, tiny_model).defs


def test_assets_are_these(defs: dg.Definitions) -> None:
    graph = defs.resolve_asset_graph()
    found = {}
    for key in graph.get_all_asset_keys():
        node = graph.get(key)
        partitions = node.partitions_def.get_partition_keys() if node.partitions_def else None
        parents = sorted(parent.to_user_string() for parent in node.parent_keys)
        checks = sorted(check.name for check in node.check_keys)
        code_version = node.code_version and node.code_version.partition("-")[0]  # a hash of settings follows
        found[key.to_user_string()] = (node.group_name, node.kinds, code_version, partitions, parents, checks)
    assert found == ASSETS


def test_checks_block_where_a_cache_would_be_used(defs: dg.Definitions) -> None:
    graph = defs.resolve_asset_graph()
    assert {key.name: graph.get_check_spec(key).blocking for key in graph.asset_check_keys} == BLOCKING


def test_jobs_are_these(defs: dg.Definitions) -> None:
    assert {job.name for job in defs.resolve_all_job_defs() if not job.name.startswith("__")} == JOBS


def test_streams_are_in_no_pool_and_are_not_retried(defs: dg.Definitions) -> None:
    for key in (["pretrain", "meta_json"], ["sft", "meta_json"]):
        definition = defs.resolve_assets_def(dg.AssetKey(key))
        op = definition.op
        assert (op.pool, op.retry_policy, definition.can_subset, definition.backfill_policy) == (None, None, False, None)


def test_the_launchpad_offers_budgets_and_force_and_no_resources_of_ours(defs: dg.Definitions) -> None:
    schema = defs.resolve_job_def("build_pretrain").run_config_schema.run_config_schema_type.fields  # type: ignore[attr-defined]
    assert set(schema["resources"].config_type.fields) == {"io_manager"}, "Dagster's own"
    offered = schema["ops"].default_value["stream_pretrain_dataset"]["config"]
    shown = {name: value for name, value in offered.items() if value is not None}  # the UI leaves out null
    assert shown == {"force": False, "wait": False, "train_tokens": -1, "val_tokens": -1}


def test_assets_link_to_their_code_and_upstream_to_the_configuration(defs: dg.Definitions, tmp_path: Path) -> None:
    specs = list(defs.resolve_all_asset_specs())
    assert len(specs) == 11
    for spec in specs:
        key, [link] = spec.key.to_user_string(), spec.metadata["dagster/code_references"].code_references
        assert isinstance(link, dg.LocalFileCodeReference)
        lines = Path(link.file_path).read_text(encoding="utf-8").splitlines()
        if key.startswith("upstream/"):
            assert (link.file_path, link.label) == (str(tmp_path / "niels_cache.toml"), "niels_cache.toml")
        else:
            assert any("asset(" in line for line in lines[(link.line_number or 0) - 1 :][:1])


def test_owners_and_tags_are_configured(tmp_path: Path, tiny_model: Path) -> None:
    project = Project(tmp_path, tiny_model)
    project.edit("[dagster]\n", '[dagster]\nowners = ["team:data", "ada@example.org"]\ntags = { project = "tiny" }\n')
    specs = list(project.defs.resolve_all_asset_specs())
    assert len(specs) == 11
    assert all(list(spec.owners) == ["team:data", "ada@example.org"] and spec.tags["project"] == "tiny" for spec in specs)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ('owners = ["ada"]', ("'ada'", "'ada@example.org'", "'team:data'")),
        ('tags = { "a b" = "c" }', ("'a b' = 'c': ", "63 letters")),
    ],
)
def test_what_the_ui_would_refuse_is_refused_where_it_is_configured(
    tmp_path: Path, tiny_model: Path, line: str, named: tuple[str, ...]
) -> None:
    project = Project(tmp_path, tiny_model)
    project.edit("[dagster]\n", f"[dagster]\n{line}\n")
    with pytest.raises(NielsCacheError) as caught:
        _ = project.registry
    assert missing(caught.value, *named) == []


def test_the_code_location_is_what_the_environment_configures(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = Project(tmp_path, tiny_model)
    monkeypatch.setenv("NIELS_CACHE_CONFIG", str(project.folder / "niels_cache.toml"))
    monkeypatch.setenv("NIELS_CACHE_PROFILE", "quickstart")
    monkeypatch.delitem(sys.modules, "niels_cache_assets.definitions", raising=False)
    loaded = importlib.import_module("niels_cache_assets.definitions").defs
    dg.Definitions.validate_loadable(loaded)
    partitions = loaded.resolve_assets_def(dg.AssetKey(["pretrain", "meta_json"])).partitions_def
    assert partitions.get_partition_keys() == load_registry().partition_keys("pretrain") == ["python_docs", "notes", "books"]


def test_a_configuration_that_cannot_be_read_stops_loading_with_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "niels_cache.toml"
    config.write_text('[pretrain.notes]\nsorce = "jsonl"\n')
    monkeypatch.setenv("NIELS_CACHE_CONFIG", str(config))
    monkeypatch.delitem(sys.modules, "niels_cache_assets.definitions", raising=False)
    with pytest.raises(NielsCacheError, match=r"niels_cache.toml: \[pretrain.notes\] has no source") as caught:
        importlib.import_module("niels_cache_assets.definitions")
    assert "\n" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_the_cache_root_is_what_the_registry_says_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_model: Path) -> None:
    project = Project(tmp_path, tiny_model)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert CacheRoot(root="cache").path == tmp_path / "cache"
    assert CacheRoot(root="~/cache").path == tmp_path / "~/cache"
    assert CacheRoot(root=str(cache_root(project.registry, "~/cache"))).path == tmp_path / "home/cache"
