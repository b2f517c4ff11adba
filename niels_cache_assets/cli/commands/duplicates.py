"""The command `duplicates [NAME]`, which prints pairs of a dropped document and the kept document, or counts by data set without NAME.

The command reads two columns of the drop list (the list of dropped duplicates), and the row groups of the printed texts. The build of
corpus/duplicates has found the duplicates. This command compares only the words that it prints. In the worst case, the comparison takes
quadratic time in the number of words.

The two texts are printed one below the other. Words that only one text has are underlined on a terminal, and in [[ ]] if the output is not
a terminal. Printing starts shortly before the first difference, because near duplicates often begin alike.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping
from difflib import SequenceMatcher
from itertools import accumulate, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from niels_cache_assets.base.beside import load_beside
from niels_cache_assets.base.wording import format_count, format_share
from niels_cache_assets.cli import console
from niels_cache_assets.cli.command import (
    PRETRAIN,
    SEED,
    Command,
    draw_seed,
    integer_at_least,
    option,
    refuse_options,
    switch,
)
from niels_cache_assets.cli.console import DIFFERENCE_STYLE, ELLIPSIS, display, mark, new_table, print_facts, styled, title_of
from niels_cache_assets.corpus.layout import DUPLICATES, duplicates_dir, duplicates_file

if TYPE_CHECKING:
    from rich.text import Text

    from niels_cache_assets.project.registry import Registry
    from niels_cache_runtime.format.meta import Meta

KINDS = ("near", "exact")
CHARACTERS = 600  # to print of each text; finding the words that differ takes quadratic time
CONTEXT_WORDS = 12  # common words before the first difference
_MAX_SEARCHED = 100_000  # characters that are searched for the first difference

Pair = Mapping[str, Any]  # a row of corpus.layout.DUPLICATES
MarkedPart = tuple[bool, list[str]]  # (whether the other text lacks these words, the words)


COMMAND = Command(
    options=(
        option("name", "NAME", "a deduplicated data set (default: the counts of all of them)", nargs="?"),
        option("-n", "N", "number of pairs to show (default: 3)", dest="count", type=integer_at_least(1), default=3),
        option("--kind", "KIND", "exact or near duplicates (default: near, if there are any)", choices=KINDS),
        switch("--closest-call", "show the least similar pairs instead of random ones"),
        option("--cuts", "STEP", "instead of documents, the text that a step cut: lines or spans", choices=("lines", "spans")),
        option("--document", "ID", "with --cuts: all cuts in the document with this source id"),
        SEED,
    ),
    usage="[NAME] ",
    description="""\
