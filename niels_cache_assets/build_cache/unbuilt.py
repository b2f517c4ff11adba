"""The cache of a data set that is switched off."""

from pathlib import Path
from typing import Literal

from niels_cache_assets.build_cache.outcome import Provenance
from niels_cache_assets.config.defaults import ROLE_KEYS
from niels_cache_assets.disk.staging import atomic_directory
from niels_cache_runtime.format.layout import META_NAME, SPLITS, TOKEN_DTYPE_NAME, Family
from niels_cache_runtime.format.meta import Meta, content_sha256, write_meta

_NO_DOCUMENTS = {"shard_bytes": None, "documents": dict.fromkeys(SPLITS, 0)}


def write_unbuilt_cache(out_dir: str, *, family: Literal["pretrain", "sft"], provenance: Provenance) -> None:
    """The cache of a data set that is switched off: empty directories and a meta.json that says `"built": false`."""
    with atomic_directory(out_dir) as partial:
        write_meta(str(partial / META_NAME), write_unbuilt(partial, family=family, provenance=provenance))


def write_unbuilt(partial: Path, *, family: Family, provenance: Provenance) -> Meta:
    """Write all but meta.json of such a cache into `partial`, and return meta.json."""
    if family == "pretrain":
        for split in SPLITS:
            (partial / split).mkdir()
    return {
        "kind": family,
        "built": False,
        "dataset_name": provenance.dataset_name,
        "dataset_config": provenance.dataset_config,
        "dataset_revision": None,
        "source": provenance.source,
        "split_rule": provenance.split_rule,
        "seed": None,
        "token_dtype": TOKEN_DTYPE_NAME,
        "tokenizer_sha256": None,
        "vocab_size": None,
        "special_token_ids": dict.fromkeys(ROLE_KEYS),
        **{f"{split}_tokens": 0 for split in SPLITS},
        **(_NO_DOCUMENTS if family == "pretrain" else {f"{split}_examples": 0 for split in SPLITS}),
        "dropped": {},
        "fingerprint": provenance.fingerprint,
        "files": {},
        "content_sha256": content_sha256({}),
    }
