"""The check of a receipt: whether what was erased is still absent. It needs no network, and not the erased text.

Without the key of the receipt, builds are compared with those that were searched when the receipt was written: their content has the same
hash, and their files have the hashes in their meta.json. With the key, everything is searched again for the prints in the receipt, so that
newer builds are covered too.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from niels_cache_assets.project.registry import Registry
from niels_cache_inspection.erasure.prints import KeyedTexts, keyed
from niels_cache_inspection.erasure.receipt import Receipt, signature_problem
from niels_cache_inspection.erasure.scanning import Scan
from niels_cache_inspection.erasure.texts import cache_folders, meta_of
from niels_cache_runtime.verify import verify_dataset


@dataclass(frozen=True)
class _KeyedIds:
    """The ids of a receipt, which `in` compares."""

    key: bytes
    digests: frozenset[str]

    def __contains__(self, item: object) -> bool:
        return keyed(self.key, json.dumps(item).encode()) in self.digests


@dataclass(kw_only=True)
class ReceiptCheck:
    """What a check has found.

    Attributes:
        problems: What is there that should not be, or is not as it was, a line each.
        unknown: What the check cannot say anything about, a line each.
        notes: What was checked, a line each.
    """

    problems: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def check_receipt(
    receipt: Receipt,
    registry: Registry,
    root: Path,
    *,
    key: bytes | None,
    public_key: Path | None = None,
    folders: tuple[Path, ...] = (),
    progress: Callable[[str], None] = lambda line: None,
) -> ReceiptCheck:
    """Check a receipt against a cache root.

    Args:
        receipt: The receipt.
        registry: The configuration.
        root: The cache root.
        key: The key of the receipt, or None.
        public_key: The file of the public key that must have signed it, or None.
        folders: See `Scan`.
        progress: See `Scan`.

    Raises:
        NielsCacheError: If the signature cannot be checked.
    """
    check = ReceiptCheck()
    if public_key is not None or "signature" in receipt:
        if problem := signature_problem(receipt, public_key):
            check.problems.append(f"signature: {problem}")
        else:
            check.notes.append("the signature is that of " + (str(public_key) if public_key else "the key in the receipt"))
    if not receipt["is_absent"] and key is None:
        check.problems.append("the receipt itself says that not everything was erased")
    _compare_builds(check, receipt, root, progress, has_key=key is not None)
    if key is not None:
        _search(check, receipt, registry, root, key, folders, progress)
    check.unknown += [f"{each['what']}: {each['where']}" for each in receipt["remaining"] if each["what"] != "source"]
    return check


def _compare_builds(check: ReceiptCheck, receipt: Receipt, root: Path, progress: Callable[[str], None], *, has_key: bool) -> None:
    known = {each["folder"]: each for each in receipt["builds_after"]}
    names, same = {each["data_set"] for each in receipt["builds_after"]}, 0
    folders = [each.directory for each in cache_folders(root) if each.name in names]
    folders += [root / folder for folder in known if folder.startswith("corpus/")]
    for folder in folders:
        place, meta = folder.relative_to(root).as_posix(), meta_of(folder)
        if meta is None:
            continue
        progress(f"hashing {place}")
        if place not in known or known[place].get("content_sha256") != meta.get("content_sha256"):
            if not has_key:
                check.unknown.append(f"{place}: was built after the receipt; the key of the receipt finds out what is in it (--key)")
        elif findings := verify_dataset(folder):
            check.problems.append(f"{place}: its files are not those that were searched: {findings[0]}")
        else:
            same += 1
    check.notes.append(f"{same} of {len(known)} builds are byte for byte those that were searched when the receipt was written")


def _search(
    check: ReceiptCheck,
    receipt: Receipt,
    registry: Registry,
    root: Path,
    key: bytes,
    folders: tuple[Path, ...],
    progress: Callable[[str], None],
) -> None:
    ids = _KeyedIds(key, frozenset(each["id"] for each in receipt["documents"]))
    scan = Scan(registry=registry, root=root, wanted=KeyedTexts(key, receipt["prints"]), ids=ids, folders=folders, progress=progress)
    scan.run(sources=False)
    for each in scan.documents:
        where = each.place if each.split is None else f"{each.family}/{each.name}, {each.split} document {each.number}"
        check.problems.append(f"{where}: {'has one of the ids' if each.relation == 'id' else f'has {each.share:.0%} of an erased text'}")
    check.problems += [f"{each.path}: has pieces of erased texts" for each in scan.files]
    check.unknown += [f"{what}: {why}" for what, why in scan.unread]
    counts = scan.counts
    check.notes.append(
        f"searched {counts['files']:,} files and {counts['documents']:,} documents for {len(receipt['documents']):,} erased ones"
    )
    if scan.shared:
        check.notes.append(f"{scan.shared:,} other documents share a passage with an erased one")
    if receipt["too_short_to_search"]:
        check.unknown.append(f"{receipt['too_short_to_search']} erased texts are too short to be searched; only their ids were")
