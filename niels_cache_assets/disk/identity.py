"""The values that the fingerprint of an unfinished build hashes (settings, revision, tokenizer, versions), to explain what has changed.

A journal contains these values next to the fingerprint. Only the fingerprint decides whether a build can be resumed.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from niels_cache_assets.base.fingerprint import Identity
from niels_cache_runtime.format.meta import canonical_json

_VERSIONS = "versions"
_MISSING = object()
_CORPUS = {  # values of a cache that was built from a corpus
    "content_sha256": "its corpus",
    "drop_sha256": "its list of duplicates",
    "cuts": "its cuts of repeated text",
    "cuts.lines": "its cuts of repeated lines",
    "cuts.spans": "its cuts of repeated spans",
}


def as_recorded(identity: Mapping[str, Any]) -> Identity:
    """Return the values in the form in which a journal returns them: with lists instead of tuples."""
    return json.loads(canonical_json(dict(identity)))


def without_keys(values: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """Return these values without some keys."""
    return {key: value for key, value in values.items() if key not in keys}


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the differences as clauses. The first clause names all changed settings."""
    changed, clauses = [], []
    for name, before, after in _unequal(then, now):
        if name == "tokenizer_sha256":
            clauses.append("the tokenizer has changed since")
        elif name == "revision":
            digests = all(str(value).startswith("sha256:") for value in (before, after))
            clauses.append("the data have changed since" if digests else f"it is of revision {before}, and the data are now of {after}")
        elif name.endswith("code_version"):
            of = {"code_version": "what builds it", "source.code_version": f"the source {_identity_kind(now)}"}.get(name, name)
            clauses.append(f"it was made by code version {before} of {of}, which is {after} now")
        elif name.startswith(f"{_VERSIONS}."):
            clauses.append(f"it was made with {name.removeprefix(f'{_VERSIONS}.')} {before}, which is {after} now")
        elif not name.startswith("signatures."):  # the message already names the corpus of these values
            setting = name.removeprefix("source.")
            corpus = setting.removeprefix("inputs.")
            changed.append(_CORPUS.get(setting, setting) if corpus == setting else f"the corpus of {corpus}")
    if changed:
        clauses.insert(0, f"{', '.join(changed)} {'has' if len(changed) == 1 else 'have'} changed since")
    return clauses


def _unequal(then: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield (dotted name, old value, new value) for each difference. A missing value is None."""
    for name in sorted(then.keys() | now.keys()):
        before, after = then.get(name, _MISSING), now.get(name, _MISSING)
        if before == after:
            continue
        if isinstance(before, dict) and isinstance(after, dict):
            yield from _unequal(before, after, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", None if before is _MISSING else before, None if after is _MISSING else after


def _identity_kind(identity: Mapping[str, Any]) -> str:
    source = identity.get("source")
    return str(source.get("source", "")) if isinstance(source, dict) else ""
