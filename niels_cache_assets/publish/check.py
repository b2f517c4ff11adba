"""The check of a published build against its own record.

Without `download`, only the sizes and the hashes that the store recorded are compared. That finds missing, truncated and replaced objects,
but the content of an object may differ from its recorded hash. With `download`, every byte is read and hashed, and nothing is written.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from niels_cache_assets.publish.transfer import OnBytesDone, Tally, run_in_threads
from niels_cache_runtime.format.layout import META_NAME
from niels_cache_runtime.remote.download import stream_with_retries
from niels_cache_runtime.remote.record import PublishedBuild, RemoteFile, read_published
from niels_cache_runtime.remote.store import MissingError, Store, open_store


@dataclass(frozen=True, kw_only=True)
class RemoteFinding:
    """A problem of a published build.

    Attributes:
        object: The address of the object.
        problem: What is wrong with it.
    """

    object: str
    problem: str

    def __str__(self) -> str:
        return f"{self.object}: {self.problem}"


@dataclass(frozen=True, kw_only=True)
class RemoteCheckResult:
    """The result of a check.

    Attributes:
        published: The build.
        findings: The problems, in the order of the files.
        is_proven: Whether the content of all objects was read.
    """

    published: PublishedBuild
    findings: Sequence[RemoteFinding]
    is_proven: bool


def check(address: str, *, download: bool = False, progress: OnBytesDone | None = None) -> RemoteCheckResult:
    """Compare the objects of a published build with its record.

    Args:
        address: The address of the build.
        download: Whether to read and hash every object.
        progress: Called with (bytes done, bytes in total).

    Raises:
        NielsCacheError: If nothing is published at the address, or if its record or meta.json is damaged.
        RemoteError: If the store refuses or does not answer.
    """
    store = open_store(address)
    published = read_published(store)
    folder = published.files[-1].key.partition("/")[0]
    sizes = {each.key: each.size for each in store.list(folder)}
    tally = Tally(sum(file.size for file in published.files), progress)

    def check_file(file: RemoteFile) -> str | None:
        problem = _problem(store, file, sizes.get(file.key))
        if problem is None and download:
            return content_problem(store, file, tally)
        tally.add(file.size)
        return problem

    problems = zip(published.files, run_in_threads(check_file, published.files, tally=tally), strict=True)
    findings = [RemoteFinding(object=store.name_of(file.key), problem=problem) for file, problem in problems if problem is not None]
    return RemoteCheckResult(published=published, findings=findings, is_proven=download)


def _problem(store: Store, file: RemoteFile, size: int | None) -> str | None:
    if size is None:
        return "is missing"
    if size != file.size:
        return f"has {size} bytes, but {META_NAME} says {file.size}"
    try:
        recorded = store.recorded_sha256(file.key)
    except MissingError:  # deleted after it was listed
        return "is missing"
    if recorded is None:
        return "has no recorded sha256; push the cache again"
    return None if recorded == file.sha256 else f"its recorded sha256 is not the one in {META_NAME}"


def content_problem(store: Store, file: RemoteFile, tally: Tally) -> str | None:
    """Read an object. Return a problem with its content, or None.

    Raises:
        RemoteError: If the store refuses or does not answer.
    """
    digest = hashlib.sha256()
    for piece in stream_with_retries(store, file, start=0, tally=tally):
        digest.update(piece)
    return (
        None if digest.hexdigest() == file.sha256 else f"its content does not have the sha256 in {META_NAME}; push --repair sends it again"
    )
