"""Write docs/configuration.md from the classes that read the tables, so that the page and the code agree.

python docs/configuration.py            (a test fails while the file is out of date)
"""

import inspect
import json
import re
from pathlib import Path

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from niels_cache_assets.config.running import ClusterSettings, NotifySettings, PublishSettings
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
from niels_cache_assets.sources.hub.data import HubData
from niels_cache_assets.sources.reading.encodings import DecodesText
from niels_cache_assets.sources.reading.file_source import RowFileSource
from niels_cache_assets.sources.reading.where import ChoosesRows
from niels_cache_assets.sources.types import Added, AddedOfHub, PretrainSource, SftSource

TARGET = Path(__file__).with_suffix(".md")

INTRODUCTION = """\
# Configuration

<!-- Made by docs/configuration.py from the code; edit that. -->

A project builds the data sets that its `niels_cache.toml` names, and no others.
`niels-cache init` looks into your data and writes the file.

```toml
[tokenizer]
vocab_size = 16_000

[pretrain.my_text]
source = "jsonl"
files = ["data/*.jsonl.gz"]
```

## Where is the file?

* niels-cache looks for `niels_cache.toml` in the working directory. To use another file, set `NIELS_CACHE_CONFIG` or `--config`.
* `--set KEY=VALUE` and other options replace single keys of the file.
* In the web UI, a new table appears after "Reload definitions".
* Paths in the file are relative to the folder of the file. `~` and `$VARIABLES` are expanded.
  fsspec addresses such as `s3://...` stay as they are.
* `NIELS_CACHE_ROOT` or `--cache-dir` gives another folder for the caches.
* The name of a data set becomes a directory: letters, digits, `_`, `-` and `.`, with no leading dot.

## What is the catalog?

Some data sets ship with the package.

* `niels-cache init --list` shows them.
* `niels-cache init --from wikitext dolly15k` writes a file with these two.
* `niels-cache init --list wikitext` prints a table that you can add to your file.

If a table has the name of a catalog data set and no `source`, it takes the keys of the catalog, and your keys override them.
A table with a `source` inherits nothing.
`--only`, `--set`, `train_on`, `weights` and `members` name data sets, but they do not add data sets.
If one of them names a data set that has no table, an error says which table to add.

## What is a profile?

A profile is a complete configuration.
Keys of your file override its keys.

* `default` has `fineweb_edu`, `wikitext`, `dolly15k` and `oasst1`.
* `quickstart` has Python's documentation, for `make cache`.

Choose one with `profile = "default"` at the top of the file, with `NIELS_CACHE_PROFILE` or with `--profile`.
If your file and the profile have a table of the same name, your keys replace the keys of the profile.
If your table names another `source`, it inherits nothing from the profile.
With the quickstart profile, `niels_cache.toml` is read only if `NIELS_CACHE_CONFIG` or `--config` names this file.

Without a file, `build-all` and Dagster take the default profile and print a line that says so.
`status` reports that there is no file, and shows what is built.

## How do I switch a data set off?

Set `enabled = false`.
The data set is then not built and not checked, and it has no partition.
`status --all` still shows it.

## When is the tokenizer trained again?

Only when you ask for it.
The tokenizer stays the same when you add or remove data sets.
`status` lists the data sets that it was trained on.
`niels-cache build-all --only tokenizer --force` trains it again, and then every cache is built again.
Before the first training, `build-all` checks all data sets: paths, columns and their types, forms of conversations, names on the hub.
`build-all` reports all problems at once.

## How do I limit the tokens of a data set?

`train_tokens` is the maximum number of tokens in train, and `val_tokens` the maximum in val.
Set them in the table of the data set.
Reading ends when both splits are full.

## How are documents split into train and val?

The first rule that applies decides:

1. If a document already has a split upstream (at its source), it keeps this split.
2. With `val_tokens` or `train_tokens`, the first documents go to val until the budget of val is used. The next documents go to train.
3. Otherwise a share of the documents, `val_frac`, goes to val. The seed decides which documents these are.
   In this case, the source is read twice, because the first pass counts the documents.
"""

EXAMPLES = {
    "fineweb_edu": """
[pretrain.fineweb_edu]
source = "fineweb_edu"
config = "CC-MAIN-2024-10"
train_tokens = 50_000_000
val_tokens = 1_000_000
""",
    "wikitext": """
[pretrain.wikitext]
source = "wikitext"
config = "wikitext-103-raw-v1"
""",
    "roam": """
[pretrain.my_notes]
source = "roam"
path = "~/roam-export"
""",
    "gutenberg": """
[pretrain.books]
source = "gutenberg"
path = "~/gutenberg"
""",
    "wikipedia": """
[pretrain.wikipedia_de]
source = "wikipedia"
config = "20231101.de"
prepare = ["clean", "dedup"]
cleaning = { languages = ["de"], min_stopwords = 0 }
""",
    "huggingface": """
[pretrain.stories]
source = "huggingface"
dataset = "roneneldan/TinyStories"
text_field = "text"
val_split = "validation"
""",
    "markdown_folder": """
[pretrain.vault]
source = "markdown_folder"
path = "~/vault"
""",
    "parquet": """
[pretrain.abstracts]
source = "parquet"
files = ["abstracts/*.parquet"]
text_field = "abstract"
id_field = "doi"
""",
    "jsonl": """
[pretrain.crawl]
source = "jsonl"
files = ["crawl/*.jsonl.zst"]
decontaminate = "exact"
""",
    "text": """
[pretrain.poems]
source = "text"
files = ["poems/**/*.txt"]
""",
    "interleave": """
[pretrain.mix]
source = "interleave"
members = { wikitext = 3, poems = 1 }

[pretrain.wikitext]
source = "wikitext"

[pretrain.poems]
source = "text"
files = ["poems/*.txt"]
""",
    "python_docs": """
[pretrain.python_docs]
source = "python_docs"
""",
    "dolly15k": """
[sft.dolly15k]
source = "dolly15k"
system_message = "You are a helpful assistant."
""",
    "oasst1": """
[sft.oasst1]
source = "oasst1"
languages = ["en", "de"]
split_by = "tree"
""",
    "chat_jsonl": """
[sft.support]
source = "chat_jsonl"
files = ["support/*.jsonl"]
""",
    "python_help": """
[sft.python_help]
source = "python_help"
""",
}

