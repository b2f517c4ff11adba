"""What goes wrong with the hub, told as "not reachable now" or "not there", with what to do, and never with a token in it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from niels_cache_assets.sources.base import SourceUnavailable
from niels_cache_runtime.errors import NielsCacheError

_TRY_AGAIN = {408, 429, 500, 502, 503, 504}  # HTTP statuses that say "later"
_REFUSALS = {401, 403, 404}


def nearest(what: str, asked: str | None, choices: Sequence[str]) -> str:
    """A sentence for a choice that does not exist: the closest one, and all of them (or the first twenty)."""
    shown = ", ".join(choices[:20]) + (f" and {len(choices) - 20} more" if len(choices) > 20 else "")
    if asked is None:
        return f"set {what} to one of: {shown}"
    close = difflib.get_close_matches(asked, choices, n=1)
    return f"no {what} {asked!r}{f'; did you mean {close[0]!r}?' if close else ''} (there are: {shown or 'none'})"


@contextmanager
def hub_errors(dataset: str, revision: str | None) -> Iterator[None]:
    """Turn any error of the hub libraries into a NielsCacheError; SourceUnavailable where trying again later may help."""
    try:
        yield
    except SourceUnavailable as error:
        raise _unreachable(dataset, str(error)) from error
    except NielsCacheError:
        raise
    except Exception as error:
        raise _translated(error, dataset, revision) from error


def _translated(error: Exception, dataset: str, revision: str | None) -> NielsCacheError:
    from datasets.exceptions import DataFilesNotFoundError, DatasetNotFoundError
    from huggingface_hub import errors

    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__

    def caused_by(*types: type[BaseException]) -> bool:
        return any(isinstance(link, types) for link in chain)

    for link in chain:
        if isinstance(link, SourceUnavailable):  # what the transport gave up on, wrapped by a library
            return _unreachable(dataset, str(link))
    statuses = {link.response.status_code for link in chain if isinstance(link, errors.HfHubHTTPError) and link.response is not None}
    page = f"https://huggingface.co/datasets/{dataset}"
    log_in = "log in with `hf auth login` or set HF_TOKEN"
    if caused_by(errors.GatedRepoError) or "gated dataset" in str(error):
        return NielsCacheError(f"{dataset}: this data set is gated; accept its terms at {page} and {log_in}")
    if caused_by(errors.RevisionNotFoundError):
        return NielsCacheError(f"{dataset}: no revision {revision!r}; see {page}/commits/main, or leave pinned_revision out")
    if caused_by(errors.HFValidationError):
        return NielsCacheError(f"{dataset!r} is no hub data set name; write owner/name")
    if caused_by(errors.OfflineModeIsEnabled):
        return SourceUnavailable(f"{dataset}: Hugging Face offline mode is on; unset HF_HUB_OFFLINE, or set files to a local copy")
    unreachable = caused_by(errors.LocalEntryNotFoundError, ConnectionError, TimeoutError) or any(map(_is_transport_error, chain))
    if statuses & _TRY_AGAIN or (unreachable and not statuses & _REFUSALS):
        detail = f"HTTP {min(statuses)}" if statuses else type(chain[-1]).__name__
        return _unreachable(dataset, detail)
    if caused_by(errors.RepositoryNotFoundError, DatasetNotFoundError) or 401 in statuses:  # 401 is how the hub hides private ones
        return NielsCacheError(f"{dataset}: no such data set on the hub, or a private one; check the name at {page}, or {log_in}")
    if 403 in statuses:
        return NielsCacheError(
            f"{dataset}: the hub refuses access (HTTP 403); see whether {page} asks for terms to be accepted, and {log_in}"
        )
    if 404 in statuses:
        return NielsCacheError(f"{dataset}: the hub says that a file of it is not there (HTTP 404); look for it at {page}")
    if caused_by(DataFilesNotFoundError):
        return NielsCacheError(f"{dataset}: has no data files that can be read; check it at {page}")
    if caused_by(StopIteration):  # how the JSON loader meets a file without a row
        return NielsCacheError(f"{dataset}: the first file holds no row; it is empty or damaged")
    lines = str(error).strip().splitlines() or [""]
    return NielsCacheError(f"{dataset}: cannot be read: {type(error).__name__}: {_without_secrets(lines[0])}")


def _unreachable(dataset: str, detail: str) -> SourceUnavailable:
    return SourceUnavailable(
        f"{dataset}: the hub cannot be reached now ({_without_secrets(detail)}); try again, or set files to a local copy"
    )


def _is_transport_error(error: BaseException) -> bool:
    """Whether the HTTP client of huggingface_hub could not talk to the server; which client that is (httpx, httpx2) is its own affair."""
    return any(base.__name__ == "TransportError" and base.__module__.startswith("httpx") for base in type(error).__mro__)


def _without_secrets(text: str) -> str:
    """The text without tokens, this process's own among them, and without queries of addresses: signed ones are keys."""
    from huggingface_hub import get_token

    token = get_token()
    text = text.replace(token, "***") if token else text
    return re.sub(r"hf_[A-Za-z0-9]{8,}|(?i:bearer)\s+\S+|(?<=\S)\?\S*=\S+|(?<=://)[^/\s]+@", "***", text)
