"""The base class of sources that have a list of files, and can therefore be divided into parts. This module opens no file."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from niels_cache_assets.sources.added import added_problem
from niels_cache_assets.sources.reading.listed import ListedFile
from niels_cache_assets.sources.types import PretrainSource

if TYPE_CHECKING:
    from niels_cache_assets.sources.reading.files import SourceFile


class SourceWithParts(PretrainSource):
    """A table of [pretrain.*] of a kind that lists its files."""

    @abstractmethod
    def list_files(self, revision: str | None, *, hashed: bool = True) -> list[ListedFile]:
        """Return the files of the data set at this revision, in the order in which parts read them.

        Hashes local files, or asks upstream. hashed: if False, files are not hashed, and files of the user have an empty digest. Raises
        NielsCacheError for files that cannot be read in parts.
        """

    @abstractmethod
    def list_added(self, number: int, revision: str | None, *, hashed: bool = True) -> list[ListedFile]:
        """Return the files of one table `added`, like `list_files`. Those of `list_files` are never among them."""

    @abstractmethod
    def revision_of_files(self, number: int, revision: str | None) -> str | None:
        """Return the revision of one group of files. number: 0 for the first files, then the tables `added`. revision: of the data set."""

    @abstractmethod
    def located(self, files: Sequence[ListedFile], revision: str | None) -> list[SourceFile]:
        """Return listed files with addresses that open them. Raises NielsCacheError for a missing file."""

    @abstractmethod
    def file_reader(self, names: Sequence[str]) -> Any:
        """Return the RowFileSource that reads `StreamContext.files`, which have these names. It keeps their order; the builder shuffles."""

    def every_file(self) -> list[SourceFile]:
        """Return the files of the user, with those of the tables `added`."""
        return self.input_files()

    def _refuse_for_parts(self) -> None:
        if self.prepare:
            if self.added:
                raise ValueError("added parts cannot be combined with prepare yet; remove one of them")
            if self.tokens_in_parts:
                self._refuse_for_tokens_in_parts()
            return
        if self.tokens_in_parts:
            raise ValueError("tokens_in_parts does nothing without prepare, because the tokens are in parts already; remove it")
        for key, tokens in (("train_tokens", self.train_tokens), ("val_tokens", self.val_tokens)):
            if tokens and tokens < self.parts:
                raise ValueError(f"{key} = {tokens} is fewer than one token for each of {self.parts} parts; raise it, or lower parts")
        if problem := added_problem(self.added, has_budgets=not self.has_own_splits and self.seeded_val_frac is None):
            raise ValueError(problem)
        if self.added and self.decontaminate != "off" and (self.parts == 1 or self.seeded_val_frac is not None):
            raise ValueError(
                "added with decontaminate needs parts above 1 and val_tokens, because val would have to be found again otherwise; "
                'make a data set of the new files, or set decontaminate = "off" (which builds all parts again)'
            )

    def _refuse_for_tokens_in_parts(self) -> None:
        """Raise ValueError if a part would need to know what the other parts hold."""
        for key, tokens in (("train_tokens", self.train_tokens), ("val_tokens", self.val_tokens)):
            if tokens is not None:
                raise ValueError(
                    f"tokens_in_parts cannot be combined with {key}, because it divides no budgets; use val_frac, or remove it"
                )
        if self.decontaminate != "off":
            raise ValueError('tokens_in_parts cannot be combined with decontaminate; use prepare = [..., "dedup"], or remove it')
