"""The results of a verification, folder by folder: the rows of the table that `verify` prints, and the table as plain text."""

from collections import Counter
from collections.abc import Sequence
from typing import Literal, NamedTuple

from niels_cache_runtime.catalog_text import in_bytes
from niels_cache_runtime.errors import escaped
from niels_cache_runtime.verify import Verification
from niels_cache_runtime.verify.folder import VerifiedFolder

COLUMNS = ("data set", "family", "files", "bytes", "result")
NUMBERS = ("files", "bytes")


FolderOutcome = Literal["sound", "findings", "unverifiable", "off"]


class Result(NamedTuple):
    """The result of one folder.

    Attributes:
        name: The name of the folder.
        family: `pretrain`, `sft`, `corpus` and so on. For the tokenizer and the duplicates, it is `tokenizer` or `duplicates`.
        files: The number of files, without meta.json.
        bytes: Their size.
        outcome: "sound", "findings", "unverifiable", or "off" for a data set that is switched off.
        result: The outcome in words.
    """

    name: str
    family: str
    files: int
    bytes: int
    outcome: FolderOutcome
    result: str

    def cells(self) -> tuple[str, ...]:
        return escaped(self.name), escaped(self.family), f"{self.files:,}", f"{self.bytes:,}", self.result


def results(verified: Verification) -> list[Result]:
    """Return one row for each folder, in order. Findings about entries beside the folders are in no row."""
    counts = Counter(finding.folder for finding in verified.findings)
    rows = []
    for folder in verified.folders:
        place, count = folder.path.absolute(), counts[str(folder.path)]
        family = place.name if folder.path.parent == verified.root else place.parent.name
        outcome, result = _folder_outcome(folder, count, quick=verified.quick)
        rows.append(Result(place.name, family, len(folder.found), sum(folder.found.values()), outcome, result))
    return rows


def _folder_outcome(folder: VerifiedFolder, findings: int, *, quick: bool) -> tuple[FolderOutcome, str]:
    if findings:
        return "findings", _format_count(findings, "finding")
    if folder.meta is not None and folder.meta.get("built") is False:
        return "off", "switched off"
    if folder.is_unverifiable:
        return "unverifiable", "unverifiable"
    return "sound", "names and sizes agree" if quick else "verified"


def _format_count(number: int, unit: str) -> str:
    return f"{number:,} {unit}{'' if number == 1 else 's'}"


def as_text(rows: Sequence[Result]) -> str:
    """Return aligned lines of text, beginning with the heading."""
    lines = [COLUMNS, *(row.cells() for row in rows)]
    name, family, files, size, _ = (max(map(len, column)) for column in zip(*lines, strict=True))
    return "\n".join(f"{a:<{name}}  {b:<{family}}  {c:>{files}}  {d:>{size}}  {e}" for a, b, c, d, e in lines)


def summary(rows: Sequence[Result], verified: Verification) -> str:
    """Return a line such as `8 folders, 31 files, 12.3 MB: no findings; 1 unverifiable`. Unverifiable folders are counted separately."""
    compared = [row for row in rows if row.outcome != "unverifiable"]
    files, size = sum(row.files for row in compared), sum(row.bytes for row in compared)
    done = "names and sizes agree" if verified.quick else "no findings"
    text = _format_count(len(verified.findings), "finding") if verified.findings else done
    if others := len(rows) - len(compared):
        text += f"; {others:,} unverifiable"
    return f"{_format_count(len(compared), 'folder')}, {_format_count(files, 'file')}, {in_bytes(size)}: {text}"
