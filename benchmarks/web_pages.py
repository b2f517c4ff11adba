"""Make WARC files of a crawl from folders of HTML, such as installed documentation.

    python benchmarks/web_pages.py FOLDER ... --out FOLDER [--megabytes 100] [--files 2] [--seed 1]

Pages: the HTML files below the folders of 1 kB to 1 MB, each once, in an order of the seed, until there are so many megabytes of them. Each
page is a gzip member, as in Common Crawl, with a request before it. Every 50th page is in another charset that holds it, half of these
without a word about it; every 20th body is gzip, every 20th chunked. Between them are revisits, errors, pictures and robots.txt.
/usr/share/doc has 20 MB on a usual system; `apt-get download apache2-doc debian-handbook postgresql-doc-15 python3.11-doc sqlite3-doc` and
`dpkg -x` give 300 MB in ten languages.
"""

import argparse
import gzip
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

_SIZES = range(1_000, 1_000_001)
_CHARSETS = ("windows-1251", "shift_jis", "euc-jp", "gbk", "euc-kr", "iso-8859-1", "iso-8859-2", "utf-16")
_DECLARED = re.compile(rb"""(?i)(<meta[^>]*?charset\s*=\s*["']?)[\w-]+""")


def html_files(folders: Sequence[str]) -> list[Path]:
    """Return the HTML files below folders, in the order of their names."""
    endings = (".html", ".htm", ".xhtml")
    found = {path for folder in folders for path in Path(folder).rglob("*") if path.suffix.lower() in endings and path.is_file()}
    return sorted(path for path in found if path.stat().st_size in _SIZES)


def record(kind: str, url: str, block: bytes, number: int, *, media: str = "application/http; msgtype=response", more: str = "") -> bytes:
    """Return a record as a gzip member."""
    header = (
        f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Date: 2026-11-30T00:00:00Z\r\nWARC-Record-ID: <urn:uuid:{number:032x}>\r\n"
        f"WARC-Target-URI: {url}\r\nContent-Type: {media}\r\n{more}Content-Length: {len(block)}\r\n\r\n"
    )
    return gzip.compress(header.encode() + block + b"\r\n\r\n", 6, mtime=0)


def response(body: bytes, media: str = "text/html", *, status: str = "200 OK", more: str = "") -> bytes:
    """Return an HTTP response."""
    return f"HTTP/1.1 {status}\r\nServer: x\r\nContent-Type: {media}\r\n{more}\r\n".encode() + body


def in_other_charset(page: bytes, number: int) -> tuple[bytes, str]:
    """Return a page in another charset, with the parameter of its Content-Type, or unchanged if no charset holds it."""
    try:
        text = page.decode()
    except UnicodeDecodeError:
        return page, ""
    for charset in (_CHARSETS[number % len(_CHARSETS)], *_CHARSETS):
        try:
            body = text.encode(charset)
        except UnicodeEncodeError:
            continue
        is_named = number % 2 == 0
        if charset != "utf-16" and not is_named:
            body = _DECLARED.sub(rb"\1" + charset.encode(), body)
        return body, f"; charset={charset}" if is_named else ""
    return page, ""


def crawl(paths: Sequence[Path], most_bytes: int) -> Iterator[tuple[bytes, int]]:
    """Yield records, each with the bytes of the page in it, or 0."""
    size = 0
    for number, path in enumerate(paths):
        if size >= most_bytes:
            return
        page = path.read_bytes()
        size += len(page)
        url = f"https://www.{path.parts[-3] if len(path.parts) > 3 else 'docs'}.example/{path.name}?page={number}".replace(" ", "%20")
        body, parameter, more, identified = page, "", "", "WARC-Identified-Payload-Type: text/html\r\n"
        if number % 50 == 7:
            body, parameter = in_other_charset(page, number // 50)
        if number % 20 == 3:
            body, more = gzip.compress(body, mtime=0), "Content-Encoding: gzip\r\n"
        elif number % 20 == 13:
            body, more = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body), "Transfer-Encoding: chunked\r\n"
        yield record("request", url, b"GET / HTTP/1.1\r\n\r\n", 4 * number, media="application/http; msgtype=request"), 0
        yield record("response", url, response(body, f"text/html{parameter}", more=more), 4 * number + 1, more=identified), len(page)
        if number % 10 == 1:
            yield record("revisit", url, response(b""), 4 * number + 2), 0
        if number % 10 == 2:
            yield (
                record("response", f"{url}&missing", response(b"<p>Not found", status="404 Not Found"), 4 * number + 2, more=identified),
                0,
            )
        if number % 10 == 3:
            yield record("response", f"{url}.png", response(b"\x89PNG" * 99, "image/png"), 4 * number + 2), 0
        if number % 10 == 4:
            yield record("response", "https://docs.example/robots.txt", response(b"User-agent: *", "text/plain"), 4 * number + 2), 0


def write_crawl(folders: Sequence[str], out: Path, *, megabytes: float, files: int, seed: int) -> tuple[list[Path], int, int]:
    """Write the files. Return their paths, and the number and bytes of pages in them."""
    paths = html_files(folders)
    random.Random(seed).shuffle(paths)
    out.mkdir(parents=True, exist_ok=True)
    names = [out / f"crawl-{number:05}.warc.gz" for number in range(files)]
    pages = size = 0
    each = min(megabytes * 1e6, sum(path.stat().st_size for path in paths)) / files
    streams = [name.open("wb") for name in names]
    for found, page in crawl(paths, int(megabytes * 1e6)):
        streams[min(files - 1, int(size // each))].write(found)
        pages += page > 0
        size += page
    for stream in streams:
        stream.close()
    return names, pages, size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folders", nargs="+", metavar="FOLDER")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--megabytes", type=float, default=100)
    parser.add_argument("--files", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    names, pages, size = write_crawl(
        arguments.folders, arguments.out, megabytes=arguments.megabytes, files=arguments.files, seed=arguments.seed
    )
    compressed = sum(name.stat().st_size for name in names)
    print(f"{pages:,} pages, {size / 1e6:,.1f} MB, compressed {compressed / 1e6:,.1f} MB: {', '.join(map(str, names))}")


if __name__ == "__main__":
    main()
