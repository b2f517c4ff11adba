"""From a build's outcome to what the UI shows: numbers to plot, tables, excerpts, and the data version of each asset.

From meta.json, the seconds of this run, and a pass over what was built (samples and plots). Of the files only meta.json is hashed here.
What is called `sha256` is that of a file, as `sha256sum` prints it: of meta.json, of the tokenizer's model, of each file in a table. Any
other hash has a name of its own (`content_sha256`, `meta_sha256`), and data versions are such hashes.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import dagster as dg

from niels_cache_assets.budgets import shortfall
from niels_cache_assets.contents import total_bytes
from niels_cache_assets.defs.excerpt import fenced, samples
from niels_cache_assets.defs.pictures import measured, shares, tokenizer_measured
from niels_cache_assets.defs.tables import table
from niels_cache_assets.pipeline import BuildOutcome
from niels_cache_assets.sources.encodings import NOT_TEXT, REPLACED
from niels_cache_assets.tokenization import SentencePieceTokenizer
from niels_cache_assets.tokenizer_measures import of_cache
from niels_cache_assets.tokenizer_training import TokenizerOutcome
from niels_cache_assets.training_code import training_code
from niels_cache_runtime.foreign_meta import is_foreign
from niels_cache_runtime.formats import META_NAME, SPLITS, TOKEN_DTYPE, Family, Split
from niels_cache_runtime.meta import Meta, content_sha256, sha256_file

STATE = "state"  # built, cache_hit or disabled

Metadata = dict[str, Any]
FileEntries = Mapping[str, Mapping[str, Any]]


class Outcome(Protocol):
    """Of a build of any kind."""

    @property
    def state(self) -> str: ...

    @property
    def seconds(self) -> float: ...


_ITEMS: dict[Family, str] = {"pretrain": "documents", "sft": "examples"}


def split_version(meta: Meta, split: Split) -> dg.DataVersion:
    """The content hash of one split's own token and offset files."""
    return dg.DataVersion(content_sha256(split_files(meta, split)))


def split_files(meta: Meta, split: Split) -> dict[str, Any]:
    return {path: entry for path, entry in meta.get("files", {}).items() if path.startswith((f"{split}/", f"{split}_"))}


def split_metadata(outcome: BuildOutcome, split: Split, tokenizer: SentencePieceTokenizer | None) -> Metadata:
    """One split of a data set. `tokenizer` decodes the samples; a data set that is switched off has none."""
    meta, files = outcome.meta, split_files(outcome.meta, split)
    folder = outcome.directory / split if outcome.family == "pretrain" else outcome.directory
    metadata = {**_state(outcome), "dagster/uri": folder.absolute().as_uri(), "content_sha256": split_version(meta, split).value}
    if tokenizer is None or not meta["built"]:
        return metadata
    tokens, items = meta[f"{split}_tokens"], _items(meta, outcome.family)[split]
    metadata |= {
        "tokens": tokens,
        _ITEMS[outcome.family]: items,
        "bytes": total_bytes(files),
        "dagster/row_count": tokens if outcome.family == "pretrain" else items,
        "dagster/column_schema": _schema(meta, outcome.family),
        "files": files_table(files),
        **_characters_per_token(meta, [split]),
    }
    shown = samples(outcome.directory, outcome.family, split, meta, tokenizer)
    return {"samples": dg.MetadataValue.md(shown), **metadata} if shown else metadata


def dataset_metadata(
    outcome: BuildOutcome, settings: Mapping[str, Any], tokenizer: SentencePieceTokenizer | None, *, deduplicated: bool, draw: bool
) -> Metadata:
    """The data set as a whole, shown on meta_json. `settings` are those of the registry with this run's in them; `draw`: plots too."""
    meta = outcome.meta
    recorded = {
        **_state(outcome),
        "dagster/uri": outcome.directory.absolute().as_uri(),
        "sha256": sha256_file(str(outcome.directory / META_NAME)),
    }
    if is_foreign(meta):  # kept where the data set is switched off
        return recorded
    recorded |= {
        "meta_sha256": meta["meta_sha256"],
        "content_sha256": meta["content_sha256"],
        "fingerprint": meta["fingerprint"],
        "dataset_revision": meta["dataset_revision"],
        "settings": dg.MetadataValue.json(dict(settings)),
        "source": dg.MetadataValue.json(meta["source"]),
    }
    if tokenizer is None or not meta["built"]:
        return recorded
    short = shortfall(meta)
    counted = {
        "open_it": dg.MetadataValue.md(fenced(training_code(outcome.directory.absolute(), outcome.family, meta), "python")),
        **({"shortfall": short} if short is not None else {}),
        "tokens": _tokens(meta, SPLITS),
        _ITEMS[outcome.family]: sum(_items(meta, outcome.family).values()),
        **{f"{split}_tokens": meta[f"{split}_tokens"] for split in SPLITS},
        "bytes": total_bytes(meta["files"]),
        **_characters_per_token(meta, SPLITS),
        "dropped": sum(meta["dropped"].values()),
        **shares(outcome, deduplicated=deduplicated),
        "dropped_by_reason": dropped_table(meta["dropped"]),
        "split_rule": meta["split_rule"],
        "facts": dg.MetadataValue.json(meta["facts"]),
        **replaced_metadata(meta["facts"]),
        "tokenizer_sha256": meta["tokenizer_sha256"],
        "vocab_size": meta["vocab_size"],
    }
    return {**measured(outcome, tokenizer, draw=draw), **counted, **recorded}  # in the order in which a person looks for them


