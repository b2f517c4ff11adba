"""The comparison of two data sets of the same family (pretrain or SFT), or of two cache roots, data set by data set.

The settings, the inputs and the resulting counts come from the two meta.json. A meta.json does not record every setting of a build, but the
fingerprint in it covers all settings. So the comparison also reports a difference of the fingerprint alone.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from niels_cache_assets.facts.split_tokens import SplitTokens
from niels_cache_inspection.differences.documents import DocumentDifferences, compare_documents
from niels_cache_inspection.differences.tokens import first_difference
from niels_cache_runtime.cache.opening import open_consistently
from niels_cache_runtime.errors import NielsCacheError, NotWrittenError
from niels_cache_runtime.format.layout import (
    FAMILIES,
    META_NAME,
    SPLITS,
    Family,
    Split,
    built_names,
    documents_name,
    examples_name,
    token_dtype_of,
    tokenizer_dir,
)
from niels_cache_runtime.format.meta import Meta, read_meta
from niels_cache_runtime.format.meta_keys import check_form
from niels_cache_runtime.format.path_kind import describe

OnProgress = Callable[[int, int], None]

TOKENIZER = "tokenizer"

_COUNTS = frozenset(
    {
        *("train_tokens", "val_tokens", "train_examples", "val_examples", "targets", "documents", "characters"),
        *("cut", "cut_document", "dropped", "facts"),
    }
)
# Files and hashes follow from the compared values. The name is an argument of the command.
_NOT_COMPARED = frozenset({"files", "meta_sha256", "content_sha256", "schema_version", "forms", "kind", "dataset_name"})
_FINGERPRINT = "fingerprint"


@dataclass(frozen=True, kw_only=True)
class MetaDifference:
    """A value that differs between two meta.json.

    Attributes:
        key: Path of the value in meta.json.
        a: Value in build A, or None if it is missing.
        b: Value in build B, or None if it is missing.
    """

    key: str
    a: Any
    b: Any


@dataclass(frozen=True, kw_only=True)
class DatasetDifferences:
    """All differences between two builds of a data set or tokenizer.

    Attributes:
        name: FAMILY/NAME, or "tokenizer", of which only the two meta.json are compared.
        a: Folder in build A.
        b: Folder in build B.
        settings: Differences in recorded settings and inputs.
        counts: Differences in the resulting counts.
        has_unrecorded_setting: Whether the fingerprints differ although all recorded settings are equal. The reason is then a setting that
            meta.json does not record, a code version, or the content of a corpus.
        documents: Differences between the documents, or None if a build has no lineage, or a damaged one.
        tokens: For each split whose tokens were compared, the number of tokens on both sides, `a` and `b`, and the `first_difference` or
            None.
        damage: Why something was not compared: files of one of the builds are missing or damaged. None if everything was compared.
    """

    name: str
    a: Path
    b: Path
    settings: list[MetaDifference]
    counts: list[MetaDifference]
    has_unrecorded_setting: bool
    documents: DocumentDifferences | None = None
    tokens: dict[Split, dict[str, Any]] = field(default_factory=dict)
    damage: str | None = None

    @property
    def differ(self) -> bool:
        of_files = [*(each["first_difference"] for each in self.tokens.values()), self.documents and self.documents.differ, self.damage]
        return bool(self.settings or self.counts or self.has_unrecorded_setting or any(of_files))


def find_pairs(a: Path, b: Path) -> dict[str, tuple[Path | None, Path | None]]:
    """Return two folders with a meta.json as one pair, or a pair for every data set and tokenizer of two cache roots.

    A pair has a name: FAMILY/NAME, or "tokenizer". If a build has no such folder, its folder is None.

    Raises:
        NielsCacheError: If a folder is neither of these, or if the two folders have different kinds.
    """
    kinds = [_kind(path) for path in (a, b)]
    if kinds[0] != kinds[1]:
        raise NielsCacheError(f"{a} is {_describe_kind(kinds[0])}, {b} is {_describe_kind(kinds[1])}; give two folders of the same kind")
    if kinds[0] is not None:
        return {f"{kinds[0]}/{a.absolute().name}" if kinds[0] in FAMILIES else kinds[0]: (a, b)}
    in_a, in_b = (dict.fromkeys(_names(root)) for root in (a, b))
    return {name: (a / name if name in in_a else None, b / name if name in in_b else None) for name in in_a | in_b}


def _kind(path: Path) -> str | None:
    if not (path / META_NAME).exists():
        found = describe(path)
        if found.kind == "root":
            return None
        advice = f"give the data set: {found.dataset}" if found.dataset else found.root_advice
        raise NielsCacheError(f"{path}: {found.clause}; {advice or 'give two data sets, such as cache/pretrain/NAME, or two cache roots'}")
    meta = read_meta(path / META_NAME)
    if meta.get("kind") not in (*FAMILIES, TOKENIZER):
        raise NielsCacheError(f"{path}: has kind {meta.get('kind')!r:.80}; give two data sets of pretrain/ or sft/, or two cache roots")
    return str(meta["kind"])


def _describe_kind(kind: str | None) -> str:
    return {None: "a cache root", "pretrain": "a pretrain data set", "sft": "an SFT data set"}.get(kind, f"a {kind}")


def _names(root: Path) -> list[str]:
    found = [TOKENIZER] if (tokenizer_dir(root) / META_NAME).exists() else []
    return found + [f"{family}/{name}" for family in FAMILIES for name in built_names(root / family)]


def compare_pair(name: str, a: Path, b: Path, *, shown: int, progress: OnProgress) -> DatasetDifferences:
    """Return all differences of a pair.

    Args:
        name: FAMILY/NAME, or "tokenizer".
        a: Folder in build A.
        b: Folder in build B.
        shown: How many documents of each kind to list.
        progress: Called with the number of finished bytes and of all bytes.

    Raises:
        NielsCacheError: If a folder cannot be read.
    """
    return open_consistently(a, lambda: open_consistently(b, lambda: _compare(name, a, b, shown=shown, progress=progress)))


def _compare(name: str, a: Path, b: Path, *, shown: int, progress: OnProgress) -> DatasetDifferences:
    metas = [check_form(read_meta(path / META_NAME), path / META_NAME) for path in (a, b)]
    found = DatasetDifferences(name=name, a=a, b=b, **_compare_metas(*metas))
    if name == TOKENIZER or not all(meta.get("built", True) for meta in metas):
        return found
    family = cast("Family", metas[0]["kind"])

    damage: list[str] = []

    @contextmanager
    def note_damage() -> Iterator[None]:
        try:
            yield
        except NotWrittenError:
            raise
        except NielsCacheError as error:
            damage.append(str(error))

    documents, streams, tokens = None, {}, {}  # a cache of another program may have no lineage
    lineage_name = documents_name if family == "pretrain" else examples_name
    lineages = [{split: path / lineage_name(split) for split in SPLITS} for path in (a, b)]
    if all(_lists(meta, path.name) for meta, paths in zip(metas, lineages, strict=True) for path in paths.values()):
        with note_damage():
            documents = compare_documents(*lineages, shown=shown)
    for split in SPLITS:
        with note_damage():
            streams[split] = [SplitTokens(path, family, split, meta) for path, meta in zip((a, b), metas, strict=True)]
    token_bytes = max(token_dtype_of(meta).itemsize for meta in metas)
    total = sum(min(map(len, sides)) for sides in streams.values()) * token_bytes
    done = 0

    def compared(tokens: int) -> None:
        nonlocal done
        done += tokens * token_bytes
        progress(done, total)

    for split, (ours, theirs) in streams.items():
        with note_damage():
            difference = first_difference(ours, theirs, progress=compared)
            tokens[split] = {"a": len(ours), "b": len(theirs), "first_difference": difference}
    return replace(found, documents=documents, tokens=tokens, damage="; ".join(dict.fromkeys(damage)) or None)


def _lists(meta: Meta, name: str) -> bool:
    """Return whether meta.json lists a lineage: one file, or the files of the parts that a split was joined from."""
    folder = f"{name.removesuffix('.parquet')}/"
    return any(path == name or path.startswith(folder) for path in meta.get("files", {}))


def _compare_metas(a: Meta, b: Meta) -> dict[str, Any]:
    """Return the fields of DatasetDifferences that two meta.json decide."""
    ours, theirs = dict(_leaves(a)), dict(_leaves(b))
    differing = [
        MetaDifference(key=key, a=ours.get(key), b=theirs.get(key))
        for key in sorted(ours.keys() | theirs.keys())
        if ours.get(key) != theirs.get(key) and (not key.startswith("dropped.") or ours.get(key) or theirs.get(key))
    ]
    counts = [each for each in differing if each.key.partition(".")[0] in _COUNTS]
    settings = [each for each in differing if each not in counts and each.key != _FINGERPRINT]
    is_unrecorded = not settings and a.get(_FINGERPRINT) != b.get(_FINGERPRINT)
    return {"settings": settings, "counts": counts, "has_unrecorded_setting": is_unrecorded}


def _leaves(table: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (path, value) for every value that is not a table."""
    for key, value in table.items():
        if not path and key in _NOT_COMPARED:
            continue
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value
