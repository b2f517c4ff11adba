"""A saved state and caches that have grown since: the cache that the state was saved with must be the beginning of the cache of now.

A data set in parts grows by whole parts, and meta.json lists the parts. So an earlier cache ended where a part ends. Its fingerprint
follows from the entries of its shards and from the first document ends, which are read once. `epochs` has the arithmetic.
"""

import hashlib
import io
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from niels_cache_runtime.cache.opening import listed_of_split
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import doc_ends_name, shard_name
from niels_cache_runtime.format.meta import content_sha256
from niels_cache_runtime.loader.grown.epochs import Epochs, Phases
from niels_cache_runtime.loader.mixture import Mixture
from niels_cache_runtime.loader.source import Source
from niels_cache_runtime.loader.windows import PretrainWindows

_BLOCK = 1 << 20


def resumed_phases(
    state: Mapping[str, Any], names: Sequence[str], sources: Sequence[Source], mixture: Mixture, *, grown: bool
) -> dict[str, Phases]:
    """Return the phases of the sources that have grown, now or before the state was saved, by name.

    mixture: the blend of the loader, whose weights are those of the state up to its position. grown: whether sources may have grown since
    the state was saved. Sources that differ in another way are left out; the caller refuses them.
    Raises NielsCacheError if the state's own phases do not fit a source, and for growth since a DataLoader worker saved the state.
    """
    taken = mixture.blend.counts(int(state["samples"])).tolist()
    found: dict[str, Phases] = {}
    for name, source, count in zip(names, sources, taken, strict=True):
        saved = state["sources"].get(name)
        if saved is None:
            continue
        phases = saved.get("phases") or [(0, saved.get("samples") or source.samples)]
        if saved["fingerprint"] == source.fingerprint:
            if phases[-1][1] != source.samples:
                raise NielsCacheError(f"state: has {phases[-1][1]} samples of {name}, but its cache has {source.samples}; it was edited")
            if len(phases) > 1:
                found[name] = tuple((int(first), int(samples)) for first, samples in phases)
        elif grown and state.get("worker") is not None:
            raise NielsCacheError(
                f"{name}: grown=True does not go with a state of a DataLoader worker, whose cache has changed; save "
                f"loader.state_dict(steps=batches taken) in the main process, or restore the cache"
            )
        elif grown and began_as(source, saved["fingerprint"], samples=phases[-1][1]):
            found[name] = Epochs(phases).grown(count, source.samples).phases
    return found


def began_as(source: Source, fingerprint: str, *, samples: int) -> bool:
    """Return whether the first `samples` samples of a source are those of an earlier cache with this fingerprint."""
    if not isinstance(source, PretrainWindows) or samples > source.samples:
        return False
    return any(earlier == fingerprint for earlier in _earlier_fingerprints(source, samples))


def _earlier_fingerprints(source: PretrainWindows, samples: int) -> Iterator[str]:
    """Yield the fingerprint of each cache that this one may have been, if it had so many samples."""
    if source.meta is None or source.doc_ends is None or not isinstance(source.meta.get("parts"), list):
        return
    listed = listed_of_split(source.meta, source.path, doc_ends=True)
    try:
        counts = [[part[key][source.split] for part in source.meta["parts"]] for key in ("shards", "tokens", "documents")]
        ends = [*zip(*map(accumulate, counts), strict=True)]
    except (KeyError, TypeError) as error:
        raise NielsCacheError(f"{source.folder}: meta.json lists its parts in an unknown form; rebuild this data set") from error
    for shards, tokens, documents in dict.fromkeys(ends[:-1]):
        if tokens > source.T and source.samples_of(tokens) == samples:
            files = {name: listed[name] for name in (f"{source.split}/{shard_name(number)}" for number in range(shards))}
            files[doc_ends_name(source.split)] = _first_doc_ends(source.doc_ends[:documents])
            yield content_sha256(files)


def _first_doc_ends(ends: np.ndarray) -> dict[str, Any]:
    """Return the entry in meta.json of a file with these document ends, (documents,) uint64."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<u8", "fortran_order": False, "shape": ends.shape})
    digest = hashlib.sha256(header.getvalue())
    for first in range(0, len(ends), _BLOCK):
        digest.update(np.ascontiguousarray(ends[first : first + _BLOCK]).data.cast("B"))
    return {"bytes": len(header.getvalue()) + ends.nbytes, "sha256": digest.hexdigest()}
