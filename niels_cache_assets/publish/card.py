"""The data card of a cache on the hub: a README.md with the origin of its text, its counts, and the code that opens it.

All facts come from meta.json. A licence is known only if the configuration names it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from niels_cache_runtime.format.layout import SPLITS, Family, has_pairs
from niels_cache_runtime.format.meta import Meta

_OPENING = """from niels_cache_runtime import TokenLoader

loader = TokenLoader("cache/{family}/{name}/train", T=1024, B=16, seed=0)
batch = next(iter(loader))  # {held}: (16, 1024)"""


def data_card(address: str, family: Family, name: str, meta: Meta, *, license: str | None = None) -> str:
    """Return the README.md of a cache at `address`. `license`: the licence to name, as the hub spells it, or None."""
    return "\n".join([*_header(license), *_body(address, family, name, meta, license)]) + "\n"


def _header(license: str | None) -> Iterator[str]:
    """Yield the front matter, in YAML. A value in JSON is valid YAML."""
    yield "---"
    if license is not None:
        yield f"license: {json.dumps(license)}"
    yield "viewer: false"
    yield "tags:"
    yield "- niels-cache"
    yield "---"
    yield ""


def _body(address: str, family: Family, name: str, meta: Meta, license: str | None) -> Iterator[str]:
    yield from (f"# {name}", "")
    yield from (f"Tokens for {'pretraining' if family == 'pretrain' else 'fine-tuning'}, written by niels-cache.", "")
    yield from ("## Origin", "")
    source = dict(meta.get("source") or {})
    rows = {
        "kind of source": source.pop("kind", None),
        **{key.replace("_", " "): value for key, value in sorted(source.items())},
        "configuration": meta.get("dataset_config"),
        "revision": meta.get("dataset_revision"),
        "licence": license or "not stated in the configuration; the licence of the source applies",
        "rule of the split": meta.get("split_rule"),
        "seed": meta.get("seed"),
    }
    yield from _table(rows)
    yield from ("", "## Counts", "")
    units = ("tokens", "examples") if family == "sft" else ("tokens",)
    counts = {f"{unit} of {split}": meta.get(f"{split}_{unit}") for split in SPLITS for unit in units}
    counts |= {f"documents of {split}": number for split, number in sorted((meta.get("documents") or {}).items())}
    counts |= {f"dropped: {reason}": number for reason, number in sorted((meta.get("dropped") or {}).items()) if number}
    yield from _table({key: f"{value:,}" if isinstance(value, int) else value for key, value in counts.items()})
    yield from ("", "## Format", "")
    yield from _table(
        {
            "tokens": meta.get("token_dtype"),
            "vocabulary": meta.get("vocab_size"),
            "sha256 of the tokenizer": meta.get("tokenizer_sha256"),
            "sha256 of the content": meta.get("content_sha256"),
        }
    )
    yield from ("", "## How to open it", "", "```", f"niels-cache pull {address} --out cache", "```", "")
    held = "batch.x, batch.y" if family == "pretrain" else "batch.x, batch.y_masked"
    if has_pairs(meta):
        held = "batch.chosen.x, batch.rejected.x"
    yield from ("```python", _OPENING.format(family=family, name=name, held=held), "```")


def _table(rows: dict[str, object]) -> Iterator[str]:
    yield from ("| | |", "| --- | --- |")
    for key, value in rows.items():
        if value is not None:
            shown = value if isinstance(value, str | int) else json.dumps(value, ensure_ascii=False)
            yield f"| {_cell(key)} | {_cell(str(shown))} |"


def _cell(text: str) -> str:
    """Return text for a cell of a table. Names from a source must not end the cell or become a tag."""
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
