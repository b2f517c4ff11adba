"""One split of a data set as `open_cache` gives it: what it holds at a glance, its rows by number, and from there to batches.

Costs nothing before it is asked; tokens are mapped then, and torch is imported with the first sampler or loader.
"""

import html
import operator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from niels_cache_runtime.cache.mmap import map_offsets
from niels_cache_runtime.cache.opening import Verify, check_same_build, listed_files, open_split
from niels_cache_runtime.catalog_text import in_bytes
from niels_cache_runtime.format.doc_ends import require_doc_ends
from niels_cache_runtime.format.foreign_meta import is_foreign
from niels_cache_runtime.format.layout import DOC_ENDS_DTYPE, TOKEN_BYTES, Split, doc_ends_name, idx_name, tokens_name
from niels_cache_runtime.format.meta import Meta
from niels_cache_runtime.format.reading import find_files

if TYPE_CHECKING:
    from niels_cache_runtime.catalog import CacheDataset
    from niels_cache_runtime.loader.loader import TokenLoader
    from niels_cache_runtime.samplers.pretrain_dataset import PretrainTokenStreamDataset
    from niels_cache_runtime.samplers.sft_dataset import SFTExampleDataset

_SHOWN_T = 1024  # what the snippets propose, where a split is long enough


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
    and offset files) are meta.json's. `split[i]`: the tokens of a row, (tokens,) uint16; `len(split)` is `rows`. If another program
    wrote meta.json, `bytes` are those of the files, and `rows` of a pretrain split are the entries of its doc_ends file; without that file
    they are meta.json's, or None if it does not count documents.
    """

    def __init__(self, dataset: "CacheDataset", split: Split) -> None:
        self.dataset, self.split = dataset, split
        self.folder = str(Path(dataset.folder) / split)
        meta = dataset.meta
        prefixes = (f"{split}/", f"{split}_doc_ends.npy", tokens_name(split), idx_name(split))
        if is_foreign(meta):
            found = find_files(Path(dataset.folder)).sizes
        else:
            found = {name: entry["bytes"] for name, entry in listed_files(meta, dataset.folder).items()}
        sizes = {name: size for name, size in found.items() if name.startswith(prefixes)}
        self.bytes = sum(sizes.values())
        in_files = [size // TOKEN_BYTES for name, size in sizes.items() if name.endswith(".bin")]
        self.tokens = int(meta.get(f"{split}_tokens", sum(in_files) if is_foreign(meta) else 0))
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
        """A TokenLoader over this split alone: each window or packed row once per epoch, resumable. `settings`, errors: TokenLoader's."""
        from niels_cache_runtime.loader.loader import TokenLoader

        return TokenLoader(self.folder, T=T, B=B, seed=seed, **settings)

    def sampler(self, *, T: int, device: str = "cpu", verify: Verify = "size") -> "PretrainTokenStreamDataset | SFTExampleDataset":
        """Random windows (`get_batch` -> x, y) of a pretrain split, random examples (x, y, y_masked) of an SFT split.

        T: tokens per row. Raises NielsCacheError as those classes do.
        """
        if self.dataset.family == "pretrain":
            from niels_cache_runtime.samplers.pretrain_dataset import PretrainTokenStreamDataset

            return PretrainTokenStreamDataset(self.folder, T=T, device=device, verify=verify)
        from niels_cache_runtime.samplers.sft_dataset import SFTExampleDataset, resolve_id

        tokens_path, idx_path = self._pair()
        eot_id = resolve_id("eot", None, meta=self.dataset.meta, tokens_path=tokens_path)
        return SFTExampleDataset(tokens_path, idx_path, T=T, device=device, eot_id=eot_id, verify=verify)

    @cached_property
    def stream(self) -> TokenStream:
        """The tokens, mapped, and the place of every row; 8 bytes a row of memory. Raises NielsCacheError as `opening.open_split` does,
        and if the data set was rebuilt since it was looked up."""
        if self.dataset.family == "sft":
            from niels_cache_runtime.samplers.sft_dataset import open_pair

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
        return len(self.stream.offsets) - 1 if self.rows is None else self.rows  # the stream says why it has none

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
        in_rows = f"in {self.rows:,} {rows}" if self.rows is not None else f"in an unknown number of {rows}"
        return f"{self.tokens:,} tokens {in_rows}, {in_bytes(self.bytes)}" if self.tokens else "empty"

    def _snippet(self) -> str:
        """Python that draws batches from this split; empty where there is nothing to draw."""
        T = _SHOWN_T if self.dataset.family == "sft" else min(_SHOWN_T, self.tokens - 1)
        if T < 1 or not self.tokens:
            return ""
        each, targets = ("packed row", "batch.y_masked") if self.dataset.family == "sft" else ("window", "batch.y")
        return (
            f"split = {self.dataset._expression}.{self.split}\n"
            f"loader = split.loader(T={T}, B=8, seed=0)  # every {each} once per epoch, resumable\n"
            f"batch = next(iter(loader))  # batch.x, {targets}: (8, {T})"
        )

    def __repr__(self) -> str:
        snippet = "".join(f"\n  {line}" for line in self._snippet().splitlines())
        return f"{self._name}: {self._summary()}{snippet}"

    def _repr_html_(self) -> str:
        snippet = self._snippet()
        code = f"<pre><code>{html.escape(snippet)}</code></pre>" if snippet else ""
        return f"<p><b>{html.escape(self._name)}</b>: {html.escape(self._summary())}</p>{code}"
