"""Rows of packed documents of a pretrain split. The loader decides their order.

    number of a row, epoch --plan--> pieces of documents --one gather--> T+1 tokens, then padding

`document_plan` explains the pieces, and decides which of them share a row.
"""

import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from niels_cache_runtime.cache.index_cache import IndexCache, new_array
from niels_cache_runtime.cache.mmap import check_increasing, map_offsets
from niels_cache_runtime.cache.opening import OpenedSplit, listed_of_split, require_doc_ends
from niels_cache_runtime.errors import NielsCacheError, NotWrittenError
from niels_cache_runtime.format.layout import (
    DOC_ENDS_DTYPE,
    FAMILIES,
    IDX_DTYPE,
    Array,
    Bools,
    Ints,
    Tokens,
    Uints,
    doc_ends_name,
    file_edges_name,
    max_vocab_size,
    tombstone_id,
)
from niels_cache_runtime.format.meta import Meta, is_foreign, sha256_text
from niels_cache_runtime.loader.packing.document_plan import (
    DOCUMENT_PLAN_VERSION,
    GROWTH,
    HASHED_BYTES,
    DocumentPlan,
    EpochKeys,
    PieceSettings,
    PlanTotals,
    build_document_plan,
)
from niels_cache_runtime.loader.packing.fim import find_files, find_sentinels, rearrange
from niels_cache_runtime.loader.packing.rows_ahead import PackedRows, RowsAhead
from niels_cache_runtime.loader.packing.segments import RowSegments
from niels_cache_runtime.loader.source import DocumentRows, Heads, SampleRows, SourceBlocks, TokenOrigins
from niels_cache_runtime.loader.windows import PretrainWindows

_MAX_DOCUMENTS_IN_MEMORY = 1 << 22
_BLOCK = 1 << 20
_PIECES_AHEAD = 60_000
_NO_PLACES = np.zeros(0, dtype=IDX_DTYPE)


@dataclass(frozen=True, kw_only=True)
class DocumentPacking:
    """How the documents of a split are packed.

    Attributes:
        seed: The seed of the loader. None keeps the order of the split in every epoch.
        block_files: The number of files of a block, None for one block.
        plans: The folder of the plans, None for the folder `index` of the cache root.
        earlier: If the split has grown, (epoch, documents) in ascending order: before this epoch, it had so many documents.
        changes: The settings that change the plan, as BestFit and TokenLoader have them, by name. Only those that are set.
    """

    seed: int | None
    block_files: int | None = None
    plans: str | None = None
    earlier: tuple[tuple[int, int], ...] = ()
    changes: tuple[tuple[str, Any], ...] = ()

    def pieces(self, T: int) -> PieceSettings:
        """Return what decides the pieces, for rows of T inputs.

        Raises:
            NielsCacheError: If T does not go with the settings.
        """
        of = dict(self.changes)
        bos, pad_to = bool(of.get("bos_on_pieces")), of.get("pad_documents_to") or 1
        if T % pad_to:
            raise NielsCacheError(f"pad_documents_to={pad_to}: T={T} is no multiple of it; use T={T // pad_to * pad_to or pad_to}")
        fim = of.get("fim") or {}
        found = PieceSettings(T, bos, pad_to, of.get("max_documents"), fim.get("rate", 0), fim.get("level") == "row")
        if found.step < 1:
            raise NielsCacheError(f"T={T}: a row has no place for text beside BOS (bos_on_pieces) and the tokens of FIM; use a larger T")
        return found


