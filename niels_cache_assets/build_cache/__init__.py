"""The public builders, which turn an iterable of texts or conversations into a finished cache directory in one streaming pass.

A notebook and a Dagster asset call the same builders; there is no second implementation. Memory is bounded by the shuffle buffer and a few
chunks of about a megabyte, whatever the size of the input. The same input, settings and seed give the same bytes. Neither the number of
threads nor interruptions of a build change the bytes (see Resume). Each builder loads its module at first use.
"""

from typing import TYPE_CHECKING

from niels_cache_assets.base.documents import Message
from niels_cache_assets.base.fingerprint import fingerprint_of
from niels_cache_runtime.lazy_names import load_lazily

if TYPE_CHECKING:
    from niels_cache_assets.build_cache.base import OnProgress, Progress, Provenance, write_unbuilt_cache
    from niels_cache_assets.build_cache.pretrain import build_pretrain_cache
    from niels_cache_assets.build_cache.resume import CODE_VERSIONS, Resume
    from niels_cache_assets.build_cache.sft import build_sft_cache

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

__getattr__ = load_lazily(
    __name__,
    {
        "base": "OnProgress Progress Provenance write_unbuilt_cache",
        "pretrain": "build_pretrain_cache",
        "resume": "CODE_VERSIONS Resume",
        "sft": "build_sft_cache",
    },
)
