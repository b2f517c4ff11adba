"""The command `push NAME ADDRESS`, which publishes a cache in an object store."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from niels_cache_assets.base.wording import SHORT_SHA256, file_size, format_count, format_list
from niels_cache_assets.cli.command import DATA_SETS, Command, option, refuse_options, switch
from niels_cache_assets.cli.console import display, print_facts

if TYPE_CHECKING:
    from niels_cache_assets.publish.push import PruneResult, PushResult


COMMAND = Command(
    options=(
        option("name", "NAME", "a built data set"),
        option("address", "ADDRESS", "s3://BUCKET/PREFIX, gs://, az://, file:///PATH or hf://datasets/OWNER/NAME"),
        switch("--replace", "replace another build of this data set at the address"),
        switch("--repair", "also read the objects at the address, and upload damaged ones again"),
        switch("--prune", "afterwards, delete older builds at the address"),
    ),
    usage="NAME ADDRESS ",
    description="""\
Publish a cache and its tokenizer to an object store. Requires obstore: pip install
"niels-cache[remote]".

Credentials and endpoint come from the variables that obstore reads, such as AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT. s3:// and gs:// are tested with local servers;
az:// is untested.

push uploads each file with its sha256, and writes meta.json last, so readers see either the whole build
or nothing. If push is interrupted, run it again: it uploads only the missing files. With --replace, the
old build is kept until --prune, because a job may still be reading it.

For hf://datasets/OWNER/NAME, push makes one commit with the cache and a data card. If the repository
does not exist, push creates a private one. The token comes from HF_TOKEN or the huggingface_hub login.""",
    examples="""\
  niels-cache push wikitext s3://bucket/caches/wikitext            publish a cache
  niels-cache push wikitext s3://bucket/caches/wikitext --replace  replace it with a newer build
  niels-cache push wikitext hf://datasets/ours/wikitext            publish it on the hub, with a data card""",
    offers={"name": DATA_SETS},
)


def run(arguments: argparse.Namespace) -> None:
    """Push the cache, and prune if --prune is given."""
    from niels_cache_assets.cli.context import find_cache, open_registry
    from niels_cache_assets.cli.progress import transfer_progress
    from niels_cache_assets.publish.hub import SCHEME, address_at, push_to_hub
    from niels_cache_assets.publish.push import open_local_build, prune, push

    on_hub = arguments.address.startswith(SCHEME)
    if on_hub:
        refuse_options(arguments, ["prune"], "the hub keeps older builds in its history; leave it out")
        refuse_options(arguments, ["repair"], "only for an object store; the hub compares each file with its hash; leave it out")
    address = address_at(arguments.address)
    registry, root = open_registry(arguments)
    cache = find_cache(registry, root, arguments.name, kinds=("pretrain", "sft"))
    build = open_local_build(cache.directory)
    with transfer_progress(f"pushing {cache.name}") as progress:
        if on_hub:
            license = registry.publish.licenses.get(cache.name)
            pushed = push_to_hub(build, address, license=license, replace_other=arguments.replace, progress=progress)
        else:
            pushed = push(build, address, replace_other=arguments.replace, repair=arguments.repair, progress=progress)
        pruned = prune(address) if arguments.prune else None
    facts = {
        "address": address,
        "data_set": f"{pushed.record.family}/{pushed.record.name}",
        "content_sha256": pushed.record.content_sha256,
        "state": pushed.state,
        "files": pushed.files,
        "sent": pushed.sent,
        "sent_bytes": pushed.sent_bytes,
        "pruned": pruned,
    }
    if not print_facts(arguments, facts):
        for line in _lines(address, pushed, pruned):
            display(line)


def _lines(address: str, pushed: PushResult, pruned: PruneResult | None) -> Iterator[str]:
    record = pushed.record
    yield f"{address}: {record.family}/{record.name}, build {record.content_sha256[:SHORT_SHA256]}: {pushed.state}"
    yield f"{format_count(pushed.sent, 'file')} of {pushed.files:,} sent, {file_size(pushed.sent_bytes)}; the others were there"
    if record.previous and pruned is None:
        yield f"older builds there: {format_list([each[:SHORT_SHA256] for each in record.previous])}; --prune deletes them"
    if pruned is not None:
        builds, objects = format_count(len(pruned.builds), "older build"), format_count(pruned.objects, "object")
        yield f"{builds} deleted: {objects}, {file_size(pruned.bytes)}"
        if pruned.kept:
            names = format_list([each[:SHORT_SHA256] for each in pruned.kept])
            yield f"kept, because a push may be running or was cut less than a day ago: {names}"
