"""The command `tune NAME`. It writes one HTML page, or JSON, for the choice of limits and thresholds. corpus/tuning makes the content."""

from __future__ import annotations

import argparse
import webbrowser
from pathlib import Path

from niels_cache_assets.cli.command import PRETRAIN, SEED_HELP, Command, whole_number
from niels_cache_assets.cli.console import output, print_json, warnings
from niels_cache_assets.cli.exit_codes import DONE


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="a data set with a corpus")
    parser.add_argument("--out", metavar="FILE", help="the page to write (default: reports/tune/NAME.html in the cache directory)")
    parser.add_argument("--open", action="store_true", help="open the page in the browser")
    parser.add_argument("--seed", metavar="N", type=whole_number, default=0, help=f"{SEED_HELP}; only large data sets are sampled")


COMMAND = Command(
    usage="NAME ",
    description="""\
Write one HTML page that helps to choose the limits of [cleaning] and the threshold of [dedup]. For each
limit, the page has the histogram of its measure, the documents that another limit would win or lose,
and documents on both sides. For duplicates, it has the histogram of similarity, the documents lost at
each threshold, and pairs on both sides. It also has the languages of all documents.

Everything comes from signatures and measures that the corpus has stored: no text is cleaned or signed
again. The page is a single file that you can send to others; it holds excerpts of documents.""",
    examples="""\
  niels-cache tune wikipedia --open
  niels-cache tune wikipedia --out wikipedia.html
  niels-cache tune wikipedia --json        for programs; the page is written only with --out""",
    add_options=_add_options,
    offers={"name": PRETRAIN},
    has_json=True,
)


def run(arguments: argparse.Namespace) -> int:
    from niels_cache_assets.cli.context import open_registry
    from niels_cache_assets.corpus.tuning.facts import tuning
    from niels_cache_assets.show.corpora import find_corpus
    from niels_cache_assets.show.reports.page import write_page
    from niels_cache_assets.show.reports.tuning import render_tuning, tuning_path

    registry, root = open_registry(arguments)
    find_corpus(registry, root, arguments.name)  # its messages say what to build
    found = tuning(registry, arguments.name, root=root, seed=arguments.seed)
    path = Path(arguments.out).expanduser() if arguments.out else tuning_path(root, arguments.name)
    if arguments.out or not arguments.json:
        write_page(path, render_tuning(found))
    if arguments.json:
        print_json(found)
    else:
        output().print(f"{path}: {found['documents']:,} documents read, {found['kept']:,} cleaned", soft_wrap=True)
    if arguments.open and not webbrowser.open(path.absolute().as_uri()):
        warnings().print(f"no browser was found; open {path.absolute()} yourself", soft_wrap=True)
    return DONE
