"""Errors of sources that others tell apart."""

from __future__ import annotations

from niels_cache_runtime.errors import NielsCacheError


class SourceUnavailable(NielsCacheError):
    """The source cannot be reached now (network, hub down); a finished cache of it stays usable."""
