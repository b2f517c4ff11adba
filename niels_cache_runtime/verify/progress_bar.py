"""A progress bar for command lines that have nothing but the standard library."""

import sys
import time


class ProgressBar:
    """One line on a terminal's standard error, redrawn at most ten times a second; silent elsewhere. Called with bytes done and in all."""

    _WIDTH = 24

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._began = time.monotonic()
        self._drawn = 0.0
        self._length = 0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if not self._shown or (now - self._drawn < 0.1 and done < total):
            return
        self._drawn = now
        share = done / max(total, 1)
        rate = done / max(now - self._began, 1e-9)
        bar = ("#" * round(share * self._WIDTH)).ljust(self._WIDTH, ".")
        left = (total - done) / max(rate, 1e-9)
        self._write(f"[{bar}] {share:4.0%}  {done / 1e6:,.0f}/{total / 1e6:,.0f} MB  {rate / 1e6:,.0f} MB/s  {left:,.0f} s left")

    def clear(self) -> None:
        if self._length:
            self._write("")
            self._write("")

    def _write(self, line: str) -> None:
        sys.stderr.write("\r" + line.ljust(self._length))
        sys.stderr.flush()
        self._length = len(line)
