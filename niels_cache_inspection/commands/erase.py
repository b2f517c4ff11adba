"""The command `erase`, which removes documents from everything that was built, with a receipt, and `erase verify RECEIPT`."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from niels_cache_assets.base.wording import format_count
from niels_cache_assets.cli.command import DATA_SETS, DONE, FAILED, WHERE, Command, option, refuse_options, switch
from niels_cache_assets.cli.console import diagnostics, display, new_table, print_facts, print_log_line
from niels_cache_runtime.errors import NielsCacheError

if TYPE_CHECKING:
    from niels_cache_assets.project.registry import Registry
    from niels_cache_inspection.erasure.targets import Target, Targets

_SHOWN = 20

COMMAND = Command(
    options=(
        option("action", "verify RECEIPT", "check by a receipt that what was erased is still absent", nargs="*"),
        [
            option("--id", "ID", "erase the document with this source id; repeatable", action="append"),
            option("--text", "TEXT", "erase all documents that contain this text"),
            option("--file", "FILE", "erase all documents that contain the text of this file"),
            option("--where", "CONDITION", "erase all documents whose columns meet a condition, such as \"url == 'https://...'\""),
        ],
        option("--dataset", "NAME", "the data set of --id or --where"),
        switch("--near", "also erase near copies, without asking"),
        option("--by", "WHO", "who asks for it, for the receipt"),
        option("--why", "REASON", "why, for the receipt"),
        option("--state", "CKPT", "name in the receipt the steps that had read the documents, by these states", nargs="+", action="extend"),
        option("--receipt", "FILE", "where to write the receipt (default: erasure.json)", default="erasure.json"),
        option("--sign", "KEY", "sign the receipt with this Ed25519 key in PEM"),
        switch("--tombstone", "strike the documents out of finished caches in place, so that a run in the middle can go on"),
        switch("--dry-run", "show what would be erased, and change nothing"),
        switch("--yes", "erase without asking"),
        switch("--sources", "also search remote sources, which streams them"),
        option("--also", "PATH", "also search this folder, such as an export or a local copy; repeatable", action="append", default=[]),
        option("--published", "ADDRESS", "also replace the build at this address; repeatable", action="append"),
    ),
    groups={
        "verify": [
            option("--key", "FILE", "the key of the receipt (default: RECEIPT.key if it exists)"),
            option("--public-key", "FILE", "the public key in PEM that must have signed the receipt"),
        ]
    },
    usage="[verify RECEIPT] ",
    description="""\
Erase documents, with their copies, from sources' caches, corpora, mixtures and published builds, prove
that they are gone, and write a receipt. What would be erased is shown first, and you are asked; near
copies are asked about separately.