ADDED = """\
[pretrain.web]
source = "parquet"
files = ["2025/*.parquet"]
parts = 64

[[pretrain.web.added]]
files = ["2026/*.parquet"]
parts = 8"""

# Keys that several sources share: title, class that defines them, and purpose.
SHARED: tuple[tuple[str, type[BaseModel], str], ...] = (
    ("Keys of data sets on the hub", HubData, "Sources that read from the Hugging Face hub have these keys."),
    ("Keys of files", RowFileSource, "Sources that read your own files have these keys."),
    ("Keys that choose rows", ChoosesRows, "Sources that read rows with columns have these keys."),
    ("Keys of text encodings and limits", DecodesText, "Sources that decode text have these keys."),
)


def shown_default(model: type[BaseModel], name: str) -> str:
    value = model.model_fields[name].get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "**required**"
    return "" if value is None else "`" + json.dumps(value).replace("|", "\\|") + "`"


def description(model: type[BaseModel], name: str) -> str:
    """Of the nearest class that describes the key: a subclass may change the default alone."""
    described = (base.model_fields[name].description for base in model.__mro__ if name in getattr(base, "model_fields", {}))
    return next((text for text in described if text), "")


def table(model: type[BaseModel], *without: type[BaseModel]) -> list[str]:
    """Return a table of a model's keys. A key that is the same in one of the classes `without` is left out."""
    rows = []
    for name in model.model_fields:
        row = row_of(model, name)
        if name != "source" and not any(name in base.model_fields and row_of(base, name) == row for base in without):
            rows.append(row)
    return ["| key | default | |", "| --- | --- | --- |", *rows] if rows else []


def row_of(model: type[BaseModel], name: str) -> str:
    return f"| `{name}` | {shown_default(model, name)} | {description(model, name)} |"


def first_paragraph(thing: type) -> str:
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


def capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


def section(model: type[BaseModel]) -> list[str]:
    title, _, text = first_paragraph(model).partition(": ")
    return [f"## {title}", "", capitalized(text), "", *table(model), ""]


def added_section() -> list[str]:
    """Return what the page says of the tables that `niels-cache part NAME --add` writes."""
    return [
        "### [[pretrain.NAME.added]]",
        "",
        "A data set [grows](howto.md#add-files-to-a-data-set) by these tables. Each is a group of new parts, after all parts before it.",
        "",
        f"```toml\n{ADDED}\n```",
        "",
        *table(Added),
        "",
        "A data set of the hub also has this key:",
        "",
        *table(AddedOfHub, Added),
        "",
    ]


def source_section(kind: str, source: type[BaseModel], base: type[BaseModel]) -> list[str]:
    """Return what the page says of one kind of source: its purpose, an example and the keys that it does not share."""
    groups = [(title, model) for title, model, _ in SHARED if issubclass(source, model) or shares(source, model)]
    links = ", ".join(f"[{title[:1].lower()}{title[1:]}](#{title.lower().replace(' ', '-')})" for title, _ in groups)
    return [
        f'### source = "{kind}"',
        "",
        first_paragraph(source),
        "",
        f"```toml\n{EXAMPLES[kind].strip()}\n```",
        "",
        *table(source, base, *(model for _, model in groups)),
        "",
        *([f"It also has the {links}.", ""] if links else []),
    ]


def shares(source: type[BaseModel], model: type[BaseModel]) -> bool:
    """Return whether a source has a key of its own name and meaning in common with a group, though not by inheritance."""
    return model is RowFileSource and "files" in source.model_fields and row_of(source, "files") == row_of(model, "files")


def reference() -> str:
    """Return the whole page."""
    lines = [INTRODUCTION]
    settings: tuple[type[BaseModel], ...] = (BuildSettings, TokenizerSettings, CleaningSettings, DedupSettings)
    for model in settings:
        lines += section(model)
    for family, base, kinds in (("pretrain", PretrainSource, PRETRAIN_SOURCES), ("sft", SftSource, SFT_SOURCES)):
        lines += [f"## [{family}.NAME]", "", f"Every `[{family}.NAME]` has these keys beside `source`:", "", *table(base), ""]
        if family == "pretrain":
            lines += added_section()
        for kind, source in kinds.items():
            lines += source_section(kind, source, base)
    lines += ["## Keys that several sources share", ""]
    for title, model, text in SHARED:
        others = [other for _, other, _ in SHARED if other is not model and issubclass(model, other)]
        lines += [f"### {title}", "", text, "", *table(model, PretrainSource, *others), ""]
    lines += (
        section(BlendSettings)
        + section(ReportsSettings)
        + section(PublishSettings)
        + section(DagsterSettings)
        + section(ClusterSettings)
        + section(NotifySettings)
    )
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


if __name__ == "__main__":
    TARGET.write_text(reference(), encoding="utf-8")
