r"""The edges of files in documents of several files, in tokens: where each file begins, and where it ends.

    text     # a.py\n | import b | \n | # b.py\n | x = 1 | \n        the markers say where the files are (`joining`)
    tokens   |#| a|.py|\n|import| b|\n#| b|.py|\n|x| =| 1|\n|
    edges                 4          6               10    13           a token that is partly in a file is in no file

Markers, and the text after each file (`file_end`), belong to no file. The tokens are spelled out and compared with the text, so an edge is
never wrong: if a tokenizer changes the text of a document, as by NFC, all of this document is in no file. The cost is 50 ns for a token.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from niels_cache_corpora.code.joining import paths_of, places_of_files
from niels_cache_runtime.format.layout import Array, Ints


class EdgeFinder:
    """A function that returns the edges of the files of documents.

    A document whose kept values have no `files` is one file, as in a mixture.

    Args:
        templates: `file_start` and `file_end` of each data set with such documents. The one that finds the most files in a document counts.
        pieces: The bytes of each id of the tokenizer.
    """

    def __init__(self, templates: Iterable[tuple[str, str]], pieces: Sequence[bytes]) -> None:
        self._templates, self._pieces = sorted(templates), pieces
        self._widths = np.array([len(piece) for piece in pieces], dtype=np.int64)

    def __call__(self, texts: Iterable[str], kept: Iterable[str | None], ids: Array, lengths: Ints) -> Array:
        """Return for each text the first token of each file and the one after its last, in turns: an object array of arrays.

        Args:
            texts: The texts.
            kept: Their kept values.
            ids: The ids of all texts.
            lengths: How many ids each text has.
        """
        found = np.empty(len(lengths), dtype=object)
        ends = np.cumsum(lengths)
        for number, (text, own, end) in enumerate(zip(texts, kept, ends.tolist(), strict=True)):
            found[number] = self._edges_of(text, paths_of(own), ids[end - int(lengths[number]) : end])
        return found

    def _edges_of(self, text: str, paths: Sequence[str], ids: Array) -> Ints:
        if not paths:
            return np.array([0, len(ids)])
        content, spelled = text.encode("utf-8", "surrogatepass"), b"".join(map(self._pieces.__getitem__, ids.tolist()))
        added = len(spelled) - len(content)  # the blank that SentencePiece adds
        if spelled != b" "[:added] + content:
            return np.empty(0, dtype=np.int64)
        every = (self._places(text, paths, *template) for template in self._templates)
        places = np.array(max(every, key=len), dtype=np.int64).reshape(-1, 2)
        if len(content) > len(text):
            sizes = np.array([len(character.encode("utf-8", "surrogatepass")) for character in text], dtype=np.int64)
            places = np.append(0, sizes.cumsum())[places]
        ends = self._widths[ids].cumsum() - added
        firsts = (ends - self._widths[ids]).searchsorted(places[:, 0])
        edges = np.stack([firsts, ends.searchsorted(places[:, 1], side="right")], axis=1)
        return edges[edges[:, 0] < edges[:, 1]].ravel()

    @staticmethod
    def _places(text: str, paths: Sequence[str], file_start: str, file_end: str) -> list[Any]:
        """Return the first character and the end of each file, from the first file to the last."""
        found = reversed(places_of_files(text, paths, file_start))
        return [(start, end - len(file_end) * text.endswith(file_end, start, end)) for _, start, end in found]
