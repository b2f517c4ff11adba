"""The interface through which a mixture leaves out the val documents of its members. streaming/held_out.py finds these documents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from niels_cache_assets.documents import Document


class HeldOut(Protocol):
    """The val documents of the members of a mixture. `streaming.held_out` finds these documents before the mixture is read."""

    @property
    def seed(self) -> int:
        """The seed with which the members' own builds shuffle and split."""

    def find(
        self,
        name: str,
        *,
        documents: Callable[[], Iterable[Document]],
        heads: Callable[[], Iterable[tuple[int, Iterable[Document]]]] | None,
        log: Callable[[str], None],
    ) -> None:
        """Find the val documents of one member. Call this for all members before `sort`.

        heads: for a member in parts with val_tokens, the number of tokens that each part gives to val, and the documents of the part.
        """

    def sort(self, name: str, documents: Iterable[Document]) -> Iterator[tuple[Document, str | None]]:
        """Yield each document of a member with the reason to leave it out, or with None to keep it."""
