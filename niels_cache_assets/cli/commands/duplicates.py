"""The command `duplicates [NAME]`. It prints pairs of a dropped document and the kept document. Without NAME, it prints counts by data set.

The command reads two columns of the drop list (the list of dropped duplicates), and the row groups of the printed texts. The build of
corpus/duplicates has found the duplicates. This command compares only the words that it prints. In the worst case, the comparison takes
quadratic time in the number of words.

The two texts are printed side by side, or one below the other on a narrow terminal. Words that only one text has are underlined on a
terminal, and in [[ ]] if the output is not a terminal. Printing starts shortly before the first difference, because near duplicates often
begin alike.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping
from difflib import SequenceMatcher
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from niels_cache_assets.cli.command import PRETRAIN, SEED_HELP, WHERE, Command, at_least, chosen, draw_seed, whole_number
from niels_cache_assets.cli.console import DIFFERENCE_STYLE, ELLIPSIS, new_table, output, print_json, title_of
from niels_cache_assets.cli.exit_codes import DONE
from niels_cache_assets.corpus.layout import DUPLICATES, duplicates_dir, duplicates_file
from niels_cache_assets.show.wording import counted, share_of
from niels_cache_runtime.errors import NielsCacheError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from niels_cache_assets.config.registry import Registry
    from niels_cache_runtime.format.meta import Meta

KINDS = ("near", "exact")
MOST_CHARACTERS = 10_000  # limit for a printed text, because finding the words that differ takes quadratic time
SIDE_BY_SIDE_COLUMNS = 90  # on a narrower terminal, columns of text are hard to read
CONTEXT_WORDS = 12  # common words before the first difference
_LOOKED_THROUGH = 100_000  # characters that are searched for the first difference

Pair = Mapping[str, Any]  # a row of corpus.layout.DUPLICATES
Part = tuple[bool, list[str]]  # (whether the other text lacks these words, the words)


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", nargs="?", help="a deduplicated data set (default: the counts of all of them)")
    parser.add_argument("-n", metavar="N", dest="count", type=at_least(1), default=3, help="number of pairs (default: 3)")
    parser.add_argument("--kind", metavar="KIND", help="exact or near (default: near, if there are any)")
    parser.add_argument("--closest-call", action="store_true", help="show the least similar pairs instead of random ones")
    parser.add_argument(
        "--characters", metavar="N", type=whole_number, default=600, help="characters to print of each document (default: 600)"
    )
    parser.add_argument("--seed", metavar="N", type=whole_number, help=SEED_HELP)


COMMAND = Command(
    usage="[NAME] ",
    description="""\
