"""The command `sample NAME`, which prints the text that training will see.

This is random windows of a pretrain split, or examples of an SFT split with marked targets. With --stage corpus, the command prints
documents before they become tokens. The assistant's targets are underlined on a terminal, and in [[ ]] if the output is not a terminal. A
mark shows that a target or a document is cut.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from niels_cache_assets.base.wording import format_count
from niels_cache_assets.cli.command import (
    SEED,
    WHERE,
    Command,
    draw_seed,
    integer_at_least,
    option,
    refuse_options,
    switch,
)
from niels_cache_assets.cli.console import display, excerpt, mark, print_json, styled, title_of
from niels_cache_runtime.errors import NielsCacheError

if TYPE_CHECKING:
    from rich.text import Text

    from niels_cache_assets.base.documents import Document
    from niels_cache_assets.project.registry import Registry
    from niels_cache_assets.tokenizer.kinds import TextTokenizer
    from niels_cache_inspection.samples import DisplayedSample
    from niels_cache_runtime.format.layout import Bools, Family, Split, Tokens

TARGET_STYLE = "underline green"
CUT_STYLE = "bold yellow"


def _rule(text: str) -> tuple[int, int]:
    period, _, times = text.partition(",")
    return integer_at_least(1)(period), integer_at_least(2)(times)


COMMAND = Command(
    options=(
        option("name", "NAME", "a built data set, or the ADDRESS of a published cache"),
        option(
            "--stage",
            "STAGE",
            "cache: what training sees (default); corpus: documents after cleaning",
            choices=("cache", "corpus"),
            default="cache",
        ),
        option("--split", "SPLIT", "train or val (default: train; not for a corpus)", choices=("train", "val")),
        option("-n", "N", "number of samples (default: 3)", dest="count", type=integer_at_least(1), default=3),
        switch("--notable", "show the first, the longest, the shortest and one fixed random sample; ignores -n"),
        option(
            "--repetitive",
            "PERIOD,TIMES",
            "count the rows that TokenLoader(T=N, mask_repetitive=(PERIOD, TIMES)) masks, such as 13,32, and show the first ones",
            type=_rule,
        ),
        SEED,
        option("--tokens", "N", "tokens to print per sample (default: 128; estimated for a corpus)", type=integer_at_least(1), default=128),
    ),
    usage="NAME ",
    examples="""\
  niels-cache sample wikitext                   three random windows of train
  niels-cache sample dolly15k --split val -n 5  five examples; the assistant's targets are marked
  niels-cache sample wikipedia --stage corpus   random documents after cleaning
  niels-cache sample s3://bucket/caches/wikitext  windows of a published cache; fetches only their shards""",
)


def run(arguments: argparse.Namespace) -> None:
    """Print the samples."""
    from niels_cache_assets.cli.context import find_cache, open_registry
    from niels_cache_runtime.cache.opening import open_meta
    from niels_cache_runtime.format.layout import FAMILIES
    from niels_cache_runtime.remote.local_copy import LocalCopy
    from niels_cache_runtime.remote.record import TOKENIZER
    from niels_cache_runtime.remote.store import is_address

    split: Split = arguments.split or "train"
    seed = draw_seed(arguments.seed)
    if arguments.stage == "corpus":
        if is_address(arguments.name):
            raise NielsCacheError(f"{WHERE}: --stage corpus: an ADDRESS has no corpus; leave it out")
        refuse_options(arguments, ("notable", "repetitive", "split"), "works only with --stage cache; leave it out for a corpus")
        _print_corpus_sample(arguments, *open_registry(arguments), seed=seed)
    elif is_address(arguments.name):
        with TemporaryDirectory(prefix="niels-cache-", ignore_cleanup_errors=True) as folder, closing(LocalCopy(folder)) as copy:
            build, _ = copy.open(arguments.name)
            directory = copy.fetch_of(build, [TOKENIZER])
            kind = (open_meta(directory) or {})["kind"]
            if arguments.notable or arguments.repetitive or kind == "sft":  # these need the whole split, and windows only their shards
                copy.fetch_build(build, split)
            _print_sample(arguments, directory, kind, split, seed=seed, fetch=lambda paths: copy.fetch_of(build, paths))
    else:
        cache = find_cache(*open_registry(arguments), arguments.name, kinds=FAMILIES)
        _print_sample(arguments, cache.directory, "pretrain" if cache.kind == "pretrain" else "sft", split, seed=seed)


