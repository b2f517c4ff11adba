"""The public builders: an iterable of texts or conversations in, a finished cache directory out, in one streaming pass.

They work in a notebook as in an asset; there is no second implementation. Memory is bounded by the shuffle buffer and a few chunks of
about a megabyte, whatever the size of the input. The same input, settings and seed give the same bytes, on any number of threads, and
however often a build was stopped and taken up again (Resume).
"""

from niels_cache_assets.build_cache.base import CODE_VERSIONS, OnProgress, Progress, Provenance, write_unbuilt_cache
from niels_cache_assets.build_cache.pretrain import build_pretrain_cache
from niels_cache_assets.build_cache.resuming import Resume
from niels_cache_assets.build_cache.sft import build_sft_cache
from niels_cache_assets.config.fingerprint import fingerprint_of
from niels_cache_assets.documents import Message

__all__ = [
    "CODE_VERSIONS",
    "Message",
    "OnProgress",
    "Progress",
    "Provenance",
    "Resume",
    "build_pretrain_cache",
    "build_sft_cache",
    "fingerprint_of",
    "write_unbuilt_cache",
]