Show the duplicates in a data set, each next to the document that is kept, which may be in a different
data set, in the other split, or earlier in the same split. Without NAME, show counts for every data set.
With --cuts, show the repeated text that was cut out of documents, each next to the copy that stays.""",
    examples="""\
  niels-cache duplicates                                counts of every data set
  niels-cache duplicates wikipedia -n 5                 five random near duplicates
  niels-cache duplicates wikipedia --closest-call -n 5  the five least similar, to check the threshold
  niels-cache duplicates web --cuts lines -n 3          three places of repeated lines that were cut""",
    offers={"name": PRETRAIN},
)


def run(arguments: argparse.Namespace) -> None:
    """Print pairs, or counts."""
    from niels_cache_assets.cli.context import open_registry
    from niels_cache_assets.inspection.corpora import find_drop_list, find_drop_lists

    if arguments.cuts is None or arguments.name is None:
        refuse_options(arguments, ("document",), "works only with NAME and --cuts; add them")
    registry, root = open_registry(arguments)
    seed = draw_seed(arguments.seed)
    if arguments.cuts is not None:
        refuse_options(arguments, ("kind", "closest_call"), "works only without --cuts; leave it out")
        load_beside("repeats", "shown").print_cuts(arguments, registry, root, seed, console)
        return
    if arguments.name is None:
        lists = find_drop_lists(registry, root)
        if not print_facts(arguments, {key: lists[key] for key in ("datasets", "order", "settings", "bands", "rows")}):
            _print_counts(lists)
        return
    name = arguments.name
    meta = find_drop_list(registry, root, name)
    counts = meta["datasets"][name]
    kind = arguments.kind or ("near" if counts["near"] else "exact")
    path = duplicates_dir(root) / duplicates_file(name)
    pairs = _choose(path, kind, arguments.count, seed=None if arguments.closest_call else seed) if counts[kind] else []
    texts = _texts(registry, root, name, pairs, meta)
    both = [(texts[name, pair["ordinal"]], texts[pair["because_dataset"], pair["because_ordinal"]]) for pair in pairs]
    found = [{**pair, "document": dropped, "because": kept} for pair, (dropped, kept) in zip(pairs, both, strict=True)]
    if print_facts(arguments, {"name": name, "counts": counts, "pairs": found}):
        return
    dropped = f"dropped {counts['exact']:,} as exact and {counts['near']:,} as near duplicates"
    display(f"{name}: {format_count(counts['documents'], 'document')}, {dropped}", style="bold")
    for pair, documents in zip(pairs, both, strict=True):
        known = pair["kind"] == "near" and pair["similarity"] is not None
        similarity = f", similarity {pair['similarity']:.3f}" if known else ""
        display(f"\n--- {pair['kind']} duplicate{similarity}", style="bold")
        marked = mark_differences(*(document["text"] for document in documents), characters=CHARACTERS)
        for title, text in zip(_titles(name, pair, documents), marked, strict=True):
            display(title, style="bold")
            display(text)
    if pairs and not arguments.closest_call:
        display(f"\n(--seed {seed} shows the same pairs again)", style="dim")


def _print_counts(meta: Meta) -> None:
    numbers = ("documents", "exact", "near", "kept")
    table = new_table("data set", *numbers, "", right=[*numbers, ""])
    for name in meta["order"]:
        counts = meta["datasets"][name]
        kept = counts["documents"] - counts["exact"] - counts["near"]
        cells = (counts["documents"], counts["exact"], counts["near"], kept)
        table.add_row(name, *(f"{number:,}" for number in cells), format_share(kept, counts["documents"]))
    display(table)
    settings = meta["settings"]
    verify = f", verified by {settings['verify']}" if settings["verify"] != "none" else ""
    display(
        f"\nnear: similarity {settings['threshold']} of word {settings['ngram']}-grams, {meta['bands']} bands of {meta['rows']} rows"
        f"{verify}; of several duplicates the first is kept: data sets in this order, val before train"
    )


def _choose(path: Path, kind: str, count: int, *, seed: int | None) -> list[Pair]:
    """Return `count` pairs of a kind in corpus order: drawn uniformly, or the least similar pairs if `seed` is None."""
    import numpy as np

    from niels_cache_assets.inspection.corpora import column, rows_at, seeded_choice

    positions = np.flatnonzero(column(path, "kind") == kind)
    if seed is None:
        similarity = column(path, "similarity")[positions].astype(np.float64)
        positions = positions[np.argsort(similarity, kind="stable")[:count]]
    else:
        positions = positions[seeded_choice(len(positions), count, seed)]
    rows = rows_at([path], positions, list(DUPLICATES))
    return [rows[position] for position in positions.tolist()]


def _texts(registry: Registry, root: Path, name: str, pairs: Iterable[Pair], duplicates: Meta) -> dict[tuple[str, int], dict[str, Any]]:
    """Return text, title, file and row of both documents of every pair, by data set and ordinal."""
    from niels_cache_assets.inspection.corpora import documents_at, find_corpus, require_same_corpus

    chosen = {key for pair in pairs for key in ((name, pair["ordinal"]), (pair["because_dataset"], pair["because_ordinal"]))}
    corpora = {dataset: find_corpus(registry, root, dataset)[1] for dataset in {each for each, _ in chosen}}
    for dataset, meta in corpora.items():
        require_same_corpus(duplicates, dataset, meta)
    return documents_at(root, chosen, corpora, ["text", "title", "file", "row"])


def _titles(name: str, pair: Pair, documents: tuple[Mapping[str, Any], Mapping[str, Any]]) -> Iterator[str]:
    """Yield the titles of both documents, such as `dropped: wiki train 12, Title (a.jsonl, row 3)`."""
    dropped = ("dropped", name, pair["ordinal"], pair["split"])
    kept = ("kept", pair["because_dataset"], pair["because_ordinal"], pair["because_split"])
    for (verb, dataset, ordinal, split), document in zip((dropped, kept), documents, strict=True):
        title = title_of(document["title"], document["file"], document["row"])
        yield f"{verb}: {dataset} {f'{split} ' if split else ''}{ordinal:,}, {title}"


def mark_differences(left: str, right: str, *, characters: int) -> tuple[Text, Text]:
    """Return both texts from shortly before their first difference, with collapsed white space. Words that only one text has are marked."""
    from niels_cache_assets.tokenizer.decoding import spell_controls

    ours, theirs = (spell_controls(text[:_MAX_SEARCHED]).split() for text in (left, right))
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False)))
    begin = 0 if shared == len(ours) == len(theirs) else max(0, shared - CONTEXT_WORDS)
    shown = [_words_that_fit(words[begin:], characters) for words in (ours, theirs)]
    cut = [begin + len(part) < len(words) for part, words in zip(shown, (ours, theirs), strict=True)]
    matches = SequenceMatcher(a=shown[0], b=shown[1], autojunk=False).get_opcodes()
    parts: tuple[list[MarkedPart], list[MarkedPart]] = ([], [])
    for number, (tag, first, last, other_first, other_last) in enumerate(matches, start=1):
        # If one text was cut, words at the very end of the other text are not a difference.
        is_cut_off = number == len(matches) and ((tag == "delete" and cut[1]) or (tag == "insert" and cut[0]))
        differs = tag != "equal" and not is_cut_off
        parts[0].append((differs, shown[0][first:last]))
        parts[1].append((differs, shown[1][other_first:other_last]))
    joined = [_joined(part, begin > 0, ends_early) for part, ends_early in zip(parts, cut, strict=True)]
    return joined[0], joined[1]


def _words_that_fit(words: list[str], characters: int) -> list[str]:
    """Return as many words as fit into `characters`, but at least the beginning of the first word."""
    ends = accumulate(1 + len(word) for word in words)
    return words[: sum(1 for _ in takewhile(lambda end: end <= characters + 1, ends))] or [word[:characters] for word in words[:1]]


def _joined(parts: list[MarkedPart], starts_late: bool, ends_early: bool) -> Text:
    pieces = [mark(" ".join(words), DIFFERENCE_STYLE) if differs else " ".join(words) for differs, words in parts if words]
    before, after = [ELLIPSIS] * starts_late, [ELLIPSIS] * ends_early
    return styled(" ").join(map(styled, (*before, *pieces, *after)))
