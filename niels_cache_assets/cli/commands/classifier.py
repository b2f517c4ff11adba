"""The commands `classifier train` and `classifier evaluate`: a classifier of fastText for the step FastText, and its report.

The code is in niels_cache_cleaning/classifier.py. `train` writes the classifier first, and then the page about it.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from niels_cache_assets.cli.command import WHERE, Command, fraction, integer_at_least, option, switch
from niels_cache_assets.cli.console import display, new_table, print_facts
from niels_cache_runtime.errors import NielsCacheError

BALANCES = ("sample", "repeat", "none")
_PATHS = "files, folders (as for `clean`) and names of data sets"

COMMAND = Command(
    options=(
        option("action", "ACTION", "train or evaluate", choices=("train", "evaluate")),
        option("model", "MODEL", "evaluate: the classifier", nargs="?"),
        option("--good", "PATH", f"good documents: {_PATHS}", nargs="+", required=True),
        option("--bad", "PATH", "bad documents", nargs="+", required=True),
        option("--out", "FILE", "train: the classifier to write, and a page FILE.html; evaluate: the page (MODEL.evaluation.html)"),
        switch("--force", "replace existing files"),
    ),
    groups={
        "documents": (
            option("--limit", "N", "only read the first N documents of each option", type=integer_at_least(1)),
            option("--text-field", "FIELD", "text field of rows in files (default: text, else the only possible field)"),
            option(
                "--held-out", "SHARE", "share of the texts to test on, by a hash of the text (default: 0.1; evaluate: 1)", type=fraction
            ),
            option(
                "--balance",
                "HOW",
                "how both sides get the same weight: sample fewer of the larger one, repeat the smaller one, or none (default: sample)",
                choices=BALANCES,
                default="sample",
            ),
        ),
        "report": (
            option("--on", "PATH", "documents to count at each threshold, such as those to filter (default: the held-out ones)", nargs="+"),
            option("--tokenizer", "MODEL", "count tokens of this model; `cache` is the one in the cache directory (default: words)"),
            option("--label", "LABEL", "evaluate: the label of good documents (default: __label__hq)", default="__label__hq"),
        ),
        "training": (
            option("--dim", "N", "numbers in a vector (default: 100)", type=integer_at_least(1), default=100),
            option("--epochs", "N", "times that each text is read (default: 5)", type=integer_at_least(1), default=5),
            option("--word-ngrams", "N", "longest n-gram of words (default: 1)", type=integer_at_least(1), default=1),
            option("--lr", "RATE", "learning rate (default: 0.1)", type=fraction, default=0.1),
            option(
                "--buckets",
                "N",
                "vectors that n-grams of two and more words share, 4 x dim bytes each (default: 2_000_000)",
                type=integer_at_least(1),
                default=2_000_000,
            ),
            option("--seed", "N", "seed of the order and of the first weights (default: 42)", type=integer_at_least(0), default=42),
        ),
    },
    usage="train|evaluate [MODEL] --good PATH ... --bad PATH ... ",
    description="""\
train: learn to tell good documents from bad ones with fastText, in one thread, and write the classifier
and a page about it beside it. The page and --json have precision, recall and F1 at each threshold, on
texts that were held out; how many documents, tokens and unique tokens stay; and excerpts of the documents
near each threshold and of the worst errors. The command prints the steps that score a data set.

evaluate: write the same page about a classifier. It needs documents that the classifier has not learned
from: others, or with the --held-out of its training, the texts that were held out then.

A data set with a corpus is read from its corpus, so build it first; any other from its source. Copies of
a text count once, and a text that is both good and bad is left out.""",
    examples="""\
  niels-cache classifier train --good wikipedia --bad web --out quality.bin
  niels-cache classifier train --good books/ --bad crawl/*.jsonl.gz --out quality.bin --word-ngrams 2 --on web
  niels-cache classifier evaluate quality.bin --good other.jsonl --bad more.jsonl --tokenizer cache

docs/classifiers.md explains the numbers.""",
)


def run(arguments: argparse.Namespace) -> None:
    """Train or evaluate, and write the page."""
    from niels_cache_assets.base.beside import load_beside
    from niels_cache_assets.base.processes import no_resume
    from niels_cache_assets.cli.commands.tokenizer import open_model
    from niels_cache_assets.cli.context import open_registry
    from niels_cache_assets.cli.detection import sources_of
    from niels_cache_assets.cli.progress import transfer_steps

    is_new = arguments.action == "train"
    if is_new == bool(arguments.model) or (is_new and not arguments.out):
        raise NielsCacheError(f"{WHERE}: train takes --out FILE and no MODEL; evaluate takes MODEL")
    model = Path(arguments.out if is_new else arguments.model)
    page = Path(f"{model}.html" if is_new else arguments.out or f"{model}.evaluation.html")
    held_out = (0.1 if is_new else 1.0) if arguments.held_out is None else arguments.held_out
    if not 0 < held_out < 1 + (not is_new) or arguments.lr <= 0:
        raise NielsCacheError(f"{WHERE}: --held-out is above 0 and below 1, and --lr is above 0")
    for path in (model, page) if is_new else (page,):
        if path.is_dir() or (path.exists() and not arguments.force):
            raise NielsCacheError(f"{path}: is there already; replace it with --force, or name another file with --out")
    pages = load_beside("pages", "page")
    pages.require_page(page)
    registry, root = open_registry(arguments)
    classifier = load_beside("cleaning", "classifier")
    given = load_beside("cleaning", "classifier_inputs").documents_given(
        arguments, registry, root, partial(sources_of, text_field=arguments.text_field)
    )
    if arguments.tokenizer:
        given["tokenizer"] = open_model(arguments.tokenizer, registry, root)[1]
    with no_resume(), transfer_steps("reading") as progress:
        evaluation = classifier.Evaluation(**given, held_out=held_out, similarity=registry.dedup.threshold, progress=progress)
        report = evaluation.train(model, arguments) if is_new else evaluation.run(model, arguments.label)
    pages.write_page(page, load_beside("pages", "classifier").render(report))
    if print_facts(arguments, report):
        return
    for line in classifier.lines_about(report):
        display(line)
    head, *rows = classifier.rows_of(report)
    table = new_table(*head, right=head)
    for row in rows:
        table.add_row(*row)
    display(table)
    display(f"{page}: the documents near each threshold, and the worst errors; to score a data set, add to its table:", style="bold")
    display(classifier.table_entry(report, Path(registry.origin).parent))
