"""Files at http(s) addresses as an fsspec file system, which uses the same transport as the requests to the hub.

If the server supports ranges, files are read in blocks in any order (Parquet needs this). Otherwise, a file is read once from beginning to
end. All answers must have the version that the file had when it was opened. Folders cannot be listed, because an address names one file.
fsspec's own http(s) file system needs another client library, does not resume a broken body and does not check versions.
"""

from __future__ import annotations

import io
import os
from functools import lru_cache
from typing import Any, NoReturn

from fsspec.spec import AbstractBufferedFile, AbstractFileSystem
from huggingface_hub.utils import httpx

from niels_cache_assets.sources.errors import shown
from niels_cache_assets.sources.net.transport import CHANGED_TRIES, Validator, made_patient, validator_of
from niels_cache_runtime.errors import NielsCacheError


class HttpFiles(AbstractFileSystem):
    """A read-only file system. It accepts the settings of fsspec's own http(s) file system and ignores these settings."""

    protocol = ("http", "https")

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path

    def unstrip_protocol(self, name: str) -> str:
        return name

    def glob(self, path: str, *, detail: bool = False, **settings: Any) -> Any:
        return {path: self.info(path)} if detail else [path]

    def exists(self, path: str, **settings: Any) -> bool:
        try:
            return bool(self.info(path))
        except FileNotFoundError:
            return False

    def isdir(self, path: str) -> bool:
        return False

    def info(self, path: str, **settings: Any) -> dict[str, Any]:
        """Return the size and version of a file. Two answers must agree on both values.

        The reason is that all reads are checked against these values, and a single answer may be wrong. Raises FileNotFoundError, or
        NielsCacheError if access is refused.
        """
        answers = [_probed(path)]
        while answers.count(answers[-1]) < 2:
            if len(answers) > CHANGED_TRIES:
                raise NielsCacheError(f"{shown(path)}: the server gives another version in each answer; download the file")
            answers.append(_probed(path))
        return answers[-1]

    def _open(self, path: str, mode: str = "rb", block_size: int | None = None, **settings: Any) -> Any:
        info = self.info(path)
        validator = Validator(info["ETag"], info["size"])
        if not info["ranges"]:
            return io.BufferedReader(_WithoutRanges(path, validator), 1 << 18)
        return _HttpFile(self, path, mode, block_size or "default", size=info["size"], validator=validator)


def _probed(path: str) -> dict[str, Any]:
    """Return the size and version of the file at `path`, and whether the server supports ranges, from the headers of one answer."""
    with _client(os.getpid()).stream("GET", path, headers={"Range": "bytes=0-0"}, extensions={"headers_only": True}) as answer:
        if answer.status_code == 416 and answer.headers.get("Content-Range", "bytes */0") == "bytes */0":  # an empty file
            return {"name": path, "type": "file", "size": 0, "ETag": None, "ranges": True}
        _refuse_errors(answer)
        tag, size = validator_of(answer)
        return {"name": path, "type": "file", "size": size, "ETag": tag, "ranges": answer.status_code == 206 and size is not None}


class _HttpFile(AbstractBufferedFile):
    """A file that is read in blocks. fsspec keeps a few blocks in memory."""

    def __init__(self, *args: Any, validator: Validator, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._validator = validator

    def _fetch_range(self, start: int, end: int) -> bytes:
        headers, extensions = {"Range": f"bytes={start}-{end - 1}"}, {"validator": self._validator}
        with _client(os.getpid()).stream("GET", self.path, headers=headers, extensions=extensions) as answer:
            _refuse_errors(answer)
            return b"".join(answer.iter_raw())


class _WithoutRanges(io.RawIOBase):
    """A file that is read once from beginning to end."""

    def __init__(self, url: str, validator: Validator) -> None:
        client = _client(os.getpid())
        self._url = url
        self._answer = client.send(client.build_request("GET", url, extensions={"validator": validator}), stream=True)
        _refuse_errors(self._answer)
        self._chunks = self._answer.iter_raw()
        self._waiting = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._waiting:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._waiting = memoryview(chunk)
        count = min(len(buffer), len(self._waiting))
        buffer[:count] = self._waiting[:count]
        self._waiting = self._waiting[count:]
        return count

    def seek(self, *args: Any) -> NoReturn:
        raise NielsCacheError(f"{shown(self._url)}: the server does not support HTTP ranges, which this file needs; download the file")

    def close(self) -> None:
        if not self.closed:
            self._answer.close()
        super().close()


@lru_cache(maxsize=1)
def _client(process: int) -> httpx.Client:
    """Return the client of this process. Each process needs its own client, because connections do not survive a fork."""
    return made_patient(httpx.Client(follow_redirects=True, timeout=None))  # the transport sets its own timeout


def _refuse_errors(answer: httpx.Response) -> None:
    where, status = shown(str(answer.url)), answer.status_code
    if status in (404, 410):
        raise FileNotFoundError(2, "no such file on the server", where)
    if status in (401, 403):
        raise NielsCacheError(f"{where}: the server refuses access (HTTP {status}); check the address, and that it needs no login")
    if status >= 400:
        raise NielsCacheError(f"{where}: the server answers HTTP {status}; check the address")
