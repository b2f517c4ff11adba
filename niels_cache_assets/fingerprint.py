"""The fingerprint of anything that is built: one sha256 over everything that decides its bytes. Loads nothing of what builds it."""

from typing import Any

from niels_cache_runtime.meta import canonical_json, sha256_text


def fingerprint_of(settings: dict[str, Any]) -> str:
    """64 hex digits: sha256 over the canonical JSON of everything that decides the bytes."""
    return sha256_text(canonical_json(settings))
