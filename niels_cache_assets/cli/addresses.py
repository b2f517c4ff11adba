"""Options of the commands that read a published cache at an address through a local copy, and the copy itself."""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from niels_cache_assets.cli.command import WHERE
from niels_cache_runtime.errors import NielsCacheError

if TYPE_CHECKING:
    from niels_cache_runtime.remote.local_copy import LocalCopy

_UNITS = {"": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_SIZE = re.compile(rf"([\d_]+(?:\.\d+)?)\s*({'|'.join(_UNITS)})")


def byte_count(text: str) -> int:
    """Return a number of bytes, such as 200GB, 1.5TiB or 1_000_000."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or not match[1].strip("_"):
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a number of bytes such as 200GB")
    return int(float(match[1]) * _UNITS[match[2]])


def add_copy_options(parser: argparse.ArgumentParser) -> None:
    """Add --local-dir and --limit-bytes."""
    parser.add_argument(
        "--local-dir", metavar="DIR", help="with an ADDRESS: the folder of a local copy (default: a temporary folder, deleted at the end)"
    )
    parser.add_argument(
        "--limit-bytes",
        metavar="SIZE",
        type=byte_count,
        help="with an ADDRESS: how much the copy may take, such as 200GB (default: no limit)",
    )


def refuse_copy_options(arguments: argparse.Namespace) -> None:
    """Raise NielsCacheError if an option for addresses is given without an address."""
    for option in ("local_dir", "limit_bytes"):
        if getattr(arguments, option) is not None:
            raise NielsCacheError(f"{WHERE}: --{option.replace('_', '-')}: only for an ADDRESS such as s3://BUCKET/PREFIX; leave it out")


@contextmanager
def copy_folder(arguments: argparse.Namespace) -> Iterator[str]:
    """Yield the folder of the local copy: --local-dir, or a temporary folder that is deleted at the end."""
    if arguments.local_dir is not None:
        yield arguments.local_dir
        return
    with tempfile.TemporaryDirectory(prefix="niels-cache-", ignore_cleanup_errors=True) as folder:
        yield folder


@contextmanager
def local_copy(arguments: argparse.Namespace) -> Iterator[LocalCopy]:
    """Yield the local copy that the options name. Its files stay until the end of the block."""
    from niels_cache_runtime.remote.local_copy import LocalCopy

    with copy_folder(arguments) as folder:
        copy = LocalCopy(folder, limit=arguments.limit_bytes)
        try:
            yield copy
        finally:
            copy.close()
