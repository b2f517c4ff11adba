"""Push to and pull from a data set repository of the Hugging Face hub: `hf://datasets/OWNER/NAME`.

    README.md        the data card
    published.json   the record, which lists meta.json and the files of the tokenizer
    meta.json, train/shard_00000.bin, ...   the cache, as it is on disk       tokenizer/...   its tokenizer

A push is one commit, so readers see the whole build or nothing, and older builds stay in the history. The commit is refused if another
commit came first. The library skips files that the hub already has. A pull reads one commit. The token comes from the environment or the
login of huggingface_hub, and appears in no message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from niels_cache_assets.publish.push import LocalBuild, PushResult, State, changed_file_error, check_files, require_replaceable
from niels_cache_assets.publish.transfer import OnBytesDone
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import META_NAME, SPLITS, Family, has_pairs
from niels_cache_runtime.format.meta import MAX_META_BYTES, Meta
from niels_cache_runtime.remote.record import PublishedBuild, Record, parse_record, published_of
from niels_cache_runtime.remote.store import MissingError, RemoteError, check_address

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd

SCHEME = "hf://"
RECORD_NAME = "published.json"
CARD_NAME = "README.md"
_ADDRESS = re.compile(r"hf://datasets/([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)/?")
_KEPT = (".gitattributes",)
_PIECE_BYTES = 8 << 20
_STATUS_MESSAGES = {
    401: "the hub does not accept the token; check HF_TOKEN",
    403: "access is denied; check the rights of HF_TOKEN",
    409: "another commit came first; look at it, and push again",
    412: "another commit came first; look at it, and push again",
}


def address_at(given: str) -> str:
    """Return an address, on the hub or in an object store, in the form in which it is recorded. The errors are those of the check."""
    return f"{SCHEME}datasets/{repository_of(given)}" if given.startswith(SCHEME) else check_address(given)


def repository_of(address: str) -> str:
    """Return OWNER/NAME.

    Raises:
        NielsCacheError: If the address is not one of a data set on the hub.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise NielsCacheError("an address on the hub is hf://datasets/OWNER/NAME, without a revision, a folder or a token")
    return match[1]


