"""Plots as the UI shows them: PNG within Markdown, kept in Dagster's database, so small. Drawing itself is plots/'s business."""

import base64
from collections.abc import Mapping

import dagster as dg

from niels_cache_assets.defs.tables import table
from niels_cache_assets.pipeline import BuildOutcome
from niels_cache_assets.tokenization import SentencePieceTokenizer
from niels_cache_assets.tokenizer_measures import by_source, split_words
from niels_cache_assets.tokenizer_training import TokenizerOutcome
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.formats import SPLITS


def picture(title: str, png: bytes) -> str:
    """Markdown: the UI shows such images, and no SVG or HTML."""
    return f"![{title}](data:image/png;base64,{base64.b64encode(png).decode('ascii')})"


def pictures(plots: Mapping[str, bytes]) -> dg.MarkdownMetadataValue:
    return dg.MetadataValue.md("\n\n".join(picture(title, png) for title, png in plots.items()))


def measured(outcome: BuildOutcome, tokenizer: SentencePieceTokenizer, *, draw: bool) -> dict[str, object]:
    """Numbers and plots that meta.json does not have, from one pass over the cache; what it costs is in plots/measures.py.

    A damaged cache gives a line that says so, and the checks say what is wrong with it.
    """
    from niels_cache_assets.plots.measures import measure_cache

    meta, family = outcome.meta, outcome.family
    try:
        measures = measure_cache(outcome.directory, family, meta)
    except (NielsCacheError, OSError) as error:
        return {"plots": f"cannot be drawn: {error}"}
    found: dict[str, object] = {"pieces_used": measures.pieces_used}
    if measures.conversations is not None:
        found["target_share"] = round(measures.conversations.target_tokens / max(1, measures.counted), 4)
        found["cut_share"] = round(measures.cut / max(1, measures.items), 4)
        found["characters_per_token"] = round(
            measures.characters_per_token(tokenizer.piece_bytes(), tokenizer.special_token_ids().values()), 3
        )
    if draw:
        from niels_cache_assets.plots.caches import cache_plots  # a second or more: matplotlib

        found = {"plots": pictures(cache_plots(measures, family, dropped=meta["dropped"])), **found}
    return found


def tokenizer_measured(outcome: TokenizerOutcome, *, draw: bool) -> dict[str, object]:
    """Characters per token by source, the long words that are cut, and plots of them and of the pieces."""
    tokenizer = SentencePieceTokenizer(str(outcome.model), special_tokens=outcome.meta["special_tokens"])
    ratios, words = by_source(outcome.model.parent.parent, outcome.meta), split_words(outcome.meta, tokenizer)
    found: dict[str, object] = {}
    if ratios:
        rows = [{"data_set": name, "characters_per_token": ratio} for name, ratio in ratios.items()]
        found["characters_per_token_by_source"] = table(rows, data_set="string", characters_per_token="float")
        found["characters_per_token"] = round(sum(ratios.values()) / len(ratios), 3)
    if words:
        cut = [{"word": word, "pieces": len(pieces), "cut": " | ".join(pieces)} for word, pieces in words.items()]
        found["longest_words"] = table(cut, word="string", pieces="int", cut="string")
    if draw:
        from niels_cache_assets.plots.tokenizers import tokenizer_plots  # a second or more: matplotlib

        plots = tokenizer_plots(piece_bytes=tokenizer.piece_bytes(), characters_per_token=ratios, words=words)
        found = {"plots": pictures(plots), **found}
    return found


def shares(outcome: BuildOutcome, *, deduplicated: bool) -> dict[str, float]:
    """What was dropped, of all documents or conversations that came; and what of them as duplicates, where those were looked for."""
    meta, dropped = outcome.meta, outcome.meta["dropped"]
    kept = sum(meta["documents"][split] if outcome.family == "pretrain" else meta[f"{split}_examples"] for split in SPLITS)
    given = max(1, kept + sum(dropped.values()))
    found = {"dropped_share": round(sum(dropped.values()) / given, 4)}
    if deduplicated:
        duplicates = sum(count for reason, count in dropped.items() if reason.endswith("_duplicate"))
        found["duplicates_share"] = round(duplicates / given, 4)
    return found
