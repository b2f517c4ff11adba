"""The builder of SFT caches: it writes conversations as tokens, example boundaries and lineage.

All examples are stored in one spool first (streaming/sft_spool.py). At the end, they are divided between the splits, because val is a share
of all examples.
"""

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from niels_cache_assets.build_cache.base import CacheBuild, OnProgress, Progress, Provenance, dropped_note
from niels_cache_assets.build_cache.resuming import Counts, Reached, Resume, take_up
from niels_cache_assets.chats.encoding import NO_TARGET, ChatEncoder, EncodedChat
from niels_cache_assets.chats.rendering import REFUSED, Chat
from niels_cache_assets.chats.templates import Template
from niels_cache_assets.config.defaults import ROLE_KEYS, ROLE_TO_KEY, TEMPLATE_ROLES
from niels_cache_assets.disk.journal import Journal
from niels_cache_assets.disk.space import naming
from niels_cache_assets.disk.writers import Files, add_file
from niels_cache_assets.documents import Conversation, Message, SourceReport
from niels_cache_assets.sources.conversations import conversation_problem
from niels_cache_assets.streaming.encode import COLLISION, INVALID_UNICODE, encode_texts, in_chunks, texts_with_special
from niels_cache_assets.streaming.feed import Feed
from niels_cache_assets.streaming.in_flight import map_in_order
from niels_cache_assets.streaming.intake import as_conversations, require_whole_numbers
from niels_cache_assets.streaming.sft_spool import SftSpool, SpoolState
from niels_cache_assets.streaming.types import Mark, Position
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.commit import sync
from niels_cache_runtime.format.layout import CHAT_TEMPLATE_NAME, SPLITS, Tokens
from niels_cache_runtime.format.meta import Meta, content_sha256
from niels_cache_runtime.format.reading import available_threads

_MOST_HINTS = 2  # of a template, in the message about a source without usable conversations


@dataclass(frozen=True, kw_only=True)
class _State:
    """The state of a build between two chunks.

    dropped: the number of conversations that the builder dropped, by reason. ended: the final counts, set after everything was read; None
    before that.
    """

    reached: Reached
    dropped: dict[str, int]
    spool: SpoolState
    ended: Counts | None


class _Encoded(NamedTuple):
    """The kept conversations of a chunk, and the number of dropped conversations for each reason.

    tokens: of the cache's dtype, one conversation after the other. lengths: int64, tokens per conversation. spans: with a chat template,
    the targets of each conversation, (m, 2), relative to its first token. hints: for each reason of a template, what was said first.
    """

    conversations: list[Conversation]
    tokens: np.ndarray
    lengths: np.ndarray
    dropped: Counter[str]
    position: Position
    spans: list[np.ndarray] | None = None
    hints: tuple[str, ...] = ()


def build_sft_cache(
    examples: Iterable[list[Message] | Conversation] | Feed[Conversation],
    out_dir: str,
    *,
    tokenizer: Any,
    val_frac: float,
    seed: int,
    split_by: Literal["example", "group"] = "example",
    on_invalid: Literal["raise", "drop"] = "raise",
    on_collision: Literal["drop", "raise"] = "drop",
    threads: int | None = None,
    token_dtype: str | None = None,
    template: Template | None = None,
    provenance: Provenance | None = None,
    report: SourceReport | None = None,
    progress: OnProgress | None = None,
    resume: Resume | None = None,
) -> int:
    """Build `out_dir` ({train,val}_tokens.bin, *_idx.npy, *_examples.parquet, meta.json) from conversations.

    Each message becomes the special token of its role, the ids of its content, and EOT. A seeded share `val_frac` of the examples (or of
    their groups) goes to val. A Conversation with a `split` goes to that split. `tokenizer` needs all four special ids. `out_dir` is
    replaced in one step. `template`: a chat template (`chats.templates.find_template`), which makes the tokens instead. Then the targets
    are spans in *_targets.npy and *_target_ends.npy, and `tokenizer` is a TextTokenizer, which needs only eot. `token_dtype`, `report`,
    `progress`, `resume` and the return value have the same meaning as for build_pretrain_cache.

    Raises NielsCacheError for an invalid conversation (with `on_invalid="drop"`, it is dropped and counted instead), for a source without
    any usable example, for a val_frac outside [0, 1), for a token_dtype or a tokenizer that cannot work, and for errors of the disk. The
    last good cache then stays unchanged.
    """
    build = SftBuild(
        items=examples,
        out_dir=out_dir,
        tokenizer=tokenizer,
        val_frac=val_frac,
        seed=seed,
        split_by=split_by,
        on_invalid=on_invalid,
        on_collision=on_collision,
        threads=threads,
        token_dtype=token_dtype,
        template=template,
        provenance=provenance or Provenance(),
        report=report,
        progress=progress,
    )
    return build.build(resume)