The ids go into `exclude`, the data sets are built again, everything in the cache root and in Dagster's
home is searched again, unfinished builds and old published builds are deleted, and the receipt is
written. After an interruption, type the same command: it goes on. Your source files are not changed;
the receipt names their rows. What cannot be reached is named too (docs/erase.md).""",
    examples="""\
  niels-cache erase --text "a paragraph of the document" --dry-run  what would be erased
  niels-cache erase --id 7a1f --dataset web --by "J. Doe" --why "request of 3 May"
  niels-cache erase verify erasure.json                             prove its absence again""",
    offers={"dataset": DATA_SETS},
)


def run(arguments: argparse.Namespace) -> int:
    """Erase, or check a receipt."""
    from niels_cache_assets.cli.context import open_registry

    if arguments.action:
        if arguments.action[0] != "verify" or len(arguments.action) != 2:
            raise NielsCacheError(f"{WHERE}: erase takes only options, or verify RECEIPT")
        return _verify(arguments)
    refuse_options(arguments, ["key", "public_key"], "is for erase verify RECEIPT; leave it out")
    registry, root = open_registry(arguments)
    if registry.build.store is not None:
        raise NielsCacheError(f"{registry.origin}: erase needs caches in folders, and [build] store is set")
    return _erase(arguments, registry, root)


def _erase(arguments: argparse.Namespace, registry: Registry, root: Path) -> int:
    from niels_cache_assets.project.registry import load_registry
    from niels_cache_inspection.erasure.receipt import key_path, load_signing_key
    from niels_cache_inspection.erasure.targets import ErasureRequest, find_targets
    from niels_cache_inspection.erasure.work import Erasure, ErasureState, state_path

    receipt = Path(arguments.receipt)
    signing_key = None if arguments.sign is None else Path(arguments.sign)
    if signing_key is not None:
        load_signing_key(signing_key)
    with diagnostics().status("searching") as status:

        def progress(line: str) -> None:
            status.update(line)

        erasure = Erasure(
            registry=lambda: load_registry(profile=arguments.profile, config=arguments.config),
            root=root,
            receipt=receipt,
            build=_launch,
            folders=_folders(arguments),
            signing_key=signing_key,
            published=tuple(arguments.published or ()),
            progress=progress,
        )
        text = _text(arguments)
        request = ErasureRequest(
            ids=tuple(arguments.id or ()),
            text=text,
            where=arguments.where,
            dataset=arguments.dataset,
            by=arguments.by or "",
            why=arguments.why or "",
        )
        is_named = bool(request.ids or text or request.where)
        if state_path(receipt).exists():
            state = ErasureState.load(state_path(receipt))
            asked = request.digest(bytes.fromhex(state.key)), arguments.tombstone
            other = "of another request " if is_named and asked != (state.request, state.tombstone) else ""
            if other or arguments.dry_run:
                raise NielsCacheError(
                    f"{state_path(receipt)}: an erasure {other}that was confirmed at {state.started} is unfinished; finish it: "
                    f"niels-cache erase --receipt {shlex.quote(str(receipt))}; or choose another --receipt"
                )
            print_log_line(diagnostics(), f"going on with the erasure that was confirmed at {state.started}, at the step {state.step}")
            status.stop()
            return _finish(arguments, erasure.run(state))
        if existing := next((each for each in (receipt, key_path(receipt)) if each.exists()), None):
            raise NielsCacheError(f"{existing}: exists; choose another --receipt")
        if not is_named:
            raise NielsCacheError(f"{WHERE}: say what to erase: --id, --text, --file or --where")
        targets = find_targets(request, registry, root, folders=_folders(arguments), with_remote=arguments.sources, progress=progress)
    near = _confirm(arguments, targets)
    if near is None:
        return DONE
    state = erasure.begin(request, targets, near=near, states=arguments.state or (), tombstone=arguments.tombstone)
    return _finish(arguments, erasure.run(state))


def _text(arguments: argparse.Namespace) -> str | None:
    if arguments.file is None:
        return arguments.text or None
    try:
        return Path(arguments.file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise NielsCacheError(f"{WHERE}: --file {arguments.file}: cannot be read as UTF-8 text: {error}") from error


def _folders(arguments: argparse.Namespace) -> tuple[Path, ...]:
    from niels_cache_assets.defs.home.found import dagster_home

    also = [Path(each) for each in arguments.also]
    if missing := next((each for each in also if not each.exists()), None):
        raise NielsCacheError(f"{WHERE}: --also {missing}: does not exist")
    home = dagster_home()
    return (*([home] if home.is_dir() else []), *also)


def _launch(registry: Registry, root: Path, names: Sequence[str]) -> Mapping[str, str]:
    """Build data sets, as build-all does."""
    from niels_cache_assets.cli.progress import build_listener
    from niels_cache_assets.defs.launcher import launch_builds

    with build_listener(diagnostics()) as listener:
        results = launch_builds(registry, root=root, only=[*names], listener=listener)
    return {each.name: each.message or each.state for each in results if each.state in ("failed", "skipped")}


def _confirm(arguments: argparse.Namespace, targets: Targets) -> bool | None:
    """Show what would be erased, and return whether near copies are erased too, or None if nothing is to be erased."""
    facts = {
        "documents": [_facts(each) for each in targets.sure],
        "near": [_facts(each) for each in targets.near],
        "files": [str(each.path) for each in targets.files],
        "sharing_a_passage": targets.shared,
        "searched": targets.counts,
        "not_searched": [{"what": what, "why": why} for what, why in targets.unread],
    }
    can_ask = arguments.yes or (_is_terminal() and not arguments.json)
    if arguments.dry_run or not can_ask:
        if not print_facts(arguments, {"changed": False, **facts}):
            _print_targets(targets)
            display(
                "nothing was changed" + ("" if arguments.dry_run else "; --yes erases them without asking, and --near also near copies")
            )
        return None
    if not arguments.json:
        _print_targets(targets)
    if not targets.sure and arguments.yes and not arguments.near:
        raise NielsCacheError("there are only near copies; add --near to erase them; nothing was changed")
    if arguments.yes:
        return bool(arguments.near) and bool(targets.near)
    near = bool(targets.near) and (arguments.near or _ask(f"erase the near copies ({len(targets.near):,}), too?"))
    count = len(targets.sure) + near * len(targets.near)
    if not count or not _ask(f"erase {format_count(count, 'document')} and build the data sets again?"):
        display("nothing was changed")
        return None
    return near


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


def _ask(question: str) -> bool:
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")


def _facts(target: Target) -> dict[str, Any]:
    return {
        "data_set": f"{target.family}/{target.name}",
        "id": target.source_id,
        "file": target.file,
        "row": target.row,
        "relation": target.relation,
        "share": round(target.share, 3),
        "places": target.places,
        "excerpt": target.excerpt,
    }


def _print_targets(targets: Targets) -> None:
    for title, found in (("documents to erase", targets.sure), ("near copies", targets.near)):
        if not found:
            continue
        table = new_table("data set", "id", "share", "found in", "text", right=["share"], shrinking=["text", "found in"])
        for each in found[:_SHOWN]:
            places = ", ".join(each.places)
            table.add_row(f"{each.family}/{each.name}", each.source_id, f"{each.share:.0%}", places, each.excerpt)
        display(f"{title}: {len(found):,}", style="bold")
        display(table)
        if len(found) > _SHOWN:
            display(f"and {len(found) - _SHOWN:,} more; --json lists all")
    for file in targets.files:
        display(f"pieces of these texts are also in {file.path}")
    if targets.shared:
        display(f"{targets.shared:,} other documents share a passage with them, and stay")
    for what, why in targets.unread:
        display(f"not searched: {what}: {why}", style="yellow")


def _finish(arguments: argparse.Namespace, receipt: Mapping[str, Any]) -> int:
    code = DONE if receipt["is_absent"] else FAILED
    if print_facts(arguments, {"receipt": arguments.receipt, **receipt}):
        return code
    counts = receipt["searched"]
    count = format_count(len(receipt["documents"]), "document")
    if receipt["is_absent"]:
        searched = f"{format_count(counts['files'], 'file')} and {format_count(counts['documents'], 'document')}"
        display(f"erased {count}; nothing of it is in {searched}", style="green")
    elif any(each["what"] == "still there" for each in receipt["remaining"]):
        display(f"{count}: not everything is erased", style="red")
    else:
        display(f"erased {count}; nothing of it was found, but not everything could be searched", style="red")
    if receipt["val_chosen_again"]:
        names = ", ".join(receipt["val_chosen_again"])
        display(f"val of {names} was chosen again: documents may have moved between train and val, so an earlier model may know them")
    for each in receipt["remaining"]:
        display(f"remains: {each['what']}: {each['where']}; {each['advice']}")
    for each in receipt["not_searched"]:
        display(f"not searched: {each['what']}: {each['why']}", style="yellow")
    display(f"receipt: {arguments.receipt}; keep {arguments.receipt}.key apart from it, as secret as the documents were")
    return code


def _verify(arguments: argparse.Namespace) -> int:
    from niels_cache_assets.cli.context import open_registry
    from niels_cache_inspection.erasure.receipt import key_path, read_key, read_receipt
    from niels_cache_inspection.erasure.verifying import check_receipt

    erasing = [
        "id",
        "text",
        "file",
        "where",
        "dataset",
        "near",
        "by",
        "why",
        "state",
        "sign",
        "tombstone",
        "dry_run",
        "yes",
        "sources",
        "published",
    ]
    refuse_options(arguments, erasing, "is not for erase verify; leave it out")
    path = Path(arguments.action[1])
    receipt = read_receipt(path)
    key_file = Path(arguments.key) if arguments.key else key_path(path)
    key = read_key(key_file) if arguments.key or key_file.exists() else None
    registry, root = open_registry(arguments)
    with diagnostics().status("searching") as status:
        update: Callable[[str], None] = status.update
        check = check_receipt(
            receipt,
            registry,
            root,
            key=key,
            public_key=Path(arguments.public_key) if arguments.public_key else None,
            folders=_folders(arguments),
            progress=update,
        )
    code = FAILED if check.problems else DONE
    if print_facts(arguments, {"absent": not check.problems, "problems": check.problems, "unknown": check.unknown, "notes": check.notes}):
        return code
    for line in check.notes:
        display(line)
    for line in check.unknown:
        display(f"not known: {line}", style="yellow")
    for line in check.problems:
        display(line, style="red")
    display("not absent" if check.problems else "absent, as far as is known", style="red" if check.problems else "green")
    return code