class PackedDocuments(PretrainWindows):
    """A `source.SampleSource` of rows of T+1 tokens, each of which holds documents of one pretrain split, or pieces of long ones.

    The rows with their numbers are the same in every epoch, and the documents in them change. Rows are padded with EOT. The object can be
    pickled, as PretrainWindows.

    Args:
        folder: The folder of the split; see PretrainWindows.
        packing: How to pack.
        **windows: The other arguments of PretrainWindows, without stride.

    Raises:
        NielsCacheError: For the reasons that PretrainWindows lists, and if the documents are unknown, or have one token each.
    """

    _arguments = ("T", "lot_tokens", "packing", "head")
    sentinels: tuple[int, ...] = ()  # the ids of <pre>, <suf> and <mid>
    _edges: Ints | None = None  # of files, for FIM

    def __init__(self, folder: str, *, packing: DocumentPacking, **windows: Any) -> None:
        self.packing = packing
        self._ahead: dict[int, RowsAhead] = {}
        super().__init__(folder, stride=1, **windows)

    def _use(self, split: OpenedSplit) -> None:
        super()._use(split)
        documents = len(require_doc_ends(self.folder, self.doc_ends))
        ids = (self.meta or {}).get("special_token_ids")
        eot = ids.get("eot") if isinstance(ids, dict) else None
        self.eot_id = eot if isinstance(eot, int) else 0
        self._piece_settings = self.packing.pieces(self.T)
        self._bos_id = ids.get("bos") if self._piece_settings.bos and isinstance(ids, dict) else None
        if self._piece_settings.bos and not isinstance(self._bos_id, int):
            raise NielsCacheError(f"{self.folder}: bos_on_pieces=True needs a bos among special_token_ids in meta.json; leave it out")
        self._fim = dict(self.packing.changes).get("fim")
        if self._fim:
            meta = self.meta or {}
            if "fim" in meta and self.split != "val":
                raise NielsCacheError(f"fim: {self.folder} was built with `fim`, so its documents are rearranged already; leave it out")
            self.sentinels = find_sentinels(self._fim, Path(self.path).parent, meta.get("fim_tokens") or {}, max_vocab_size(self._dtype))
            if tombstone_id(meta) in self.sentinels:
                raise NielsCacheError(f"fim: {self.folder} has token {tombstone_id(meta)} in place of struck documents; give other tokens")
            bos, eot = isinstance(ids, dict) and ids.get("bos") is not None, meta.get("append_eot") is True
            self._edges = self._open_edges(meta)
            self._cutting = {"edges": self._edges, "bos": bos, "eot": eot, "spm_rate": self._fim["spm_rate"], "T": self.T}
        self._spelled = 0
        self._plan = self.plan_of(documents)
        self._earlier = [(epoch, self.plan_of(count)) for epoch, count in self.packing.earlier]
        totals = self._plan.totals
        if not totals.rows:
            raise NielsCacheError(f"{self.folder}: its {totals.left_out} documents have one token each, so there is no target to learn")
        self.samples, self.tokens, self.packs = totals.rows, totals.inputs, True

    def _beside(self, name: str) -> Path:
        """Return the path of a file of the data set."""
        return Path(self.path).parent / name

    def _open_edges(self, meta: Meta) -> Ints | None:
        """Return the first token of each file and the one after its last, in turns. Return None if documents have one file each.

        Raises:
            NielsCacheError: If documents have several files and the edges are missing, or are not those that meta.json lists.
        """
        name, files = file_edges_name(self.split), meta.get("files") or {}
        if name not in files:
            if "file_start" in (meta.get("source") or ()):
                keep = 'build it again (--force), with "files" in keep'
                raise NielsCacheError(f"{self.folder}: fim: its documents have several files, but {name} is missing; {keep}")
            return None
        edges = map_offsets(path := self._beside(name), DOC_ENDS_DTYPE)
        if doc_ends_entry(edges) != files[name] or len(edges) % 2 or (len(edges) and edges[-1] > self._stream_ends[-1]):
            raise NielsCacheError(f"{path}: not the file that meta.json lists; open it again if it was rebuilt, or rebuild this data set")
        check_increasing(path, edges)
        return edges.view(IDX_DTYPE)

    def fingerprint_of(self, meta: Meta) -> str:
        own, edges = super().fingerprint_of(meta), meta["files"].get(file_edges_name(self.split))
        return sha256_text(own + edges["sha256"]) if self._fim and edges else own

    def report(self) -> PlanTotals:
        """Return the counts of an epoch, as the split is now."""
        fileless = 0
        if self._edges is not None:
            ends = np.asarray(self.doc_ends).view(IDX_DTYPE)
            first, last = find_files(self._edges, ends - (lengths := np.diff(ends, prepend=0)), lengths)
            fileless = int((first > last).sum())
        return self._plan.totals._replace(fim_spelled=self._spelled, fim_fileless=fileless)

    @property
    def _plans(self) -> Path:
        dataset = Path(self.path).parent
        return (dataset.parent if dataset.parent.name in FAMILIES else dataset).parent / "index"

    def earlier_plans(self, earlier: Sequence[tuple[int, int]], samples: Sequence[int]) -> list[tuple[int, DocumentPlan]]:
        """Return the plans of epochs from before the split has grown, for `use_earlier`.

        Args:
            earlier: As in DocumentPacking.
            samples: The number of samples of each of them.

        Raises:
            NielsCacheError: If such a split has another number of samples.
        """
        plans = [(epoch, self.plan_of(documents)) for epoch, documents in earlier]
        if any(plan.totals.rows != count for (_, plan), count in zip(plans, samples, strict=False)):
            raise NielsCacheError(f"{self.folder}: its documents before it has grown give other rows than the state; it was edited")
        return plans

    def use_earlier(self, earlier: Sequence[tuple[int, int]], plans: list[tuple[int, DocumentPlan]]) -> None:
        """Read epochs from before the split has grown by their plans, which `earlier_plans` returned."""
        self._ahead = {}
        self.packing, self._earlier = replace(self.packing, earlier=tuple(earlier)), plans

    @property
    def documents(self) -> list[int]:
        """The number of documents, before each time that the split has grown, and now."""
        return [*(documents for _, documents in self.packing.earlier), len(require_doc_ends(self.folder, self.doc_ends))]

    def samples_of(self, documents: Ints, *, epoch: int) -> DocumentRows:
        """Return the rows with pieces of these documents; see `SampleSource.samples_of`.

        A piece that FIM has left as it is, because of its text, ends three columns earlier than said here. Documents that came later, as
        the split has grown, have none.
        """
        self._bounds_of(documents)
        plan = self._plan_in(epoch)
        documents = documents[documents < plan.documents]
        rows = plan.rows_of(documents, self._keys_of(epoch))
        numbers = np.unique(rows)
        segments, starts, bos, fim = self._segments_of(numbers, epoch)
        of_pieces = np.asarray(self.doc_ends).view(IDX_DTYPE).searchsorted(starts, side="right")
        own = np.flatnonzero(np.isin(of_pieces, documents))
        if len(own) != len(rows):
            raise plan.damaged("full_counts")
        firsts, ends = segments.columns + bos, segments.columns + segments.lengths
        columns = of_pieces, numbers[segments.rows], firsts, ends, starts - self._bounds_of(of_pieces)[0]
        return DocumentRows(*(column[own] for column in (*columns, ends - firsts - (0 if fim is None else GROWTH * fim))))

    def plan_of(self, documents: int) -> DocumentPlan:
        """Return the plan of the first documents of the split, from its file if there is one."""
        assert self.doc_ends is not None
        ends = np.asarray(self.doc_ends)[:documents]
        edges = np.minimum(self._block_edges(self.packing.block_files or len(self.files))[1], int(ends[-1]))
        parameters = {
            "documents": doc_ends_entry(ends)["sha256"] if documents < len(self.doc_ends) else self._ends_sha256(),
            "T": self.T,
            "edges": sha256_text(str(edges.tolist())),
            "plan_version": DOCUMENT_PLAN_VERSION,
            **dict(self.packing.changes),
            **({"fim": [self._fim["rate"], self._fim["level"]]} if self._fim else {}),
        }

        def build(allocate: Any) -> None:
            build_document_plan(allocate, ends, self._piece_settings, edges=edges)

        arrays: dict[str, Array] = {}
        index = IndexCache(self.packing.plans or self._plans, hashed_bytes=HASHED_BYTES)
        try:
            arrays = index.open("documents", parameters, build)
        except NotWrittenError as error:
            if documents > _MAX_DOCUMENTS_IN_MEMORY or self.packing.plans:
                raise NielsCacheError(f"{error}; such a folder is packing=BestFit(plans=...)") from error
            build(lambda name, shape, dtype: arrays.setdefault(name, new_array(name, shape, dtype)))
        return DocumentPlan(arrays, ends, self._piece_settings, folder=index.directory("documents", parameters))

    def _ends_sha256(self) -> str:
        """Return the sha256 of the file of document ends, from meta.json if it is listed there."""
        assert self.doc_ends is not None
        listed = {} if self.meta is None or is_foreign(self.meta) else listed_of_split(self.meta, self.path, doc_ends=True)
        return str(listed.get(doc_ends_name(self.split), {}).get("sha256") or doc_ends_entry(self.doc_ends)["sha256"])

    def read(self, numbers: Ints, *, epoch: int, boundaries: bool = True) -> SampleRows:
        """Return rows of an epoch, always with boundaries and targets.

        Args:
            numbers: (n,) int64, the numbers of the rows, from 0 to samples - 1.
            epoch: The epoch.
            boundaries: Ignored.

        Raises:
            NielsCacheError: If a number is out of range.
        """
        rows, tokens = self._gather(numbers, epoch)
        heads = self._find_heads(rows) if self.head else None
        return SampleRows(
            tokens=tokens.reshape(-1, self.T + 1),
            boundaries=rows.boundaries,
            ignored=rows.ignored,
            padding=rows.padding,
            filled=rows.filled,
            heads=heads,
        )

    def _gather(self, numbers: Ints, epoch: int) -> tuple[PackedRows, Tokens]:
        """Return what rows are made of, and their flattened tokens."""
        ahead = self._ahead.get(epoch)
        rows = (ahead and ahead.take(numbers)) or self._rows(numbers, epoch)
        tokens = self._read_pieces(rows.starts, rows.lengths, rows.pads, pad_id=self.eot_id)
        if self.sentinels:
            lowest = tokens.dtype.type(min(self.sentinels))
            if (tokens - lowest <= max(self.sentinels) - lowest).any():  # what is below the lowest wraps around
                rows, tokens = self._keep_spelled(rows, tokens, numbers, epoch)
            tokens[rows.sentinels.reshape(-1, 3)] = self.sentinels
        if self._bos_id is not None:
            tokens[rows.bos] = self._bos_id
        return rows, tokens

    def _keep_spelled(self, rows: PackedRows, tokens: Tokens, numbers: Ints, epoch: int) -> tuple[PackedRows, Tokens]:
        """Return rows in which pieces whose text has a sentinel are as they are in the stream, with three columns of padding."""
        positions = rows.positions()
        kept = self._rows(numbers, epoch, np.sort(positions[np.isin(tokens, self.sentinels)]))
        self._spelled += (len(rows.sentinels) - len(kept.sentinels)) // 3
        order, wanted = positions.argsort(), kept.positions()  # the tokens are here already, and their shards may be gone
        found = tokens[order[positions.searchsorted(wanted, sorter=order)]]
        found[wanted < 0] = self.eot_id
        return kept, found

    def _find_heads(self, rows: PackedRows) -> Heads:
        widths = rows.lengths + rows.pads
        places = widths.cumsum() - widths
        before = self._before(rows.starts)
        before[np.isin(places, rows.bos) | rows.fim] = 0
        parts = np.flatnonzero(before)
        tokens = np.zeros((len(parts), self.head), dtype=self._dtype)
        for row, found in zip(tokens, self._read_heads(rows.starts[parts]), strict=True):
            row[-len(found) :] = found
        row, column = np.divmod(places[parts], self.T + 1)
        return Heads(rows=row, columns=column, tokens=tokens, lengths=before[parts])

    def _read_heads(self, starts: Ints) -> list[Tokens]:
        """Return the `head` tokens before each of these places, or as many as there are."""
        return [np.concatenate([*self._head_pieces(start)]) for start in starts.tolist()]

    def origins(self, numbers: Ints, *, epoch: int) -> TokenOrigins:
        """Return shard, offset and document of every token of the rows `numbers` (n,) in `epoch`.

        Padding and added BOS have -1. The tokens of FIM only have a document.
        """
        rows, _ = self._gather(numbers, epoch)
        positions = rows.positions()
        positions[rows.bos] = -1
        positions = positions.reshape(-1, self.T + 1)
        unknown = positions < 0
        found = self._origins_of(np.where(unknown, 0, positions))
        for array in vars(found).values():
            array[unknown] = -1
        for array in (found.files, found.offsets, found.document_offsets):
            array.reshape(-1)[rows.sentinels] = -1
        return found

    def _segments_of(self, numbers: Ints, epoch: int, spelled: Ints = _NO_PLACES) -> tuple[RowSegments, Ints, Ints, Bools | None]:
        """Return the pieces in rows of an epoch: places, first tokens in the stream, 1 for BOS before them, whether FIM rearranges them.

        A piece with one of the places `spelled` in it is not rearranged.
        """
        plan = self._plan_in(epoch)
        rows, starts, lengths, widths, has_bos, fim = plan.pieces(self._checked(numbers, plan.totals.rows), self._keys_of(epoch))
        bos = np.zeros_like(rows) if has_bos is None else has_bos.astype(IDX_DTYPE)
        lengths = lengths if has_bos is None else lengths + bos
        if fim is not None:
            if self._edges is not None:
                first, last = find_files(self._edges, starts, lengths - bos)
                fim &= first <= last
            fim &= spelled.searchsorted(starts) == spelled.searchsorted(starts + lengths - bos)
            lengths = lengths + GROWTH * fim
        return RowSegments.lay_out(rows, lengths, n=len(numbers), T=self.T, widths=widths), starts, bos, fim

    def _rows(self, numbers: Ints, epoch: int, spelled: Ints = _NO_PLACES) -> PackedRows:
        segments, starts, bos, fim = self._segments_of(numbers, epoch, spelled)
        rows, lengths, pads, begun = segments.rows, segments.lengths, segments.pads(), np.flatnonzero(bos)
        ignored = segments.ignored(pads, begun)
        padding = segments.padding(pads) if self._piece_settings.pad_to > 1 else None
        if len(begun):  # a piece of one token for each BOS, which is written over it
            rows, starts = (np.insert(each, begun, each[begun]) for each in (rows, starts))
            lengths, pads = np.insert(lengths - bos, begun, 1), np.insert(pads, begun, 0)
        boundaries, filled = segments.boundaries(self._piece_settings.most), segments.filled
        is_fim, sentinels = np.zeros(len(rows), dtype=np.bool_), rows[:0]
        if fim is not None:
            found, sentinels, repeated = rearrange(
                (pads, starts, lengths, rows),
                np.insert(fim, begun, False),
                np.asarray(self.doc_ends).view(IDX_DTYPE),
                keys=epoch_keys(self.packing.seed or 0, epoch),
                **self._cutting,
            )
            pads, starts, lengths, rows, is_fim = found
            ignored = np.sort(np.concatenate([ignored, repeated]), kind="stable")
        return PackedRows(
            self.T, rows, starts, lengths, pads, filled, boundaries, ignored, padding, segments.places[begun], is_fim, sentinels
        )

    def prepare(self, numbers: Ints, *, epoch: int) -> None:
        """Get ready to read these rows in this order. To find the pieces of many rows together costs far less than batch by batch."""
        count = max(1, _PIECES_AHEAD * self.samples // self._plan.totals.pieces)
        # The dict is replaced, not changed, because a prefetch thread and a tracing thread may both be here.
        self._ahead = {**dict(list(self._ahead.items())[-1:]), epoch: RowsAhead(numbers, lambda own: self._rows(own, epoch), count)}

    def _plan_in(self, epoch: int) -> DocumentPlan:
        return next((plan for end, plan in self._earlier if epoch < end), self._plan)

    def _keys_of(self, epoch: int) -> EpochKeys | None:
        return None if self.packing.seed is None else epoch_keys(self.packing.seed, epoch)

    def blocks(self, files: int) -> SourceBlocks:
        """Return the blocks of `files` shards each; see PretrainWindows. A piece belongs to the block of its first token."""
        first_files, edges = self._block_edges(files)
        earlier = [plan.rows_before(edges) for _, plan in self._earlier]
        tails = self._read_after(edges[:-1], edges[1:])
        return SourceBlocks(samples=self._plan.rows_before(edges), files=first_files, tails=tails, earlier=earlier)

    def _read_after(self, starts: Ints, ends: Ints) -> Ints:
        return np.minimum(self.T, self._stream_ends[-1] - ends)


epoch_keys = lru_cache(maxsize=8)(EpochKeys)


def count_rows(folder: str, *, T: int, packing: DocumentPacking) -> PlanTotals:
    """Return the counts of packing a split. No token is read, and no plan is written.

    Args:
        folder: The folder of the split.
        T: Inputs per row.
        packing: How to pack.

    Raises:
        NielsCacheError: For the reasons that PackedDocuments lists.
    """
    windows = PretrainWindows(folder, T=T)
    edges = windows._block_edges(packing.block_files or len(windows.files))[1]
    return build_document_plan(new_array, require_doc_ends(folder, windows.doc_ends), packing.pieces(T), edges=edges)


def doc_ends_entry(ends: Uints) -> dict[str, Any]:
    """Return the entry that meta.json has for the file of these document ends."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<u8", "fortran_order": False, "shape": ends.shape})
    digest = hashlib.sha256(header.getvalue())
    for first in range(0, len(ends), _BLOCK):
        digest.update(np.ascontiguousarray(ends[first : first + _BLOCK]).data.cast("B"))
    return {"bytes": len(header.getvalue()) + ends.nbytes, "sha256": digest.hexdigest()}
