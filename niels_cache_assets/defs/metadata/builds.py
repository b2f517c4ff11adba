"""Metadata of a build for the UI: plots, samples, numbers in words, and the data version of each asset.

A value is stored as a number only if a plot of the value over partitions or time is useful, because the UI plots numbers. The name of a
number is its unit, such as `train_tokens`. Every other number is stored as text with its unit.

The values come from meta.json, the seconds of this run, and for plots one pass over the built files. Only meta.json is hashed here. The
name `sha256` is used only for the hash of a file that `sha256sum` also prints, such as meta.json, the tokenizer's model, or a file in a
table. A hash that is not the hash of a file has a different name (`content_sha256`, `meta_sha256`). Data versions are such hashes.
"""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from niels_cache_assets.artifacts.base import Outcome
from niels_cache_assets.base.beside import load_beside
from niels_cache_assets.base.wording import abbreviate, by_count, file_size, format_count, format_duration, format_share
from niels_cache_assets.defs.metadata.entries import (
    MAX_TABLE_ROWS,
    code_block,
    code_entry,
    command_entry,
    histograms,
    images,
    in_own_window,
    json_entry,
    table,
)
from niels_cache_assets.defs.metadata.families import ITEMS, family_table, items_of, tokens_of
from niels_cache_assets.facts.contents import budget_shortfall, total_bytes
from niels_cache_assets.facts.published import address_in_store
from niels_cache_assets.facts.training_code import training_code
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.sources.types import Source
from niels_cache_assets.tokenizer.measures import cache_characters_per_token, characters_per_token_by_source
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import FAMILIES, SPLITS, TOKEN_DTYPES, Family, Split
from niels_cache_runtime.format.meta import Meta, canonical_json, content_sha256, sha256_text

LEFT_OUT, DROPS = "left_out", "left_out_unasked"  # what the settings asked to leave out; a line for each other reason
STATE = "state"  # "built in 1.2 s", "hit (0.1 s)", "disabled"; the first word is the state
_ORIGIN = (  # entries of meta.json that say what a cache was made from
    "dataset_revision",
    "source",
    "split_rule",
    "facts",
    "dropped",
    "tokenizer_sha256",
    "vocab_size",
    "fingerprint",
    "content_sha256",
)

Metadata = dict[str, Any]
FileEntries = Mapping[str, Mapping[str, Any]]


def split_version(meta: Meta, split: Split) -> str:
    """Return the content hash of the token and offset files of one split."""
    return content_sha256(split_files(meta, split))


def split_files(meta: Meta, split: Split) -> dict[str, Any]:
    """Return the entries of a split's files in meta.json, by path."""
    return {path: entry for path, entry in meta.get("files", {}).items() if path.startswith((f"{split}/", f"{split}_"))}


def family_metadata(registry: Registry, outcome: Outcome, source: Source, *, draw: bool) -> dict[Split | None, Metadata]:
    """Return the metadata of each split, and of the whole data set under the key None, the most useful entries first.

    Plots, samples, code and state are only with the whole data set.

    Args:
        registry: The configuration.
        outcome: Outcome of the build.
        source: The table of the data set, with the overrides of this run.
        draw: Whether to draw plots.
    """
    meta, root, address = outcome.meta, outcome.directory.parent.parent, address_in_store(registry, outcome.family, outcome.name)
    data_sets, shares = family_table(registry, outcome), [f"{meta[f'{split}_tokens']:,} tokens of {split}" for split in SPLITS]
    whole = {
        "sha256": sha256_text(canonical_json(meta)),
        "data_sets": data_sets,
        **(_plots(outcome, address) if draw else {}),
        "samples": command_entry("sample", outcome.name, "--notable", root=root) if address is None else None,
        "open_it": code_entry(training_code(outcome.directory.absolute(), outcome.family, meta)) if address is None else None,
        "published_at": address,
        **state_of(outcome),
        "contents": "; ".join([f"{file_size(total_bytes(meta['files']))}: {', '.join(shares)}", *filter(None, [budget_shortfall(meta)])]),
        "dropped": describe_dropped(outcome),
        "tokens": tokens_of(meta),
        ITEMS[outcome.family]: sum(items_of(meta, outcome.family).values()),
        "bytes": total_bytes(meta["files"]),
        "chars_per_token": cache_characters_per_token(meta) if outcome.family == "pretrain" else None,
        **engines_entry(outcome),
        "made_from": json_entry({"settings": dict(source.shown_settings()), **{key: meta[key] for key in _ORIGIN if key in meta}}),
        **recorded_at(outcome),
    }
    return {None: whole, **{split: _split(outcome, split, data_sets) for split in SPLITS}}


