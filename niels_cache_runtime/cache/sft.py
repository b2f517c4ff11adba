"""The files of an SFT split, opened together, and the targets among its tokens.

    sys ... EOT  usr ... EOT  asst A B EOT           an example
                                   A B EOT           its targets; every other target is -100

EOT is the end-of-text token. `sys`, `usr` and `asst` are sentinels: tokens that begin a message of that role. All code that samples or
packs examples uses these functions, so targets are the same everywhere. Opening reads the starts of all examples, 8 bytes each. A split
that was built with a chat template, or with messages that are not trained on, has its targets in files of their own (`targets`).
"""

from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from niels_cache_runtime.cache.checks import check_token_id
from niels_cache_runtime.cache.mmap import MappedTokens, map_example_starts
from niels_cache_runtime.cache.opening import Verify, check_meta_count, check_sizes, listed_files, open_consistently, open_meta
from niels_cache_runtime.cache.targets import TargetSpans, map_targets
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import (
    META_NAME,
    SIDES,
    SPLITS,
    Array,
    Bools,
    Ints,
    Split,
    Tokens,
    has_pairs,
    has_spans,
    has_target_weights,
    idx_name,
    span_names,
    targets_name,
    token_dtype_of,
    tokenizer_dir,
    tokens_name,
)
from niels_cache_runtime.format.meta import Meta, is_foreign, read_meta

_SCAN_TOKENS = 1 << 22


def assistant_target_mask(tokens: Array, asst_id: int, eot_id: int) -> Bools:
    """Return which tokens are targets: those after an assistant sentinel, up to and including the next EOT.

    The sentinel itself is never a target. If a span is not closed and padding with EOT follows it, the caller must mask the padding,
    because only the caller knows where it begins.

    Args:
        tokens: Integers of any shape (..., L). Each row of L tokens is treated by itself.
        asst_id: The id of the assistant sentinel, the token that begins a message of the assistant.
        eot_id: The id of EOT, the end-of-text token that ends a message.

    Returns:
        Bool, of the shape of `tokens`.
    """
    row_starts = np.arange(0, tokens.size, max(1, tokens.shape[-1]))
    return example_target_mask(tokens.reshape(-1), row_starts, asst_id, eot_id).reshape(tokens.shape)


def example_target_mask(tokens: Array, starts: Ints, asst_id: int, eot_id: int) -> Bools:
    """Return the mask of `assistant_target_mask`, (N,) bool, for examples that lie back to back.

    A span ends with its example, and the first token of an example is never a target.

    Args:
        tokens: (N,), the tokens of all examples.
        starts: (K,), the start of each example. The first is 0.
        asst_id: The id of the assistant sentinel.
        eot_id: The id of EOT.
    """
    opens = tokens == asst_id
    changes = opens | (tokens == eot_id)
    changes[starts] = True
    # Between two changes, either all tokens are inside a span or no token is. There are few such runs; one pass fills them.
    changed = np.flatnonzero(changes)
    inside = np.repeat(opens[changed], np.diff(changed, append=len(tokens)))
    mask = np.zeros(len(tokens), dtype=np.bool_)
    mask[1:] = inside[:-1]  # shifted by one, so that the closing EOT still counts
    mask &= ~opens
    mask[starts] = False
    return mask


def find_spans(tokens: Tokens, starts: Ints, *, asst_id: int, eot_id: int) -> TargetSpans:
    """Return the targets of `example_target_mask` as spans. The tokens are read once, in blocks of whole examples.

    The spans are held in memory, 16 bytes for each span and 8 for each example; while they are found, up to three times as much.

    Args:
        tokens: All tokens of the split, example after example.
        starts: (examples,) int64, where each example begins.
        asst_id: The id of the assistant sentinel.
        eot_id: The id of EOT.
    """
    stops, span_counts = np.append(starts[1:], len(tokens)), np.zeros(len(starts), dtype=np.uint64)
    bounds = [np.empty((0, 2), dtype=np.int64)]
    first = count = 0
    while first < len(starts):
        begin = int(starts[first])
        last = max(first + 1, int(stops.searchsorted(begin + _SCAN_TOKENS, side="right")))  # at least one example
        mask = example_target_mask(tokens[begin : stops[last - 1]], starts[first:last] - begin, asst_id, eot_id)
        found = begin + np.flatnonzero(np.diff(mask, prepend=False, append=False)).reshape(-1, 2)
        span_counts[first:last] = count + found[:, 1].searchsorted(stops[first:last], side="right")
        bounds.append(found)
        first, count = last, count + len(found)
    return TargetSpans(np.concatenate(bounds).astype(np.uint64), span_counts)