def _print_sample(
    arguments: argparse.Namespace,
    directory: Path,
    kind: Family,
    split: Split,
    *,
    seed: int,
    fetch: Callable[[Sequence[str]], Path] | None = None,
) -> None:
    """Print samples of a cache. `fetch` brings the files of a published cache."""
    import torch

    from niels_cache_assets.tokenizer.decoding import open_tokenizer
    from niels_cache_inspection.samples import examples, notable, repetitive, windows
    from niels_cache_runtime.cache.opening import open_meta

    meta = open_meta(directory) or {}  # raises for a cache that is not built, or was built with a different tokenizer
    tokenizer = open_tokenizer(directory.parent.parent) if meta.get("tokenizer_sha256") else None
    settings = {"count": arguments.count, "length": arguments.tokens, "generator": torch.Generator().manual_seed(seed)}
    counted: dict[str, str] = {}
    if arguments.repetitive:
        if kind == "sft":
            raise NielsCacheError(f"{WHERE}: --repetitive: is for pretrain data sets; leave it out")
        counted["repetitive"], drawn = repetitive(
            directory, split, count=arguments.count, length=arguments.tokens, rule=arguments.repetitive
        )
    elif arguments.notable:
        drawn = notable(directory, kind, split, length=arguments.tokens, tokenizer=tokenizer)
    elif kind == "sft":
        drawn = examples(directory, split, tokenizer=tokenizer, **settings)
    else:
        drawn = windows(directory, split, fetch=fetch, **settings)
    name = directory.name
    if arguments.json:
        samples = [_as_json(sample, tokenizer) for sample in drawn]
        print_json({"name": name, "kind": kind, "split": split, "seed": seed, **counted, "samples": samples})
        return
    if tokenizer is None:
        display(f"{name}: showing token ids, because the tokenizer is not known")
    for words in counted.values():
        display(words)
    explanations: dict[str, None] = {}  # a dict, so that each explanation is printed once
    for sample in drawn:
        display(f"--- {sample.title}", style="bold")
        text = render(sample.tokens, sample.is_target, tokenizer) if tokenizer else styled(" ".join(map(str, sample.tokens)))
        if sample.cut is not None:
            note, explanation = sample.cut
            text.append(f" {note}", style=CUT_STYLE)
            explanations[explanation] = None
        display(text)
    if explanations:
        display("\n" + "\n".join(explanations), style="dim")
    if not arguments.notable and not counted:
        display(f"\n(--seed {seed} shows the same samples again)", style="dim")


def _as_json(sample: DisplayedSample, tokenizer: TextTokenizer | None) -> Any:
    from niels_cache_assets.tokenizer.decoding import as_text

    return {**vars(sample), "text": None if tokenizer is None else as_text(sample.tokens.tolist(), tokenizer)}


def render(tokens: Tokens, is_target: Bools, tokenizer: TextTokenizer) -> Text:
    """Return tokens as text. Targets are underlined on a terminal, and in [[ ]] if the output is not a terminal."""
    from niels_cache_assets.tokenizer.decoding import as_text

    runs = groupby(zip(tokens.tolist(), is_target.tolist(), strict=True), key=lambda pair: pair[1])
    texts = ((as_text((token for token, _ in run), tokenizer), targeted) for targeted, run in runs)
    return styled(*(mark(text, TARGET_STYLE) if targeted else text for text, targeted in texts))


def _document_json(document: Document) -> dict[str, Any]:
    from niels_cache_assets.sources.reading.keep import kept_values

    found = document._asdict()
    kept = kept_values(found.pop("kept"))
    return {**found, **({"kept": kept} if kept else {})}


def _print_corpus_sample(arguments: argparse.Namespace, registry: Registry, root: Path, *, seed: int) -> None:
    from niels_cache_assets.artifacts.corpus_report import CHARACTERS_PER_TOKEN
    from niels_cache_assets.inspection.corpora import duplicate_counts, find_corpus, sample_corpus

    name = arguments.name
    _, meta = find_corpus(registry, root, name)
    searched = duplicate_counts(root, name, meta) is not None
    sample = sample_corpus(registry, name, root=root, count=arguments.count, seed=seed, minus_duplicates=searched)
    if arguments.json:
        documents = [{"ordinal": ordinal, **_document_json(document)} for ordinal, document in sample.documents]
        counts = {"documents": sample.kept, "mean_characters": sample.mean_characters, "estimated_tokens": sample.estimated_tokens}
        print_json({"name": name, "stage": "corpus", "seed": seed, **counts, "samples": documents})
        return
    for ordinal, document in sample.documents:
        display(f"--- {_title(ordinal, document)}", style="bold")
        display(excerpt(document.text, int(arguments.tokens * CHARACTERS_PER_TOKEN)))
    tokens = f"about {format_count(sample.estimated_tokens, 'token')} in all"
    display(f"\n{format_count(sample.kept, 'document')} in the corpus, {sample.mean_characters:,.0f} characters on average, {tokens}")
    if not searched and "dedup" in meta["prepare"]:
        display("(the corpus is not deduplicated yet, so duplicates may be among them)", style="dim")
    display(f"(--seed {seed} shows the same samples again)", style="dim")


def _title(ordinal: int, document: Document) -> str:
    """Return `train document 1,234, 5,678 characters: Title (articles.jsonl, row 12)`. Omit the split if it is not known yet."""
    split = f"{document.split} " if document.split else ""
    name = title_of(document.title, document.file, document.row)
    return f"{split}document {ordinal:,}, {format_count(len(document.text), 'character')}: {name}"
