"""How a cache reads, in Markdown: samples of a split, special tokens visible, targets marked.

In an example the lines that the model is trained to say begin with + (the UI shows them in green), those it is only shown with a blank.
"""

import textwrap
from itertools import groupby
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from niels_cache_assets.defs.metadata.entries import COLUMNS, fenced
from niels_cache_assets.show.samples import Sample, pick_samples
from niels_cache_assets.tokenizer.decoding import as_text
from niels_cache_assets.tokenizer.kinds import SentencePieceTokenizer
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import Family, Split
from niels_cache_runtime.format.meta import Meta


def samples(folder: Path, family: Family, split: Split, meta: Meta, tokenizer: SentencePieceTokenizer) -> str | None:
    """The first document or example, a random one, the longest and the shortest, each cut. None where the split is empty.

    A damaged cache gives a line that says so: what is wrong with it is the checks' to report, and they run after this.
    """
    try:
        picked = pick_samples(folder, family, split, meta)
        return "\n\n".join(_shown(sample, family, tokenizer) for sample in picked) or None
    except (NielsCacheError, OSError) as error:
        return f"cannot be shown: {error}"


def _shown(sample: Sample, family: Family, tokenizer: SentencePieceTokenizer) -> str:
    noun = "document" if family == "pretrain" else "example"
    cut = f", the first {len(sample.tokens)} shown" if len(sample.tokens) < sample.length else ""
    title = f"**{sample.what}**: {noun} {sample.number:,}, {sample.length:,} tokens{cut}"
    if family == "pretrain":
        text = "\n".join(_wrapped(as_text(sample.tokens.tolist(), tokenizer)))
        return f"{title}\n\n{fenced(text)}"
    return f"{title}\n\n{fenced(_marked(sample.tokens, tokenizer), 'diff')}"


def _marked(tokens: NDArray[np.uint16], tokenizer: SentencePieceTokenizer) -> str:
    from niels_cache_runtime.cache.sft import assistant_target_mask  # torch

    ids = tokenizer.special_token_ids()
    is_target = assistant_target_mask(tokens, ids["asst"], ids["eot"]).tolist()
    lines: list[str] = []
    for targeted, run in groupby(zip(tokens.tolist(), is_target, strict=True), key=lambda pair: pair[1]):
        text = as_text((token for token, _ in run), tokenizer)
        lines += [f"{'+' if targeted else ' '} {line}" for line in _wrapped(text)]
    return "\n".join(lines)


def _wrapped(text: str) -> list[str]:
    """The UI does not wrap what is in a code block."""
    wrap = textwrap.TextWrapper(COLUMNS, drop_whitespace=False, replace_whitespace=False, expand_tabs=False, break_on_hyphens=False)
    return [part for line in text.split("\n") for part in wrap.wrap(line) or [""]]
