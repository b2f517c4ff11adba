"""The files of a data set in parts, as its plan lists them."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from niels_cache_runtime.format.layout import Split


class ListedFile(NamedTuple):
    """A file of a data set in parts, as its plan lists it.

    name: its name in the cache. bytes: its size, 0 if unknown. digest: changes with its content (a sha256, a git hash or an ETag).
    split: the split that upstream gives to its documents, or None.
    """

    name: str
    bytes: int
    digest: str
    split: Split | None


class FilesOfGroup(NamedTuple):
    """The files of parts that were planned together: the first parts, or those of one table `added`.

    listed: all files in their order. revision: of upstream, at which they were listed. text_field: the field of the text in every file, or
    None. parts: for each part, its files, and how many tokens its head gives to val.
    """

    listed: tuple[ListedFile, ...]
    revision: str | None
    text_field: str | None
    parts: tuple[tuple[tuple[ListedFile, ...], int], ...]


class MemberPlan(Protocol):
    """The plan of a data set in parts, for the mixtures that read the data set."""

    def revision(self) -> str | None:
        """Return the revision of the plan on disk, or None if there is no plan of these settings."""

    def settled_revision(self) -> str | None:
        """Return the revision of the plan on disk if builds keep this plan, although upstream may be newer. Otherwise return None."""

    def groups(self, revision: str | None) -> tuple[FilesOfGroup, ...]:
        """Return the files of the plan on disk, by group. If it has another revision, or is missing, list the files at this revision."""
