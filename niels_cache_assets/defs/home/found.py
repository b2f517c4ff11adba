"""The folder of the Dagster home, and what it has recorded, so that finding a current build needs no Dagster.

    .found/<hash>           a marker: what was recorded last of an artifact at a place, which is a folder or an address in a store
    .found/digests.json     digests of local files (sources/reading/digests.py)
    .runs/                  the processes of runs (abandoned.py)

A marker is written after the events are in the database, so after a kill in between, an artifact is recorded again, and never left out. Its
value covers the artifact, its inputs and its code version. Another observation of upstream removes the marker. A step of a run first writes
the id of the run in its place, and a failed launch no id: only a launch replaces those, when the checks of the artifact have passed.
"""

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from niels_cache_assets.artifacts.base import Artifact, Outcome, kind_of
from niels_cache_assets.artifacts.graph import Graph
from niels_cache_assets.base.fingerprint import fingerprint_of
from niels_cache_assets.base.processes import claim_record
from niels_cache_assets.disk.journal import write_atomically
from niels_cache_assets.facts.published import address_in_store
from niels_cache_assets.parts.layout import CHILD_BUILT_KINDS
from niels_cache_assets.sources.excluding import exclude_identity
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.meta import Meta, load_meta

HOME_VARIABLE = "DAGSTER_HOME"
RUN_RECORDS = ".runs"
_FOLDER = ".found"
_UNCHECKED = "unchecked "  # and the id of the run


def dagster_home(home: Path | None = None) -> Path:
    """Return the absolute path of the Dagster home: `home`, otherwise DAGSTER_HOME, otherwise .dagster in the working directory."""
    return (home or Path(os.environ.get(HOME_VARIABLE) or ".dagster")).expanduser().absolute()


def has_abandoned_runs() -> bool:
    """Return whether the process of a run of this machine has ended, and left its record."""
    for path in (dagster_home() / RUN_RECORDS).glob("[!.]*"):
        with claim_record(path, copies=False) as is_gone:
            if is_gone:
                return True
    return False


def digests_path() -> Path:
    """Return the path of the digests of local files."""
    return dagster_home() / _FOLDER / "digests.json"


@dataclass(frozen=True)
class Marker:
    """The marker of an artifact.

    Attributes:
        path: Its file.
        value: Its content if the artifact is recorded as it is now.
    """

    path: Path
    value: str

    @property
    def is_current(self) -> bool:
        """Whether this home has recorded the artifact as it is now, in the database that it has now."""
        with suppress(OSError):
            return self.path.read_bytes() == self._content()
        return False

    def _content(self) -> bytes:
        """Return the value, and what changes with the database: its configuration, and the files of the home's own database."""
        home, found = dagster_home(), [self.value]
        with suppress(OSError):
            found.append(hashlib.sha256((home / "dagster.yaml").read_bytes()).hexdigest())
            found.extend(str((home / "history" / name).stat().st_ino) for name in ("runs.db", "runs/index.db"))
        return "\n".join(found).encode()

    def write(self) -> None:
        """Write the marker. If this fails, the artifact is recorded again, or found in the database."""
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self.path, self._content(), spare=f"new-{os.getpid()}")


def marker_of(artifacts: Graph, artifact: Artifact, outcome: Outcome) -> Marker:
    """Return the marker of an artifact that was built or found.

    Parts are no inputs here, because what joins them changes with them.
    """
    inputs = [artifacts[key] for key in artifact.inputs() if kind_of(key) not in CHILD_BUILT_KINDS]
    source = getattr(getattr(artifact, "spec", artifact), "source", None)
    value = {
        "meta": _hash_of(outcome.meta),
        "inputs": {each.key: _recorded_hash(each) for each in inputs},
        "code_version": artifact.version,
        **exclude_identity(getattr(source, "exclude", None)),  # the version of a plan covers it
    }
    return Marker(_marker_path(artifact), fingerprint_of(value))


def mark_unchecked(artifact: Artifact, run_id: str = "") -> None:
    """Mark an artifact that a run is about to build, or without a run, one that a launch must run again though it may be current."""
    Marker(_marker_path(artifact), _UNCHECKED + run_id).write()


def unchecked_run(artifact: Artifact) -> str | None:
    """Return the run that `mark_unchecked` was given last, or None if the build of the artifact can be believed."""
    with suppress(OSError):
        value = _marker_path(artifact).read_text(encoding="utf-8").partition("\n")[0]
        return value.removeprefix(_UNCHECKED) if value.startswith(_UNCHECKED) else None
    return None


def remove_markers_of(artifacts: Graph, name: str) -> None:
    """Remove the markers of a data set, of which another upstream was observed, so that the next `build-all` looks into the database."""
    for artifact in (artifacts[key] for key in artifacts.keys if key.partition("/")[2] == name):
        if unchecked_run(artifact) is None:
            with suppress(OSError):
                _marker_path(artifact).unlink()


def _marker_path(artifact: Artifact) -> Path:
    place = address_in_store(artifact.registry, artifact.key) or artifact.directory.absolute()
    name = f"{artifact.registry.dagster.key_prefix}\0{artifact.key}\0{place}"
    return dagster_home() / _FOLDER / hashlib.sha256(name.encode()).hexdigest()


def _recorded_hash(artifact: Artifact) -> str | None:
    path = artifact.record_path
    with suppress(OSError, NielsCacheError):
        state = path.stat()
        return _hash_in(path, state.st_ino, state.st_size, state.st_mtime_ns)
    return None


@lru_cache(maxsize=1000)
def _hash_in(path: Path, *stamp: int) -> str:
    """Return the hash of a record. All parts of a data set have the same plan, which has an entry for each of them."""
    return _hash_of(load_meta(path))


def _hash_of(meta: Meta) -> str:
    """Return the hash of a record. That of an index is in its name."""
    return str(meta.get("meta_sha256") or meta.get("hash") or fingerprint_of(meta))
