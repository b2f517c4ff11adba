"""The command that builds one part of a data set or of a corpus, or one range, as [cluster] wants it started."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from niels_cache_assets.artifacts.parts.corpus import CorpusPart
from niels_cache_assets.artifacts.parts.part import Part
from niels_cache_assets.artifacts.parts.ranges import HashRange
from niels_cache_assets.config.registry import Registry
from niels_cache_assets.config.running import HOST
from niels_cache_assets.processes import attended
from niels_cache_runtime.format.reading import available_threads

_PACKAGE = __name__.partition(".")[0]
_CLI = f"{_PACKAGE}.cli"  # a program that is started; it is not imported

Apart = Part | CorpusPart | HashRange  # what one command builds


@dataclass(frozen=True, kw_only=True)
class PartCommand:
    """The command of one part.

    host: what `{host}` stands for; None if no machine is named.
    launch: the name by which the process that starts the command can stop it (lease.request_stop). waits: wait for another build of the
    part, instead of ending with exit code 75.
    """

    part: Apart
    host: str | None = None
    launch: str | None = None
    waits: bool = True

    @property
    def registry(self) -> Registry:
        """The configuration."""
        return self.part.registry

    @property
    def threads(self) -> int | None:
        """The threads of the part: its share of this machine, if it is built here. None leaves the choice to the other machine."""
        settings = self.registry.cluster
        if settings.command or self.registry.build.threads is not None:
            return None
        cores = available_threads()
        return max(1, cores // settings.parts_at_once(cores))

    @property
    def is_attended(self) -> bool:
        """Whether the child is a process of this machine that ends when this process ends, in whatever way."""
        return not self.registry.cluster.command and not self.registry.cluster.program

    def words(self, pipe: int | None = None) -> list[str]:
        """Return the words of the command. pipe: for an attended child, the read end of a pipe that this process holds open."""
        settings = self.registry.cluster
        if pipe is not None:
            return attended(pipe, _CLI, *self._arguments())
        prefix = [word.replace(HOST, self.host or "") for word in settings.command]
        words = [*(settings.program or (sys.executable, "-m", _CLI)), *self._arguments()]
        if any(os.path.basename(word) == "ssh" for word in prefix):  # ssh joins its arguments, and a shell reads them on the other side
            words = [shlex.quote(word) for word in words]
        return [*prefix, *words]

    def _arguments(self) -> list[str]:
        registry = self.registry
        config = Path(registry.origin)
        return [
            "part",
            self.part.name,
            str(self.part.number),
            *((self.part.option,) if self.part.option else ()),
            "--quiet",
            "--no-notify",
            *(() if self.waits else ("--no-wait",)),
            *(("--launch", self.launch) if self.launch is not None else ()),
            *(("--threads", str(self.threads)) if self.threads is not None else ()),
            *("--cache-dir", str(self.part.root.absolute())),
            *(("--config", str(config.absolute())) if config.is_file() else ()),
            *(("--profile", registry.profile) if registry.profile is not None else ()),
        ]
