"""All definitions as literal data, and every input of the graph of artifacts as a dependency.

A change of a key, a dependency or a check is a decision, so it must be made here too.
"""

import importlib
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from niels_cache_assets.artifacts.graph import Graph, graph
from niels_cache_assets.corpus.layout import HASHES
from niels_cache_assets.defs.assembly import build_defs
from niels_cache_assets.defs.keys import names_of
from niels_cache_assets.defs.references import table_lines
from niels_cache_assets.defs.resources import CacheRoot
from niels_cache_assets.project.registry import cache_root, load_registry
from niels_cache_runtime.errors import NielsCacheError
from tests.helpers.dagster_tools import Project
from tests.helpers.messages import missing
from tests.helpers.names import NAMES

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
    "reports/cache": ("reports", {"report"}, "2", None, ["pretrain/meta_json", "sft/meta_json", "tokenizer"], []),
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


def test_the_launchpad_offers_budgets_and_force_and_no_resources_of_ours(defs: dg.Definitions) -> None:
    schema = defs.resolve_job_def("build_pretrain").run_config_schema.run_config_schema_type.fields  # type: ignore[attr-defined]
    assert set(schema["resources"].config_type.fields) == {"io_manager"}, "Dagster's own"
    offered = schema["ops"].default_value["stream_pretrain_dataset"]["config"]
    shown = {name: value for name, value in offered.items() if value is not None}  # the UI leaves out null
    assert shown == {"force": False, "wait": False, "train_tokens": -1, "val_tokens": -1}


def test_a_prefix_begins_every_name(tmp_path: Path, tiny_model: Path) -> None:
    plain, prefixed = (named(Project(tmp_path / str(number), tiny_model), lines) for number, lines in enumerate(("", PREFIX)))
    assert {kind: len(names) for kind, names in plain.items()} == {kind: len(names) for kind, names in prefixed.items()}
    assert prefixed["pools"] == {"nlp/parts", "stream"}
    for kind in ("assets", "ops", "jobs", "sensors", "schedules", "resources", "groups"):
        before = "team/n-lp/" if kind == "assets" else "team__n_lp__"
        assert plain[kind], kind
        assert prefixed[kind] == {before + name for name in plain[kind]}, kind
    project = Project(tmp_path / "linked", tiny_model)
    project.edit("[dagster]\n", f"[dagster]\n{PREFIX}")
    texts = "".join(spec.description or "" for spec in project.defs.resolve_all_asset_specs())
    assert texts.count("(/assets/team/n-lp/pretrain/meta_json?view=checks)") == 3
    assert "(/assets/pretrain" not in texts


PREFIX = 'key_prefix = "team/n-lp"\npools = { parts = "nlp/parts", source_stream = "stream" }\n'


def named(project: Project, lines: str) -> dict[str, set[str]]:
    """Return all names of the definitions of a project with these lines in [dagster]."""
    project.edit("[dagster]\n", f"[dagster]\n{lines}")
    repository, names = project.defs.get_repository_def(), names_of(project.registry)
    specs = list(project.defs.resolve_all_asset_specs())
    return {
        "assets": {spec.key.to_user_string() for spec in specs},
        "ops": {node.name for job in repository.get_all_jobs() for node in job.all_node_defs},
        "jobs": {job.name for job in repository.get_all_jobs() if not job.name.startswith("__")},
        "sensors": {sensor.name for sensor in repository.sensor_defs},
        "schedules": {schedule.name for schedule in repository.schedule_defs},
        "resources": {*repository.get_top_level_resources()},
        "groups": {spec.group_name or "" for spec in specs},
        "pools": {names.parts_pool, names.stream_pool},
    }


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
def test_what_the_ui_would_refuse_is_refused_when_loaded(tmp_path: Path, tiny_model: Path, line: str, named: tuple[str, ...]) -> None:
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


def test_an_asset_links_to_the_tables_that_configure_it(tmp_path: Path, tiny_model: Path) -> None:
    project = Project(tmp_path, tiny_model)
    lines = (project.folder / "niels_cache.toml").read_text(encoding="utf-8").splitlines()
    names = names_of(project.registry)
    for key, headers in {
        names.meta["pretrain"]: ["[pretrain.notes]", "[pretrain.books]"],
        names.upstream["sft"]: ["[sft.chats]"],
        names.tokenizer: ["[tokenizer]"],
        names.cache_report: [lines[0]],
    }.items():
        (spec,) = (spec for spec in project.defs.resolve_all_asset_specs() if spec.key == key)
        links = spec.metadata["dagster/code_references"].code_references
        found = [lines[link.line_number - 1] for link in links if link.file_path == str(project.folder / "niels_cache.toml")]
        assert found == headers, key


def test_tables_are_found_by_their_headers() -> None:
    toml = (
        '[build]\n# [pretrain.a]\n[pretrain.a]\n  [ pretrain . "b" ]  # as it is\nfiles = ["x"]\n[pretrain.b.where]\n[[pretrain.c.added]]\n'
    )
    assert {name: line for name, (line, _) in table_lines(toml).items()} == {"build": 1, "a": 3, "b": 4}


