"""Imported by the server that children are forks of: compiled steps are loaded here once and not in each of them, for most of a second."""

import tempfile
from pathlib import Path

from niels_cache_assets.dedup.signatures import Signer
from tests.helpers.duplicates import keep_first

with tempfile.TemporaryDirectory() as _scratch:
    keep_first([Signer().sign(["some words", "some words"])], bands=8, rows=16, scratch=Path(_scratch))
