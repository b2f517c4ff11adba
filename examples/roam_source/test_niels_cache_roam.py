"""The source by its path, as a user of the package writes it."""

import json
from pathlib import Path

import pytest

from niels_cache_assets import load_registry
from niels_cache_assets.sources.types import StreamContext

PAGES = [
    {"title": "Tea", "uid": "a1", "children": [{"string": "Green", "children": [{"string": "from Uji"}]}]},
    {"title": "Nothing", "uid": "b2"},
]


def test_each_page_of_a_graph_is_a_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent)
    (tmp_path / "graph.json").write_text(json.dumps(PAGES))
    (tmp_path / "niels_cache.toml").write_text('[pretrain.notes]\nsource = "niels_cache_roam:Roam"\npath = "graph.json"\n')
    source, context = load_registry(config=str(tmp_path / "niels_cache.toml")).pretrain["notes"], StreamContext(seed=1)
    [document] = [document for batch in source.documents(context) for document in batch]
    assert (document.text, document.source_id, document.title) == ("Tea\n\n- Green\n  - from Uji", "a1", "Tea")
    assert context.report.dropped == {"empty": 1}
