"""What a request erases: the documents that it names, their exact copies, and near copies, which somebody must confirm.

The documents come first: those with an id, those for which a condition is true, or those that contain a text. Then everything is searched
for what is in them. So a request for a paragraph erases each document that contains it, and pieces of these documents are looked for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from niels_cache_assets.base.wording import format_list
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.sources.interleave import Interleave
from niels_cache_assets.sources.reading.where import RowCondition
from niels_cache_inspection.erasure.prints import LEAST, TextPrints, WantedTexts, keyed
from niels_cache_inspection.erasure.scanning import FoundDocument, FoundFile, Relation, Scan, owner_of
from niels_cache_inspection.erasure.texts import kept_values, reason_not_read, source_texts
from niels_cache_runtime.errors import NielsCacheError

Key = tuple[str, str, str]
"""The family and the name of a data set, and the source id of a document."""


@dataclass(frozen=True, kw_only=True)
class ErasureRequest:
    """What is asked for. One of `ids`, `text` and `where` is given.

    Attributes:
        ids: Source ids.
        text: A text.
        where: A condition on the columns of sources, as the key `where`.
        dataset: The data set of the ids or of the condition; None means all for a condition, and any for an id that only one has.
        by: Who asks.
        why: Why.
    """

    ids: tuple[str, ...] = ()
    text: str | None = None
    where: str | None = None
    dataset: str | None = None
    by: str = ""
    why: str = ""

    def digest(self, key: bytes) -> str:
        """Return a keyed hash of what is asked for."""
        return keyed(key, json.dumps([self.ids, self.text, self.where, self.dataset]).encode())


@dataclass(kw_only=True)
class Target:
    """A document to erase.

    Attributes:
        family: The family of its data set.
        name: The name of its data set, whose table gets the id. For a document of a mixture, that of the member.
        source_id: Its id.
        file: Its file at the source.
        row: Its row in this file.
        relation: "id" if the request names it, otherwise "exact" or "near".
        share: The share of a text that it contains.
        excerpt: The beginning of its text.
        places: Where it is: "source", "cache NAME train", or Parquet files.
        is_configured: Whether the configuration has its data set, so that a build can leave it out.
    """

    family: str
    name: str
    source_id: str
    file: str
    row: int
    relation: Relation
    share: float
    excerpt: str
    places: list[str] = field(default_factory=list)
    is_configured: bool = True

    @property
    def key(self) -> Key:
        """The key of the document."""
        return self.family, self.name, self.source_id


@dataclass(frozen=True, kw_only=True)
class Targets:
    """What was found for a request.

    Attributes:
        sure: The documents that the request names, and their exact copies.
        near: Near copies.
        texts: What is known of the texts of `sure`, by the key of the document.
        near_texts: The same for `near`.
        found: The documents of `sure` and `near` where they were found, each with its key.
        files: Files that contain pieces of the texts outside of documents.
        unread: What could not be read, and why.
        shared: The number of documents that share a passage with one of `sure`, and stay.
        counts: How much was searched.
    """

    sure: list[Target]
    near: list[Target]
    texts: list[TextPrints]
    near_texts: dict[Key, list[TextPrints]]
    found: list[tuple[FoundDocument, Key]]
    files: list[FoundFile]
    unread: list[tuple[str, str]]
    shared: int
    counts: Mapping[str, int]


def find_targets(
    request: ErasureRequest,
    registry: Registry,
    root: Path,
    *,
    folders: tuple[Path, ...] = (),
    with_remote: bool = False,
    progress: Callable[[str], None] = lambda line: None,
) -> Targets:
    """Find what a request erases.

    Args:
        request: The request.
        registry: The configuration.
        root: The cache root.
        folders: See `Scan`.
        with_remote: See `Scan`.
        progress: See `Scan`.

    Raises:
        NielsCacheError: If nothing is found, if an id is in several data sets, or if a text is too short.
    """

    def scan(wanted: Iterable[TextPrints], ids: Iterable[Key] = ()) -> Scan:
        where = {"registry": registry, "root": root, "folders": folders, "with_remote": with_remote, "progress": progress}
        return Scan(wanted=WantedTexts(tuple(wanted)), ids={*ids}, **where).run()  # type: ignore[arg-type]

    if request.dataset is not None and request.dataset not in registry.sources:
        registry.refuse_data_set(str(root), "no data set", request.dataset, [*registry.sources])
    if request.text is not None:
        wanted = TextPrints.of([request.text])
        if not wanted.is_searchable:
            raise NielsCacheError(f"a text of fewer than {LEAST} letters is in too many documents; give more of it, or --id")
        first = scan([wanted])
        named = [each for each in first.documents if each.relation == "exact"]
        near = [each for each in first.documents if each.relation == "near"]
        unread = first.unread
    else:
        keys = _keys_of(request, registry, root, with_remote=with_remote)
        mixtures = {name: source.members for name, source in registry.pretrain.items() if isinstance(source, Interleave)}
        in_mixtures = {("pretrain", mixture, each) for _, name, each in keys for mixture, members in mixtures.items() if name in members}
        first = scan([], keys | in_mixtures)
        named, near, unread = [each for each in first.documents if _key(each, registry) in keys], [], first.unread
        if request.ids and request.dataset is None and len(names := sorted({_key(each, registry)[1] for each in named})) > 1:
            raise NielsCacheError(f"{format_list(names)} have a document {request.ids[0]!r}; choose one with --dataset")
    if not named and not near:
        raise NielsCacheError(_nothing(request, unread, first.files))
    keys = {each.key for each in _targets(named, registry)}
    texts = _texts(named)
    second = scan([each for every in texts.values() for each in every], keys)
    sure = [each for each in second.documents if each.relation in ("id", "exact")]
    sure_keys = {each.key for each in _targets(sure, registry)}
    near = [each for each in [*near, *second.documents] if each.relation == "near" and _key(each, registry) not in sure_keys]
    return Targets(
        sure=_targets(sure, registry),
        near=_targets(near, registry),
        texts=[each for every in _texts([*named, *sure]).values() for each in every],
        near_texts={key: each for key, each in _texts(near).items()},
        found=[(each, _key(each, registry)) for each in [*sure, *near]],
        files=second.files,
        unread=second.unread,
        shared=second.shared,
        counts=second.counts,
    )


def _keys_of(request: ErasureRequest, registry: Registry, root: Path, *, with_remote: bool) -> set[Key]:
    """Return the keys of the documents that a request names by id or by a condition."""
    sources = registry.sources if request.dataset is None else {request.dataset: registry.source(request.dataset)}
    if request.where is None:
        return {(source.family, name, each) for name, source in sources.items() for each in request.ids}
    found, asked = _keys_by_kept_values(request.where, sources, root)
    for name, source in sources.items():
        if "where" not in type(source).model_fields or reason_not_read(source, with_remote=with_remote) is not None:
            continue
        old = getattr(source, "where", None)
        try:
            both = type(source).model_validate(
                {**source.model_dump(exclude_unset=True), "where": f"({old}) and ({request.where})" if old else request.where}
            )
            found |= {(source.family, name, each.source_id) for each in source_texts(registry, both)}
        except (NielsCacheError, ValueError) as error:
            if request.dataset is not None:
                raise NielsCacheError(f"--where: {error}") from error
            continue
        asked.add(name)
    if not asked:
        raise NielsCacheError("--where: no data set has such columns in its source or in `keep`; choose one with --dataset to see why")
    return found


def _keys_by_kept_values(where: str, sources: Iterable[str], root: Path) -> tuple[set[Key], set[str]]:
    """Return the keys of documents whose values of `keep` meet a condition, and the data sets that have such columns."""
    found, asked = set[Key](), set[str]()
    try:
        condition = RowCondition(where)
    except ValueError as error:
        raise NielsCacheError(f"--where: {error}") from error
    for path in sorted(root.rglob("*.parquet")):
        family, name = owner_of(path, root)
        if name not in sources or any(part.startswith(".") and ".partial" in part for part in path.parts):
            continue  # files of an unfinished build may have no end yet
        for source_id, values in kept_values(path):
            if not values.keys().isdisjoint(condition.columns):
                asked.add(name)
                if condition.problem(values) is None:
                    found.add((family, name, source_id))
    return found, asked


def _texts(found: Iterable[FoundDocument]) -> dict[Key, list[TextPrints]]:
    """Return what is known of the texts of documents, each form of a text once."""
    every: dict[Key, dict[tuple[str, ...], None]] = {}
    for each in found:
        if each.place in ("source", "cache") or each.place.startswith("corpus/"):
            texts = each.texts[:1] if each.place.startswith("corpus/") else each.texts  # a copy may have another title
            every.setdefault((each.family, each.name, each.source_id), {})[texts] = None
    prints = {key: [TextPrints.of(texts, is_whole=True) for texts in forms] for key, forms in every.items()}
    return {key: [*{(each.prints.tobytes(), each.short): each for each in forms}.values()] for key, forms in prints.items()}


def _key(each: FoundDocument, registry: Registry) -> Key:
    source = registry.sources.get(each.name)
    if isinstance(source, Interleave):
        member = each.file.partition("/")[0]
        if member in source.members:
            return registry.source(member).family, member, each.source_id
    return each.family, each.name, each.source_id


def _targets(found: Iterable[FoundDocument], registry: Registry) -> list[Target]:
    """Return the documents to erase, each once, with all of its places."""
    targets: dict[Key, Target] = {}
    for each in found:
        family, name, source_id = key = _key(each, registry)
        place = each.place
        if each.split is not None:
            place = f"cache {each.name} {each.split}"
        file = each.file if name == each.name else each.file.partition("/")[2]
        known = targets.setdefault(
            key,
            Target(
                family=family,
                name=name,
                source_id=source_id,
                file=file,
                row=each.row,
                relation=each.relation,
                share=each.share,
                excerpt=each.excerpt,
                is_configured=name in registry.sources and bool(source_id),
            ),
        )
        known.share = max(known.share, each.share)
        if place not in known.places:
            known.places.append(place)
    return list(targets.values())


def _nothing(request: ErasureRequest, unread: list[tuple[str, str]], files: list[FoundFile]) -> str:
    more = f"; {len(unread):,} places could not be read, the first: {unread[0][0]}: {unread[0][1]}" if unread else ""
    if files:
        more = f"; pieces of it are in {format_list([str(each.path) for each in files])}; delete or clean these files yourself{more}"
    what = "no document contains this text" if request.text is not None else "no document is named by this request"
    return f"{what}, and nothing was changed{more}"