class OpenedExamples(NamedTuple):
    """The open files of an SFT split, all of one build.

    Attributes:
        meta: The meta.json, or None.
        tokens: The tokens, mapped.
        starts: (examples,) int64, the start of each example. For preference pairs, (2 * pairs,), the chosen side of each pair before the
            rejected one.
        spans: The targets, if they are in files of their own. None if sentinels mark them.
    """

    meta: Meta | None
    tokens: Tokens
    starts: Ints
    spans: TargetSpans | None


def open_examples(tokens_path: str, idx_path: str, *, verify: Verify = "size", pairs: bool = False) -> OpenedExamples:
    """Open the files of an SFT split, all of one build of a data set.

    Args:
        tokens_path: The file of the tokens.
        idx_path: The file of the starts of the examples.
        verify: "size" compares sizes with meta.json. "sha256" also reads the files and compares their content.
        pairs: Whether the examples must be preference pairs.

    Raises:
        NielsCacheError: If a file is missing, malformed, or not the file that meta.json lists.
        NielsCacheError: If the data set was never built, or if the cache has another tokenizer now than at the build.
        NielsCacheError: If the examples are preference pairs and `pairs` is False, or the other way round.
    """
    return open_consistently(Path(tokens_path).parent, lambda: _open_files(tokens_path, idx_path, verify, pairs))


def _open_files(tokens_path: str, idx_path: str, verify: Verify, pairs: bool) -> OpenedExamples:
    folder = Path(tokens_path).parent
    meta = open_meta(folder, verify=verify)
    if has_pairs(meta) != pairs:
        contents, reader = ("no preference pairs", "SFTExampleDataset") if pairs else ("preference pairs", "PreferenceDataset")
        raise NielsCacheError(f"{folder}: holds {contents}; read it with TokenLoader or {reader}")
    split = next((split for split in SPLITS if Path(tokens_path).name == tokens_name(split)), None)
    with_spans = _split_with_spans(meta, split, Path(tokens_path))
    tokens = MappedTokens([tokens_path], dtype=token_dtype_of(meta)).shards[0]
    if meta is not None and not is_foreign(meta):
        beside = [] if with_spans is None else [folder / name for name in span_names(meta, with_spans)]
        paths = [*(Path(path) for path in (tokens_path, idx_path) if Path(path).parent == folder), *beside]
        names = {path.name for path in paths}
        listed = {path: entry for path, entry in listed_files(meta, folder).items() if path in names}
        check_sizes(folder, listed, {path.name: path.stat().st_size for path in paths if path.exists()}, verify=verify)
    starts = np.array(map_example_starts(idx_path, token_count=len(tokens)))
    if meta is not None and is_foreign(meta) and split is not None and Path(idx_path) == folder / idx_name(split):
        check_meta_count(meta, folder, f"{split}_examples", len(starts))
        check_meta_count(meta, folder, f"{split}_tokens", len(tokens))
    spans = (
        None
        if with_spans is None
        else map_targets(folder, with_spans, starts=starts, token_count=len(tokens), with_weights=has_target_weights(meta))
    )
    if pairs and (spans is None or len(starts) % len(SIDES)):
        raise NielsCacheError(f"{idx_path}: has {len(starts)} entries, which are no pairs with targets; rebuild this data set")
    return OpenedExamples(meta, tokens, starts, spans)


