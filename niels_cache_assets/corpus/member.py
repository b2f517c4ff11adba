"""Prepared data sets as members of others: in the place of the table, what reads its corpus minus its drop list."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import PrivateAttr

from niels_cache_assets.corpus.reading import PreparedCorpus, open_prepared
from niels_cache_assets.documents import Document
from niels_cache_assets.fingerprint import fingerprint_of
from niels_cache_assets.registry import Registry
from niels_cache_assets.sources.base import PretrainSource, StreamContext


class PreparedMember(PretrainSource):
    """A source that streams a prepared data set. Opens it when it is first asked for something, and stays with what it found then.

    So what it says of itself and what it streams, however often, are of one corpus and one drop list, or an error.
    """

    source: Literal["prepared"] = "prepared"
    _open: Callable[[], PreparedCorpus] = PrivateAttr()
    _opened: PreparedCorpus | None = PrivateAttr(None)

    @classmethod
    def of(cls, opener: Callable[[], PreparedCorpus]) -> PreparedMember:
        member = cls()
        member._open = opener
        return member

    @property
    def has_own_splits(self) -> bool:
        """The corpus is read with its split: no val_frac is left to apply."""
        return True

    def revision(self, siblings: Mapping[str, PretrainSource]) -> str | None:
        return f"sha256:{fingerprint_of(self.identity())}"

    def identity(self) -> dict[str, Any]:
        return {"prepared": self.prepared.identity()}

    def documents(self, context: StreamContext) -> Iterator[list[Document]]:
        return self.prepared.stream(context)

    @property
    def prepared(self) -> PreparedCorpus:
        """What it streams."""
        if self._opened is None:
            self._opened = self._open()
        return self._opened


def with_prepared(registry: Registry, root: Path) -> dict[str, PretrainSource]:
    """All pretrain tables by name, those with a corpus replaced by what reads it: the `siblings` of a StreamContext."""
    return {
        name: PreparedMember.of(partial(open_prepared, registry, name, root=root)) if source.prepare else source
        for name, source in registry.pretrain.items()
    }
