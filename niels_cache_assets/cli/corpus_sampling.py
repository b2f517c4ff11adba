"""`sample NAME --stage corpus`: documents that cleaning and deduplication left, each with the same chance, and how long they are."""

from __future__ import annotations

import argparse
from pathlib import Path

from niels_cache_assets.cli.console import output, print_json
from niels_cache_assets.cli.corpora import duplicates_of, find_corpus
from niels_cache_assets.cli.pairs import excerpt
from niels_cache_assets.corpus.report import CHARACTERS_PER_TOKEN
from niels_cache_assets.corpus.sampling import sample_corpus
from niels_cache_assets.decoding import spell_controls
from niels_cache_assets.documents import Document
from niels_cache_assets.registry import Registry
from niels_cache_assets.wording import counted


def print_sample(arguments: argparse.Namespace, registry: Registry, root: Path, *, seed: int) -> None:
    """What `sample` prints for --stage corpus."""
    name = arguments.name
    _, meta = find_corpus(registry, root, name)
    searched = duplicates_of(root, name, meta) is not None
    sample = sample_corpus(registry, name, root=root, count=arguments.count, seed=seed, minus_duplicates=searched)
    if arguments.json:
        documents = [{"ordinal": ordinal, **document._asdict()} for ordinal, document in sample.documents]
        counts = {"documents": sample.kept, "mean_characters": sample.mean_characters, "estimated_tokens": sample.estimated_tokens}
        print_json({"name": name, "stage": "corpus", "seed": seed, **counts, "samples": documents})
        return
    console = output()
    for ordinal, document in sample.documents:
        console.print(f"--- {_title(ordinal, document)}", style="bold", soft_wrap=True)
        console.print(excerpt(document.text, int(arguments.tokens * CHARACTERS_PER_TOKEN)), soft_wrap=True)
    tokens = f"about {counted(sample.estimated_tokens, 'token')} in all"
    console.print(
        f"\n{counted(sample.kept, 'document')} in the corpus, {sample.mean_characters:,.0f} characters on average, {tokens}", soft_wrap=True
    )
    if not searched and "dedup" in meta["prepare"]:
        console.print("(duplicates have not been looked for yet, and may be among them)", style="dim")
    console.print(f"(--seed {seed} shows the same again)", style="dim")


def _title(ordinal: int, document: Document) -> str:
    """`train document 1,234, 5,678 characters: Title (articles.jsonl, row 12)`; the split only where it is known yet."""
    split = f"{document.split} " if document.split else ""
    place = f"{document.file}, row {document.row:,}"
    name = f"{document.title} ({place})" if document.title else place
    return spell_controls(f"{split}document {ordinal:,}, {counted(len(document.text), 'character')}: {name}")
