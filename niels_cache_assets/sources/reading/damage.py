"""`keep_damaged`: what a source does with a compressed file, or a dump, that ends in damage. Finding the damage is the readers'."""

from __future__ import annotations

from pydantic import Field

from niels_cache_assets.sources.reading.compressed import DamagedFile, OnDamage
from niels_cache_assets.sources.reading.places import FilePass
from niels_cache_assets.sources.types import Source, StreamContext


class KeepsDamaged(Source):
    """Key of the kinds that read files line by line or page by page."""

    keep_damaged: bool = Field(False, description="Keep what comes before the damage in a damaged file; otherwise it fails the build")

    def on_damage(self, context: StreamContext, files: FilePass) -> OnDamage | None:
        """None (damage is an error), or what logs a damaged file of this pass and counts it among the dropped as `damaged_file`.

        Readers meet the damage while they give what comes before it, and a pass that begins there meets it again: it counts once.
        """
        if not self.keep_damaged:
            return None

        def count(error: DamagedFile) -> None:
            if files.state.get("damaged") != files.number:
                files.state["damaged"] = files.number
                context.report.dropped["damaged_file"] += 1
                context.log(f"{error}; kept what comes before")

        return count