@dataclass(frozen=True, kw_only=True)
class SftBuild(CacheBuild):
    """A build of an SFT cache. Its fields are the arguments of `build_sft_cache`."""

    family = "sft"

    val_frac: float
    split_by: Literal["example", "group"] = "example"
    on_invalid: Literal["raise", "drop"] = "raise"
    template: Template | None = None

    def __post_init__(self) -> None:
        require_whole_numbers(seed=self.seed, threads=self.threads)
        if not 0 <= self.val_frac < 1:
            raise NielsCacheError(f"val_frac is {self.val_frac}; it must be at least 0 and below 1")
        if self.template is None:
            self.view.require(ROLE_KEYS)
        else:
            assert self._chats  # raises for a tokenizer that cannot be used with the template
        assert self.dtype  # raises for a dtype that cannot hold the vocabulary

    @property
    def settings(self) -> dict[str, Any]:
        with_template = {} if self.template is None else {"template": self.template.identity}
        return {"val_frac": self.val_frac, "seed": self.seed, "split_by": self.split_by, **with_template}

    @cached_property
    def _chats(self) -> ChatEncoder | None:
        """The encoder of conversations with a chat template."""
        return None if self.template is None else ChatEncoder(self.template, self.tokenizer)

    @cached_property
    def _meta(self) -> Meta:
        return self.meta(f"seeded {self.val_frac:g} of {self.split_by}s to val")

    @property
    def identity(self) -> dict[str, Any]:
        return {"settings": self.settings, "meta": self._meta, "on_invalid": self.on_invalid, "on_collision": self.on_collision}

    def write(self, partial: Path, resume: Resume | None) -> tuple[Meta, int]:
        with self._chats or nullcontext():
            return self._write(partial, resume)

    def _write(self, partial: Path, resume: Resume | None) -> tuple[Meta, int]:
        journal = self.open_journal(partial, resume, state=_State)
        state: _State | None = journal.state if journal is not None else None
        spooled = state.spool if state is not None else None
        with SftSpool(partial, dtype=self.dtype, state=spooled, with_spans=self.template is not None) as spool:
            ended = state.ended if state is not None else None
            if ended is None:
                ended = self._spool(spool, journal, resume)
            if not spool.examples:
                note = dropped_note(ended, self.feed.report.hints)
                raise NielsCacheError(f"{self.out_dir}: the source gave no usable conversation{note}; nothing was written")
            files: dict[str, dict[str, Any]] = {}
            counts = spool.deal(files, val_frac=self.val_frac, seed=self.seed, by_group=self.split_by == "group")
            meta = {
                **self._meta,
                **{f"{split}_{what}": counts[f"{split}_{what}"] for split in SPLITS for what in ("examples", "tokens")},
                **self._described_template(partial, counts, files),
                "dropped": ended.dropped,
                "facts": {**ended.facts, "straddling_groups": counts["straddling_groups"]},
                "files": files,
                "content_sha256": content_sha256(files),
            }
        return meta, state.spool.tokens if state is not None else 0

    def _described_template(self, partial: Path, counts: dict[str, int], files: Files) -> dict[str, Any]:
        """Write the text of the template into the cache. Return the entries of meta.json about it."""
        if self.template is None or self._chats is None:
            return {}
        path = partial / CHAT_TEMPLATE_NAME
        with naming(path):
            path.write_text(self.template.text, encoding="utf-8", newline="")
            sync(path)
        add_file(path, CHAT_TEMPLATE_NAME, files)
        described = {"name": self.template.name, "sha256": self.template.sha256, "marks": self._chats.has_marks}
        return {"template": described, "targets": {split: counts[f"{split}_targets"] for split in SPLITS}}

    def tokens_of(self, item: Conversation) -> Tokens:
        return self._encode((0, ([item], Position(1, None, Counter(), {}, None)))).tokens

    def _spool(self, spool: SftSpool, journal: Journal | None, resume: Resume | None) -> Counts:
        """Store all conversations in the spool, or only the rest of them if the journal has a state."""
        state: _State | None = journal.state if journal is not None else None
        dropped = Counter(state.dropped) if state is not None else Counter[str]()

        def record(position: Position, *, ended: Counts | None = None) -> None:
            assert journal is not None
            on_disk, sizes = spool.checkpoint()
            reached = Reached(items=position.items, mark=position.mark, share=position.share)
            now = _State(reached=reached, dropped=dict(dropped), spool=on_disk, ended=ended)
            journal.record(
                asdict(now), files=sizes, sums=sizes.sums, bytes_written=spool.bytes, share=position.share, documents=spool.examples
            )

        hints: list[str] = []
        position = Position(0, None, Counter(), {}, None)
        with closing(self._encoded(resume, state)) as batches:
            for batch in batches:
                position = batch.position
                dropped.update(batch.dropped)
                hints += batch.hints[: _MOST_HINTS - len(hints)]
                spool.write(batch.conversations, batch.tokens, batch.lengths, batch.spans)
                del batch  # frees a long text before the next is encoded
                if self.progress is not None:
                    self.progress(Progress(spool.examples, spool.tokens, position.share))
                if journal is not None and journal.due(spool.bytes):
                    record(position)
        self.feed.report.hints += hints
        ended = Counts(dropped=dict(dropped + self.feed.report.dropped), facts=self.feed.report.facts)
        if journal is not None and journal.recorded:
            record(position, ended=ended)
        return ended

    def _encoded(self, resume: Resume | None, state: _State | None) -> Generator[_Encoded]:
        """Return all encoded conversations, or only the rest of them if there is a state."""

        def stream(mark: Mark | None) -> Iterator[list[Conversation]]:
            return as_conversations(self.feed.open(mark), first=mark.items if mark else 0)

        conversations, first = stream(None), 0
        if resume is not None and state is not None:
            conversations, first = take_up(stream, state.reached, log=resume.log), state.reached.items
        chunks = self.feed.positioned(in_chunks(conversations, _sizes, lambda parts: [*chain.from_iterable(parts)]), first=first)
        threads = self.threads or available_threads()
        return map_in_order(self._encode, enumerate(chunks), threads=threads, size_of=lambda task: sum(map(_characters, task[1][0])))

    def _encode(self, task: tuple[int, tuple[list[Conversation], Position]]) -> _Encoded:
        """Encode a chunk. Without a template, each message becomes the special token of its role, the ids of its content, and EOT."""
        batch, (chunk, position) = task
        known = ROLE_TO_KEY.keys() if self.template is None else ROLE_TO_KEY.keys() | TEMPLATE_ROLES
        found = ((number, conversation_problem(each.messages, known)) for number, each in enumerate(chunk))
        problems = {number: problem for number, problem in found if problem is not None}
        if self._chats is not None:
            return self._encode_chats(self._chats, chunk, position, problems)
        valid = np.array([number for number in range(len(chunk)) if number not in problems], dtype=np.int64)
        turns = np.fromiter((len(chunk[number].messages) for number in valid.tolist()), np.int64, len(valid))
        messages = [message for number in valid.tolist() for message in chunk[number].messages]
        encoded = encode_texts([message["content"] for message in messages], self.encoding_view, batch)
        owner = np.repeat(valid, turns)  # the conversation of each message
        for message in np.flatnonzero(_either(encoded.invalid, texts_with_special(encoded, self.view), len(messages))).tolist():
            is_invalid = encoded.invalid is not None and encoded.invalid[message]
            problems.setdefault(int(owner[message]), INVALID_UNICODE if is_invalid else COLLISION)
        self._require_sound(chunk, problems, first=position.items - len(chunk))
        kept = np.array([number not in problems for number in range(len(chunk))], dtype=bool)
        stays = kept[owner]
        lengths = encoded.lengths[stays]
        ends = np.cumsum(lengths + 2)
        starts = ends - lengths - 2
        tokens = np.empty(int(ends[-1]) if len(ends) else 0, self.dtype)
        content = np.ones(len(tokens), dtype=bool)
        content[starts] = content[ends - 1] = False
        tokens[content] = encoded.ids[np.repeat(stays, encoded.lengths)]
        roles = np.fromiter((self.view.special_ids[ROLE_TO_KEY[message["role"]]] for message in messages), np.int64, len(messages))
        tokens[starts], tokens[ends - 1] = roles[stays], self.view.eot
        last = np.cumsum(turns[kept[valid]]) - 1  # the last message of each conversation
        return _Encoded(
            conversations=[each for each, keep in zip(chunk, kept.tolist(), strict=True) if keep],
            tokens=tokens,
            lengths=np.diff(ends[last], prepend=0),
            dropped=Counter(problems.values()),
            position=position,
        )

    def _encode_chats(self, chats: ChatEncoder, chunk: list[Conversation], position: Position, problems: dict[int, str]) -> _Encoded:
        """Encode the valid conversations of a chunk with the template. problems: the reasons of the others, by their places."""
        first = position.items - len(chunk)
        valid = [number for number in range(len(chunk)) if number not in problems]
        encoded: dict[int, EncodedChat] = {}
        said: dict[str, str] = {}
        names = [f"example {chunk[number].source_id or first + number}" for number in valid]
        results = chats.encode([Chat(chunk[number].messages, name) for number, name in zip(valid, names, strict=True)])
        for number, result in zip(valid, results, strict=True):
            if isinstance(result, EncodedChat):
                encoded[number] = result
                continue
            problems[number] = result.reason
            if result.reason in (REFUSED, NO_TARGET):
                if self.on_invalid == "raise":
                    raise NielsCacheError(result.said)
                said.setdefault(result.reason, result.said)
        self._require_sound(chunk, problems, first=first)
        return _Encoded(
            conversations=[chunk[number] for number in encoded],
            tokens=np.concatenate([np.empty(0, self.dtype), *(each.ids.astype(self.dtype) for each in encoded.values())]),
            lengths=np.fromiter((len(each.ids) for each in encoded.values()), np.int64, len(encoded)),
            dropped=Counter(problems.values()),
            position=position,
            spans=[each.spans for each in encoded.values()],
            hints=tuple(said.values()),
        )

    def _require_sound(self, chunk: list[Conversation], problems: Mapping[int, str], *, first: int) -> None:
        """Raise NielsCacheError for the first conversation with a problem that the settings treat as an error.

        first: the number of the chunk's first conversation.
        """
        for index in sorted(problems):
            example, problem = f"example {chunk[index].source_id or first + index}", problems[index]
            if problem == COLLISION:
                if self.on_collision == "raise":
                    raise NielsCacheError(f"{example}: a message contains a special token; remove it")
            elif problem != INVALID_UNICODE and self.on_invalid == "raise":
                raise NielsCacheError(f"{example}: {problem}; correct it, or pass on_invalid='drop'")


def _either(first: np.ndarray | None, second: np.ndarray | None, count: int) -> np.ndarray:
    """Return the union of two masks, bool (count,). None stands for a mask without any True."""
    masks = [mask for mask in (first, second) if mask is not None]
    return np.logical_or.reduce(masks) if masks else np.zeros(count, dtype=bool)


def _sizes(conversations: list[Conversation]) -> np.ndarray:
    return np.fromiter(map(_characters, conversations), np.int64, len(conversations))


def _characters(conversation: Conversation) -> int:
    return sum(len(content) for message in conversation.messages if isinstance(content := message.get("content"), str))
