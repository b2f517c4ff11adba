"""Functions that read and check one HTTP answer. They find the version, size, byte range and content of the file, and the time of the next
try.

An answer that fails a check raises Broken, and another try may succeed. `transport` retries, and compares answers with each other. An
import of this module imports huggingface_hub.
"""

from __future__ import annotations

import hashlib
import json
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from huggingface_hub.utils import httpx

_HUB_FILE = re.compile(r"/resolve/([0-9a-f]{40})/")
_NUMBER = re.compile("[0-9]{1,18}")
_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/(?:[0-9]{1,18}|\*)")
_RATE_LIMIT = re.compile(r"\br=0;\s*t=([0-9]{1,18})")  # the form of the hub's RateLimit header


class Validator(NamedTuple):
    """One version of a file. `tag`: its ETag or modification time. `size`: its size in bytes. A field is None if the server does not give
    it.
    """

    tag: str | None
    size: int | None

    def differs(self, other: Validator) -> bool:
        return any(mine != theirs for mine, theirs in zip(self, other, strict=True) if mine is not None and theirs is not None)


class Broken(Exception):
    """An answer that must be requested again. `spoilt`: whether the bytes received so far may be wrong too."""

    def __init__(self, problem: str, *, retry_after: float | None = None, changed: bool = False, spoilt: bool = False) -> None:
        super().__init__(problem)
        self.retry_after = retry_after
        self.changed = changed
        self.spoilt = spoilt


def validator_of(response: httpx.Response) -> Validator:
    """Return the version of the file in the answer. The answer may also be a part of a file, or the hub's redirect to a file."""
    headers = response.headers
    tag = headers.get("X-Linked-ETag") or headers.get("ETag") or headers.get("Last-Modified")
    size = headers.get("X-Linked-Size")
    if size is None and response.status_code == 200:
        size = headers.get("Content-Length")
    elif size is None:
        size = headers.get("Content-Range", "").rpartition("/")[2]
    return Validator(tag.removeprefix("W/").strip('"') if tag else None, int(size) if size and _NUMBER.fullmatch(size) else None)


def commit_of(path: str) -> str | None:
    """Return the commit in the path of a hub file, or None."""
    found = _HUB_FILE.search(path)
    return found[1] if found else None


def range_of(request: httpx.Request) -> tuple[int, int | None] | None:
    """Return the first and last byte in a Range header. The last byte is None if the range ends with the file.

    Return None if there is no such header, or if the header has a different form than bytes=FIRST-[LAST].
    """
    asked = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("Range", ""))
    return (int(asked[1]), int(asked[2]) if asked[2] else None) if asked else None


def part_of(response: httpx.Response) -> tuple[int, int] | None:
    """Return the first and last byte in the Content-Range of a partial answer, or None if there is no valid Content-Range."""
    given = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
    return (int(given[1]), int(given[2])) if given else None


def check_part(request: httpx.Request, response: httpx.Response, *, whole_is_fine: bool) -> None:
    """Raise Broken if the answer holds wrong bytes of the file. If `whole_is_fine`, the whole file may answer a request for a part."""
    asked = range_of(request)
    if response.status_code == 206 and asked is not None:
        first, last = part_of(response) or (-1, -1)
        length = response.headers.get("Content-Length", str(last - first + 1))
        if first != asked[0] or asked[1] not in (None, last) or length != str(last - first + 1):
            raise Broken("the answer holds other bytes than requested")
    elif response.status_code == 206 and "Range" not in request.headers:
        raise Broken("the answer holds a part of the file, but the request was for the whole")
    elif response.status_code == 200 and "Range" in request.headers and asked != (0, None) and not whole_is_fine:
        raise Broken("the answer holds the whole file instead of the requested bytes")


def check_content(request: httpx.Request, response: httpx.Response, content: bytes) -> None:
    """Raise Broken if a whole body fails its check. The hub's ETag is the sha256 of a large file, and git's sha1 of a small file.

    JSON from an API must be valid. The content of a JSON file is not checked this way, because servers give JSON Lines files the same media
    type, and a part of a file is not valid JSON.
    """
    linked = request.extensions.get("linked")
    tag, size = validator_of(response)
    if linked is not None and linked.tag and len(linked.tag) == 64 and len(content) == linked.size:
        intact = hashlib.sha256(content).hexdigest() == linked.tag
    elif "X-Repo-Commit" in response.headers and re.fullmatch("[0-9a-f]{40}", tag or "") and len(content) == size:
        intact = hashlib.sha1(b"blob %d\0" % size + content).hexdigest() == tag
    elif _is_of_an_api(request, response) and "Content-Encoding" not in response.headers:
        intact = _is_json(content)
    else:
        intact = True
    if not intact:
        raise Broken("the content is damaged")


def _is_of_an_api(request: httpx.Request, response: httpx.Response) -> bool:
    """Return whether this is a whole JSON answer of an API, and not the content of a file."""
    media_type = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    of_a_file = bool({"validator", "linked"} & set(request.extensions)) or commit_of(request.url.path) is not None
    return response.status_code == 200 and media_type == "application/json" and not of_a_file


def _is_json(content: bytes) -> bool:
    try:
        json.loads(content)
    except (ValueError, RecursionError):
        return False
    return True


def retry_after(response: httpx.Response) -> float | None:
    """Return the seconds that the server asks to wait, or None. Retry-After in both forms counts first, then the hub's rate limit."""
    value = response.headers.get("Retry-After", "").strip()
    if _NUMBER.fullmatch(value):
        return float(value)
    try:
        when = parsedate_to_datetime(value)
        return max(0.0, (when.replace(tzinfo=when.tzinfo or UTC) - datetime.now(UTC)).total_seconds())
    except (ValueError, OverflowError):
        reset = _RATE_LIMIT.search(response.headers.get("RateLimit", "")) if response.status_code == 429 else None
        return float(reset[1]) if reset else None
