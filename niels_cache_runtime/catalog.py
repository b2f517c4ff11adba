"""What a cache folder holds, by name, for notebooks and small scripts: sizes at a glance, and from there to batches.

    open_cache("cache") --.pretrain / .sft--> by name --.train / .val--> a split --.sampler() / .loader()--> batches
                                                                                 --[i]--> tokens of a document or example

Costs a listing of two folders, and one meta.json for each data set that is looked at. What a split can do is `catalog_split`'s; text is the
tokenizer's business, order and blends are `loader`'s.
"""

import difflib
import html
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

from niels_cache_runtime.cache.opening import open_meta
from niels_cache_runtime.catalog_split import CacheSplit
from niels_cache_runtime.catalog_text import html_table, in_lines
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.described import describe
from niels_cache_runtime.format.foreign_meta import is_foreign
from niels_cache_runtime.format.layout import FAMILIES, META_NAME, SPLITS, Family, dataset_dir, tokenizer_dir
from niels_cache_runtime.format.meta import Meta
from niels_cache_runtime.format.place import check_place

_HOW_TO_BUILD = "build caches first (make cache, niels-cache build-all), or check the path"


class MissingDatasetError(NielsCacheError, KeyError):
    """No data set of that name; a KeyError, so that `in` and `get` work as they do for any mapping."""

    __str__ = Exception.__str__  # KeyError's own would put the message in quotes


class CacheDataset:
    """One data set: its `meta`, `folder`, and the splits `train` and `val`.

    Raises NielsCacheError if its meta.json is unreadable, says that it was never built, or names another data set than the folder, or
    another tokenizer than the cache holds.
    """

    def __init__(self, root: str, family: Family, name: str) -> None:
        self.family, self.name = family, name
        self.folder = str(dataset_dir(root, family, name))
        meta = open_meta(self.folder)
        self.meta: Meta = {} if meta is None else check_place(meta, self.folder)
        self._expression = f"open_cache({root!r}).{family}[{name!r}]"
        self.train, self.val = (CacheSplit(self, split) for split in SPLITS)

    def __repr__(self) -> str:
        lines = [f"  .{split.split}  {split._summary()}" for split in (self.train, self.val)]
        return "\n".join([f"{self.family}/{self.name}: {self._whence()}", *lines])

    def _repr_html_(self) -> str:
        title, rows = f"{self.family}/{self.name}", [(f".{split.split}", split._summary()) for split in (self.train, self.val)]
        return f"<p><b>{html.escape(title)}</b>: {html.escape(self._whence())}</p>{html_table(('split', 'holds'), rows)}"

    def _whence(self) -> str:
        revision = self.meta.get("dataset_revision")
        if is_foreign(self.meta):
            return f"{self.name}, made by another program"
        return f"{self.meta.get('dataset_name') or self.name}{f' at {revision:.60}' if revision else ''}"


class CacheFamily(Mapping[str, CacheDataset]):
    """The data sets of one family by name: `cache.pretrain["wikitext"]`, or `cache.pretrain.wikitext` where a name can be an attribute.

    Names are those of the folders with a meta.json, as they are when they are asked for.
    """

    def __init__(self, root: str, family: Family) -> None:
        self._root, self._family = root, family

    def _names(self) -> list[str]:
        try:
            found = [path.name for path in (Path(self._root) / self._family).iterdir() if not path.name.startswith(".")]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise NielsCacheError(f"{error.filename}: cannot be listed: {error.strerror or error}") from error
        return sorted(name for name in found if (dataset_dir(self._root, self._family, name) / META_NAME).is_file())

    def __getitem__(self, name: str) -> CacheDataset:
        if name not in (names := self._names()):
            raise MissingDatasetError(self._missing(name, names))
        return CacheDataset(self._root, self._family, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def __contains__(self, name: object) -> bool:  # Mapping's would open it, and a data set that cannot be opened is there, too
        return name in self._names()

    def __getattr__(self, name: str) -> CacheDataset:
        if name.startswith("_"):  # asked by copy and by notebooks, the former before there is a root
            raise AttributeError(name)
        if name not in (names := self._names()):
            raise AttributeError(self._missing(name, names))
        return self[name]

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(name for name in self._names() if name.isidentifier() and not name.startswith("_"))]

    def _ipython_key_completions_(self) -> list[str]:
        return self._names()

    def _missing(self, name: str, names: list[str]) -> str:
        near = difflib.get_close_matches(str(name), names, n=1)
        others = [family for family in FAMILIES if family != self._family and name in CacheFamily(self._root, family)]
        if others:
            hint = f"it is in .{others[0]}"
        elif near:
            hint = f"did you mean {near[0]!r}?"
        else:
            hint = f"choose from {', '.join(names)}" if names else "none is built yet"
        return f"{self._root}: no {self._family} data set {name!r}; {hint}"

    def _rows(self) -> list[tuple[str, str, str]]:
        return [(f".{self._family}[{name!r}]", *_glance(self._root, self._family, name)) for name in self]

    def __repr__(self) -> str:
        return in_lines(f"{self._root}: {len(self)} {self._family} data set{'' if len(self) == 1 else 's'}", self._rows())

    def _repr_html_(self) -> str:
        return f"<p><b>{html.escape(self._root)}</b></p>{html_table(('data set', 'train', 'val'), self._rows())}"


class Cache:
    """A cache folder: `pretrain` and `sft`, its data sets by name, and `tokenizer`, the path of its SentencePiece model or None."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.pretrain, self.sft = (CacheFamily(root, family) for family in FAMILIES)

    @property
    def tokenizer(self) -> str | None:
        models = sorted(tokenizer_dir(self.root).glob("*.model"))
        return str(models[0]) if models else None

    def __repr__(self) -> str:
        return in_lines(f"{self.root}: {len(self.pretrain)} pretrain, {len(self.sft)} sft", [*self.pretrain._rows(), *self.sft._rows()])

    def _repr_html_(self) -> str:
        rows = [*self.pretrain._rows(), *self.sft._rows()]
        return f"<p><b>{html.escape(self.root)}</b></p>{html_table(('data set', 'train', 'val'), rows)}"


def open_cache(root: str | Path = "cache") -> Cache:
    """The cache in folder `root`, the one that holds `pretrain/` and `sft/`. Raises NielsCacheError where there is none."""
    folder = Path(root).expanduser()
    if not folder.is_dir() or not any((folder / family).is_dir() for family in FAMILIES):
        found = describe(folder)
        advice = f"type open_cache({str(found.roots[0])!r})" if found.roots and found.kind != "root" else _HOW_TO_BUILD
        said = "has no pretrain and no sft in it" if found.kind == "root" else found.said
        raise NielsCacheError(f"{root}: {said}; {advice}")
    return Cache(str(folder))


def _glance(root: str, family: Family, name: str) -> tuple[str, str]:
    """What its splits hold, or instead why it cannot be opened: one data set that is broken hides no other."""
    try:
        dataset = CacheDataset(root, family, name)
    except NielsCacheError as error:
        return str(error).removeprefix(f"{dataset_dir(root, family, name) / META_NAME}: "), ""
    return cast("tuple[str, str]", tuple(split._summary() for split in (dataset.train, dataset.val)))
