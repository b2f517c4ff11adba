"""The tokens, time and disk space of a build, estimated from the size of its files and from a sample of its text.

Every number is about right, and none is exact: the rest of a source may differ from its beginning.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from niels_cache_assets.artifacts.forecast.sample import Sample
from niels_cache_assets.disk.space import BYTES_PER_TOKEN, Need, corpus_need, pretrain_need, sft_need
from niels_cache_assets.show.wording import counted, file_size, share_of
from niels_cache_runtime.format.layout import Family


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """About what one step reads, makes and takes. None stands for unknown.

    bytes_to_read: the bytes of the files, on their disk. A pass that only counts documents is not included. tokens: of train and val.
    seconds: the time of the build on this machine. disk_bytes: the disk space of the result. basis: in words, where the numbers come from.
    """

    bytes_to_read: int | None
    tokens: int | None
    seconds: float | None
    disk_bytes: int | None
    basis: str


@dataclass(frozen=True, kw_only=True)
class Volume:
    """The size of a source.

    file_bytes: the bytes of its files. text_bytes: the bytes of its text, as far as the sample or the sizes of the files tell. sample: the
    beginning of its text. no_sample: why there is no sample. remark: a note about this volume. None
    stands for unknown.
    """

    file_bytes: int | None = None
    text_bytes: int | None = None
    sample: Sample | None = None
    no_sample: str = ""
    remark: str = ""

    def scaled(self, share: float) -> Volume:
        """Return the volume of a share of the source, 0 to 1."""
        file_bytes, text_bytes = (None if size is None else round(size * share) for size in (self.file_bytes, self.text_bytes))
        return replace(self, file_bytes=file_bytes, text_bytes=text_bytes)

    @property
    def read_seconds(self) -> float:
        """The time to read all text, 0 if it is unknown."""
        if self.sample is None or self.text_bytes is None:
            return 0.0
        return self.text_bytes / self.sample.text_bytes * self.sample.read_seconds

    def basis(self, *, budget: int | None) -> str:
        """Return in words where an estimate of this volume comes from. budget: the token budget, or None."""
        if self.sample is None:
            said = [f"no sample, because {self.no_sample}"]
        else:
            sample = self.sample
            share = "" if sample.share is None else f", {'all' if sample.share == 1 else share_of(sample.share)} of the source"
            said = [f"from a sample of {counted(sample.items, sample.unit)} ({file_size(sample.text_bytes)} of text{share})"]
        if self.text_bytes is None:
            said.append("the size of its text is unknown" + ("" if budget is None else ", so its token budget counts"))
        elif self.sample is None or self.sample.tokens_per_byte is None:
            why = "" if self.sample is None else ", because the tokenizer is not trained yet"
            said.append(f"{BYTES_PER_TOKEN} bytes of text count as one token{why}")
        return "; ".join([*said, *([self.remark] if self.remark else [])])


def of_cache(volume: Volume, *, family: Family, budget: int | None, token_bytes: int, threads: int, counts_first: bool = False) -> Estimate:
    """Return the estimate of a cache that is built from this volume of text.

    budget: the most tokens that the build makes, or None. token_bytes: the size of a token. threads: the number of threads that encode.
    counts_first: whether the build reads the source once before, to count its documents.
    """
    sample = volume.sample
    per_byte = 1 / BYTES_PER_TOKEN if sample is None or sample.tokens_per_byte is None else sample.tokens_per_byte
    every = None if volume.text_bytes is None else round(volume.text_bytes * per_byte)
    known = [tokens for tokens in (every, budget) if tokens is not None]
    tokens = min(known) if known else None
    used = tokens / every if tokens is not None and every else 1.0  # the share of the source that the build reads
    seconds = None
    if sample is not None and sample.encode_seconds is not None and volume.text_bytes is not None:
        times = volume.text_bytes / sample.text_bytes
        seconds = times * used * (sample.read_seconds + sample.encode_seconds / threads) + times * counts_first * sample.read_seconds
    need = None if tokens is None else _need(family, tokens, token_bytes)
    return Estimate(
        bytes_to_read=None if volume.file_bytes is None else round(volume.file_bytes * used),
        tokens=tokens,
        seconds=seconds,
        disk_bytes=None if need is None else need.bytes,
        basis=volume.basis(budget=budget),
    )


def of_corpus(volume: Volume) -> Estimate:
    """Return the estimate of a corpus. The time of cleaning is not estimated."""
    need = corpus_need(volume.text_bytes)
    return Estimate(
        bytes_to_read=volume.file_bytes,
        tokens=0,
        seconds=None,
        disk_bytes=None if need is None else need.bytes,
        basis="all of the source is prepared; the time of cleaning is not estimated",
    )


def _need(family: Family, tokens: int, token_bytes: int) -> Need | None:
    if family == "sft":
        return sft_need(tokens * BYTES_PER_TOKEN, token_bytes=token_bytes)
    return pretrain_need(train_tokens=tokens, val_tokens=0, token_bytes=token_bytes, text_bytes=None, exact=False)
