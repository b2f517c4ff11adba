"""What a cache folder holds, by name, for notebooks and small scripts: sizes at a glance, and from there to batches.

    open_cache("cache") --.pretrain / .sft--> by name --.train / .val--> a split --.sampler() / .loader()--> batches
                                                                                 --[i]--> tokens of a document or example

Costs a listing of two folders, and one meta.json for each data set that is looked at; tokens are mapped when they are asked for, and
torch is imported with the first sampler. Text is the tokenizer's business, order and blends are `loader`'s.
"""

import difflib
import html
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from niels_cache_runtime.catalog_text import html_table, in_bytes, in_lines
from niels_cache_runtime.doc_ends import require_doc_ends
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.formats import (
    FAMILIES,
    META_NAME,
    SPLITS,
    TOKEN_BYTES,
    Family,
    Split,
    dataset_dir,
    idx_name,
    tokenizer_dir,
    tokens_name,
)
from niels_cache_runtime.meta import Meta
from niels_cache_runtime.opening import Verify, check_same_build, listed_files, open_meta, open_split

if TYPE_CHECKING:
    from niels_cache_runtime.loader import TokenLoader
    from niels_cache_runtime.pretrain_dataset import PretrainTokenStreamDataset
    from niels_cache_runtime.sft_dataset import SFTExampleDataset

_SHOWN_T = 1024  # what the snippets propose, where a split is long enough


class MissingDatasetError(NielsCacheError, KeyError):
    """No data set of that name; a KeyError, so that `in` and `get` work as they do for any mapping."""

    __str__ = Exception.__str__  # KeyError's own would put the message in quotes


@dataclass(frozen=True, kw_only=True)
class TokenStream:
    """A split's tokens, mapped, and where its rows lie.

    pieces: uint16, 1-D, read-only: the stream, in one piece where its shards lie back to back in memory. offsets: (rows + 1,) int64:
    row i, a document or an example, is the tokens from offsets[i] up to offsets[i + 1] of the stream.
    """

    pieces: list[NDArray[np.uint16]]
    offsets: NDArray[np.int64]