def _split_with_spans(meta: Meta | None, split: Split | None, tokens_path: Path) -> Split | None:
    """Return the split of this file if its targets are spans in files of their own, otherwise None.

    Without a meta.json of ours, the files beside it decide.
    """
    if not has_spans(meta):
        is_ours = meta is not None and not is_foreign(meta)
        return split if split is not None and not is_ours and (tokens_path.parent / targets_name(split)).exists() else None
    if split is None:
        raise NielsCacheError(f"{tokens_path}: the targets of this data set are in files beside it, so the file must keep its name")
    return split


def resolve_id(role: Literal["eot", "asst"], given: int | None, *, meta: Meta | None, tokens_path: str) -> int:
    """Return the id of a special token: the given id, or the recorded id if none is given.

    The id is recorded in the meta.json beside the tokens, or in that of the tokenizer of the same cache.

    Raises:
        NielsCacheError: If the value is not a token id, if the given id differs from the recorded id, or if there is no id at all.
    """
    dtype = token_dtype_of(meta)
    given = None if given is None else check_token_id(f"{role}_id", given, dtype=dtype)
    where, recorded = _recorded_id(role, meta, Path(tokens_path).parent)
    if given is None:
        if recorded is None:
            meaning = "the id of the assistant sentinel" if role == "asst" else "the id that ends a message"
            places = "neither meta.json beside them nor tokenizer/meta.json near them gives it"
            raise NielsCacheError(f"{tokens_path}: the {role} id is unknown, because {places}; pass {role}_id=, {meaning}")
        return check_token_id(f"{where}: {role}", recorded, dtype=dtype)
    if recorded not in (None, given):
        raise NielsCacheError(f"{where}: its {role} id is {recorded}, not {role}_id={given}; use the ids of the cache's tokenizer")
    return given


def _recorded_id(role: str, meta: Meta | None, folder: Path) -> tuple[Path, Any]:
    """Return the file that records the id of a special token, and the id, or None if no file records it.

    Args:
        role: The name of the special token in meta.json.
        meta: The meta.json beside the tokens, or None.
        folder: The folder of the tokens. A tokenizer is looked for in it, beside it, and in the root of a cache with this data set.
    """
    folder = folder.absolute()
    recorded = (meta or {}).get("special_token_ids")
    if isinstance(recorded, dict) and role in recorded:
        return folder / META_NAME, recorded[role]
    for root in (folder, *folder.parents[:2]):
        path = tokenizer_dir(root) / META_NAME
        if path.is_file():
            recorded = read_meta(path).get("special_token_ids")
            return path, recorded.get(role) if isinstance(recorded, dict) else None
    return folder / META_NAME, None


def resolve_target_ids(
    eot_id: int | None, asst_id: int | None, *, opened: OpenedExamples, tokens_path: str, all_count: bool
) -> tuple[int, int | None]:
    """Return the ids of EOT and of the assistant sentinel. The second is None if no sentinel marks the targets.

    Args:
        eot_id: The given id of EOT, or None for the recorded id.
        asst_id: The given id of the assistant sentinel, or None for the recorded id.
        opened: The open split.
        tokens_path: The file of the tokens, for messages.
        all_count: Whether every token is a target.

    Raises:
        NielsCacheError: For the reasons that `resolve_id` lists, if both ids are equal, and for an asst_id if the data set has a chat
            template.
    """
    in_files = opened.spans is not None
    if in_files and asst_id is not None and "template" in (opened.meta or {}):
        raise NielsCacheError(
            f"{tokens_path}: asst_id={asst_id!r}: the targets are in files beside it, and no sentinel marks them; leave it out"
        )
    eot = resolve_id("eot", eot_id, meta=opened.meta, tokens_path=tokens_path)
    if asst_id is None if in_files else all_count:
        return eot, None
    asst = resolve_id("asst", asst_id, meta=opened.meta, tokens_path=tokens_path)
    if asst == eot:
        raise NielsCacheError(f"{tokens_path}: asst_id and eot_id are both {eot}; they must differ")
    return eot, None if in_files else asst  # with targets in files, a given id is only compared with meta.json
