"""The origin of the text in the meta.json of a cache. A cache of local files names nothing of the hub, whatever the name of the source."""

import json
from pathlib import Path
from typing import Any

import pytest

from niels_cache_assets.project.registry import Registry, load_registry
from niels_cache_assets.sources import PRETRAIN_SOURCES, SFT_SOURCES
from niels_cache_assets.sources.hub.data import HubData
from niels_cache_runtime.errors import NielsCacheError
from tests.helpers.read_sources import read

HUB_SOURCES = {name: kind for name, kind in {**PRETRAIN_SOURCES, **SFT_SOURCES}.items() if issubclass(kind, HubData)}
HUB_NAMES = ("wikimedia/wikipedia", "20231101.en", "Salesforce/wikitext", "wikitext-103-raw-v1", "HuggingFaceFW", "CC-MAIN", "nikolina")
HUB_NAMES += ("databricks", "OpenAssistant", "owner/name")


def table(name: str, **settings: Any) -> dict[str, Any]:
    return {"source": name, **({"dataset": "owner/name"} if name == "huggingface" else {}), **settings}


def registry_of(folder: Path, model: Path, text: str) -> Registry:
    (folder / "niels_cache.toml").write_text(f"[tokenizer]\nmodel = {json.dumps(str(model))}\n{text}", encoding="utf-8")
    return load_registry(profile="quickstart", config=str(folder / "niels_cache.toml"))


@pytest.mark.parametrize("name", HUB_SOURCES)
def test_files_are_described_without_the_hub(name: str) -> None:
    for local in ({"files": ["a.jsonl"]}, {"path": "books"}) if name == "gutenberg" else ({"files": ["a.jsonl"]},):
        source = HUB_SOURCES[name](**table(name, **local))
        assert source.hub_config is None
        assert source.describe() == {"kind": name, "streaming": True, "local_files": True}
        assert not {"dataset", "config", "split", "val_split", "pinned_revision"} & set(source.shown_settings())
        assert not source.follows_the_hub  # type: ignore[attr-defined]
        assert not [said for said in HUB_NAMES if said in json.dumps([source.describe(), source.shown_settings()])]
    hub = HUB_SOURCES[name](**table(name))
    assert {"dataset", "split", "val_split"} < set(hub.describe())
    assert hub.shown_settings() == hub.identity()
    assert hub.hub_config == hub.model_dump()["config"]


@pytest.mark.parametrize("key", ["config", "split", "val_split", "pinned_revision"])
@pytest.mark.parametrize("name", ["wikipedia", "oasst1"])
def test_a_setting_of_the_hub_beside_files_is_an_error(name: str, key: str, tmp_path: Path, tiny_model: Path) -> None:
    family = "sft" if name in SFT_SOURCES else "pretrain"
    keys = {**table(name, files=["a.jsonl"]), key: "something"}
    text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
    with pytest.raises(NielsCacheError, match=rf"\[{family}.local\].*files .*\b{key} .* remove it"):
        registry_of(tmp_path, tiny_model, f"[{family}.local]\n{text}")


@pytest.mark.parametrize(("name", "content"), [("wikitext", '{"n": 1}\n'), ("dolly15k", '{"text": "a"}\n'), ("oasst1", '{"text": "a"}\n')])
def test_what_is_wrong_with_local_files_is_not_blamed_on_the_hub(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(content, encoding="utf-8")
    with pytest.raises(NielsCacheError) as caught:
        read(HUB_SOURCES[name](**table(name, files=[str(tmp_path / "rows.jsonl")])))
    assert "rows.jsonl: " in str(caught.value)
    assert not [said for said in HUB_NAMES if said in str(caught.value)]
