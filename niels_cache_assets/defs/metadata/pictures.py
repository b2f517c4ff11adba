"""Plots as the UI shows them: PNG within Markdown, kept in Dagster's database, so small. Drawing itself is plots/'s business."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass

import dagster as dg

from niels_cache_assets.artifacts.base import Outcome
from niels_cache_assets.defs.metadata.excerpt import behind_a_click, fenced
from niels_cache_assets.defs.metadata.tables import table
from niels_cache_assets.show.wording import counted, share_of
from niels_cache_assets.tokenizer.kinds import SentencePieceTokenizer
from niels_cache_assets.tokenizer.measures import by_source, split_words
from niels_cache_runtime.errors import NielsCacheError


def picture(title: str, png: bytes) -> str:
    """Markdown: the UI shows such images, and no SVG or HTML."""
    return f"![{title}](data:image/png;base64,{base64.b64encode(png).decode('ascii')})"


def pictures(plots: Mapping[str, bytes]) -> dg.MarkdownMetadataValue:
    return dg.MetadataValue.md("\n\n".join(picture(title, png) for title, png in plots.items()))


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a pass over a cache says. `plots`: None if none were asked for; said: in words; characters_per_token: of SFT only."""

    plots: dg.MarkdownMetadataValue | str | None
    said: list[str]
    characters_per_token: float | None


def measured(outcome: Outcome, tokenizer: SentencePieceTokenizer, *, draw: bool) -> Seen:
    """Figures and plots that meta.json does not have, from one pass over the cache; what it costs is in plots/measures.py.

    A damaged cache gives a line that says so, and the checks say what is wrong with it.
    """
    from niels_cache_assets.show.plots.measures import CONTEXT, measure_cache

    meta, family = outcome.meta, outcome.family
    try:
        measures = measure_cache(outcome.directory, family, meta)
    except (NielsCacheError, OSError) as error:
        return Seen(plots=f"cannot be drawn: {error}", said=[], characters_per_token=None)
    said = [f"{measures.pieces_used:,} of {counted(len(measures.token_counts), 'piece')} are used"]
    ratio = None
    if measures.conversations is not None:
        cut = share_of(measures.cut, measures.items) if measures.cut else "none"
        said.append(f"{share_of(measures.conversations.target_tokens, measures.counted)} of the tokens are targets")
        said.append(f"T = {CONTEXT:,} cuts {cut} of the examples")
        ratio = round(measures.characters_per_token(tokenizer.piece_bytes(), tokenizer.special_token_ids().values()), 3)
    plots = None
    if draw:
        from niels_cache_assets.show.plots.caches import cache_plots  # a second or more: matplotlib

        plots = pictures(cache_plots(measures, family, dropped=meta["dropped"]))
    return Seen(plots=plots, said=said, characters_per_token=ratio)


def tokenizer_measured(outcome: Outcome, *, draw: bool) -> dict[str, object]:
    """Characters per token by source, the long words that are cut, and plots of them and of the pieces."""
    tokenizer = SentencePieceTokenizer(str(outcome.model), special_tokens=outcome.meta["special_tokens"])
    ratios, words = by_source(outcome.directory.parent, outcome.meta), split_words(outcome.meta, tokenizer)
    found: dict[str, object] = {}
    if ratios:
        rows = [{"data_set": name, "chars_per_token": ratio} for name, ratio in ratios.items()]
        found["by_source"] = table(rows, data_set="string", chars_per_token="float")
        found["chars_per_token"] = round(sum(ratios.values()) / len(ratios), 3)
    if words:
        lines = "\n".join(f"{len(pieces):>2}  {' | '.join(pieces)}" for pieces in words.values())
        found["longest_words"] = dg.MetadataValue.md(behind_a_click(fenced(lines)))
    if draw:
        from niels_cache_assets.show.plots.tokenizers import tokenizer_plots  # a second or more: matplotlib

        plots = tokenizer_plots(piece_bytes=tokenizer.piece_bytes(), characters_per_token=ratios, words=words)
        found = {"plots": pictures(plots), **found}
    return found
