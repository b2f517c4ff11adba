"""`interleave`: one stream mixed from other pretrain data sets by weight, document by document.

The drawing is `datasets.interleave_datasets`, on streams; its members are read as their own tables say. Cost: about 30 µs a document (each passes
through the library as a row); memory is that of the members.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

from pydantic import Field

from niels_cache_assets.documents import Document
from niels_cache_assets.sources.base import PretrainSource, StreamContext
from niels_cache_assets.sources.hub_errors import nearest
from niels_cache_assets.sources.rows import batched
from niels_cache_runtime.errors import NielsCacheError


class Interleave(PretrainSource):
    """Documents of the members, drawn with the given weights until one (or all) of them end.

    `all_exhausted` starts members that ended early again, so their documents repeat.
    """

    source: Literal["interleave"] = "interleave"
    members: dict[str, float] = Field(min_length=1, description="Weight of each member, a name of another pretrain table")
    stopping_strategy: Literal["first_exhausted", "all_exhausted"] = Field("first_exhausted", description="When the mixed stream ends")

    def revision(self, siblings: Mapping[str, PretrainSource]) -> str | None:
        digest = hashlib.sha256()
        for name, member in self._sources(siblings).items():
            digest.update(f"{name}\0{member.identity()}\0{member.revision(siblings)}\n".encode())
        return f"sha256:{digest.hexdigest()}"

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "members": self.members, "stopping_strategy": self.stopping_strategy}

    def _sources(self, siblings: Mapping[str, PretrainSource]) -> dict[str, PretrainSource]:
        sources = {}
        for name, weight in self.members.items():
            if name not in siblings:
                raise NielsCacheError("interleave: members: " + nearest("data set", name, [*siblings]))
            if isinstance(siblings[name], Interleave):
                raise NielsCacheError(f"interleave: members: {name!r} is an interleave itself; name its members instead")
            if not weight > 0:
                raise NielsCacheError(f"interleave: members: the weight of {name!r} is {weight}; weights must be above 0")
            sources[name] = siblings[name]
        return sources
