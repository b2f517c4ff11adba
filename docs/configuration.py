"""Writes docs/configuration.md from the classes that read the tables, so that it cannot differ from them.

python docs/configuration.py            (a test fails while the file is out of date)
"""

import inspect
import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from niels_cache_assets.config.tables import (
    BlendSettings,
    BuildSettings,
    CleaningSettings,
    DagsterSettings,
    DedupSettings,
    ReportsSettings,
    TokenizerSettings,
)
from niels_cache_assets.sources import PRETRAIN_SOURCES, SFT_SOURCES
from niels_cache_assets.sources.types import PretrainSource, SftSource

TARGET = Path(__file__).with_suffix(".md")

INTRODUCTION = """\
# Configuration

<!-- Made by docs/configuration.py from the code; edit that. -->

A project is what its `niels_cache.toml` names: no other data set is shown, sampled for the tokenizer or built. `niels-cache init` looks into your data and writes the file.
The file is found in the working directory, or where `NIELS_CACHE_CONFIG` or `--config` point; `--set` and flags go over it, key by key. "Reload definitions" in the UI shows the partition of a new table.

* **The catalog.** Some data sets ship with the package: `niels-cache catalog` lists them, `niels-cache init --from wikitext dolly15k` writes a file with these, and `niels-cache catalog wikitext` prints a table to add.
  A table with such a name and no `source` is that of the catalog with your keys in it; a line of advice says what to add so that the file says all of it. A table with a `source` inherits nothing.
  What only refers to a data set (`--only`, `--set`, `train_on`, a blend's `weights`, an interleave's `members`) does not add it: the message says which table to add.
* **Profiles** are whole configurations below the file: `default` (`fineweb_edu`, `wikitext`, `dolly15k`, `oasst1`) and `quickstart` (Python's documentation, for `make cache`). `profile = "default"` at the top of the file, `NIELS_CACHE_PROFILE` or `--profile` choose one.
  Then a table of the file goes over the profile's table of that name key by key, unless it names another `source`. The quickstart profile reads `niels_cache.toml` only if the variable or option above names it.
* **Without a file** `build-all` and Dagster's definitions take the default profile, and say so in a line. `status` and `list` say that there is none, and show what is built.
* **Switched off.** `enabled = false` leaves a data set out: it is not built and not checked, and has no partition. `list --all` and `status --all` show it.
* **The tokenizer** stays as it was trained when data sets come and go; `status` says what it was trained on. `niels-cache build-all --only tokenizer --force` trains another one, which builds every cache again.
* **Before a tokenizer is trained** all data sets are looked at: paths, columns and their types, forms of conversations, names of the hub. What is wrong is said of all of them at once.
* `NIELS_CACHE_ROOT` or `--cache-dir` move the caches.
* Paths are relative to the file; `~` and `$VARIABLES` are expanded; fsspec addresses (`s3://...`) are taken as they are. `files` and `path` are one key with two names (`gutenberg` alone has both); a folder in `files` of `text`, `jsonl`, `parquet` and `chat_jsonl` stands for the files below it that end as these do.
* Names become directories: letters, digits, `_`, `-`, `.`, no leading dot.

Splits, first match wins: a document that carries upstream's split keeps it; token budgets (`val_tokens`, then `train_tokens`) cut a stream; otherwise a seeded `val_frac` of the documents goes to val
(the source is then read twice: once to count).
"""


def shown_default(model: type[BaseModel], name: str) -> str:
    value = model.model_fields[name].get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "**required**"
    return "" if value is None else "`" + json.dumps(value).replace("|", "\\|") + "`"


def description(model: type[BaseModel], name: str) -> str:
    """Of the nearest class that describes the key: a subclass may change the default alone."""
    described = (base.model_fields[name].description for base in model.__mro__ if name in getattr(base, "model_fields", {}))
    return next((text for text in described if text), "")


def table(model: type[BaseModel], without: type[BaseModel] | None = None) -> list[str]:
    """Rows of a model's keys; those that are as in `without` are told there."""
    inherited: dict[str, Any] = without.model_fields if without else {}
    rows = []
    for name in model.model_fields:
        same = name in inherited and shown_default(model, name) == shown_default(without, name)  # type: ignore[arg-type]
        if name == "source" or same:
            continue
        rows.append(f"| `{name}` | {shown_default(model, name)} | {description(model, name)} |")
    return ["| key | default | |", "| --- | --- | --- |", *rows] if rows else ["No keys of its own."]


def first_paragraph(thing: type) -> str:
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


def capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


def section(model: type[BaseModel]) -> list[str]:
    title, _, text = first_paragraph(model).partition(": ")
    return [f"## {title}", "", capitalized(text), "", *table(model), ""]


def reference() -> str:
    lines = [INTRODUCTION]
    shared: tuple[type[BaseModel], ...] = (BuildSettings, TokenizerSettings, CleaningSettings, DedupSettings)
    for model in shared:
        lines += section(model)
    for family, base, kinds in (("pretrain", PretrainSource, PRETRAIN_SOURCES), ("sft", SftSource, SFT_SOURCES)):
        lines += [f"## [{family}.NAME]", "", f"Keys that every `[{family}.NAME]` has beside `source`:", "", *table(base), ""]
        for kind, source in kinds.items():
            lines += [f'### source = "{kind}"', "", first_paragraph(source), "", *table(source, without=base), ""]
    lines += section(BlendSettings) + section(ReportsSettings) + section(DagsterSettings)
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    TARGET.write_text(reference(), encoding="utf-8")
