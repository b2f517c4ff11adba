"""`sample NAME`: what training will see, as text: random windows of a pretrain split, or examples of an SFT split, targets marked.

With --stage corpus, documents before they become tokens (corpus_sampling.py). What the assistant is trained to say is underlined on a
terminal, in [[ ]] elsewhere. Where a target, or a document, ends early, a mark says so.
"""

from __future__ import annotations

import argparse
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.text import Text

from niels_cache_assets.cli.console import output, print_json
from niels_cache_assets.cli.context import find_place, open_registry
from niels_cache_assets.cli.corpus_sampling import print_sample
from niels_cache_assets.cli.exit_codes import DONE
from niels_cache_assets.cli.overrides import WHERE
from niels_cache_assets.cli.seeds import draw_seed
from niels_cache_assets.decoding import as_text, open_tokenizer
from niels_cache_assets.registry import refuse_choice
from niels_cache_assets.show.draws import Drawn, examples, notable, windows
from niels_cache_assets.tokenization import SentencePieceTokenizer
from niels_cache_runtime.cache.opening import open_meta
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import (
    FAMILIES,
    SPLITS,
)

STAGES = ("cache", "corpus")
TARGET_STYLE = "underline green"
CUT_STYLE = "bold yellow"


def run(arguments: argparse.Namespace) -> int:
    registry, root = open_registry(arguments)
    if arguments.stage not in STAGES:
        refuse_choice(f"{WHERE}: --stage", "no stage", arguments.stage, STAGES)
    split = next((split for split in SPLITS if split == (arguments.split or "train")), None)
    if split is None:
        refuse_choice(f"{WHERE}: --split", "no split", arguments.split, SPLITS)
    if arguments.count < 1 or arguments.tokens < 1:
        raise NielsCacheError(f"{WHERE}: -n and --tokens must be at least 1")
    seed = draw_seed(arguments.seed)
    if arguments.stage == "corpus":
        if arguments.notable:
            raise NielsCacheError(f"{WHERE}: --notable: is for caches; a corpus is sampled over all of it")
        if arguments.split is not None:
            raise NielsCacheError(f"{WHERE}: --split {arguments.split}: is for caches; a corpus is sampled over all of it")
        print_sample(arguments, registry, root, seed=seed)
        return DONE
    place = find_place(registry, root, arguments.name, kinds=FAMILIES)
    meta = open_meta(place.directory)  # refuses a cache that was not built, or was built with another tokenizer
    tokenizer = open_tokenizer(root) if meta and meta.get("tokenizer_sha256") else None
    generator = torch.Generator().manual_seed(seed)
    folder, count, length = place.directory, arguments.count, arguments.tokens
    if arguments.notable:
        drawn = notable(folder, "pretrain" if place.kind == "pretrain" else "sft", split, length=length, tokenizer=tokenizer)
    elif place.kind == "pretrain":
        drawn = windows(folder, split, count=count, length=length, generator=generator)
    else:
        drawn = examples(folder, split, count=count, length=length, generator=generator, tokenizer=tokenizer)
    if arguments.json:
        samples = [_as_json(sample, tokenizer) for sample in drawn]
        print_json({"name": place.name, "kind": place.kind, "split": split, "seed": seed, "samples": samples})
        return DONE
    console = output()
    if tokenizer is None:
        console.print(f"{place.name}: token ids instead of text, their tokenizer is not known", soft_wrap=True)
    explanations: dict[str, None] = {}  # each once
    for sample in drawn:
        console.print(f"--- {sample.title}", style="bold")
        text = render(sample.tokens, sample.is_target, tokenizer, console) if tokenizer else Text(" ".join(map(str, sample.tokens)))
        if sample.cut is not None:
            text.append(f" {sample.cut.mark}", style=CUT_STYLE)
            explanations[sample.cut.explanation] = None
        console.print(text, soft_wrap=True)
    if explanations:
        console.print("\n" + "\n".join(explanations), style="dim", soft_wrap=True)
    if not arguments.notable:
        console.print(f"\n(--seed {seed} shows the same again)", style="dim")
    return DONE


def _as_json(sample: Drawn, tokenizer: SentencePieceTokenizer | None) -> Any:
    return {
        "title": sample.title,
        "tokens": sample.tokens.tolist(),
        "is_target": sample.is_target.tolist(),
        "hidden_tokens": sample.hidden_tokens,
        "hidden_targets": sample.hidden_targets,
        "is_cut_by_budget": sample.is_cut_by_budget,
        "text": None if tokenizer is None else as_text(sample.tokens.tolist(), tokenizer),
    }


def render(tokens: NDArray[np.uint16], is_target: NDArray[np.bool_], tokenizer: SentencePieceTokenizer, console: Console) -> Text:
    """Tokens as text, targets marked in the way that the console allows."""
    rendered = Text()
    for targeted, run in groupby(zip(tokens.tolist(), is_target.tolist(), strict=True), key=lambda pair: pair[1]):
        text = as_text((token for token, _ in run), tokenizer)
        if targeted and not console.is_terminal:
            text = f"[[{text}]]"
        rendered.append(text, style=TARGET_STYLE if targeted else "")
    return rendered
