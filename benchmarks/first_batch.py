"""A newcomer's way from a folder of files to the first batch: `init`, `build-all` and a TokenLoader, each in a fresh process.

    python benchmarks/first_batch.py [--only NAME ...] [--show]

Ten folders in the forms that people have: code, notes, CSV, JSON arrays, chats of four forms, preference pairs, KTO, mixed files, books,
and an empty folder. Each has a project of its own, a new Dagster home and no cache of engines. The commands are what a person types; where
the first `init` is refused, they type what its message says. The table says which commands were needed, how long each took,
which share of the bytes was used, and which files were left out. --show also prints what the commands wrote.

A Python warning about a file that is not closed ends the script, because users see such warnings too.

Texts: the topics of Python's own help, so no real samples are needed.
"""

import argparse
import csv
import io
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pyarrow
import pyarrow.parquet

from niels_cache_assets.base.wording import file_size, format_count, format_share

COMMAND = Path(sys.executable).with_name("niels-cache")
READ = """\
import tomllib
from niels_cache_runtime import TokenLoader
with open("niels_cache.toml", "rb") as file:
    tables = tomllib.load(file)
for name in [*tables.get("pretrain", {}), *tables.get("sft", {})]:
    batch = next(iter(TokenLoader("cache", name, T=64, B=2, seed=0)))
    print(name, batch)
"""
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40
PDF = b"%PDF-1.7\n" + bytes(range(128, 256)) * 60
CONTAINER = (
    '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles><rootfile full-path="b.opf"/></rootfiles></container>'
)
PACKAGE = """<package xmlns="http://www.idpf.org/2007/opf"><manifest>{items}</manifest><spine>{spine}</spine></package>"""
PAGE = '<html xmlns="http://www.w3.org/1999/xhtml"><head><title>{title}</title></head><body><h1>{title}</h1><p>{text}</p></body></html>'


def texts() -> list[tuple[str, str]]:
    """Return titles and texts, without those that are too short to be a document."""
    return [(name, text) for name, text in sorted(topics.items()) if len(text) > 500]


def turns(count: int) -> Iterator[tuple[str, str]]:
    """Yield questions and answers."""
    found = ((name, part) for name, text in texts() for part in text.split("\n\n") if len(part) > 80)
    for name, part in islice(found, count):
        yield f"What does Python's help say about {name}?", part


