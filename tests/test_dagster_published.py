"""The assets published/pretrain and published/sft: their partitions, what a run publishes, and what makes them stale."""

from pathlib import Path

import pytest

from niels_cache_assets.config.registry import load_registry
from niels_cache_assets.defs.keys import PUBLISH_JOBS, PUBLISHED_KEYS
from niels_cache_assets.publish.check import check
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.remote.record import read_record
from niels_cache_runtime.remote.store import open_store
from tests.built_project import Built
from tests.dagster_tools import Project, materializations

PRETRAIN, SFT = PUBLISHED_KEYS["pretrain"], PUBLISHED_KEYS["sft"]


@pytest.fixture
def project(built_project: Built, tmp_path: Path) -> Project:
    pytest.importorskip("obstore", reason="obstore is not installed (the extra remote)")
    project = built_project.project.copied(tmp_path)
    project.configure(extra=f'[publish]\naddress = "file://{tmp_path}/published"\ndata_sets = ["notes", "chats"]\n')
    return project


def test_each_data_set_of_the_table_is_a_partition_below_its_cache(project: Project) -> None:
    graph = project.defs.resolve_asset_graph()
    for key, names, above in ((PRETRAIN, ["notes"], "pretrain/meta_json"), (SFT, ["chats"], "sft/meta_json")):
        node = graph.get(key)
        assert node.partitions_def is not None
        assert node.partitions_def.get_partition_keys() == names
        parents = graph.get_parents_partitions(key, names[0]).parent_partitions
        assert {(each.asset_key.to_user_string(), each.partition_key) for each in parents} == {(above, names[0])}


def test_without_the_table_there_are_no_such_assets(project: Project) -> None:
    project.configure()
    assert not {PRETRAIN, SFT} & set(project.defs.resolve_asset_graph().get_all_asset_keys())


def test_a_run_publishes_the_cache_and_a_rebuild_makes_it_stale(project: Project, tmp_path: Path) -> None:
    address = f"file://{tmp_path}/published/pretrain/notes"
    run = project.run(PUBLISH_JOBS["pretrain"], "notes")
    assert run.success
    content = read_record(open_store(address))[0].content_sha256
    (made,) = materializations(run, "published__pretrain").values()
    assert made.tags is not None
    assert made.tags["dagster/data_version"] == content
    assert check(address, download=True).findings == []
    assert project.status(PRETRAIN, "notes") == "FRESH"
    project.build("notes", seed=99)
    assert project.status(PRETRAIN, "notes") == "STALE"
    assert project.run(PUBLISH_JOBS["pretrain"], "notes").success
    assert project.status(PRETRAIN, "notes") == "FRESH"
    assert read_record(open_store(address))[0].previous == (content,)


def test_a_wrong_address_or_name_is_refused_without_its_password(tmp_path: Path) -> None:
    for text, keyword in (
        ('address = "s3://user:hidden@bucket/x"', "password"),
        ('address = "s3://bucket"', "prefix"),
        ('address = "s3://bucket/x"\ndata_sets = ["nothing"]', "nothing"),
        ('adress = "s3://bucket/x"', "address"),
    ):
        config = tmp_path / "niels_cache.toml"
        config.write_text(f'[pretrain.notes]\nsource = "text"\nfiles = ["a.txt"]\n[publish]\n{text}\n', encoding="utf-8")
        with pytest.raises(NielsCacheError, match=keyword) as raised:
            load_registry(config=str(config))
        assert "hidden" not in str(raised.value)
