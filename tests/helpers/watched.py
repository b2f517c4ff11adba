"""Programs that a test talks to while they run: what they print comes line by line, and in the end the last line of their errors."""

import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, NamedTuple

from tests.helpers import programs


class Watched(NamedTuple):
    program: programs.Program
    output: IO[str]
    errors: IO[str]

    def last_words(self, *, within: float) -> str:
        """The last line of its errors, once it has ended by itself within so many seconds."""
        try:
            self.program.wait(within)
        except subprocess.TimeoutExpired:
            return "it hangs"
        self.errors.seek(0)
        return (self.errors.read().splitlines() or [""])[-1]


@contextmanager
def watched(*arguments: str, env: Mapping[str, str] | None = None) -> Iterator[Watched]:
    """A program as of `programs.Program`, killed in the end if it still runs."""
    with tempfile.TemporaryFile("w+") as errors, open(os.devnull) as nothing:
        reads, writes = os.pipe()
        try:
            program = programs.Program(*arguments, env=env, streams=(nothing.fileno(), writes, errors.fileno()))
        finally:
            os.close(writes)
        with open(reads) as output:
            try:
                yield Watched(program, output, errors)
            finally:
                program.kill()
                program.wait()
