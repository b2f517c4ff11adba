r"""The edges of files in documents of several files, in tokens: where each file begins, and where it ends.

    text     # a.py\n | import b | \n | # b.py\n | x = 1 | \n        the markers say where the files are (`joining`)
    tokens   |#| a|.py|\n|import| b|\n#| b|.py|\n|x| =| 1|\n|
    edges                 4          6               10    13        a token that is partly in a file is in no file

Markers, and the text after each file (`file_end`), belong to no file. The tokens are spelled out and compared with the text, so an edge is
never wrong: if a tokenizer changes the text of a document, as by NFC, all of this document is in no file. The cost is 100 ns for a token.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from niels_cache_assets.base.documents import DocumentBatch
from niels_cache_assets.base.strings import Strings
from niels_cache_assets.disk.writers import NPY_HEADER_BYTES, Files, NpyWriter
from niels_cache_assets.sources.types import Source
from niels_cache_assets.streaming.splits import SplitPart
from niels_cache_assets.tokenizer.base import TextTokenizer
from niels_cache_corpora.code.joining import paths_of, places_of_files
from niels_cache_runtime.format.layout import DOC_ENDS_DTYPE, Array, Ints, Split, file_edges_name


def edge_finder(source: Source, tables: Mapping[str, Any], tokenizer: TextTokenizer) -> "EdgeFinder | None":
    """Return what finds the edges of files in the documents of a data set, or None if its documents have one file each.

    Args:
        source: The table of the data set.
        tables: The pretrain tables by name, for a mixture.
        tokenizer: The tokenizer.
    """
    read = {name: tables[name] for name in getattr(source, "members", ()) if name in tables} or {"": source}
    joined = {
        name: each for name, each in read.items() if each.source == "code" and each.sample_by == "repository" and "files" in each.keep
    }
    templates = {name: (each.file_start, each.file_end) for name, each in joined.items()}
    return EdgeFinder(templates, tokenizer.piece_bytes()) if templates else None


class EdgeFinder:
    """Finds the edges of the files of documents.

    Args:
        templates: `file_start` and `file_end` of each member of a mixture with such documents, by its name, with which the file of a
            document begins. A document of another member is one file. "" is the name of a data set that is no mixture.
        pieces: The bytes of each id of the tokenizer.
    """

    def __init__(self, templates: Mapping[str, tuple[str, str]], pieces: Sequence[bytes]) -> None:
        self._templates, self._pieces = templates, pieces
        self._widths = np.array([len(piece) for piece in pieces], dtype=np.int64)

    def with_edges(
        self, documents: DocumentBatch, texts: Sequence[str] | Strings, ids: Array, lengths: Ints, *, first: int
    ) -> DocumentBatch:
        """Return documents with their edges.

        Args:
            documents: The documents.
            texts: The texts as they were encoded.
            ids: The ids of all texts.
            lengths: How many ids each text has.
            first: The number of tokens before these ids in each document.
        """
        edges, end = np.empty(len(documents), dtype=object), 0
        kept = [None] * len(documents) if documents.kept is None else documents.kept
        read = texts.tolist() if isinstance(texts, Strings) else texts
        for number, (text, own, file) in enumerate(zip(read, kept, documents.file.tolist(), strict=True)):
            start, end = end, end + int(lengths[number])
            template = self._templates.get("") or self._templates.get(file.partition("/")[0])
            found = np.array([0, end - start]) if template is None else self._edges_of(text, paths_of(own), *template, ids[start:end])
            edges[number] = found + first
        return replace(documents, edges=edges)

    def _edges_of(self, text: str, paths: Sequence[str], file_start: str, file_end: str, ids: Array) -> Ints:
        content, spelled = text.encode("utf-8", "surrogatepass"), b"".join(map(self._pieces.__getitem__, ids.tolist()))
        added = len(spelled) - len(content)  # the blank that SentencePiece adds
        if spelled != b" "[: max(0, added)] + content:
            return np.empty(0, dtype=np.int64)
        found = reversed(places_of_files(text, paths, file_start))
        inside = [(start, end - len(file_end) * text.endswith(file_end, start, end)) for _, start, end in found]
        places = np.array(inside, dtype=np.int64).reshape(-1, 2)
        if len(content) > len(text):
            between = pairwise([0, *places.ravel().tolist()])
            sizes = [len(text[start:end].encode("utf-8", "surrogatepass")) for start, end in between]
            places = np.cumsum(sizes, dtype=np.int64).reshape(-1, 2)
        ends = self._widths[ids].cumsum() - added
        firsts = (ends - self._widths[ids]).searchsorted(places[:, 0])
        edges = np.stack([firsts, ends.searchsorted(places[:, 1], side="right")], axis=1)
        return edges[edges[:, 0] < edges[:, 1]].ravel()


class EdgeWriter(NpyWriter):
    """The file of the edges of one split.

    Args:
        root: The folder of the data set.
        split: The split.
        files: Gets the size and the sha256 of the file.
        is_resumed: Whether the file exists. The journal has cut it to the checkpoint.
    """

    def __init__(self, root: Path, split: Split, files: Files, *, is_resumed: bool) -> None:
        name = file_edges_name(split)
        written = (root / name).stat().st_size - NPY_HEADER_BYTES if is_resumed else 0
        super().__init__(root, name, DOC_ENDS_DTYPE, files, resume_at=written // DOC_ENDS_DTYPE.itemsize)

    def write_part(self, part: SplitPart, *, before: int) -> None:
        """Append the edges of documents that come after `before` tokens."""
        starts = np.cumsum(part.lengths) - part.lengths
        limits = part.lengths - (np.arange(len(starts)) == part.cut)  # EOT of a document that was cut is in no file
        inside = [np.minimum(each, limit) for each, limit in zip(part.lineage["edges"], limits, strict=True)]
        edges = np.concatenate([each + start + before for each, start in zip(inside, starts, strict=True)]).reshape(-1, 2)
        self.write(edges[edges[:, 0] < edges[:, 1]].ravel())
