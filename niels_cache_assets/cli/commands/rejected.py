"""The command `rejected NAME`. It prints the documents that cleaning dropped from a corpus, by reason, with the saved examples. `clean`
prints the same kind of table.
"""

from __future__ import annotations

import argparse
from collections import Counter

from niels_cache_assets.cli.command import PRETRAIN, Command, at_least
from niels_cache_assets.cli.console import output, print_json
from niels_cache_assets.cli.exit_codes import DONE
from niels_cache_assets.cli.reasons import check_reason, chosen_examples, examples_by_reason, print_examples, print_reasons
from niels_cache_assets.corpus.layout import REJECTED, REJECTED_NAME
from niels_cache_assets.show.wording import counted, share_of


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="a data set with a corpus")
    parser.add_argument("--reason", metavar="REASON", help="show this reason only")
    parser.add_argument("-n", metavar="N", dest="count", type=at_least(0), default=3, help="examples to print for each reason (default: 3)")


COMMAND = Command(
    usage="NAME ",
    description="""\
Show the documents that cleaning dropped from a data set: the number for each reason, and examples with
the measured value. A build saves 50 examples of each reason, sampled evenly over all documents that
were dropped for this reason.""",
    examples="""\
  niels-cache rejected wikipedia                        every reason, with three examples of each
  niels-cache rejected wikipedia --reason list_page -n 20
  niels-cache rejected wikipedia -n 0                   the counts only""",
    add_options=_add_options,
    offers={"name": PRETRAIN},
    has_json=True,
)


def run(arguments: argparse.Namespace) -> int:
    from niels_cache_assets.cli.context import open_registry
    from niels_cache_assets.corpus.prepared import open_documents
    from niels_cache_assets.corpus.report import documents_given
    from niels_cache_assets.show.corpora import find_corpus

    registry, root = open_registry(arguments)
    directory, meta = find_corpus(registry, root, arguments.name)
    by_source: Counter[str] = Counter(meta["dropped_by_source"])
    dropped: Counter[str] = Counter(meta["dropped"])
    if arguments.reason is not None:
        check_reason(arguments.reason, dropped)
    with open_documents(directory / REJECTED_NAME) as parquet:
        examples = examples_by_reason(parquet.read(columns=list(REJECTED)).to_pylist())
    if arguments.json:
        print_json(
            {
                "name": arguments.name,
                "read": documents_given(meta),
                "kept": meta["documents"]["kept"],
                "dropped": dropped if arguments.reason is None else {arguments.reason: dropped[arguments.reason]},
                "examples": chosen_examples(examples, count=arguments.count, reason=arguments.reason),
            }
        )
        return DONE
    console = output()
    kept, given = meta["documents"]["kept"], documents_given(meta)
    console.print(f"{arguments.name}: {counted(given, 'document')} read, {kept:,} kept", style="bold", soft_wrap=True)
    if arguments.reason is None:
        print_reasons(console, kept=kept, by_cleaning=dropped - by_source, by_source=by_source)
    else:
        count = dropped[arguments.reason]
        console.print(f"{arguments.reason}: {counted(count, 'document')}, {share_of(count, given)} of those read", soft_wrap=True)
        if count and arguments.reason not in examples:
            console.print("these documents were dropped while the source was read; no examples of them are saved", style="dim")
    print_examples(console, examples, count=arguments.count, reason=arguments.reason)
    return DONE