class CacheSplit:
    """One split of a data set: what it holds, and the ways to read it.

    `folder` is what TokenLoader takes. `tokens`, `rows` (documents of a pretrain split, examples of an SFT split) and `bytes` (of its token
    and offset files) are meta.json's. `split[i]`: the tokens of a row, (tokens,) uint16; `len(split)` is `rows`.
    """

    def __init__(self, dataset: "CacheDataset", split: Split) -> None:
        self.dataset, self.split = dataset, split
        self.folder = str(Path(dataset.folder) / split)
        meta = dataset.meta
        self.tokens = int(meta.get(f"{split}_tokens", 0))
        self.rows = int(meta.get(f"{split}_examples", 0) if dataset.family == "sft" else meta.get("documents", {}).get(split, 0))
        prefixes = (f"{split}/", f"{split}_doc_ends.npy", tokens_name(split), idx_name(split))
        sizes = {name: entry["bytes"] for name, entry in listed_files(meta, dataset.folder).items() if name.startswith(prefixes)}
        self.bytes = sum(sizes.values())
        self._longest_file = max((size // TOKEN_BYTES for name, size in sizes.items() if name.endswith(".bin")), default=0)

    def loader(self, *, T: int, B: int, seed: int, **settings: Any) -> "TokenLoader":
        """A TokenLoader over this split alone: each window or packed row once per epoch, resumable. `settings`, errors: TokenLoader's."""
        from niels_cache_runtime.loader import TokenLoader

        return TokenLoader(self.folder, T=T, B=B, seed=seed, **settings)

    def sampler(self, *, T: int, device: str = "cpu", verify: Verify = "size") -> "PretrainTokenStreamDataset | SFTExampleDataset":
        """Random windows (`get_batch` -> x, y) of a pretrain split, random examples (x, y, y_masked) of an SFT split.

        T: tokens per row. Raises NielsCacheError as those classes do.
        """
        if self.dataset.family == "pretrain":
            from niels_cache_runtime.pretrain_dataset import PretrainTokenStreamDataset

            return PretrainTokenStreamDataset(self.folder, T=T, device=device, verify=verify)
        from niels_cache_runtime.sft_dataset import SFTExampleDataset, resolve_id

        tokens_path, idx_path = self._pair()
        eot_id = resolve_id("eot", None, meta=self.dataset.meta, tokens_path=tokens_path)
        return SFTExampleDataset(tokens_path, idx_path, T=T, device=device, eot_id=eot_id, verify=verify)

    @cached_property
    def stream(self) -> TokenStream:
        """The tokens, mapped, and the place of every row; 8 bytes a row of memory. Raises NielsCacheError as `opening.open_split` does,
        and if the data set was rebuilt since it was looked up."""
        if self.dataset.family == "sft":
            from niels_cache_runtime.sft_dataset import open_pair

            meta, tokens, starts = open_pair(*self._pair())
            check_same_build(self.folder, opened=self.dataset.meta, reopened=meta)
            return TokenStream(pieces=[tokens], offsets=np.append(starts, len(tokens)))
        opened = open_split(self.folder, doc_ends=True)
        check_same_build(self.folder, opened=self.dataset.meta, reopened=opened.meta)
        ends = require_doc_ends(self.folder, opened.doc_ends)
        mapped, lengths = opened.tokens, opened.tokens.shard_lengths
        gaps = mapped.shard_starts - (np.cumsum(lengths) - lengths)
        back_to_back = mapped.tokens is not None and not gaps[lengths > 0].any()
        pieces = [mapped.tokens[: int(lengths.sum())]] if mapped.tokens is not None and back_to_back else mapped.shards
        return TokenStream(pieces=pieces, offsets=np.concatenate([np.zeros(1, np.int64), np.asarray(ends).astype(np.int64)]))

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> NDArray[np.uint16]:
        number = operator.index(index)
        stream = self.stream
        rows = len(stream.offsets) - 1
        if not -rows <= number < rows:
            raise IndexError(f"{self._name}: row {number} of {rows}")
        start, stop = stream.offsets[number % rows : number % rows + 2].tolist()
        parts, begin = [], 0
        for piece in stream.pieces:
            if begin < stop and start < begin + len(piece):
                parts.append(piece[max(0, start - begin) : stop - begin])
            begin += len(piece)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    @property
    def _name(self) -> str:
        return f"{self.dataset.family}/{self.dataset.name}/{self.split}"

    def _pair(self) -> tuple[str, str]:
        folder = Path(self.dataset.folder)
        return str(folder / tokens_name(self.split)), str(folder / idx_name(self.split))

    def _summary(self) -> str:
        rows = "documents" if self.dataset.family == "pretrain" else "examples"
        return f"{self.tokens:,} tokens in {self.rows:,} {rows}, {in_bytes(self.bytes)}" if self.tokens else "empty"

    def _snippet(self) -> str:
        """Python that draws batches from this split; empty where there is nothing to draw."""
        T = min(_SHOWN_T, self._longest_file - 1)  # random windows lie inside one shard
        if T < 1:
            return ""
        rows, each, results = (
            ("examples", "packed row", "x, y, y_masked") if self.dataset.family == "sft" else ("windows", "window", "x, y")
        )
        return (
            f"split = {self.dataset._expression}.{self.split}\n"
            f"{results} = split.sampler(T={T}).get_batch(B=8, generator=torch.Generator().manual_seed(0))  # random {rows}\n"
            f"loader = split.loader(T={T}, B=8, seed=0)  # every {each} once per epoch, resumable"
        )

    def __repr__(self) -> str:
        snippet = "".join(f"\n  {line}" for line in self._snippet().splitlines())
        return f"{self._name}: {self._summary()}{snippet}"

    def _repr_html_(self) -> str:
        snippet = self._snippet()
        code = f"<pre><code>{html.escape(snippet)}</code></pre>" if snippet else ""
        return f"<p><b>{html.escape(self._name)}</b>: {html.escape(self._summary())}</p>{code}"


class CacheDataset:
    """One data set: its `meta`, `folder`, and the splits `train` and `val`.

    Raises NielsCacheError if its meta.json is unreadable, says that it was never built, or names another tokenizer than the cache holds.
    """

    def __init__(self, root: str, family: Family, name: str) -> None:
        self.family, self.name = family, name
        self.folder = str(dataset_dir(root, family, name))
        self.meta: Meta = open_meta(self.folder) or {}
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
        return f"{self.meta.get('dataset_name', self.name)}{f' at {revision:.60}' if revision else ''}"


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
    if not folder.is_dir():
        raise NielsCacheError(f"{root}: no such folder; build caches first (make cache, niels-cache build-all), or check the path")
    if not any((folder / family).is_dir() for family in FAMILIES):
        inside = sorted(path.name for path in folder.iterdir() if any((path / family).is_dir() for family in FAMILIES))
        above = folder.absolute().parent
        if inside:
            hint = f"did you mean {str(folder / inside[0])!r}?"
        elif above.name in FAMILIES or folder.absolute().name in FAMILIES:
            hint = f"give the folder above: {str(above if folder.absolute().name in FAMILIES else above.parent)!r}"
        else:
            hint = "expected the folders pretrain and sft in it"
        raise NielsCacheError(f"{root}: no cache here; {hint}")
    return Cache(str(folder))


def _glance(root: str, family: Family, name: str) -> tuple[str, str]:
    """What its splits hold, or instead why it cannot be opened: one data set that is broken hides no other."""
    try:
        dataset = CacheDataset(root, family, name)
    except NielsCacheError as error:
        return str(error).removeprefix(f"{dataset_dir(root, family, name) / META_NAME}: "), ""
    return cast("tuple[str, str]", tuple(split._summary() for split in (dataset.train, dataset.val)))
