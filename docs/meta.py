"""Writes docs/meta.md from the table that meta.json files are checked by, so that it cannot differ from it.

python docs/meta.py            (a test fails while the file is out of date)
"""

from pathlib import Path

from niels_cache_runtime.format.meta_keys import EVERY, META_KEYS, Kind, MetaKey

TARGET = Path(__file__).with_suffix(".md")

INTRODUCTION = """\
# Keys of meta.json

<!-- Made by docs/meta.py from the code; edit that. -->

A build writes `meta.json` last.
A folder is a cache only if it has this file.
The file is canonical JSON: sorted keys, two blanks, UTF-8, one newline at the end.
It has no time, no host name and no absolute path.
So the same inputs give the same bytes.
`niels-cache show NAME` prints the file, and `niels_cache_runtime.read_meta` reads and checks it.

In the tables below, "a whole number" is a number from 0 to 2**63 - 1.
If a key may be missing or null, the row of the key says what that means.
"""

_TITLES: dict[Kind, str] = {
    "tokenizer": "tokenizer/",
    "pretrain": "pretrain/NAME/",
    "sft": "sft/NAME/",
    "corpus": "corpus/NAME/",
    "duplicates": "duplicates/",
    "index": "index/HASH/",
}


def rows(keys: list[MetaKey]) -> list[str]:
    return ["| key | value | |", "| --- | --- | --- |", *(f"| `{key.name}` | {key.form} | {key.meaning} |" for key in keys), ""]


def page() -> str:
    lines = [INTRODUCTION, "## In every folder", "", *rows([key for key in META_KEYS if key.kinds == EVERY])]
    for kind in EVERY:
        lines += [f"## {_TITLES[kind]}", "", *rows([key for key in META_KEYS if kind in key.kinds and key.kinds != EVERY])]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")