def push_to_hub(
    build: LocalBuild, address: str, *, license: str | None = None, replace_other: bool = False, progress: OnBytesDone | None = None
) -> PushResult:
    """Publish a cache as one commit. A missing repository is created as a private one. The errors are those of `push`.

    Args:
        build: The cache.
        address: The address of the repository.
        license: The licence in the data card, as the hub spells it, or None.
        replace_other: Whether to replace another build of this data set.
        progress: Called with (bytes done, bytes in total).
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationCopy, CommitOperationDelete, HfApi

    repository, api = repository_of(address), HfApi()
    check_files(build, progress=progress)
    with _as_remote_errors(address):
        api.create_repo(repository, repo_type="dataset", private=True, exist_ok=True)
        head = api.dataset_info(repository)
        remote_paths = {each.rfilename for each in head.siblings or ()}
        source = _Repository(repository, str(head.sha))
        found = _record_in(source, address) if RECORD_NAME in remote_paths else None
    require_replaceable(build, found, address, replace_other=replace_other)
    if found is None and (foreign := sorted(remote_paths - set(_KEPT))):
        raise NielsCacheError(f"{address}: holds {foreign[0]!r}, which no push wrote; push to an empty or a new repository")
    paths = {file.path for file in build.files}
    if build.record.is_same_build(found) and paths <= remote_paths:
        return PushResult(record=build.record, state="already there", files=len(paths), sent=0, sent_bytes=0)
    card = data_card(address, build.record.family, build.record.name, build.meta, license=license)
    written = {RECORD_NAME: build.record.content(), CARD_NAME: card.encode()}
    older = _paths_of_build(source, address) if found is not None and META_NAME in remote_paths else set()
    added = _additions(build)
    operations: list[CommitOperationAdd | CommitOperationCopy | CommitOperationDelete] = [
        *added,
        *(CommitOperationAdd(path_in_repo=path, path_or_fileobj=content) for path, content in written.items()),
        *(CommitOperationDelete(path_in_repo=path) for path in sorted(remote_paths & older - paths)),
    ]
    message = f"Publish {build.record.family}/{build.record.name}, build {build.record.content_sha256[:12]}"
    with _as_remote_errors(address):
        api.create_commit(repository, operations, commit_message=message, repo_type="dataset", parent_commit=head.sha)
    state: State = "published" if found is None else "replaced"
    return PushResult(
        record=build.record, state=state, files=len(paths), sent=len(paths), sent_bytes=sum(file.size for file in build.files)
    )


def _paths_of_build(source: _Repository, address: str) -> set[str]:
    """Return the paths of the build in a repository. The set is empty if its meta.json is damaged, because a push then repairs it."""
    try:
        return {file.path for file in _published(source, address).files}
    except RemoteError:
        raise
    except NielsCacheError:
        return set()


def _additions(build: LocalBuild) -> list[CommitOperationAdd]:
    """Return the operations that add the files of a build.

    Raises:
        NielsCacheError: If a file has changed since it was checked.
    """
    from huggingface_hub import CommitOperationAdd

    added, beside = [], build.record.files_beside()
    for file in build.files:
        path = build.paths[file.path]
        try:  # small files are kept in memory, so they cannot change before the commit
            add = CommitOperationAdd(path_in_repo=file.path, path_or_fileobj=path.read_bytes() if file in beside else path)
        except (OSError, ValueError) as error:
            raise changed_file_error(build, file, "cannot be read") from error
        if add.upload_info.sha256.hex() != file.sha256:
            raise changed_file_error(build, file, "its sha256 is not the one in meta.json; rebuild this data set")
        added.append(add)
    return added


def open_repository(address: str) -> tuple[PublishedBuild, _Repository]:
    """Return the build at an address on the hub, and the files of its newest commit.

    Raises:
        MissingError: If nothing is published there.
        RemoteError: If the hub refuses or does not answer.
    """
    from huggingface_hub import HfApi

    with _as_remote_errors(address):
        head = HfApi().dataset_info(repository_of(address))
    source = _Repository(repository_of(address), str(head.sha))
    if RECORD_NAME not in {each.rfilename for each in head.siblings or ()}:
        raise MissingError(f"{address}: no published cache here; check the address, or push one")
    return _published(source, address), source


class _Repository:
    """The files of one commit."""

    def __init__(self, repository: str, commit: str) -> None:
        from huggingface_hub import HfFileSystem

        from niels_cache_assets.sources.net.transport import install

        install()  # a stalled body is requested again
        self._files = HfFileSystem(skip_instance_cache=True)
        self._repository, self._commit = repository, commit

    def name_of(self, key: str) -> str:
        return f"{SCHEME}datasets/{self._repository}/{key}"

    def stream(self, key: str, *, start: int = 0) -> Iterator[memoryview]:
        path = f"datasets/{self._repository}@{self._commit}/{key}"
        with _as_remote_errors(self.name_of(key)), self._files.open(path, "rb", block_size=_PIECE_BYTES, cache_type="none") as file:
            file.seek(start)
            while piece := file.read(min(_PIECE_BYTES, file.size - file.tell())):  # never beyond the end
                yield memoryview(piece)

    def read(self, key: str) -> bytes:
        content = b""
        for piece in self.stream(key):
            content += piece
            if len(content) > MAX_META_BYTES:
                raise NielsCacheError(f"{self.name_of(key)}: has more than {MAX_META_BYTES} bytes; give another address")
        return content


def _record_in(source: _Repository, address: str) -> Record:
    return parse_record(source.read(RECORD_NAME), f"{address}/{RECORD_NAME}")


def _published(source: _Repository, address: str) -> PublishedBuild:
    record = _record_in(source, address)
    return published_of(record, {META_NAME: source.read(META_NAME)}, source.name_of(META_NAME), in_place=True)


@contextmanager
def _as_remote_errors(name: str) -> Iterator[None]:
    """Raise RemoteError for an error of huggingface_hub in the block. `name` is the address, for the message."""
    from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalTokenNotFoundError, RepositoryNotFoundError
    from huggingface_hub.utils import httpx

    try:
        yield
    except NielsCacheError:
        raise
    except (RepositoryNotFoundError, LocalTokenNotFoundError):
        raise RemoteError(f"{name}: there is no such repository, or this token may not read it; check the address and HF_TOKEN") from None
    except (EntryNotFoundError, FileNotFoundError):
        raise MissingError(f"{name}: there is no such file; check the address") from None
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        message = _STATUS_MESSAGES.get(status, "the hub refused, or the connection broke")
        raise RemoteError(f"{name}: {message} ({status})", code=str(status), is_transient=status not in _STATUS_MESSAGES) from None
    except (httpx.HTTPError, OSError, ValueError):  # httpx, and what the library raises for an upload that failed
        raise RemoteError(f"{name}: the hub cannot be reached, or refused an upload; try again", is_transient=True) from None


def data_card(address: str, family: Family, name: str, meta: Meta, *, license: str | None = None) -> str:
    """Return the README.md of a cache: the origin of its text, its counts, and the code that opens it.

    All facts come from meta.json.

    Args:
        address: The address of the repository.
        family: The family of the data set.
        name: The name of the data set.
        meta: The meta.json of the cache.
        license: The licence, as the hub spells it, or None if the configuration names none.
    """
    source = dict(meta.get("source") or {})
    origin = {
        "kind of source": source.pop("kind", None),
        **{key.replace("_", " "): value for key, value in sorted(source.items())},
        "configuration": meta.get("dataset_config"),
        "revision": meta.get("dataset_revision"),
        "licence": license or "not stated in the configuration; the licence of the source applies",
        "rule of the split": meta.get("split_rule"),
        "seed": meta.get("seed"),
    }
    counts = {f"{unit} of {split}": meta.get(f"{split}_{unit}") for split in SPLITS for unit in ("tokens", "examples")}
    counts |= {f"documents of {split}": number for split, number in sorted((meta.get("documents") or {}).items())}
    counts |= {f"dropped: {reason}": number for reason, number in sorted((meta.get("dropped") or {}).items()) if number}
    form = {
        "tokens": meta.get("token_dtype"),
        "vocabulary": meta.get("vocab_size"),
        "sha256 of the tokenizer": meta.get("tokenizer_sha256"),
        "sha256 of the content": meta.get("content_sha256"),
    }
    fields = "batch.x, batch.y" if family == "pretrain" else "batch.x, batch.y_masked"
    if has_pairs(meta):
        fields = "batch.chosen.x, batch.rejected.x"
    license_line = "" if license is None else f"license: {json.dumps(license)}\n"  # a value in JSON is valid YAML
    return f"""\
---
{license_line}viewer: false
tags:
- niels-cache
---

# {name}

Tokens for {"pretraining" if family == "pretrain" else "fine-tuning"}, written by niels-cache.

## Origin

{_table(origin)}

## Counts

{_table({key: f"{value:,}" if isinstance(value, int) else value for key, value in counts.items()})}

## Format

{_table(form)}

## How to open it

```
niels-cache pull {address} --out cache
```

```python
from niels_cache_runtime import TokenLoader

loader = TokenLoader("cache/{family}/{name}/train", T=1024, B=16, seed=0)
batch = next(iter(loader))  # {fields}: (16, 1024)
```
"""


def _table(rows: dict[str, object]) -> str:
    lines = ["| | |", "| --- | --- |"]
    for key, value in rows.items():
        if value is not None:
            shown = value if isinstance(value, str | int) else json.dumps(value, ensure_ascii=False)
            lines.append(f"| {_cell(key)} | {_cell(str(shown))} |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    """Escape text for a cell of a table. Names from a source must not end the cell or become a tag."""
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
