"""Errors of the hub as messages with advice, which never contain an access token.

A message says that the hub is not reachable now, or that something does not exist.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from niels_cache_assets.sources.errors import (
    SourceUnavailableError,
    endless_redirect,
    error_chain,
    first_line,
    is_network_error,
    without_secrets,
)
from niels_cache_runtime.errors import NielsCacheError, did_you_mean

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError

_TRY_AGAIN = {408, 429, 500, 502, 503, 504}  # HTTP statuses after which a later request may succeed
_REFUSALS = {401, 403, 404}
_MAX_REASON = 300  # characters
_WITHOUT_HUB = 'read a copy: files = ["/path/to/copy/*.parquet"]'
_TEXTS = {  # noun, folder of pages, key, note on a name that may not exist
    "dataset": ("data set", "datasets/", "pinned_revision", ""),
    "model": ("model", "", "revision", " (if a file or folder is meant, correct its path)"),
}


def unknown_choice_message(what: str, requested: str | None, choices: Sequence[str]) -> str:
    """Return a text about a choice that does not exist, with the closest choice, and all choices or the first twenty.

    Args:
        what: The configuration key.
        requested: The given choice, or None if none is set.
        choices: The existing choices.
    """
    shown = ", ".join(choices[:20]) + (f" and {len(choices) - 20} more" if len(choices) > 20 else "")
    if requested is None:
        return f"set {what} to one of: {shown}"
    hint = did_you_mean(requested, choices)
    return f"no {what} {requested!r}{hint and f'; {hint}'} (there are: {shown or 'none'})"


@contextmanager
def hub_errors(name: str, revision: str | None, *, repo_type: str = "dataset", without_hub: str = _WITHOUT_HUB) -> Iterator[None]:
    """Turn errors of the hub's libraries into errors of this project.

    Args:
        name: The name of the data set or model.
        revision: The revision that is read, or None for the newest.
        repo_type: "dataset" or "model".
        without_hub: What to do on a machine that cannot reach the hub, for the message.

    Raises:
        SourceUnavailableError: If another try later may help.
        NielsCacheError: For any other error.
    """
    try:
        yield
    except Exception as error:
        is_ours = isinstance(error, NielsCacheError)
        if is_ours and (not isinstance(error, SourceUnavailableError) or str(error).startswith(f"{name}: ")):
            raise
        raise hub_error(error, name, revision, repo_type=repo_type, without_hub=without_hub) from error


def hub_error(
    error: Exception, name: str, revision: str | None, *, repo_type: str = "dataset", without_hub: str = _WITHOUT_HUB
) -> NielsCacheError:
    """Return the error of this project for an error of the hub's libraries; see `hub_errors`."""
    from datasets.exceptions import DataFilesNotFoundError, DatasetNotFoundError
    from huggingface_hub import errors, get_token
    from huggingface_hub.constants import HF_HUB_CACHE

    chain = error_chain(error)

    def caused_by(*types: type[BaseException]) -> bool:
        return any(isinstance(link, types) for link in chain)

    noun, folder, key, note = _TEXTS[repo_type]
    page = f"https://huggingface.co/{folder}{name}"

    def unreachable(detail: str) -> SourceUnavailableError:
        known = f"and it is unknown whether the name exists{note}"  # a wrong name causes the same failure
        if Path(HF_HUB_CACHE, f"{repo_type}s--{name.replace('/', '--')}").is_dir():
            known = f"but this machine has read the {noun} before"
        return SourceUnavailableError(
            f"{name}: the hub cannot be reached now ({without_secrets(detail)}), {known}; "
            f"check the network, and the name at {page}, and build again, or {without_hub}"
        )

    for link in chain:
        if isinstance(link, SourceUnavailableError):  # the transport gave up, and a library may have wrapped the error of the transport
            return unreachable(str(link))
    answers = [link for link in chain if isinstance(link, errors.HfHubHTTPError) and link.response is not None]
    statuses = {link.response.status_code for link in answers}
    log_in = "log in with `hf auth login` or set HF_TOKEN"
    if caused_by(errors.GatedRepoError) or "gated dataset" in str(error):
        return NielsCacheError(f"{name}: this {noun} is gated; accept its licence at {page} and {log_in}")
    if endless := endless_redirect(error):
        return NielsCacheError(f"{name}: cannot be read: the hub {endless}; check HF_ENDPOINT, if it is set, and the proxy")
    if caused_by(errors.RevisionNotFoundError):
        problem = f"no revision {revision!r}" if revision else "the hub gives no newest commit"
        return NielsCacheError(f"{name}: {problem}; see {page}/commits/main, or {f'leave {key} out' if revision else f'set {key}'}")
    if caused_by(errors.HFValidationError):
        return NielsCacheError(f"{name!r} is not the name of a {noun} on the hub; write owner/name")
    if caused_by(errors.OfflineModeIsEnabled):
        return SourceUnavailableError(f"{name}: Hugging Face offline mode is on; type unset HF_HUB_OFFLINE, or {without_hub}")
    is_unreachable = caused_by(errors.LocalEntryNotFoundError) or any(map(is_network_error, chain))
    if statuses & _TRY_AGAIN or (is_unreachable and not statuses & _REFUSALS):
        detail = f"HTTP {min(statuses)}" if statuses else type(chain[-1]).__name__
        return unreachable(detail)
    if caused_by(errors.RepositoryNotFoundError, DatasetNotFoundError) or 401 in statuses:  # the hub hides private data sets with 401
        return NielsCacheError(f"{name}: no such {noun} on the hub{note}, or a private one; check the name at {page}, or {log_in}")
    if 403 in statuses:
        return NielsCacheError(f"{name}: the hub refuses access (HTTP 403); accept the terms at {page}, if there are any, and {log_in}")
    if 404 in statuses:
        return NielsCacheError(f"{name}: one of its files is not on the hub (HTTP 404); look for it at {page}")
    if caused_by(DataFilesNotFoundError):
        return NielsCacheError(f"{name}: has no data files that can be read; check it at {page}")
    if caused_by(UnicodeEncodeError) and not (get_token() or "").isascii():
        return NielsCacheError(f"{name}: the token (HF_TOKEN, or of `hf auth login`) holds invalid characters; copy it again")
    if answers:
        return NielsCacheError(f"{name}: cannot be read: the hub answers HTTP {_answer(answers[0])}; see {page}")
    return NielsCacheError(f"{name}: cannot be read: {type(error).__name__}: {first_line(error)}")


def _answer(error: HfHubHTTPError) -> str:
    """Return the status of an answer, with its reason if the hub gives one."""
    reason = " ".join(without_secrets(error.server_message or error.response.reason_phrase).split())
    return f"{error.response.status_code} ({reason[:_MAX_REASON]})" if reason else str(error.response.status_code)
