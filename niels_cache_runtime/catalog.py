"""The data sets of a cache folder, found by name: for notebooks and small scripts. The objects show sizes, and make samplers and loaders.

    open_cache("cache") --.pretrain / .sft--> by name --.train / .val--> a split --.sampler() / .loader()--> batches
                                                                                 --[i]--> tokens of a document or example

Opening lists two folders, and reads a meta.json for each data set. A split maps its tokens, and a sampler imports torch, at first use.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from niels_cache_runtime.cache.checks import check_index
from niels_cache_runtime.cache.mmap import map_offsets, slice_pieces
from niels_cache_runtime.cache.opening import Verify, check_same_build, listed_files, open_meta, open_split, require_doc_ends
from niels_cache_runtime.cache.sft import open_examples, resolve_id
from niels_cache_runtime.catalog_text import as_html, in_bytes, in_lines
from niels_cache_runtime.errors import NielsCacheError, did_you_mean
from niels_cache_runtime.format.layout import (
    DOC_ENDS_DTYPE,
    FAMILIES,
    META_NAME,
    SPLITS,
    TOKENIZER_MODEL_NAMES,
    Family,
    Ints,
    Split,
    Tokens,
    dataset_dir,
    doc_ends_name,
    entries_per_example,
    file_edges_name,
    has_pairs,
    idx_name,
    target_ends_name,
    target_weights_name,
    targets_name,
    token_dtype_of,
    tokenizer_dir,
    tokens_name,
)
from niels_cache_runtime.format.meta import Meta, check_location, is_foreign
from niels_cache_runtime.format.path_kind import describe
from niels_cache_runtime.format.reading import find_files
from niels_cache_runtime.remote.record import TOKENIZER
from niels_cache_runtime.remote.split_location import Copy, SplitLocation

if TYPE_CHECKING:
    from niels_cache_runtime.loader.loader import TokenLoader
    from niels_cache_runtime.samplers.pretrain_dataset import PretrainTokenStreamDataset
    from niels_cache_runtime.samplers.sft_dataset import PreferenceDataset, SFTExampleDataset

_HOW_TO_BUILD = "build caches first (make cache, niels-cache build-all), or check the path"
_WORDS = {  # for the rows of a split, for what a loader reads once per epoch, and for the tensors of a batch
    "pretrain": ("documents", "window", "batch.x, batch.y"),
    "sft": ("examples", "packed row", "batch.x, batch.y_masked"),
    "pairs": ("pairs", "pair", "batch.chosen.x, batch.rejected.x, and y_masked of both"),
}
_SHOWN_T = 1024  # T in the code that is shown, if the split is long enough
_COLUMNS = ("data set", "train", "val")


class MissingDatasetError(NielsCacheError, KeyError):
    """An error for a data set name that the cache does not have. It is a KeyError, so that `in` and `get` work as for any mapping."""

    __str__ = Exception.__str__  # KeyError's own __str__ would put the message in quotes


@dataclass(frozen=True, kw_only=True)
class TokenStream:
    """The mapped tokens of a split, and the offsets of its rows. A row is a document or an example.

    Attributes:
        pieces: Arrays of uint16 or uint32, 1-D, read-only, that together are the stream of tokens. There is one piece if the shards lie
            back to back in memory.
        offsets: (rows + 1,) int64. Row `i` is the tokens from `offsets[i]` to `offsets[i + 1] - 1` of the stream. Each side of a preference
            pair is a row here.
    """

    pieces: list[Tokens]
    offsets: Ints


class CacheSplit:
    """One split of a data set: its sizes, and the ways to read it.

    `split[i]` is the tokens of row `i`, (tokens,) uint16 or uint32, and `len(split)` is `rows`. A negative `i` counts from the end. A
    preference pair is one row: its chosen side, then its rejected side.

    If another program wrote meta.json, `bytes` are the sizes of the files on disk, and `rows` of a pretrain split are the entries of its
    doc_ends file. Without a doc_ends file, `rows` come from meta.json, or are None if meta.json does not count documents.

    Attributes:
        dataset: The CacheDataset of the split.
        split: "train" or "val".
        folder: The path or the address that TokenLoader takes.
        tokens: The number of tokens, from meta.json.
        rows: The number of documents of a pretrain split, or of examples of an SFT split, from meta.json.
        bytes: The size of the token and offset files, from meta.json.
    """

    def __init__(self, dataset: "CacheDataset", split: Split) -> None:
        self.dataset, self.split = dataset, split
        self._location = replace(dataset.location, given=f"{dataset.location.given}/{split}")
        self.folder = self._location.given
        meta = dataset.meta
        self._words = _WORDS["pairs" if has_pairs(meta) else dataset.family]
        prefixes = (
            f"{split}/",
            *(
                name(split)
                for name in (doc_ends_name, file_edges_name, tokens_name, idx_name, targets_name, target_ends_name, target_weights_name)
            ),
        )
        if is_foreign(meta):
            found = find_files(Path(dataset.folder)).sizes
        else:
            found = {name: entry["bytes"] for name, entry in listed_files(meta, dataset.folder).items()}
        sizes = {name: size for name, size in found.items() if name.startswith(prefixes)}
        self.bytes = sum(sizes.values())
        token_counts = [size // token_dtype_of(meta).itemsize for name, size in sizes.items() if name.endswith(".bin")]
        self.tokens = int(meta.get(f"{split}_tokens", sum(token_counts) if is_foreign(meta) else 0))
        self.rows = self._known_rows(meta)

    def _known_rows(self, meta: Meta) -> int | None:
        if self.dataset.family == "sft":
            return int(meta.get(f"{self.split}_examples", 0))
        counted: int | None = meta.get("documents", {}).get(self.split)
        if not is_foreign(meta):
            return counted or 0
        ends = Path(self.dataset.folder) / doc_ends_name(self.split)
        return len(map_offsets(ends, DOC_ENDS_DTYPE)) if ends.is_file() else counted

    def loader(self, *, T: int, B: int, seed: int, **settings: Any) -> "TokenLoader":
        """Return a TokenLoader over this split alone. It reads each window or packed row once per epoch, and a run can be resumed.

        Args:
            T: Tokens per row.
            B: Rows per batch on each rank.
            seed: The seed of every order, 0 to 2**64 - 1.
            **settings: Other keyword arguments of TokenLoader.

        Raises:
            NielsCacheError: For the reasons that TokenLoader lists.
        """
        from niels_cache_runtime.loader.loader import TokenLoader

        return TokenLoader(self.folder, T=T, B=B, seed=seed, **{"split": self.split, "remote": self._location.remote, **settings})

    def sampler(
        self, *, T: int, device: str = "cpu", verify: Verify = "size"
    ) -> "PretrainTokenStreamDataset | SFTExampleDataset | PreferenceDataset":
        """Return a sampler. Its method `get_batch` returns a random batch.

        Args:
            T: Tokens per row.
            device: The device of batches.
            verify: "size" compares file sizes with meta.json. "sha256" also reads the files and compares their content.

        Returns:
            For a pretrain split, a PretrainTokenStreamDataset, whose batches of random windows are x, y. For an SFT split, an
            SFTExampleDataset, whose batches of random examples are x, y, y_masked. For preference pairs, a PreferenceDataset, whose batches
            of random pairs are a PreferenceBatch.

        Raises:
            NielsCacheError: For the reasons that the classes of samplers list, and if the data set was rebuilt since it was looked up in
                the cache.
        """
        from niels_cache_runtime.samplers.pretrain_dataset import PretrainTokenStreamDataset
        from niels_cache_runtime.samplers.sft_dataset import PreferenceDataset, SFTExampleDataset

        settings: dict[str, Any] = {"T": T, "device": device, "verify": verify, "remote": self._location.remote}
        sampler: PretrainTokenStreamDataset | SFTExampleDataset | PreferenceDataset
        if has_pairs(meta := self.dataset.meta):
            sampler = PreferenceDataset(self.folder, **settings)
        elif self.dataset.family == "pretrain":
            sampler = PretrainTokenStreamDataset(self.folder, **settings)
        else:
            tokens_path, idx_path = self._pair(self.folder)
            sampler = SFTExampleDataset(
                tokens_path, idx_path, eot_id=resolve_id("eot", None, meta=meta, tokens_path=tokens_path), **settings
            )
        check_same_build(self.folder, opened=meta, reopened=sampler.meta)
        return sampler

    @cached_property
    def stream(self) -> TokenStream:
        """The mapped tokens, and the offsets of every row. It takes 8 bytes of memory per row.

        A split at an address is fetched whole first.

        Raises:
            NielsCacheError: For the reasons that `opening.open_split` lists, and if the data set was rebuilt since it was looked up in the
                cache.
        """
        folder, self._copy = self._location.whole(self.split)
        if self.dataset.family == "sft":
            meta, tokens, starts, _ = open_examples(*self._pair(folder), pairs=has_pairs(self.dataset.meta))
            check_same_build(self.folder, opened=self.dataset.meta, reopened=meta)
            return TokenStream(pieces=[tokens], offsets=np.append(starts, len(tokens)))
        opened = open_split(folder, doc_ends=True)
        check_same_build(self.folder, opened=self.dataset.meta, reopened=opened.meta)
        ends = require_doc_ends(self.folder, opened.doc_ends)
        pieces = opened.tokens.shards if opened.tokens.stream is None else [opened.tokens.stream]
        return TokenStream(pieces=pieces, offsets=np.concatenate([np.zeros(1, np.int64), np.asarray(ends).astype(np.int64)]))

    def __len__(self) -> int:
        return len(self._row_offsets) - 1 if self.rows is None else self.rows  # `stream` raises an error if documents are unknown

    @property
    def _row_offsets(self) -> Ints:
        return self.stream.offsets[:: entries_per_example(self.dataset.meta)]

    def __getitem__(self, index: int) -> Tokens:
        offsets = self._row_offsets
        number = check_index(index, len(offsets) - 1, what="row", from_end=True)
        start, stop = offsets[number : number + 2].tolist()
        parts = list(slice_pieces(self.stream.pieces, start, stop))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _pair(self, folder: str) -> tuple[str, str]:
        """Return the paths or addresses of the two files of this SFT split, below the given folder of the split."""
        dataset = folder.removesuffix(self.split)
        return f"{dataset}{tokens_name(self.split)}", f"{dataset}{idx_name(self.split)}"

    def _summary(self) -> str:
        in_rows = f"in {self.rows:,} {self._words[0]}" if self.rows is not None else f"in an unknown number of {self._words[0]}"
        return f"{self.tokens:,} tokens {in_rows}, {in_bytes(self.bytes)}" if self.tokens else "empty"

    def _snippet(self) -> str:
        """Return Python code that draws batches from this split, or an empty string if the split is too short."""
        T = _SHOWN_T if self.dataset.family == "sft" else min(_SHOWN_T, self.tokens - 1)
        if T < 1 or not self.tokens:
            return ""
        _, each, tensors = self._words
        return (
            f"split = {self.dataset._expression}.{self.split}\n"
            f"loader = split.loader(T={T}, B=8, seed=0)  # every {each} once per epoch, resumable\n"
            f"batch = next(iter(loader))  # {tensors}: (8, {T})"
        )

    @property
    def _title(self) -> str:
        return f"{self.dataset.family}/{self.dataset.name}/{self.split}: {self._summary()}"

    def __repr__(self) -> str:
        return "\n  ".join([self._title, *self._snippet().splitlines()])

    def _repr_html_(self) -> str:
        return as_html(self._title, code=self._snippet())


class CacheDataset:
    """One data set and its two splits.

    Attributes:
        family: "pretrain" or "sft".
        name: The name of the data set.
        folder: The path of its folder.
        meta: The content of its meta.json as a dict, or an empty dict if there is no meta.json.
        train: The split train.
        val: The split val.

    Raises:
        NielsCacheError: If its meta.json is unreadable, or says that the data set was never built. Also if meta.json names a different data
            set than the folder, or a different tokenizer than the cache holds.
    """

    def __init__(self, root: str, family: Family, name: str, *, remote: SplitLocation | None = None) -> None:
        self.family, self.name = family, name
        self.folder = str(dataset_dir(root, family, name))
        self.location = SplitLocation(given=self.folder) if remote is None else remote
        meta = open_meta(self.folder)
        self.meta = {} if meta is None else check_location(meta, self.folder)
        opened = repr(root) if remote is None else f"{remote.given!r}, remote={remote.remote!r}"
        self._expression = f"open_cache({opened}).{family}[{name!r}]"
        self.train, self.val = (CacheSplit(self, split) for split in SPLITS)

    def __repr__(self) -> str:
        return "\n  ".join([self._title, *map("  ".join, self._rows())])

    def _repr_html_(self) -> str:
        return as_html(self._title, self._rows())

    @property
    def _title(self) -> str:
        revision = self.meta.get("dataset_revision")
        origin = f"{self.meta.get('dataset_name') or self.name}{f' at {revision:.60}' if revision else ''}"
        if is_foreign(self.meta):
            origin = f"{self.name}, made by another program"
        return f"{self.family}/{self.name}: {origin}"

    def _rows(self) -> list[tuple[str, str]]:
        return [(f".{split.split}", split._summary()) for split in (self.train, self.val)]


class CacheFamily(Mapping[str, CacheDataset]):
    """The data sets of one family (pretrain or SFT) by name, as a mapping of names to CacheDataset objects.

    Type `cache.pretrain["wikitext"]`, or `cache.pretrain.wikitext` if the name can be an attribute. The names are those of the folders with
    a meta.json. The folders are listed at each use.

    Raises:
        MissingDatasetError: For a name that the family does not have.
        NielsCacheError: If the folder cannot be listed, and for the reasons that CacheDataset lists.
    """

    def __init__(self, root: str, family: Family, *, remote: SplitLocation | None = None) -> None:
        self._root, self._family, self._remote = root, family, remote
        self._given = root if remote is None else remote.given

    def _names(self) -> list[str]:
        try:
            found = [path.name for path in (Path(self._root) / self._family).iterdir() if not path.name.startswith(".")]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise NielsCacheError(f"{error.filename}: cannot be listed: {error.strerror or error}") from error
        return sorted(name for name in found if os.path.isfile(dataset_dir(self._root, self._family, name) / META_NAME))

    def __getitem__(self, name: str) -> CacheDataset:
        if name not in (names := self._names()):
            others = [family for family in FAMILIES if family != self._family and name in CacheFamily(self._root, family)]
            known = f"choose from {', '.join(names)}" if names else "no data set is built yet"
            hint = f"it is in .{others[0]}" if others else did_you_mean(name, names, known)
            raise MissingDatasetError(f"{self._given}: no {self._family} data set {name!r}; {hint}")
        return CacheDataset(self._root, self._family, name, remote=self._remote)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def __contains__(self, name: object) -> bool:  # Mapping's own method would open the data set, but a damaged one is a member too
        return name in self._names()

    def __getattr__(self, name: str) -> CacheDataset:
        if name.startswith("_"):  # copy and notebooks look such names up; copy does so before `_root` is set
            raise AttributeError(name)
        try:
            return self[name]
        except MissingDatasetError as error:
            raise AttributeError(str(error)) from None

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(name for name in self._names() if name.isidentifier() and not name.startswith("_"))]

    def _ipython_key_completions_(self) -> list[str]:
        return self._names()

    def _rows(self) -> Iterator[tuple[str, str, str]]:
        """Yield the name and the summaries of both splits of each data set, or its error, so that it does not hide the other data sets."""
        for name in self:
            try:
                dataset = self[name]
                train, val = dataset.train._summary(), dataset.val._summary()
            except NielsCacheError as error:
                train, val = str(error).removeprefix(f"{dataset_dir(self._root, self._family, name) / META_NAME}: "), ""
            yield f".{self._family}[{name!r}]", train, val

    @property
    def _title(self) -> str:
        return f"{self._given}: {len(self)} {self._family} data set{'' if len(self) == 1 else 's'}"

    def __repr__(self) -> str:
        return in_lines(self._title, [*self._rows()])

    def _repr_html_(self) -> str:
        return as_html(self._title, [_COLUMNS, *self._rows()])


class Cache:
    """A cache folder, opened by `open_cache`.

    Attributes:
        root: The folder. The cache at an address has one data set, and its `root` is the folder of its build in the local copy.
        pretrain: The pretrain data sets by name, a CacheFamily.
        sft: The SFT data sets by name, a CacheFamily.
    """

    def __init__(self, root: str, *, remote: SplitLocation | None = None) -> None:
        self.root, self.remote = root, remote
        self.pretrain, self.sft = (CacheFamily(root, family, remote=remote) for family in FAMILIES)

    @property
    def tokenizer(self) -> str | None:
        """The path of the tokenizer's model, or None if there is no model.

        It is a SentencePiece model, a tokenizer.json, or the tiktoken.json beside ranks.
        """
        folder = tokenizer_dir(self.root)
        if self.remote is not None:
            self._copy = self.remote.fetch([TOKENIZER])
        models = [*sorted(folder.glob("*.model")), *(folder / name for name in TOKENIZER_MODEL_NAMES.values() if (folder / name).is_file())]
        return str(models[0]) if models else None

    def __repr__(self) -> str:
        title = f"{self.pretrain._given}: {len(self.pretrain)} pretrain, {len(self.sft)} sft"
        return in_lines(title, [*self.pretrain._rows(), *self.sft._rows()])

    def _repr_html_(self) -> str:
        return as_html(self.pretrain._given, [_COLUMNS, *self.pretrain._rows(), *self.sft._rows()])


def open_cache(root: str | Path = "cache", *, remote: Copy | None = None) -> Cache:
    """Open a cache, whose data sets can then be found by name.

    Args:
        root: The folder of the cache, which contains `pretrain/` or `sft/`, or the address of a published cache, such as
            `s3://bucket/caches/NAME`.
        remote: For an address: the local copy, such as Copy(dir="/local/tokens", limit=200e9). Opening fetches meta.json only. Samplers and
            `split[i]` fetch a whole split first, so it must fit.

    Returns:
        The cache, with the data sets in `pretrain` and `sft`.

    Raises:
        NielsCacheError: If the folder holds no cache, or if nothing is published at the address.
    """
    location = SplitLocation.of(root, remote)
    if location.remote is not None:
        opened, location = location.opened()
        return Cache(opened, remote=location)
    folder = Path(os.path.expanduser(root))
    if not any(os.path.isdir(folder / family) for family in FAMILIES):
        found = describe(folder)
        advice = f"type open_cache({str(found.roots[0])!r})" if found.roots and found.kind != "root" else _HOW_TO_BUILD
        clause = "has neither pretrain/ nor sft/ in it" if found.kind == "root" else found.clause
        raise NielsCacheError(f"{root}: {clause}; {advice}")
    return Cache(str(folder))
