"""`sample NAME`: what training will see, as text: random windows of a pretrain split, or examples of an SFT split, targets marked.

With --stage corpus, documents before they become tokens (corpus_sampling.py). What the assistant is trained to say is underlined on a
terminal, in [[ ]] elsewhere. Where a target, or a document, ends early, a mark says so.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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
from niels_cache_runtime.cache.mmap import MappedTokens, map_example_starts
from niels_cache_runtime.cache.opening import open_meta
from niels_cache_runtime.cache.sft import assistant_target_mask
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import (
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
from niels_cache_runtime.format.meta_form import is_count
from niels_cache_runtime.samplers.pretrain_dataset import PretrainTokenStreamDataset

STAGES = ("cache", "corpus")
TARGET_STYLE = "underline green"
CUT_STYLE = "bold yellow"
MAX_TOKENS = 1 << 62  # all of them


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


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Where a text ends early. mark: stands there. explanation: a sentence or two, said once for all samples."""

    mark: str
    explanation: str


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """What is shown of a window, an example or a document. tokens: (n,) uint16, is_target: (n,) bool. hidden_tokens, hidden_targets: of an
    example, those that are not shown. is_cut_by_budget: of a document, whether the token budget ended before it did."""

    title: str
    tokens: NDArray[np.uint16]
    is_target: NDArray[np.bool_]
    hidden_tokens: int = 0
    hidden_targets: int = 0
    is_cut_by_budget: bool = False

    @property
    def cut(self) -> Cut | None:
        if self.hidden_targets:
            return Cut(
                mark=f"[cut: {self.hidden_targets:,} of its targets are behind this]",
                explanation="[cut: ...]: the example is longer than --tokens, so its target is cut. Training with a T that is too short "
                "does the same, and never learns what is behind: choose T so that few examples are cut (niels-cache report shows lengths).",
            )
        if self.is_cut_by_budget and not self.hidden_tokens:
            return Cut(
                mark="[cut by the token budget]",
                explanation="[cut by the token budget]: the source has more of this document, but train_tokens or val_tokens was reached.",
            )
        return None


def _of_example(title: str, tokens: NDArray[np.uint16], *, shown: int, ids: Mapping[str, int]) -> Drawn:
    """The first `shown` tokens of a whole example. ids: of the special tokens."""
    is_target = assistant_target_mask(tokens, ids["asst"], ids["eot"])
    cut = f", the first {shown:,} of them shown" if len(tokens) > shown else ""
    return Drawn(
        title=f"{title}, {counted(len(tokens), 'token')}{cut}",
        tokens=tokens[:shown],
        is_target=is_target[:shown],
        hidden_tokens=max(0, len(tokens) - shown),
        hidden_targets=int(is_target[shown:].sum()),
    )


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


def _windows(
    place: Place, split: Split, *, count: int, length: int, generator: torch.Generator, tokenizer: SentencePieceTokenizer | None
) -> Iterator[Drawn]:
    """Windows as the training sampler draws them, shorter where no shard is long enough."""
    folder = place.directory / split
    longest = max((shard.stat().st_size // TOKEN_BYTES for shard in list_shards(folder)), default=0)
    windows = PretrainTokenStreamDataset(str(folder), T=max(1, min(length, longest - 1)), device="cpu")
    x, _ = windows.get_batch(B=count, generator=generator)
    for number, tokens in enumerate(x.numpy().astype(np.uint16), start=1):
        title = f"{split} window {number} of {count}, {counted(len(tokens), 'token')}"
        yield Drawn(title=title, tokens=tokens, is_target=np.zeros(len(tokens), dtype=np.bool_))


def _notable(
    place: Place, split: Split, *, count: int, length: int, generator: torch.Generator, tokenizer: SentencePieceTokenizer | None
) -> Iterator[Drawn]:
    """The same documents or examples that the UI shows, however many are asked for."""
    family: Family = "pretrain" if place.kind == "pretrain" else "sft"
    noun = "document" if family == "pretrain" else "example"
    meta = place.meta()
    # Of an example all is read: how many of its targets are not shown is told.
    picked = pick_samples(place.directory, family, split, meta, shown=length if family == "pretrain" else MAX_TOKENS)
    if not picked:
        raise NielsCacheError(f"{place.directory}: this split is empty (0 {noun}s); nothing can be sampled from {split}")
    cut_document = (meta.get("cut_document") or {}).get(split)
    for sample in picked:
        title = f"{sample.what}: {split} {noun} {sample.number:,}"
        if family == "sft":
            yield _of_example(title, sample.tokens, shown=length, ids=_target_ids(place, tokenizer))
            continue
        cut = f", the first {length:,} of them shown" if sample.length > length else ""
        yield Drawn(
            title=f"{title}, {counted(sample.length, 'token')}{cut}",
            tokens=sample.tokens,
            is_target=np.zeros(len(sample.tokens), dtype=np.bool_),
            hidden_tokens=sample.length - len(sample.tokens),
            is_cut_by_budget=family == "pretrain" and sample.number == cut_document,
        )


def _examples(
    place: Place, split: Split, *, count: int, length: int, generator: torch.Generator, tokenizer: SentencePieceTokenizer | None
) -> Iterator[Drawn]:
    """Different examples, the long ones cut for display."""
    mapped = MappedTokens([place.directory / tokens_name(split)]).shards[0]
    starts = map_example_starts(place.directory / idx_name(split), token_count=len(mapped))
    if not len(starts):
        raise NielsCacheError(f"{place.directory / idx_name(split)}: this split is empty (0 examples); nothing can be sampled from it")
    ids = _target_ids(place, tokenizer)
    for example in torch.randperm(len(starts), generator=generator)[:count].tolist():
        end = int(starts[example + 1]) if example + 1 < len(starts) else len(mapped)
        tokens = np.array(mapped[int(starts[example]) : end])
        yield _of_example(f"{split} example {example:,} of {len(starts):,}", tokens, shown=length, ids=ids)


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