Show duplicates of a data set, each beside the document that is kept. That document may be in another
data set, in another split, or earlier in the same one. Without NAME, show counts for every data set.""",
    examples="""\
  niels-cache duplicates                                counts of every data set
  niels-cache duplicates wikipedia -n 5                 five random near duplicates
  niels-cache duplicates wikipedia --closest-call -n 5  the five least similar: is the threshold right?
  niels-cache duplicates wikipedia --kind exact""",
    add_options=_add_options,
    offers={"name": PRETRAIN, "kind": KINDS},
    has_json=True,
)


def run(arguments: argparse.Namespace) -> int:
    from niels_cache_assets.cli.context import open_registry
    from niels_cache_assets.show.corpora import find_drop_list, find_drop_lists

    registry, root = open_registry(arguments)
    if not 1 <= arguments.characters <= MOST_CHARACTERS:
        raise NielsCacheError(f"{WHERE}: --characters must be from 1 to {MOST_CHARACTERS:,}")
    if arguments.kind is not None:
        chosen("--kind", "no kind", arguments.kind, KINDS)
    seed = draw_seed(arguments.seed)
    console = output()
    if arguments.name is None:
        lists = find_drop_lists(registry, root)
        if arguments.json:
            print_json({key: lists[key] for key in ("datasets", "order", "settings", "bands", "rows")})
        else:
            _print_counts(console, lists)
        return DONE
    meta = find_drop_list(registry, root, arguments.name)
    counts = meta["datasets"][arguments.name]
    kind = arguments.kind or ("near" if counts["near"] else "exact")
    if arguments.json:
        pairs = _drawn(arguments, root, kind, seed) if counts[kind] else []
        texts = _texts(registry, root, arguments.name, pairs, meta)
        print_json({"name": arguments.name, "counts": counts, "pairs": [_as_json(arguments.name, pair, texts) for pair in pairs]})
        return DONE
    dropped = f"dropped {counts['exact']:,} as exact and {counts['near']:,} as near duplicates"
    console.print(f"{arguments.name}: {counted(counts['documents'], 'document')}, {dropped}", style="bold", soft_wrap=True)
    if not counts[kind]:
        return DONE
    pairs = _drawn(arguments, root, kind, seed)
    texts = _texts(registry, root, arguments.name, pairs, meta)
    for pair in pairs:
        titles = _titles(arguments.name, pair, texts)
        sides = (texts[arguments.name, pair["ordinal"]]["text"], texts[pair["because_dataset"], pair["because_ordinal"]]["text"])
        console.print(f"\n--- {pair['kind']} duplicate{_similarity(pair)}", style="bold")
        print_pair(console, titles, sides, characters=arguments.characters)
    if not arguments.closest_call:
        console.print(f"\n(--seed {seed} shows the same pairs again)", style="dim")
    return DONE


def _drawn(arguments: argparse.Namespace, root: Path, kind: str, seed: int) -> list[Pair]:
    path = duplicates_dir(root) / duplicates_file(arguments.name)
    return _choose(path, kind, arguments.count, seed=None if arguments.closest_call else seed)


def _as_json(name: str, pair: Pair, texts: Mapping[tuple[str, int], Mapping[str, Any]]) -> dict[str, Any]:
    """Return the row of the drop list for this pair, and both documents."""
    return {
        **pair,
        "document": texts[name, pair["ordinal"]],
        "because": texts[pair["because_dataset"], pair["because_ordinal"]],
    }


def _print_counts(console: Console, meta: Meta) -> None:
    numbers = ("documents", "exact", "near", "kept")
    table = new_table("data set", *numbers, "", right=frozenset({*numbers, ""}))
    for name in meta["order"]:
        counts = meta["datasets"][name]
        stay = counts["documents"] - counts["exact"] - counts["near"]
        cells = (counts["documents"], counts["exact"], counts["near"], stay)
        table.add_row(name, *(f"{number:,}" for number in cells), share_of(stay, counts["documents"]))
    console.print(table)
    settings = meta["settings"]
    verify = f", verified by {settings['verify']}" if settings["verify"] != "none" else ""
    console.print(
        f"\nnear: similarity {settings['threshold']} of word {settings['ngram']}-grams, {meta['bands']} bands of {meta['rows']} rows"
        f"{verify}; of several duplicates the first is kept: data sets in this order, val before train",
        soft_wrap=True,
    )


def _choose(path: Path, kind: str, count: int, *, seed: int | None) -> list[Pair]:
    """Return `count` pairs of a kind, drawn uniformly, in corpus order. If `seed` is None, return the least similar pairs."""
    import numpy as np

    from niels_cache_assets.show.corpora import column, rows_at, seeded_choice

    places = np.flatnonzero(column(path, "kind") == kind)
    if seed is None:
        similarity = column(path, "similarity")[places].astype(np.float64)
        places = places[np.argsort(similarity, kind="stable")[:count]]
    else:
        places = places[seeded_choice(len(places), count, seed)]
    rows = rows_at([path], places, list(DUPLICATES))
    return [rows[place] for place in places.tolist()]


def _texts(registry: Registry, root: Path, name: str, pairs: Iterable[Pair], duplicates: Meta) -> dict[tuple[str, int], dict[str, Any]]:
    """Return text, title, file and row of both documents of every pair, by data set and ordinal."""
    from niels_cache_assets.corpus.prepared import document_files
    from niels_cache_assets.show.corpora import find_corpus, require_same_corpus, rows_at

    wanted: dict[str, set[int]] = {}
    for pair in pairs:
        wanted.setdefault(name, set()).add(pair["ordinal"])
        wanted.setdefault(pair["because_dataset"], set()).add(pair["because_ordinal"])
    texts: dict[tuple[str, int], dict[str, Any]] = {}
    for dataset, ordinals in wanted.items():
        directory, meta = find_corpus(registry, root, dataset)
        require_same_corpus(duplicates, dataset, meta)
        rows = rows_at(document_files(directory, meta), ordinals, ["text", "title", "file", "row"])
        texts.update(((dataset, ordinal), row) for ordinal, row in rows.items())
    return texts


def _similarity(pair: Pair) -> str:
    known = pair["kind"] == "near" and pair["similarity"] is not None
    return f", similarity {pair['similarity']:.3f}" if known else ""


def _titles(name: str, pair: Pair, texts: Mapping[tuple[str, int], Mapping[str, Any]]) -> tuple[str, str]:
    """Return the titles of both documents, such as `dropped: wiki train 12, Title (a.jsonl, row 3)`."""
    from niels_cache_assets.tokenizer.decoding import spell_controls

    sides = (
        ("dropped", name, pair["ordinal"], pair["split"]),
        ("kept", pair["because_dataset"], pair["because_ordinal"], pair["because_split"]),
    )
    titles = []
    for verb, dataset, ordinal, split in sides:
        document = texts[dataset, ordinal]
        title = title_of(document["title"], document["file"], document["row"])
        titles.append(spell_controls(f"{verb}: {dataset} {f'{split} ' if split else ''}{ordinal:,}, {title}"))
    return titles[0], titles[1]


def print_pair(console: Console, titles: tuple[str, str], texts: tuple[str, str], *, characters: int) -> None:
    """Print two texts with their titles, up to `characters` characters of each text."""
    from rich.table import Table
    from rich.text import Text

    marked = mark_differences(*texts, characters=characters, styled=console.is_terminal)
    if console.width < SIDE_BY_SIDE_COLUMNS:
        for title, text in zip(titles, marked, strict=True):
            console.print(title, style="bold")
            console.print(text)
        return
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, expand=True, header_style="bold")
    for title in titles:
        table.add_column(Text(title), ratio=1, overflow="fold")
    table.add_row(*marked)
    console.print(table)


def mark_differences(left: str, right: str, *, characters: int, styled: bool) -> tuple[Text, Text]:
    """Return both texts from shortly before their first difference. Words that only one text has are marked. White space is collapsed."""
    from niels_cache_assets.tokenizer.decoding import spell_controls

    ours, theirs = (spell_controls(text[:_LOOKED_THROUGH]).split() for text in (left, right))
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False)))
    begin = 0 if shared == len(ours) == len(theirs) else max(0, shared - CONTEXT_WORDS)
    shown = [_fitting(words[begin:], characters) for words in (ours, theirs)]
    cut = [begin + len(part) < len(words) for part, words in zip(shown, (ours, theirs), strict=True)]
    matches = SequenceMatcher(a=shown[0], b=shown[1], autojunk=False).get_opcodes()
    parts: tuple[list[Part], list[Part]] = ([], [])
    for number, (tag, first, last, other_first, other_last) in enumerate(matches, start=1):
        # If one text was cut, words at the very end of the other text are not a difference.
        by_the_cut = number == len(matches) and ((tag == "delete" and cut[1]) or (tag == "insert" and cut[0]))
        parts[0].append((tag != "equal" and not by_the_cut, shown[0][first:last]))
        parts[1].append((tag != "equal" and not by_the_cut, shown[1][other_first:other_last]))
    joined = [_joined(part, begin > 0, ends_early, styled) for part, ends_early in zip(parts, cut, strict=True)]
    return joined[0], joined[1]


def _fitting(words: list[str], characters: int) -> list[str]:
    """Return as many words as fit into `characters`, but at least the beginning of the first word."""

    def ends() -> Iterator[int]:
        end = -1
        for word in words:
            end += 1 + len(word)
            yield end

    count = sum(1 for _ in takewhile(lambda end: end <= characters, ends()))
    return words[:count] or [words[0][:characters]] if words else []


def _joined(parts: list[Part], starts_late: bool, ends_early: bool, styled: bool) -> Text:
    from rich.text import Text

    text = Text(f"{ELLIPSIS} " if starts_late else "")
    pieces = [(differs, " ".join(words)) for differs, words in parts if words]
    for index, (differs, piece) in enumerate(pieces):
        if index:
            text.append(" ")
        text.append(piece if styled or not differs else f"[[{piece}]]", style=DIFFERENCE_STYLE if differs else "")
    if ends_early:
        text.append(f" {ELLIPSIS}")
    return text
