"""The command `plan`, which shows how full the rows are if the documents of a pretrain split are packed whole, and makes plans ahead."""

from __future__ import annotations

import argparse
from dataclasses import replace

from niels_cache_assets.cli.command import PRETRAIN, Command, fraction, integer_at_least, option, switch
from niels_cache_assets.cli.console import display, new_table, print_facts

_LENGTHS = (1024, 2048, 4096, 8192)
_MUCH = 0.05  # of the inputs
_COLUMNS = ("T", "rows", "least rows", "padding", "documents", "cut", "pieces", "left out")


COMMAND = Command(
    options=(
        option("name", "NAME", "a pretrain data set"),
        option("--T", "T", "inputs per row (default: 1024 2048 4096 8192)", nargs="+", type=integer_at_least(1)),
        option("--split", "SPLIT", "train or val (default: train)", choices=("train", "val")),
        option("--blocks", "N", "for an order in blocks of N shards (default: for an order of the whole split)", type=integer_at_least(1)),
        option("--max-documents", "N", "for TokenLoader(max_documents=N)", type=integer_at_least(1)),
        option("--pad-documents-to", "P", "for BestFit(pad_documents_to=P)", type=integer_at_least(2)),
        switch("--bos-on-pieces", "for BestFit(bos_on_pieces=True)"),
        option("--fim", "RATE", "for TokenLoader(fim=FIM(rate=RATE))", type=fraction),
        switch("--write", "also write the plans, so that no training run has to wait for them"),
    ),
    usage="NAME ",
    description="""\
Show the rows of TokenLoader(packing="best_fit") for several T. No token is read.

least rows  what no packing can be below
padding     the share of the inputs
cut         documents of more than T+1 tokens, which are cut into pieces
left out    documents of one token, in which there is nothing to learn

plan warns if more than 5% of the inputs are padding. With --write, the plans are written to index/ of the
cache directory, where a TokenLoader finds them.""",
    examples="""\
  niels-cache plan wikitext                             for T = 1024, 2048, 4096 and 8192
  niels-cache plan wikitext --T 2048 --write            write the plan before training starts
  niels-cache plan wikitext --T 2048 --blocks 64        for TokenLoader(order=Blocks(shards=64))
  niels-cache plan wikitext --T 8192 --max-documents 64  what a limit of documents per row costs""",
    offers={"name": PRETRAIN},
)


def run(arguments: argparse.Namespace) -> None:
    """Print the counts of each plan, and with --write open it, which writes it."""
    from niels_cache_assets.cli.console import warnings
    from niels_cache_assets.cli.context import find_cache, open_registry
    from niels_cache_runtime import FIM
    from niels_cache_runtime.loader.packing.documents import DocumentPacking, PackedDocuments, count_rows
    from niels_cache_runtime.loader.settings import PLAN_SETTINGS

    cache = find_cache(*open_registry(arguments), arguments.name, kinds=("pretrain",))
    folder = str(cache.directory / (arguments.split or "train"))
    if arguments.fim is not None:  # the plan does not depend on the ids
        arguments.fim = dict(vars(FIM(rate=arguments.fim, pre=0, suf=1, mid=2)))
    changes = tuple((name, value) for name in PLAN_SETTINGS if (value := getattr(arguments, name)))
    packing = DocumentPacking(seed=None, block_files=arguments.blocks, changes=changes)
    plans = [count_rows(folder, T=T, packing=packing) for T in arguments.T or _LENGTHS]
    if arguments.write:
        index = str(cache.directory.parents[1] / "index")  # named, so that a plan that cannot be written is an error
        for plan in plans:
            PackedDocuments(folder, T=plan.T, packing=replace(packing, plans=index))
    if print_facts(arguments, {"plans": [{**plan._asdict(), "padding": plan.padding} for plan in plans]}):
        return
    table = new_table(*_COLUMNS, right=_COLUMNS)
    for plan in plans:
        counts = (plan.documents, plan.cut, plan.pieces, plan.left_out)
        table.add_row(str(plan.T), f"{plan.rows:,}", f"{plan.least_rows:,}", f"{plan.padding:.2%}", *(f"{count:,}" for count in counts))
    display(table)
    best = min(plans, key=lambda plan: plan.padding)
    for plan in plans:
        if plan.padding > _MUCH:
            other = f"T={best.T} has {best.padding:.2%}, and windows" if best.padding < plan.padding / 2 else "windows"
            warnings().print(f"T={plan.T}: {plan.padding:.2%} of the inputs are padding; {other} (without packing) have none")
