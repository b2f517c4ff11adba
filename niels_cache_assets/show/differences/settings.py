"""What two meta.json say differently: settings and inputs, and counts that came of them. Costs nothing beyond the two files.

A meta.json does not hold every setting of a build, but its fingerprint covers all of them: where it alone differs, that is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from niels_cache_assets.show.labels import label
from niels_cache_runtime.format.meta import Meta

_COUNTS = frozenset(
    {"train_tokens", "val_tokens", "train_examples", "val_examples", "documents", "characters", "cut", "cut_document", "dropped", "facts"}
)
# Files and hashes follow from what is compared; a name is what was given.
_NOT_COMPARED = frozenset({"files", "meta_sha256", "content_sha256", "schema_version", "kind", "dataset_name"})
_FINGERPRINT = "fingerprint"
_NO_VALUE = None


@dataclass(frozen=True, kw_only=True)
class Differing:
    """One value of a meta.json. key: its path there. a, b: None where it is missing."""

    key: str
    a: Any
    b: Any

    @property
    def label(self) -> str:
        return label(self.key)


@dataclass(frozen=True, kw_only=True)
class MetaDifferences:
    """settings: what decided the bytes, as far as it is recorded. counts: what came of it.

    has_unrecorded: the fingerprints differ, and nothing else that is recorded does: a setting that meta.json does not hold, a code
    version, or the content of a corpus.
    """

    settings: list[Differing]
    counts: list[Differing]
    has_unrecorded: bool


def compare_metas(a: Meta, b: Meta) -> MetaDifferences:
    ours, theirs = dict(_leaves(a)), dict(_leaves(b))
    differing = [
        Differing(key=key, a=ours.get(key, _NO_VALUE), b=theirs.get(key, _NO_VALUE))
        for key in sorted(ours.keys() | theirs.keys())
        if ours.get(key) != theirs.get(key) and not _is_zero(ours.get(key), theirs.get(key), key)
    ]
    counts = [each for each in differing if each.key.partition(".")[0] in _COUNTS]
    settings = [each for each in differing if each not in counts and each.key != _FINGERPRINT]
    return MetaDifferences(settings=settings, counts=counts, has_unrecorded=not settings and a.get(_FINGERPRINT) != b.get(_FINGERPRINT))


def _is_zero(a: Any, b: Any, key: str) -> bool:
    """A reason that is not listed dropped nothing."""
    return key.startswith("dropped.") and not (a or b)


def _leaves(table: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value that is no table, by its path."""
    for key, value in table.items():
        if not path and key in _NOT_COMPARED:
            continue
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value