def engines_entry(outcome: Outcome) -> Metadata:
    """Return what encoded the text in this build, if the tokenizer has fast engines."""
    return {"encoded_by": "; ".join(use.describe() for use in outcome.engines)} if outcome.engines else {}


def _split(outcome: Outcome, split: Split, data_sets: dg.TableMetadataValue) -> Metadata:
    meta, files, noun = outcome.meta, split_files(outcome.meta, split), ITEMS[outcome.family]
    tokens, items, size = meta[f"{split}_tokens"], items_of(meta, outcome.family)[split], total_bytes(files)
    counts = [format_count(tokens, "token"), format_count(items, noun[:-1]), format_count(len(files), "file")]
    folder = outcome.directory / split if outcome.family == "pretrain" else outcome.directory
    return {
        "data_sets": data_sets,
        "contents": f"{file_size(size)}: {', '.join(counts)}",
        f"{split}_tokens": tokens,
        f"{split}_{noun}": items,
        "bytes": size,
        "files": files_list(files),
        "content_sha256": split_version(meta, split),
        "dagster/uri": folder.absolute().as_uri(),
    }


def describe_dropped(outcome: Outcome) -> str:
    """Return the counts of dropped items, such as `15.8% of 1,900 documents: empty 200, exact_duplicate 100 (5.3% as duplicates)`."""
    meta, dropped, noun = outcome.meta, outcome.meta["dropped"], ITEMS[outcome.family][:-1]
    dropped_count = sum(dropped.values())
    total = sum(items_of(meta, outcome.family).values()) + dropped_count
    if not dropped_count:
        return f"none of {format_count(total, noun)}"
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in by_count(dropped))
    duplicates = sum(count for reason, count in dropped.items() if reason.endswith("_duplicate"))
    noted = f" ({format_share(duplicates, total)} as duplicates)" if duplicates else ""
    return f"{format_share(dropped_count, total)} of {format_count(total, noun)}: {reasons}{noted}"


def tokenizer_metadata(outcome: Outcome, *, draw: bool) -> Metadata:
    """Return the metadata of the tokenizer, with plots if `draw` is set."""
    meta = outcome.meta
    ids = [{"role": role, "piece": piece, "id": meta["special_token_ids"][role]} for role, piece in meta["special_tokens"].items()]
    trained_on, root = meta.get("trained_on", {}), outcome.directory.parent
    ratios = characters_per_token_by_source(root, meta)
    read_as, skipped = trained_on.get("read_as", {}), trained_on.get("skipped") or {}
    sources = [
        {"data_set": name, "text": file_size(size), "read_as": read_as.get(name, "raw")}
        for name, size in trained_on.get("sources", {}).items()
    ]
    left_out = [{"data_set": name, "text": "left out", "read_as": str(why)} for name, why in skipped.items()]
    return {
        "sha256": meta["sha256"],
        "plots": dg.MetadataValue.md(images([load_beside("pages", "pictures").ratios_picture(ratios)], "tokenizer")) if draw else None,
        "by_source": table([{"data_set": name, "chars_per_token": ratio} for name, ratio in ratios.items()]),
        "chars_per_token": round(sum(ratios.values()) / len(ratios), 3) if ratios else None,
        "longest_words": command_entry("show", "tokenizer", root=root) if trained_on.get("longest_words") else None,
        **state_of(outcome),
        "contents": f"{format_count(meta['vocab_size'], 'piece')}, {meta['model_type']}, {file_size(total_bytes(meta['files']))}",
        "special_tokens": table(ids),
        "trained_on": table([*sources, *left_out]),
        "imported": meta.get("imported"),
        "meta_sha256": meta["meta_sha256"],
        "dagster/uri": outcome.model.absolute().as_uri(),
    }


