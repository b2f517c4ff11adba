"""`sample NAME`: what training will see, as text: random windows of a pretrain split, or examples of an SFT split, targets marked.

With --stage corpus, documents before they become tokens (corpus_sampling.py). What the assistant is trained to say is underlined on a
terminal, in [[ ]] elsewhere.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.text import Text

from niels_cache_assets.cli.console import output, print_json
from niels_cache_assets.cli.context import Place, find_place, open_registry
from niels_cache_assets.cli.corpus_sampling import print_sample
from niels_cache_assets.cli.exit_codes import DONE
from niels_cache_assets.cli.overrides import WHERE
from niels_cache_assets.cli.seeds import draw_seed
from niels_cache_assets.decoding import as_text, open_tokenizer
from niels_cache_assets.registry import refuse_choice
from niels_cache_assets.samples import pick_samples
from niels_cache_assets.tokenization import SentencePieceTokenizer
from niels_cache_assets.wording import counted
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.formats import (
    FAMILIES,
    META_NAME,
    SPLITS,
    TOKEN_BYTES,
    Family,
    Split,
    idx_name,
    list_shards,
    tokens_name,
)
from niels_cache_runtime.meta_form import is_count
from niels_cache_runtime.mmap import MappedTokens, map_example_starts
from niels_cache_runtime.opening import open_meta
from niels_cache_runtime.pretrain_dataset import PretrainTokenStreamDataset
from niels_cache_runtime.sft_dataset import assistant_target_mask

STAGES = ("cache", "corpus")
TARGET_STYLE = "underline green"


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
    draw = _notable if arguments.notable else _windows if place.kind == "pretrain" else _examples
    drawn = draw(place, split, count=arguments.count, length=arguments.tokens, generator=generator, tokenizer=tokenizer)
    if arguments.json:
        samples = [_as_json(*sample, tokenizer) for sample in drawn]
        print_json({"name": place.name, "kind": place.kind, "split": split, "seed": seed, "samples": samples})
        return DONE
    console = output()
    if tokenizer is None:
        console.print(f"{place.name}: token ids instead of text, their tokenizer is not known", soft_wrap=True)
    for title, tokens, is_target in drawn:
        console.print(f"--- {title}", style="bold")
        console.print(render(tokens, is_target, tokenizer, console) if tokenizer else " ".join(map(str, tokens)), soft_wrap=True)
    if not arguments.notable:
        console.print(f"\n(--seed {seed} shows the same again)", style="dim")
    return DONE


Sample = tuple[str, NDArray[np.uint16], NDArray[np.bool_]]


def _as_json(title: str, tokens: NDArray[np.uint16], is_target: NDArray[np.bool_], tokenizer: SentencePieceTokenizer | None) -> Any:
    text = None if tokenizer is None else as_text(tokens.tolist(), tokenizer)
    return {"title": title, "tokens": tokens.tolist(), "is_target": is_target.tolist(), "text": text}


def _windows(
    place: Place, split: Split, *, count: int, length: int, generator: torch.Generator, tokenizer: SentencePieceTokenizer | None
) -> Iterator[Sample]:
    """Windows as the training sampler draws them, shorter where no shard is long enough."""
    folder = place.directory / split
    longest = max((shard.stat().st_size // TOKEN_BYTES for shard in list_shards(folder)), default=0)
    windows = PretrainTokenStreamDataset(str(folder), T=max(1, min(length, longest - 1)), device="cpu")
    x, _ = windows.get_batch(B=count, generator=generator)
    for number, tokens in enumerate(x.numpy().astype(np.uint16), start=1):
        yield f"{split} window {number} of {count}, {counted(len(tokens), 'token')}", tokens, np.zeros(len(tokens), dtype=np.bool_)


def _notable(
    place: Place, split: Split, *, count: int, length: int, generator: torch.Generator, tokenizer: SentencePieceTokenizer | None
) -> Iterator[Sample]:
    """The same documents or examples that the UI shows, however many are asked for."""
    family: Family = "pretrain" if place.kind == "pretrain" else "sft"
    noun = "document" if family == "pretrain" else "example"
    picked = pick_samples(place.directory, family, split, place.meta(), shown=length)
    if not picked:
        raise NielsCacheError(f"{place.directory}: this split is empty (0 {noun}s); nothing can be sampled from {split}")
    for sample in picked:
        is_target = np.zeros(len(sample.tokens), dtype=np.bool_)
        if family == "sft":
            ids = _target_ids(place, tokenizer)
            is_target = assistant_target_mask(sample.tokens, ids["asst"], ids["eot"])
        cut = f", the first {length:,} of them shown" if sample.length > length else ""
        yield f"{sample.what}: {split} {noun} {sample.number:,}, {counted(sample.length, 'token')}{cut}", sample.tokens, is_target


def _examples(
    place: Place, split: Split, *, count: int, length: int, generator: torch.Generator, tokenizer: SentencePieceTokenizer | None
) -> Iterator[Sample]:
    """Different examples, the long ones cut for display."""
    mapped = MappedTokens([place.directory / tokens_name(split)]).shards[0]
    starts = map_example_starts(place.directory / idx_name(split), token_count=len(mapped))
    if not len(starts):
        raise NielsCacheError(f"{place.directory / idx_name(split)}: this split is empty (0 examples); nothing can be sampled from it")
    ids = _target_ids(place, tokenizer)
    for example in torch.randperm(len(starts), generator=generator)[:count].tolist():
        end = int(starts[example + 1]) if example + 1 < len(starts) else len(mapped)
        tokens = np.array(mapped[int(starts[example]) : end])
        cut = f", the first {length:,} of them shown" if len(tokens) > length else ""
        is_target = assistant_target_mask(tokens, ids["asst"], ids["eot"])
        yield f"{split} example {example:,} of {len(starts):,}, {counted(len(tokens), 'token')}{cut}", tokens[:length], is_target[:length]


def _target_ids(place: Place, tokenizer: SentencePieceTokenizer | None) -> dict[str, int]:
    """Of the tokenizer or, of what another program made, its meta.json's. Raises NielsCacheError if that does not name them."""
    if tokenizer is not None:
        return tokenizer.special_token_ids()
    ids = place.meta()["special_token_ids"]
    if not is_count(ids.get("asst")):
        raise NielsCacheError(f"{place.directory / META_NAME}: special_token_ids has no asst, which begins the targets; add its id there")
    return {role: ids[role] for role in ("eot", "asst")}


def render(tokens: NDArray[np.uint16], is_target: NDArray[np.bool_], tokenizer: SentencePieceTokenizer, console: Console) -> Text:
    """Tokens as text, targets marked in the way that the console allows."""
    rendered = Text()
    for targeted, run in groupby(zip(tokens.tolist(), is_target.tolist(), strict=True), key=lambda pair: pair[1]):
        text = as_text((token for token, _ in run), tokenizer)
        if targeted and not console.is_terminal:
            text = f"[[{text}]]"
        rendered.append(text, style=TARGET_STYLE if targeted else "")
    return rendered