def test_upstream_links_to_the_profile_if_there_is_no_configuration() -> None:
    specs = {spec.key: spec for spec in build_defs(registry=load_registry(profile="default")).resolve_all_asset_specs()}
    assert Path(specs[NAMES.upstream["sft"]].metadata["dagster/code_references"].code_references[0].file_path).is_file()


def test_the_cache_root_is_what_the_registry_says_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_model: Path) -> None:
    project = Project(tmp_path, tiny_model)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert CacheRoot(root="cache").path == tmp_path / "cache"
    assert CacheRoot(root="~/cache").path == tmp_path / "~/cache"
    assert CacheRoot(root=str(cache_root(project.registry, "~/cache"))).path == tmp_path / "home/cache"


PROJECT = """
[dedup]
ranges = {ranges}
[tokenizer]
train_on = ["web", "book"]
[pretrain.web]
source = "jsonl"
files = ["web/*.jsonl"]
prepare = ["clean", "dedup"]
parts = 2
[pretrain.book]
source = "jsonl"
files = ["book/*.jsonl"]
prepare = ["clean", "dedup"]
parts = 2
tokens_in_parts = true
[pretrain.plain]
source = "jsonl"
files = ["plain/*.jsonl"]
parts = 3
val_tokens = 10
[pretrain.whole]
source = "text"
files = ["whole.txt"]
[pretrain.both]
source = "interleave"
members = {{ web = 1, book = 1 }}
prepare = ["clean"]
[blend.mix]
weights = {{ plain = 1, web = 1 }}
num_samples = 10
sequence_length = 16
[sft.chat]
source = "chat_jsonl"
files = ["chat.jsonl"]
"""
ASSET_OF = {
    "tokenizer": NAMES.tokenizer,
    "corpus_part": NAMES.corpus_parts,
    "corpus": NAMES.documents,
    "corpus/duplicates": NAMES.duplicates,
    HASHES: NAMES.hashes,
    "range": NAMES.ranges,
    "report": NAMES.report,
    "plan": NAMES.plan,
    "val_part": NAMES.val_part,
    "part": NAMES.parts,
    "pretrain": NAMES.splits["pretrain"]["train"],
    "sft": NAMES.splits["sft"]["train"],
    "index": NAMES.index,
}
Place = tuple[dg.AssetKey, str | None]  # an asset, and its partition


@pytest.fixture(params=[1, 3], ids=["in one search", "in ranges"])
def found(tmp_path: Path, request: pytest.FixtureRequest) -> Graph:
    config = tmp_path / "niels_cache.toml"
    config.write_text(PROJECT.format(ranges=request.param), encoding="utf-8")
    return graph(load_registry(config=str(config)), tmp_path)


def test_dagster_knows_every_input(found: Graph) -> None:
    """An input of an input counts too. Dagster allows no asset that depends on itself, so the corpus of a mixture depends on no corpus. The
    corpus of a mixture may need the tokenizer, so this depends on no corpus.
    """
    assets = build_defs(registry=found.registry).get_repository_def().asset_graph
    unknown = {key: [each for each in found[key].inputs() if place(each) not in above(assets, place(key))] for key in found.keys}
    of_ranges = set() if found.registry.search_ranges else {HASHES, "range"}
    assert {key.partition("/")[0] for key in found.keys} | {"corpus/duplicates"} >= ASSET_OF.keys() - of_ranges
    assert {key: inputs for key, inputs in unknown.items() if inputs} == {
        "tokenizer": ["corpus/web", "corpus/book", "corpus/both", "corpus/duplicates"],
        "corpus/both": ["corpus/web", "corpus/book", "corpus/duplicates"],
    }


def place(key: str) -> Place:
    kind, _, name = key.partition("/")
    return (ASSET_OF[key], None) if key in ASSET_OF else (ASSET_OF[kind], name)


def above(assets: Any, below: Place) -> set[Place]:
    """Return everything that a partition of an asset depends on."""
    known: set[Place] = set()
    left = [below]
    while left:
        new = set(inputs_of(assets, left.pop())) - known
        known |= new
        left += new
    return known


def inputs_of(assets: Any, below: Place) -> Iterator[Place]:
    asset, partition = below
    node = assets.get(asset)
    chosen = node.partitions_def.subset_with_partition_keys([partition]) if partition else None
    for parent in node.parent_keys:
        partitions = assets.get(parent).partitions_def
        if partitions is None:
            yield parent, None
        else:
            mapping = assets.get_partition_mapping(asset, parent_asset_key=parent)
            mapped = mapping.get_upstream_mapped_partitions_result_for_partitions(
                chosen, node.partitions_def, partitions, datetime.now(UTC)
            )
            yield from ((parent, name) for name in mapped.partitions_subset.get_partition_keys())
