"""The kind of a file, judged by its first bytes, for files that are not what their names say.

Some files can be read as text, but never contain text to train on: Git LFS pointers, PDFs. Readers refuse these (`refuse_content`).
Everything else is left to them: when they cannot read a file, `describe_content` says what it is. This is a guess for messages and decides
nothing.
"""

import re
from typing import NamedTuple

from niels_cache_runtime.errors import NielsCacheError

HEAD_BYTES = 512  # the header of a tar archive names it at byte 257


class FileContent(NamedTuple):
    """The kind of a file, and what to do with it.

    Attributes:
        what: What the file is.
        advice: What to do.
        is_text: Whether it is text.
        is_refused: Whether it could be read as text, but never should be.
    """

    what: str
    advice: str
    is_text: bool = False
    is_refused: bool = False


_GET_LFS = "get its content with `git lfs pull`, or download it again"
_GET_ANNEX = "get its content with `git annex get`"
_DOWNLOAD = "download it again"
_UNPACK = "unpack it, and name its files"
_CONVERT = "convert it to text"
_PARQUET = 'let its name end in .parquet, and set source = "parquet"'


def _rename(suffix: str) -> str:
    return f"let its name end in {suffix}"


_CONTENTS = {  # by a regular expression for the first bytes
    rb"version https://git-lfs\.github\.com/": FileContent("a pointer of Git LFS, without the content", _GET_LFS, is_refused=True),
    rb"# xet version \d": FileContent("a pointer of Xet, without the content", _DOWNLOAD, is_refused=True),
    rb"/annex/objects/|(\.\./)*\.git/annex/objects/": FileContent(
        "a pointer of git-annex, without the content", _GET_ANNEX, is_refused=True
    ),
    rb"\x1f\x8b\x08": FileContent("gzip", _rename(".gz")),
    rb"BZh[1-9](1AY&SY|\x17\x72\x45\x38\x50\x90)": FileContent("bzip2", _rename(".bz2")),
    rb"\xfd7zXZ\x00": FileContent("xz", _rename(".xz")),
    rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18": FileContent("zstd", _rename(".zst")),
    rb"(?s)PK\x03\x04.{26}(\[Content_Types\]|_rels/|mimetypeapplication/vnd)": FileContent(
        "a document of an office program", "convert it to text, for example with pandoc"
    ),
    rb"PK(\x03\x04|\x05\x06)": FileContent("a zip archive (or a document of an office program)", _UNPACK),
    rb"7z\xbc\xaf\x27\x1c": FileContent("a 7z archive", _UNPACK),
    rb"Rar!\x1a\x07": FileContent("a RAR archive", _UNPACK),
    rb"\x04\x22\x4d\x18": FileContent("lz4", _UNPACK),
    rb"(?s).{257}ustar": FileContent("a tar archive", _UNPACK),
    rb"PAR[1E][\x00-\x08\x0e-\x1f]": FileContent("Parquet", _PARQUET),
    rb"ARROW1\x00\x00|\xff\xff\xff\xff[\x10-\xff]..\x00\x10\x00\x00\x00": FileContent(
        "Arrow", 'let its name end in .arrow, and set source = "arrow"'
    ),
    rb"ORC[\x00-\x1f]|Obj\x01": FileContent("a table of ORC or Avro", "write it as Parquet or as JSON lines"),
    rb"SQLite format 3\x00": FileContent("an SQLite database", "export the table as JSON lines"),
    rb"\x89HDF\r\n\x1a\n|\x93NUMPY": FileContent("an array of HDF5 or NumPy", "write its text as JSON lines"),
    rb"%PDF-": FileContent(
        "a PDF", "convert it to text, for example with pdftotext (poppler) or docling, and name the text files", is_refused=True
    ),
    rb"\{\\rtf1": FileContent("an RTF document", _CONVERT, is_refused=True),
    rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": FileContent("a document of an office program", _CONVERT),
    rb"(?is)(\xef\xbb\xbf)?\s*(<!--.*?-->\s*)?<(!doctype\s+html|html|head|body|script|title)\b": FileContent(
        "an HTML page, such as a saved page with a login or an error", _DOWNLOAD, is_text=True
    ),
    rb"(?is)(\xef\xbb\xbf)?\s*<(\?xml|error|mediawiki)\b": FileContent("XML", "give the file that its name promises", is_text=True),
    rb"(\xef\xbb\xbf)?\s*(\[\s*[\[{\"\d]|\{\s*\")": FileContent(
        "JSON", 'let its name end in .json, and set source = "jsonl"', is_text=True
    ),
}
_MAGIC = {".gz": rb"\x1f\x8b", ".bz2": rb"BZh", ".xz": rb"\xfd7zXZ\x00", ".zst": rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"}
_MIN_UTF16 = 8  # bytes
_PLAIN_TEXT = FileContent("plain text", "give the file that its name promises", is_text=True)


def detect_content(head: bytes) -> FileContent | None:
    """Return what a file with these first bytes is, or None if that is unknown."""
    if not head:
        return FileContent("empty (0 bytes)", f"leave it out, or {_DOWNLOAD}")
    found = next((content for signature, content in _CONTENTS.items() if re.match(signature, head)), None) or _utf16(head)
    return found or (_PLAIN_TEXT if _is_text(head) else None)


def _utf16(head: bytes) -> FileContent | None:
    """Recognize UTF-16 with a byte order mark, or without one if nearly all of its characters are ASCII."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return FileContent("UTF-16 text", "convert it to UTF-8", is_text=True)
    pairs, big, little = len(head) // 2, head[0::2].count(0), head[1::2].count(0)  # zero bytes in the first and second byte of pairs
    if len(head) < _MIN_UTF16 or max(big, little) < 0.9 * pairs or min(big, little) > 0.1 * pairs:
        return None
    order = "be" if big > little else "le"
    return FileContent("UTF-16 text without a byte order mark", f'set encoding = "utf-16-{order}", or convert it to UTF-8', is_text=True)


def _is_text(head: bytes) -> bool:
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        if error.start < len(head) - 3:  # a character that is cut at the end of the head does not count
            return False
        text = head[: error.start].decode()
    return not re.search(r"[\x00-\x08\x0e-\x1a\x1c-\x1f]", text)


def refuse_content(head: bytes, name: str, compression: str | None) -> None:
    """Raise an error if a file must not be read as text (see the module), or if it is not compressed as its name says.

    Unknown bytes are left to the reader.

    Args:
        head: The first bytes, before decompression.
        name: The name of the file.
        compression: The suffix that says how the file is compressed, or None.

    Raises:
        NielsCacheError: If the file must not be read.
    """
    found = detect_content(head)
    if found is None or not head:
        return
    if found.is_refused:
        raise NielsCacheError(f"{name}: is {found.what}; {found.advice}")
    if compression is not None and not re.match(_MAGIC[compression], head):
        advice = f"let its name end without {compression}" if found.is_text else found.advice
        raise NielsCacheError(f"{name}: is {found.what}, although its name ends in {compression}; {advice}")


def describe_content(head: bytes, expected: str = "plain text") -> str:
    """Return a clause that says what an unreadable file is, with advice.

    Args:
        head: The first bytes.
        expected: The content that the reader expects. The clause is empty if the file is that, or if its kind is unknown.
    """
    found = detect_content(head[:HEAD_BYTES])
    return "" if found is None or found.what == "plain text" or expected in found.what else f"; it is {found.what}: {found.advice}"