def tokenizer_metadata(outcome: TokenizerOutcome, *, draw: bool) -> Metadata:
    """`draw`: plots too."""
    meta = outcome.meta
    ids = [{"role": role, "piece": piece, "id": meta["special_token_ids"][role]} for role, piece in meta["special_tokens"].items()]
    metadata: Metadata = {
        **tokenizer_measured(outcome, draw=draw),
        **state_of(outcome),
        "dagster/uri": outcome.model.absolute().as_uri(),
        "sha256": meta["sha256"],
        "meta_sha256": meta["meta_sha256"],
        "fingerprint": meta["fingerprint"],
        "vocab_size": meta["vocab_size"],
        "model_type": meta["model_type"],
        "bytes": total_bytes(meta["files"]),
        "special_tokens": table(ids, role="string", piece="string", id="int"),
    }
    if "imported" in meta:
        return metadata | {"imported": meta["imported"]}
    trained_on = meta["trained_on"]
    read_as = trained_on.get("read_as", {})
    sources = [{"data_set": name, "bytes": size, "read_as": read_as.get(name, "raw")} for name, size in trained_on["sources"].items()]
    left_out = {"left_out": dg.MetadataValue.json(trained_on["skipped"])} if trained_on.get("skipped") else {}
    return metadata | {
        "trained_on": table(sources, data_set="string", bytes="int", read_as="string"),
        **left_out,
        "training_text_sha256": trained_on["sha256"],
    }


def files_table(files: FileEntries) -> dg.TableMetadataValue:
    """Path, bytes and sha256; a long list is cut, and meta.json has it whole."""
    rows = [{"path": path, "bytes": entry["bytes"], "sha256": entry["sha256"]} for path, entry in sorted(files.items())]
    return table(rows, path="string", bytes="int", sha256="string")


def replaced_metadata(facts: Mapping[str, Any]) -> Metadata:
    """Replaced bytes and documents that are not text, by file; empty if there was nothing to replace."""
    metadata: Metadata = {}
    for key, unit in ((REPLACED, "bytes"), (NOT_TEXT, "documents")):
        if key in facts:
            by_file = sorted(facts[key]["by_file"].items(), key=lambda item: (-item[1], item[0]))
            metadata[f"{key}_{unit}"] = facts[key][unit]
            metadata[f"{key}_by_file"] = table([{"file": file, unit: count} for file, count in by_file], file="string", **{unit: "int"})
    return metadata


def dropped_table(dropped: Mapping[str, int]) -> dg.TableMetadataValue:
    rows = [{"reason": reason, "count": count} for reason, count in sorted(dropped.items())]
    return table(rows, reason="string", count="int")


def state_of(outcome: Outcome) -> Metadata:
    """What every asset says first of a run: what it did, and how long that took."""
    metadata: Metadata = {STATE: outcome.state, "cache_hit": outcome.state == "cache_hit", "seconds": round(outcome.seconds, 2)}
    warning = getattr(outcome, "warning", None)
    return metadata | ({"warning": warning} if warning else {})


def _state(outcome: BuildOutcome) -> Metadata:
    metadata = state_of(outcome)
    if outcome.state == "built":  # what a hit took says nothing of the build
        tokens = _tokens(outcome.meta, SPLITS) - outcome.resumed_tokens  # of this run, as its seconds are
        metadata["tokens_per_second"] = round(tokens / max(outcome.seconds, 1e-6))
    return metadata


def _items(meta: Meta, family: Family) -> dict[Split, int]:
    if family == "pretrain":
        return {split: meta["documents"][split] for split in SPLITS}
    return {split: meta[f"{split}_examples"] for split in SPLITS}


def _tokens(meta: Meta, splits: Sequence[Split]) -> int:
    return sum(meta[f"{split}_tokens"] for split in splits)


def _characters_per_token(meta: Meta, splits: Sequence[Split]) -> Metadata:
    ratio = of_cache(meta, splits)
    return {} if ratio is None else {"characters_per_token": ratio}


def _schema(meta: Meta, family: Family) -> dg.TableSchema:
    below = dg.TableColumnConstraints(nullable=False, other=[f"< {meta['vocab_size']}"])
    what = "One token id after another; EOT ends each document" if family == "pretrain" else "Token ids of all examples, back to back"
    columns = [dg.TableColumn("token", TOKEN_DTYPE.name, description=f"{what}. Little-endian", constraints=below)]
    if family == "sft":
        columns.append(dg.TableColumn("start", "int64", description="Offset in tokens of each example (*_idx.npy)"))
    return dg.TableSchema(columns)
