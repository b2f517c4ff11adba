"""Small data sets in the schemas of the real ones, under their real names, for the loopback hub."""

from __future__ import annotations

import io
import json
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

CRAWL = "CC-MAIN-2024-10"
FINEWEB_FILES, FINEWEB_ROWS = 3, 40
WIKITEXT_ARTICLE = ["", " = {title} = \n", "", " A text about {title} . \n", " = = History = = \n", "", " It began with = 2 = \n", ""]


def parquet(rows: list[dict[str, Any]], row_group_size: int = 16) -> bytes:
    stream = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), stream, row_group_size=row_group_size)
    return stream.getvalue()


def json_lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def card(configs: dict[str, dict[str, str]]) -> bytes:
    """A data set card with the `configs:` header that tells the files of each configuration and split."""
    lines = ["---", "configs:"]
    for name, splits in configs.items():
        lines += [f"- config_name: {name}", "  data_files:"]
        for split, pattern in splits.items():
            lines += [f"  - split: {split}", f"    path: {pattern}"]
    return "\n".join([*lines, "---", "# A small stand-in"]).encode()


def fineweb_row(file: int, row: int) -> dict[str, Any]:
    number = file * FINEWEB_ROWS + row
    return {
        "text": f"Web page {number}. " + "Plants turn light into sugar. " * (1 + number % 7),
        "id": f"<urn:uuid:{number:08d}>",
        "dump": CRAWL,
        "url": f"https://example.org/{number}/" + "path" * 4000,  # wide, so that reading it would show in the bytes served
        "file_path": f"s3://commoncrawl/{number}",
        "language": "en",
        "language_score": 0.95,
        "token_count": 10 + number,
        "score": 3.1,
        "int_score": 3,
    }


def wikitext_rows(titles: list[str]) -> list[dict[str, Any]]:
    return [{"text": line.format(title=title)} for title in titles for line in WIKITEXT_ARTICLE]


def oasst_rows(trees: int) -> list[dict[str, Any]]:
    """Per tree a question, two answers, and a follow-up question with its answer below the first."""
    rows = []
    for tree in range(trees):
        root = f"t{tree}"
        for name, parent, role in (
            ("", None, "prompter"),
            ("a", "", "assistant"),
            ("b", "", "assistant"),
            ("aq", "a", "prompter"),
            ("aqa", "aq", "assistant"),
        ):
            parent_id = None if parent is None else root + parent
            message = {"message_id": root + name, "parent_id": parent_id, "message_tree_id": root, "text": f"{role} says {root}{name}"}
            rows.append({**message, "role": role, "lang": "en", "deleted": False, "rank": None, "review_result": True})
    return rows


def dolly_rows(count: int) -> list[dict[str, Any]]:
    return [
        {
            "instruction": f"What is {number} plus {number}?",
            "context": f"{number} is a number." if number % 3 == 0 else "",
            "response": f"It is {2 * number}.",
            "category": "closed_qa" if number % 3 == 0 else "open_qa",
        }
        for number in range(count)
    ]


def hub_repositories() -> dict[str, dict[str, bytes]]:
    """The four data sets of the default profile."""
    fineweb = {
        f"data/{CRAWL}/train-{file:05d}-of-{FINEWEB_FILES:05d}.parquet": parquet([fineweb_row(file, row) for row in range(FINEWEB_ROWS)])
        for file in range(FINEWEB_FILES)
    }
    fineweb["README.md"] = card({CRAWL: {"train": f"data/{CRAWL}/*"}, "sample-10BT": {"train": "sample/10BT/*"}})
    raw = "wikitext-103-raw-v1"
    train = wikitext_rows([f"Town {number}" for number in range(9)])
    wikitext = {
        "README.md": card({raw: {split: f"{raw}/{split}-*" for split in ("train", "validation", "test")}}),
        f"{raw}/train-00000-of-00002.parquet": parquet(train[:37]),  # an article crosses the files
        f"{raw}/train-00001-of-00002.parquet": parquet(train[37:]),
        f"{raw}/validation-00000-of-00001.parquet": parquet(wikitext_rows(["River 1", "River 2"])),
        f"{raw}/test-00000-of-00001.parquet": parquet(wikitext_rows(["Hill"])),
    }
    oasst = {
        "README.md": card({"default": {"train": "data/train-*", "validation": "data/validation-*"}}),
        "data/train-00000-of-00001.parquet": parquet(oasst_rows(12)),
        "data/validation-00000-of-00001.parquet": parquet(oasst_rows(2)),
    }
    return {
        "HuggingFaceFW/fineweb-edu": fineweb,
        "Salesforce/wikitext": wikitext,
        "databricks/databricks-dolly-15k": {"README.md": b"# Dolly", "databricks-dolly-15k.jsonl": json_lines(dolly_rows(30))},
        "OpenAssistant/oasst1": oasst,
    }
