"""The examples of docs/steps.md run as they are, and its table lists all keys of an entry."""

import re
from pathlib import Path
from typing import Any

import pytest

from docs.configuration import attribute_docstrings
from niels_cache_assets.base.documents import Document
from niels_cache_assets.base.toml import parse_toml
from niels_cache_assets.cleaning.report import CleaningReport
from niels_cache_assets.sources import PRETRAIN_SOURCES
from niels_cache_assets.sources.step_use import StepUse
from niels_cache_assets.steps.chain import DocumentChain
from niels_cache_cleaning.entries import SHIPPED
from tests.helpers.user_steps import documents_of, source_with, user_module

PAGE = (Path(__file__).resolve().parents[2] / "docs/steps.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
WORDS = "The cat of Acme sits on a mat and looks at the birds that fly over the roof of the old house today"


@pytest.mark.parametrize(
    ("name", "settings", "expected", "dropped"),
    [
        ("drop_short", {}, [WORDS], {"step:drop_short:few words": 2}),
        ("Redact", {"words": ["Acme", "Initech"]}, [WORDS.replace("Acme", "[name]"), "| 1 | 2 | 3 |", "short"], {}),
        ("score", {"keep": ["score"]}, [WORDS, "| 1 | 2 | 3 |", "short"], {}),
        ("drop_tables", {}, [WORDS, "short"], {"step:drop_tables:table": 1}),
        ("DropBlocked", {}, [WORDS, "| 1 | 2 | 3 |", "short"], {}),
    ],
)
def test_the_examples_run(tmp_path: Path, name: str, settings: dict[str, Any], expected: list[str], dropped: dict[str, int]) -> None:
    assert len(EXAMPLES) == 5
    [code] = [example for example in EXAMPLES if re.search(rf"(def|class) {name}\b", example)]
    (tmp_path / "blocked.txt").write_text("Spam\n")
    report = CleaningReport(seed=0)
    with user_module(tmp_path, code) as module:
        source = source_with(tmp_path, {"use": f"{module}:{name}", **settings})
        outcomes = DocumentChain(source=source, cleaning=None).run(documents_of([WORDS, "| 1 | 2 | 3 |", "short"]), report)
        if name == "DropBlocked":
            spam = DocumentChain(source=source, cleaning=None).run([Document("text", title="Spam")], CleaningReport(seed=0))
            assert not isinstance(spam[0], Document)
    assert [each.text for each in outcomes if isinstance(each, Document)] == expected
    assert report.dropped == dropped
    assert all(bool(each.kept) is (name == "score") for each in outcomes if isinstance(each, Document))


def test_the_tables_are_valid(tmp_path: Path) -> None:
    titles = []
    for table in map(parse_toml, re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)):
        for keys in table.get("pretrain", {"": {"source": "jsonl", "files": ["*.jsonl"], **table}}).values():
            source = PRETRAIN_SOURCES[keys["source"]].model_validate(keys, context={"base_dir": str(tmp_path)})
            titles.append([each.title for each in source.steps])
    assert titles == [
        ["drop_short", "Redact", "score", "where"],
        ["languages", "mask", "cleaning", "short mail", "c4"],
        ["score"],
        ["where"],
        ["where"],
        ["score", "where"],
        ["fineweb"],
    ]


def test_the_table_of_shipped_steps_is_that_of_the_code(tmp_path: Path) -> None:
    rows = re.findall(r"^\| `(.*?)` \| (.*?) \| (.*?) \|$", PAGE.partition("## Shipped steps")[2].partition("##")[0], re.MULTILINE)
    assert [row[0] for row in rows][:1] == ['"cleaning"']
    assert rows[1:-1] == [(row.example, row.effect, row.reasons) for row in SHIPPED.values()]
    for key, row in SHIPPED.items():
        [entry] = parse_toml(f"steps = [{row.example}]")["steps"]
        assert key in entry
        assert source_with(tmp_path, entry).steps[0].use == row.use


def test_the_table_of_keys_is_that_of_the_code() -> None:
    described = attribute_docstrings(StepUse)
    assert described.keys() == StepUse.model_fields.keys()
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", PAGE.partition("## Keys of an entry")[2], re.MULTILINE)
    assert dict(rows) == described