def lines(rows: Sequence[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def table(rows: Sequence[Mapping[str, Any]], delimiter: str = ",") -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, [*rows[0]], delimiter=delimiter)
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def book(title: str, chapters: Sequence[tuple[str, str]]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("mimetype", "application/epub+zip")
        file.writestr("META-INF/container.xml", CONTAINER)
        numbers = range(len(chapters))
        items = "".join(f'<item id="c{n}" href="c{n}.xhtml" media-type="application/xhtml+xml"/>' for n in numbers)
        file.writestr("b.opf", PACKAGE.format(items=items, spine="".join(f'<itemref idref="c{n}"/>' for n in numbers)))
        for number, (name, text) in enumerate(chapters):
            escaped = text.replace("&", "&amp;").replace("<", "&lt;")
            file.writestr(f"c{number}.xhtml", PAGE.format(title=f"{title}: {name}", text=escaped))
    return out.getvalue()


Files = dict[str, str | bytes]


def code() -> Files:
    """A clone of a project: sources, a README, a build file without ending, a picture, an empty file."""
    folder = Path(json.__file__).parent
    files: Files = {f"src/json/{path.name}": path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.py"))}
    files |= {"src/json/py.typed": "", "README.md": "# JSON\n\nReads and writes JSON.\n", "Makefile": "test:\n\tpytest\n"}
    return files | {"docs/logo.png": PNG, ".git/HEAD": "ref: refs/heads/main\n", "package.json": '{"name": "json", "version": "1.0"}'}


def notes() -> Files:
    """An Obsidian vault."""
    files: Files = {f"{name[0]}/{name}.md": f"# {name}\n\n{text}" for name, text in texts()[:60]}
    return files | {".obsidian/app.json": '{"vimMode": true}', "attachments/scan.png": PNG, "board.canvas": '{"nodes": []}'}


def csv_files() -> Files:
    """Exports of a spreadsheet: semicolons, a byte order mark, quoted line ends, and one with tabs."""
    rows = [{"id": number, "stars": number % 5 + 1, "review": text, "date": "2026-01-01"} for number, (_, text) in enumerate(texts())]
    half = len(rows) // 2
    return {"reviews.csv": "\ufeff" + table(rows[:half], ";"), "older.tsv": table(rows[half:], "\t"), "reviews.xlsx": b"PK\x03\x04" + PNG}


def arrays() -> Files:
    """Answers of an API: pretty arrays with the text two levels down, beside files that hold no text."""
    rows = [{"id": number, "data": {"content": text, "lang": "en"}} for number, (_, text) in enumerate(texts())]
    return {"page_1.json": json.dumps(rows[:40], indent=2), "page_2.json": json.dumps(rows[40:]), "package.json": '{"version": 1}'}


def chats() -> Files:
    """Messages, ShareGPT, Alpaca, and a prompt with its completion."""
    pairs = [*turns(400)]
    messages = [[{"role": "user", "content": ask}, {"role": "assistant", "content": say}] for ask, say in pairs[:100]]
    shared = [[{"from": "human", "value": ask}, {"from": "gpt", "value": say}] for ask, say in pairs[100:200]]
    alpaca = [{"instruction": ask, "input": "", "output": say} for ask, say in pairs[200:300]]
    completions = pyarrow.Table.from_pylist([{"prompt": ask, "completion": say} for ask, say in pairs[300:]])
    out = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(completions, out)
    return {
        "openai.jsonl": lines([{"messages": each} for each in messages]),
        "sharegpt.json": json.dumps([{"id": str(number), "conversations": each} for number, each in enumerate(shared)], indent=1),
        "alpaca_data.json": json.dumps(alpaca, indent=4),
        "completions.parquet": bytes(out.getvalue()),
    }


def preferences() -> Files:
    rows = [{"prompt": ask, "chosen": say, "rejected": "I do not know."} for ask, say in turns(200)]
    return {"train.jsonl": lines(rows[:150]), "eval.jsonl": lines(rows[150:]), "README.md": "Pairs that we collected.\n"}


def kto() -> Files:
    """Thumbs up and down, exported by pandas: its booleans are True and False."""
    return {"feedback.csv": table([{"prompt": ask, "completion": say, "label": len(say) % 3 > 0} for ask, say in turns(200)])}


def mixed() -> Files:
    """A folder of downloads."""
    some = texts()
    files: Files = {f"texts/{name}.txt": text for name, text in some[:20]}
    files |= {f"wiki/{name}.html": PAGE.format(title=name, text=text.replace("<", "&lt;")) for name, text in some[20:30]}
    files |= {"dump.jsonl": lines([{"url": "https://a.org", "body": text} for _, text in some[30:50]])}
    files |= {
        "chat.jsonl": lines([{"messages": [{"role": "user", "content": a}, {"role": "assistant", "content": b}]} for a, b in turns(60)])
    }
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("a.txt", "packed " * 500)
    return files | {"paper.pdf": PDF, "photo.png": PNG, "old.zip": archive.getvalue(), "broken.jsonl": '{"text": "cut', "none.txt": ""}


def books() -> Files:
    some = texts()
    files: Files = {f"book {number}.epub": book(f"Book {number}", some[number * 12 : number * 12 + 12]) for number in range(5)}
    return files | {"scanned.pdf": PDF, "cover.png": PNG}


def empty() -> Files:
    return {}


@dataclass(frozen=True, kw_only=True)
class Folder:
    """A folder, and what a person types.

    Attributes:
        make: Returns its files.
        tries: The arguments of `init`, one after the other. All but the last end with status 2 and a message that says what to type.
        is_refused: Whether the last ends so, too.
    """

    make: Callable[[], Files]
    tries: Sequence[Sequence[str]] = (("data",),)
    is_refused: bool = False


FOLDERS = {
    "code": Folder(make=code, tries=(("data",), ("data/**/*.py",))),
    "notes": Folder(make=notes),
    "CSV": Folder(make=csv_files),
    "arrays": Folder(make=arrays, tries=(("data",), ("data", "--text-field", "data.content"))),
    "chats": Folder(make=chats),
    "pairs": Folder(make=preferences),
    "KTO": Folder(make=kto),
    "mixed": Folder(make=mixed),
    "EPUB": Folder(make=books),
    "empty": Folder(make=empty, is_refused=True),
}


class Person:
    """Types commands in a project folder, and waits for each."""

    def __init__(self, project: Path, *, show: bool) -> None:
        self.project, self.show = project, show
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(("NIELS_CACHE_", "DAGSTER_"))}
        self.environment |= {"PYTHONWARNINGS": "error::ResourceWarning", "XDG_CACHE_HOME": str(project / ".cache"), "HF_HUB_OFFLINE": "1"}

    def type(self, *arguments: str, status: int = 0) -> tuple[float, str]:
        """Return the seconds and the standard output of a command."""
        began = time.perf_counter()
        done = subprocess.run(arguments, cwd=self.project, env=self.environment, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - began
        if self.show:
            print(f"$ {shlex.join(arguments)}\n{done.stdout}{done.stderr}", flush=True)
        if done.returncode != status or "ResourceWarning" in done.stderr:
            raise SystemExit(f"{shlex.join(arguments)}: status {done.returncode}\n{done.stdout}{done.stderr}")
        return seconds, done.stdout


def walk(name: str, project: Path, *, show: bool) -> list[str]:
    """Make a folder and go from `init` to the first batch. Return the cells of its row."""
    folder = FOLDERS[name]
    files = {path: content if isinstance(content, bytes) else content.encode() for path, content in folder.make().items()}
    (project / "data").mkdir(parents=True)
    for path, data in files.items():
        (project / "data" / path).parent.mkdir(parents=True, exist_ok=True)
        (project / "data" / path).write_bytes(data)
    person, waits, printed = Person(project, show=show), list[float](), ""
    for number, arguments in enumerate(folder.tries, 1):
        is_last = number == len(folder.tries) and not folder.is_refused
        seconds, printed = person.type(str(COMMAND), "init", *arguments, *(["--json"] if is_last else []), status=0 if is_last else 2)
        waits.append(seconds)
        if is_last and show:
            person.type(str(COMMAND), "init", *arguments, "--out", "shown.toml")
    size = sum(map(len, files.values()))
    typed = ", ".join(f"`{shlex.join(('init', *arguments))}`" for arguments in folder.tries)
    row = [name, f"{format_count(len(files), 'file')}, {file_size(size)}", typed, " + ".join(f"{each:.1f}" for each in waits)]
    if folder.is_refused:
        return [*row, "", "", "", "", "refused"]
    built, _ = person.type(str(COMMAND), "build-all")
    read, batches = person.type(sys.executable, "-c", READ)
    used = [each for each in json.loads(printed)["seen"] if isinstance(each["outcome"], dict)]
    ignored = Counter(Path(path).suffix for path in files if not path.startswith("."))
    for each in used:
        ignored[each["ending"]] -= each["files"]
    left_out = ", ".join(f"{count} {f'`{ending}`' if ending else 'without ending'}" for ending, count in ignored.items() if count)
    share = format_share(sum(each["bytes"] for each in used), size)
    made = ", ".join(f"`{line.split()[0]}`" for line in batches.splitlines() if line)
    return [*row, f"{built:.1f}", f"{read:.1f}", share, left_out or "nothing", made]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=FOLDERS, default=[*FOLDERS], help="folders")
    parser.add_argument("--show", action="store_true", help="print what the commands write")
    arguments = parser.parse_args()
    print("| folder | contents | `init` typed | `init`, s | `build-all`, s | first batch, s | bytes used | ignored | data sets |")
    print("|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.only:
            print(f"| {' | '.join(walk(name, Path(folder) / name, show=arguments.show))} |", flush=True)


if __name__ == "__main__":
    main()