def part_metadata(outcome: Outcome) -> Metadata:
    """Return the metadata of a part: a few lines, because there may be thousands of parts."""
    meta = outcome.meta
    tokens, size = tokens_of(meta), total_bytes(meta["files"])
    return {
        **state_of(outcome),
        "contents": f"{file_size(size)}: {format_count(tokens, 'token')}",
        "tokens": tokens,
        "bytes": size,
        **engines_entry(outcome),
        "short": meta["part"]["short"] or None,
        "dropped": ", ".join(f"{reason} {count:,}" for reason, count in sorted(meta["dropped"].items())),
        **recorded_at(outcome),
    }


def recorded_at(outcome: Outcome) -> Metadata:
    """Return the hash of a build's meta.json, and its folder."""
    return {"meta_sha256": outcome.meta["meta_sha256"], "dagster/uri": outcome.directory.absolute().as_uri()}


def files_list(files: FileEntries) -> dg.MarkdownMetadataValue:
    """Return the sha256 and path of each file, in the format of `sha256sum --check`. A long list is cut; meta.json has all files."""
    shown = sorted(files.items())[:MAX_TABLE_ROWS]
    lines = "\n".join(f"{entry['sha256']}  {path}" for path, entry in shown)
    more = f"\n\nand {len(files) - len(shown):,} more, in meta.json" if len(files) > len(shown) else ""
    heading = f"{file_size(total_bytes(files))} in {format_count(len(files), 'file')}, each with its sha256:"
    return dg.MetadataValue.md(in_own_window(f"{heading}\n\n{code_block(lines)}{more}"))


def state_of(outcome: Outcome) -> Metadata:
    """Return the entries that every asset has: the result of the run, its duration, a warning, and what was left out."""
    took = f"{outcome.seconds:.1f} s" if outcome.seconds < 60 else format_duration(outcome.seconds)
    state = {"built": f"built in {took}", "cache_hit": f"hit ({took})"}.get(outcome.state, outcome.state)
    speed, is_measured = None, outcome.state == "built" and outcome.seconds > 0
    if is_measured and outcome.kind in FAMILIES:
        speed = (tokens_of(outcome.meta) - outcome.resumed) / outcome.seconds  # tokens of this run only, which `seconds` covers
        state += f", {abbreviate(speed)} tokens per second"
    return {
        STATE: state,
        "seconds": round(outcome.seconds, 1) if is_measured else None,
        "tokens_per_second": speed and round(speed),
        "warning": outcome.warning or None,
        LEFT_OUT: outcome.drops.requested or None,
        DROPS: "\n".join(outcome.drops.warnings) or None,
    }


def split_schema(family: Family) -> dg.TableSchema:
    """Return the columns in the files of a split, for the definition of its asset."""
    below = dg.TableColumnConstraints(nullable=False, other=["< vocab_size"])
    what = "One token id after another; EOT ends each document" if family == "pretrain" else "Token ids of all examples, back to back"
    either = " or ".join(dtype.name for dtype in TOKEN_DTYPES.values())
    columns = [
        dg.TableColumn("token", either, description=f"{what}. Little-endian; token_dtype in meta.json says which", constraints=below)
    ]
    if family == "sft":
        columns.append(dg.TableColumn("start", "int64", description="Offset in tokens of each example (*_idx.npy)"))
    return dg.TableSchema(columns)


def _plots(outcome: Outcome, address: str | None) -> Metadata:
    """Return the plots of a cache, from one pass over it: histograms as text, and all of them as images.

    If the cache is damaged, return a line that says so. The checks then report the damage.
    """
    try:
        measures = load_beside("pages", "measures").measure_cache(outcome.directory, outcome.family, outcome.meta, address=address)
    except (NielsCacheError, OSError) as error:
        return {"plots": f"cannot be drawn: {error}"}
    pictures = load_beside("pages", "pictures").cache_pictures(measures, outcome.family, dropped=outcome.meta["dropped"])
    return {"histograms": histograms(pictures), "plots": dg.MetadataValue.md(images(pictures, outcome.name))}
