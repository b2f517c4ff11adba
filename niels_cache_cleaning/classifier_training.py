"""The training of a classifier by fastText, in a child process (`python -m niels_cache_cleaning.classifier_training SPEC`).

fastText cannot be interrupted, and ends its process if it gets too little memory. So an error or a signal that ends `train` early kills the
child, and the child ends if the parent is killed. fastText prints its progress on stderr, which the parent reads.

The model has one thread, so the same lines, settings and seed give the same bytes on machines with the same arithmetic.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from niels_cache_assets.base.processes import attended_command
from niels_cache_assets.base.wording import file_size
from niels_cache_runtime.errors import NielsCacheError, NotWrittenError

_PROGRESS = re.compile(rb"Progress: +([\d.]+)%")
_KEPT_BYTES = 2000  # of what the child has printed
_FLOAT_BYTES = 4
_MAX_INT = 2**31 - 1  # of fastText's settings


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """The settings of fastText, under the names of the command line."""

    dim: int = 100
    epochs: int = 5
    word_ngrams: int = 1
    lr: float = 0.1
    buckets: int = 2_000_000
    seed: int = 42

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value > _MAX_INT:
                raise NielsCacheError(f"--{name.replace('_', '-')} is at most {_MAX_INT:_}, not {value}")

    @property
    def matrix_bytes(self) -> int:
        """The size of the rows for pairs of words and longer n-grams."""
        return self.buckets * self.dim * _FLOAT_BYTES if self.word_ngrams > 1 else 0

    def for_fasttext(self) -> dict[str, Any]:
        """Return the arguments of `fasttext.train_supervised`."""
        names = {"epochs": "epoch", "word_ngrams": "wordNgrams", "buckets": "bucket"}
        return {names.get(name, name): value for name, value in asdict(self).items()}


class TrainingFailedError(NotWrittenError):
    """A failure of fastText."""


def train(
    lines: Path, model: Path, settings: TrainingSettings, *, progress: Callable[[float], None], files: Iterable[IO[bytes]] = ()
) -> None:
    """Train in a child process on the file `lines`, which begin with their labels, and write the file `model`.

    Args:
        lines: The lines.
        model: The file to write.
        settings: The settings.
        progress: Called with the finished share, from 0 to 1.
        files: The open files if `lines` and `model` are paths below /proc/self/fd.

    Raises:
        TrainingFailedError: If fastText cannot train.
    """
    read_end, write_end = os.pipe()
    spec = {"lines": str(lines), "model": str(model), "settings": settings.for_fasttext()}
    command = attended_command(read_end, __name__, json.dumps(spec))
    printed, descriptors = b"", [read_end, *(file.fileno() for file in files)]
    try:
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, pass_fds=descriptors, start_new_session=True
        ) as child:
            try:
                assert child.stderr is not None
                while more := os.read(child.stderr.fileno(), 1 << 16):
                    printed = (printed + more)[-_KEPT_BYTES:]
                    if shares := _PROGRESS.findall(printed):
                        progress(float(shares[-1]) / 100)
                child.wait()
            finally:
                child.kill()
    finally:
        os.close(read_end)
        os.close(write_end)
    if child.returncode:
        raise TrainingFailedError(f"the training failed: {_explain(printed.decode(errors='replace'), child.returncode, settings)}")


def _explain(printed: str, code: int, settings: TrainingSettings) -> str:
    """Return what the child has said last, and what to do."""
    last = printed.strip().splitlines()[-1].strip() if printed.strip() else ""
    if code < 0 or "MemoryError" in last or "bad_alloc" in last:
        need = f"; buckets x dim alone take {file_size(settings.matrix_bytes)}" if settings.matrix_bytes else ""
        return f"its process was ended, probably for lack of memory{need}; lower --buckets or --dim"
    if "NaN" in last:
        return f"a weight is no number any more; lower --lr = {settings.lr:g}"
    return last or f"its process ended with code {code}, and printed nothing"


def main(spec: dict[str, Any]) -> None:
    """Train, in the child."""
    import fasttext

    fasttext.train_supervised(spec["lines"], thread=1, verbose=2, **spec["settings"]).save_model(spec["model"])


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
