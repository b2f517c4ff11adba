"""A published build as a local copy sees it: the addresses of its files, and their paths in the copy.

    LOCAL_DIR/builds/CONTENT_SHA256/FAMILY/NAME/meta.json, train/shard_00000.bin, ...
    LOCAL_DIR/builds/CONTENT_SHA256/tokenizer/...

The folder of a build is therefore a cache root, and two builds never share a folder.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import (
    META_NAME,
    SPLITS,
    Split,
    doc_ends_name,
    file_edges_name,
    idx_name,
    shard_name,
    span_names,
    tokens_name,
)
from niels_cache_runtime.format.safe_open import OwnedFolder
from niels_cache_runtime.remote.ledger import BUILDS, LedgerState
from niels_cache_runtime.remote.record import (
    TOKENIZER,
    PublishedBuild,
    Record,
    RemoteFile,
    described_by,
    parse_record,
    published_of,
    read_published,
)
from niels_cache_runtime.remote.store import MissingError, check_address, open_store


@dataclass(frozen=True)
class CopiedBuild:
    """A published build, and where its files are in a local copy.

    Attributes:
        address: The address where the build was published.
        published: The record and the files of the build, and its meta.json.
    """

    address: str
    published: PublishedBuild

    @property
    def record(self) -> Record:
        """The record that names the build."""
        return self.published.record

    @property
    def id(self) -> str:
        """The name of the build: CONTENT_SHA256/FAMILY/NAME."""
        return f"{self.record.content_sha256}/{self.record.family}/{self.record.name}"

    @property
    def root(self) -> str:
        """The cache root of this build, relative to the copy."""
        return f"{BUILDS}/{self.record.content_sha256}"

    @cached_property
    def files(self) -> Mapping[str, RemoteFile]:
        """All files by their path, relative to the copy."""
        return {self.path_in_copy(file.path): file for file in self.published.files}

    def path_in_copy(self, path: str) -> str:
        """Return the path of a file, relative to the copy.

        Args:
            path: The path relative to the data set, or a path that begins with `tokenizer/`.
        """
        return f"{self.root}/{path}" if path.startswith(TOKENIZER) else f"{BUILDS}/{self.id}/{path}"

    def shards(self, split: str) -> list[RemoteFile]:
        """Return the shards of a pretrain split, in stream order."""
        shards = {file.path: file for file in self.published.data if file.path.startswith(f"{split}/")}
        return [shards[f"{split}/{shard_name(index)}"] for index in range(len(shards))]

    def split_files(self, split: Split) -> list[str]:
        """Return the files of a split, relative to the data set, with the document ends and the edges of files of a pretrain split."""
        if self.record.family == "sft":
            return [tokens_name(split), idx_name(split), *span_names(self.published.meta, split)]
        beside = (doc_ends_name(split), file_edges_name(split))
        return [*(file.path for file in self.shards(split)), *(name for name in beside if name in self.published.meta["files"])]

    def chosen(self, paths: Collection[str]) -> list[str]:
        """Return the files with these paths.

        Args:
            paths: Paths relative to the data set. A path that ends with a slash stands for all files below it.

        Raises:
            NielsCacheError: If the build has no file with one of these paths.
        """
        known = [file.path for file in self.published.files]
        folders = tuple(path for path in paths if path.endswith("/"))
        unknown = [path for path in paths if path not in known and path not in folders]
        if unknown:
            others = max(0, len(known) - 4)
            raise NielsCacheError(f"{self.address}: has no file {unknown[0]}; it has {', '.join(known[:4])} and {others} more")
        return [path for path in known if path in paths or path.startswith(folders)]


def slices(files: Sequence[RemoteFile], number: int, size: int, *, start: int = 0) -> Iterator[tuple[int, int, int]]:
    """Yield the parts of consecutive files that together are `size` bytes: the number of the file, its first byte, and the length.

    Args:
        files: The files, such as the shards of a split.
        number: The number of the file to begin in.
        size: The number of bytes.
        start: The first byte in that file.
    """
    while size:
        if length := min(files[number].size - start, size):
            yield number, start, length
        number, start, size = number + 1, 0, size - length


def split_address(address: str) -> tuple[str, Split | None]:
    """Return the address of a data set, and the split that the address names, or None.

    Raises:
        NielsCacheError: If the address is invalid, or is one that cannot be copied, such as `hf://...`.
    """
    if address.startswith("hf://"):
        raise NielsCacheError(f"{address}: cannot be read piece by piece; pull it: niels-cache pull {address} --out cache")
    address = check_address(address)
    above, _, last = address.rpartition("/")
    for split in SPLITS:
        if last == split:
            return check_address(above), split
    return address, None


def recorded_build(state: LedgerState, build: str, files: OwnedFolder, *, address: str) -> CopiedBuild:
    """Return a build that the copy already knows, without sending a request.

    Raises:
        NielsCacheError: If the meta.json or the objects.json of the build is missing or damaged.
    """
    record = parse_record(state.builds[build]["record"].encode(), f"{files.root}: the record of {address}")
    folder = f"{BUILDS}/{build}"
    names = described_by(record)
    try:
        contents = {name: files.read(f"{folder}/{name}") for name in names}
    except OSError as error:
        raise NielsCacheError(
            f"{files.root / folder}: {' or '.join(names)} cannot be read: {error.strerror or error}; "
            f"run again, or remove {files.root} if that fails too"
        ) from error
    return CopiedBuild(address, published_of(record, contents, str(files.root / folder / META_NAME)))


def try_both_addresses(address: str, open_at: Callable[[str], CopiedBuild]) -> tuple[CopiedBuild, Split | None]:
    """Open the build at an address, and return the split that the address names, or None.

    If nothing is published at ADDRESS of ADDRESS/train, the data set itself may have been pushed to ADDRESS/train.
    """
    cache, split = split_address(address)
    try:
        return open_at(cache), split
    except MissingError:
        if split is not None:
            with suppress(MissingError):
                return open_at(f"{cache}/{split}"), None
        raise


def published_build(address: str) -> tuple[CopiedBuild, Split | None]:
    """Return the build at an address, and the split that the address names, or None. This takes two or three requests."""
    return try_both_addresses(address, lambda cache: CopiedBuild(cache, read_published(open_store(cache))))
