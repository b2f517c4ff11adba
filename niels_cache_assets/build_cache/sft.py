"""The builder of SFT caches, which writes conversations as tokens, example boundaries and lineage.

All examples are stored in one spool first (sft_spool.py). At the end, they are divided between the splits, because val is a share
of all examples.
"""

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from niels_cache_assets.base.defaults import ROLE_KEYS, Turns
from niels_cache_assets.base.documents import Conversation, DropReport, Message, SourceReport
from niels_cache_assets.base.parallel import map_in_order
from niels_cache_assets.build_cache.base import CacheBuild, OnProgress, Progress, Provenance, describe_dropped_items
from niels_cache_assets.build_cache.conversations import (
    ConversationEncoder,
    characters,
    collect_drops,
    drop_text,
    example_name,
    mask_shared_prompt,
    pair_form_problem,
)
from niels_cache_assets.build_cache.resume import Resume, resume_stream
from niels_cache_assets.build_cache.sft_spool import SftSpool, SpoolState
from niels_cache_assets.chats.encoding import ChatEncoder, EncodedChat
from niels_cache_assets.chats.templates import Template
from niels_cache_assets.disk.journal import Journal
from niels_cache_assets.disk.space import name_path
from niels_cache_assets.disk.write_behind import WriteBehind
from niels_cache_assets.disk.writers import Files, add_file
from niels_cache_assets.sources.messages import WEIGHT_PROBLEMS, masked_messages, weight_problem
from niels_cache_assets.sources.pairs import prompt_hash, prompt_length
from niels_cache_assets.streaming.encode import COLLISION, INVALID_UNICODE, in_chunks
from niels_cache_assets.streaming.feed import Feed
from niels_cache_assets.streaming.intake import as_conversations, require_whole_numbers
from niels_cache_assets.streaming.types import BuildPosition, ResumePoint, StreamPosition
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.commit import sync
from niels_cache_runtime.format.layout import CHAT_TEMPLATE_NAME, SIDES, SPLITS
from niels_cache_runtime.format.meta import Meta, content_sha256
from niels_cache_runtime.format.reading import available_threads

_MASKED = "masked_messages"  # in the facts of meta.json: how many messages are marked not to be trained on; missing without any
_MAX_HINTS = 2  # of a template, in the message about a source without usable conversations


@dataclass(frozen=True, kw_only=True)
class _State:
    """The state of a build between two chunks. The default is that of a new build.

    Attributes:
        drops: The conversations that the builder dropped, and the numbers of messages of the others (DropReport.state).
        ended: The final counts, set after everything was read. None before that.
    """

    reached: BuildPosition = field(default_factory=BuildPosition)
    drops: dict[str, dict[str, Any]] = field(default_factory=dict)
    spool: SpoolState = field(default_factory=SpoolState)
    ended: dict[str, dict[str, Any]] | None = None


class _EncodedExamples(NamedTuple):
    """The kept conversations of a chunk, and the dropped ones.

    Attributes:
        chats: The tokens of each conversation, of the cache's dtype, and its targets. The sides of a pair follow each other.
        drops: The dropped conversations, with numbers of messages of the kept ones as facts.
        hints: The first message of the template for each reason.
        units: (examples,) int64, the number of the conversation of each example. None if each conversation is one example.
    """

    conversations: list[Conversation]
    chats: list[EncodedChat]
    drops: DropReport
    position: StreamPosition
    hints: tuple[str, ...]
    units: np.ndarray | None = None

    @property
    def tokens(self) -> int:
        """The number of tokens."""
        return sum(len(each.ids) for each in self.chats)


def build_sft_cache(
    examples: Iterable[list[Message] | Conversation] | Feed[Conversation],
    out_dir: str,
    *,
    tokenizer: Any,
    val_frac: float,
    seed: int,
    split_by: Literal["example", "group", "conversation"] = "example",
    on_invalid: Literal["raise", "drop"] = "raise",
    on_collision: Literal["drop", "raise"] = "drop",
    threads: int | None = None,
    token_dtype: str | None = None,
    template: Template | None = None,
    preference: bool = False,
    max_tokens: int | None = None,
    turns: Turns = "all",
    provenance: Provenance | None = None,
    report: SourceReport | None = None,
    progress: OnProgress | None = None,
    resume: Resume | None = None,
) -> None:
    """Build the SFT cache `out_dir` from conversations.

    The folder contains `train_tokens.bin`, `val_tokens.bin`, `*_idx.npy`, `*_examples.parquet` and meta.json.

    Each message becomes the special token of its role, the ids of its content, and EOT, or the tokens that `template` gives. A seeded share
    of the examples goes to val. A Conversation with a `split` goes to that split. A message of the assistant with `"weight": 0` (or another
    key of `sources.messages`) gets no target, and the targets of one with `"weight": 0.5` have this weight. If there is such a message, or
    with a template or pairs, the targets are spans in `*_targets.npy` and `*_target_ends.npy`, and weights other than 0 and 1 are in
    `*_target_weights.npy`. `out_dir` is replaced in one step at the end. If the build fails, the last good cache stays unchanged.

    Args:
        examples: The conversations. A Feed can also be opened at a later position, which makes resuming faster.
        out_dir: The folder to build.
        tokenizer: The tokenizer, with all four special ids (see `view_tokenizer`). With `template`, a TextTokenizer, which needs only eot.
        val_frac: The share of the examples (or of the units of `split_by`) that goes to val, at least 0 and below 1.
        seed: The seed of the split.
        split_by: What is split as one unit: each "example", or all examples with the same "group". Preference pairs are split by their
            prompts, or with "conversation" so that a prompt and those that continue it are one unit.
        on_invalid: What happens to an invalid conversation: "raise" raises NielsCacheError, "drop" drops and counts it.
        on_collision: What happens to a message that contains a special token: "drop" drops and counts its conversation, "raise" raises
            NielsCacheError.
        threads: The number of threads that encode. None: one for each available core. The bytes do not depend on it.
        token_dtype: The type of a token on disk, as for `build_pretrain_cache`.
        template: A chat template (`chats.templates.find_template`), which makes the tokens. None: the special tokens of the roles do.
        preference: Whether each Conversation is a preference pair, with a `rejected` side. Both sides are written one after the other.
        max_tokens: The maximum number of tokens of a side of a pair. Pairs with a longer side are dropped and counted. None for no limit.
        turns: Which turns of the assistant are targets, with a template. "all": all turns. "each" makes an example of each turn of the
            assistant, which holds the messages up to this turn and has targets only in this turn. "last" makes only the example of the
            last turn. The examples of a conversation come one after the other and are in the same split.
        provenance: The entries of meta.json about the origin. None: those of an unnamed iterable.
        report: The counts of conversations that the source dropped. None: no counts. A Feed has its own report.
        progress: Called after every chunk. None: no reports.
        resume: A request to keep a journal, as for `build_pretrain_cache`. None: no journal.

    Raises:
        NielsCacheError: If a conversation is invalid and `on_invalid` is "raise", if a message contains a special token and `on_collision`
            is "raise", if the source has no usable example, if `val_frac` is outside [0, 1), if `token_dtype`, the tokenizer or other
            settings cannot work, or if the disk reports an error.
    """
    settings = {**locals(), "provenance": provenance or Provenance()}
    del settings["examples"], settings["resume"]
    SftBuild(items=examples, **settings).build(resume)


@dataclass(frozen=True, kw_only=True)
class SftBuild(CacheBuild):
    """A build of an SFT cache. Its other fields are the arguments of `build_sft_cache`.

    Attributes:
        exclude: The ids of examples to leave out. They count when val is chosen, so that all others keep their split. The source counts
            them as dropped.
    """

    family = "sft"

    val_frac: float
    split_by: Literal["example", "group", "conversation"] = "example"
    on_invalid: Literal["raise", "drop"] = "raise"
    template: Template | None = None
    preference: bool = False
    max_tokens: int | None = None
    turns: Turns = "all"
    exclude: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        require_whole_numbers(seed=self.seed, threads=self.threads)
        if self.max_tokens is not None and not self.preference:
            raise NielsCacheError(f"max_tokens={self.max_tokens}: is for preference pairs; leave it out")
        if self.turns != "all" and self.template is None:
            raise NielsCacheError(f"turns={self.turns!r}: is for a chat template; leave it out")
        if self.turns == "each" and self.preference:
            raise NielsCacheError("turns='each': is not for preference pairs; give 'last' or leave it out")
        if self.split_by == "conversation" and not self.preference:
            raise NielsCacheError("split_by='conversation': is for preference pairs; give 'example' or 'group'")
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
        of_pairs = {"kind": "preference", "max_tokens": self.max_tokens} if self.preference else {}
        of_examples = {**with_template, **of_pairs, **self._turn_settings}
        return {"val_frac": self.val_frac, "seed": self.seed, "split_by": self._split_unit, **of_examples}

    @property
    def _turn_settings(self) -> dict[str, Any]:
        return {} if self.turns == "all" else {"turns": self.turns}

    @property
    def _split_unit(self) -> str:
        if self.turns == "each" and self.split_by == "example":
            return "conversation"
        return "prompt" if self.preference and self.split_by != "conversation" else self.split_by

    @cached_property
    def _chats(self) -> ChatEncoder | None:
        """The encoder of conversations with a chat template."""
        return None if self.template is None else ChatEncoder(self.template, self.tokenizer)

    @cached_property
    def _conversation_encoder(self) -> ConversationEncoder:
        return ConversationEncoder(
            view=self.encoding_view,
            dtype=self.dtype,
            chats=self._chats,
            raises=self.on_invalid == "raise",
            turns=self.turns,
            exclude=self.exclude,
        )

    @cached_property
    def _meta(self) -> Meta:
        return self.meta(f"seeded {self.val_frac:g} of {self._split_unit}s to val")

    @property
    def identity(self) -> dict[str, Any]:
        return {"settings": self.settings, "meta": self._meta, "on_invalid": self.on_invalid, "on_collision": self.on_collision}

    def _write(self, partial: Path, resume: Resume | None) -> Meta:
        journal, state = self.open_journal(partial, resume, _State())
        sides = len(SIDES) if self.preference else 1
        with (
            self._chats or nullcontext(),
            SftSpool(partial, dtype=self.dtype, state=state.spool, sides=sides, exclude=self.exclude) as spool,
        ):
            if resume is not None:
                resume.resumed_tokens = spool.tokens
            ended = self._spool(spool, journal, state, resume) if state.ended is None else DropReport(**state.ended)
            if not spool.tokens:
                note = describe_dropped_items(ended, self.feed.report.hints)
                what = "preference pair" if self.preference else "conversation"
                raise NielsCacheError(f"{self.out_dir}: the source gave no usable {what}{note}; nothing was written")
            with_spans = self.preference or self.template is not None or _MASKED in ended.facts  # sentinels cannot say what is masked
            by_group = self.preference or self.split_by != "example"
            counts = spool.write_splits(val_frac=self.val_frac, seed=self.seed, by_group=by_group, with_spans=with_spans)
            meta = {
                **self._meta,
                **{f"{split}_{what}": counts[f"{split}_{what}"] for split in SPLITS for what in ("examples", "tokens")},
                **({"targets": {split: counts[f"{split}_targets"] for split in SPLITS}} if "train_targets" in counts else {}),
                **self._write_template(partial, spool.files),
                "dropped": dict(ended.dropped),
                "facts": {**ended.facts, "straddling_groups": counts["straddling_groups"]},
                "files": spool.files,
                "content_sha256": content_sha256(spool.files),
            }
        return meta

    def _write_template(self, partial: Path, files: Files) -> dict[str, Any]:
        """Write the text of the template into the cache, and return the entries of meta.json about it and about sides."""
        sides: dict[str, Any] = {"sides": [*SIDES]} if self.preference else {}
        if self.template is None or self._chats is None:
            return sides
        path = partial / CHAT_TEMPLATE_NAME
        with name_path(path):
            path.write_text(self.template.text, encoding="utf-8", newline="")
            sync(path)
        add_file(path, CHAT_TEMPLATE_NAME, files)
        template = {"name": self.template.name, "sha256": self.template.sha256, "marks": self._chats.has_marks}
        return {"template": template | self._turn_settings, **sides}

    def _spool(self, spool: SftSpool, journal: Journal | None, state: _State, resume: Resume | None) -> DropReport:
        """Store the conversations that come after the state in the spool."""
        drops = DropReport(**state.drops)
        examples, tokens = spool.examples, spool.tokens

        def state_at(position: StreamPosition, *, ended: DropReport | None = None) -> _State:
            return _State(reached=position.reached, drops=drops.state(), ended=None if ended is None else ended.state())

        hints: list[str] = []
        position = StreamPosition(BuildPosition(), Counter(), {})
        with WriteBehind() as writes, closing(self._encoded(resume, state)) as batches:
            for batch in batches:
                position = batch.position
                drops.join(batch.drops)
                hints += batch.hints[: _MAX_HINTS - len(hints)]
                examples, tokens = examples + len(batch.conversations), tokens + batch.tokens
                writes.submit(partial(_write, spool, batch, journal, state_at(position)), size=batch.tokens * self.dtype.itemsize)
                del batch  # frees a long text before the next is encoded
                if self.progress is not None:
                    self.progress(Progress(examples, tokens, position.reached.share))
            writes.finish()
        self.feed.report.hints += hints
        ended = DropReport(self.feed.report.dropped, self.feed.report.facts)
        ended.join(drops)
        if journal is not None and journal.recorded:
            journal.record_writer(spool, state_at(position, ended=ended), "spool", share=position.reached.share, documents=spool.examples)
        return ended

    def _encoded(self, resume: Resume | None, state: _State) -> Generator[_EncodedExamples]:
        """Return the encoded conversations that come after the state."""

        def stream(mark: ResumePoint | None) -> Iterator[list[Conversation]]:
            return as_conversations(self.feed.open(mark), first=mark.items if mark else 0)

        first = state.reached.items
        conversations = stream(None) if resume is None or not first else resume_stream(stream, state.reached, log=resume.log)
        chunks = self.feed.positioned(in_chunks(conversations, self._sizes, lambda parts: [*chain.from_iterable(parts)]), first=first)
        threads = self.threads or available_threads()
        return map_in_order(self._encode, enumerate(chunks), threads=threads, size_of=lambda task: int(self._sizes(task[1][0]).sum()))

    def _sizes(self, conversations: list[Conversation]) -> np.ndarray:
        return np.fromiter((characters(each, self.turns) for each in conversations), np.int64, len(conversations))

    def _encode(self, task: tuple[int, tuple[list[Conversation], StreamPosition]]) -> _EncodedExamples:
        """Encode a chunk of conversations, or of pairs."""
        batch, (chunk, position) = task
        first = position.reached.items - len(chunk)
        if self.preference:
            return self._encode_pairs(batch, chunk, position, first)
        problems: dict[int, str] = {}
        names = [example_name(each, first + number) for number, each in enumerate(chunk)]
        masked = [masked_messages(each.messages) for each in chunk]
        found = self._conversation_encoder.encode(chunk, batch, problems, names, masked)
        problems = self._counted(chunk, problems)
        self._raise_for_problems(chunk, problems, first=first)
        kept = self._counted(chunk, dict.fromkeys(found.kept, ""))
        facts = found.facts + Counter({_MASKED: sum(len(masked[number]) for number in kept)})
        return _EncodedExamples(
            conversations=[drop_text(chunk[number]) for number in found.kept],
            chats=found.chats,
            drops=collect_drops(chunk, problems, first, facts),
            position=position,
            hints=found.hints,
            units=first + np.array(found.kept, dtype=np.int64) if self.turns == "each" else None,
        )

    def _encode_pairs(self, batch: int, chunk: list[Conversation], position: StreamPosition, first: int) -> _EncodedExamples:
        """Encode a chunk of pairs, with the two sides of a pair one after the other.

        A prompt never has targets, so its messages do not count as masked.
        """
        problems = {
            number: problem
            for number, pair in enumerate(chunk)
            if (problem := pair_form_problem(pair, self._conversation_encoder.roles)) is not None
        }
        valid = [number for number in range(len(chunk)) if number not in problems]
        sides = [side for number in valid for side in (chunk[number], chunk[number]._replace(messages=chunk[number].rejected or []))]
        side_problems: dict[int, str] = {}
        names = [example_name(chunk[number], first + number) for number in valid for _ in SIDES]
        prompts = [prompt_length(chunk[number].messages, chunk[number].rejected or []) for number in valid for _ in SIDES]
        masked = [masked_messages(side.messages, first=prompt) for side, prompt in zip(sides, prompts, strict=True)]
        found = self._conversation_encoder.encode(sides, batch, side_problems, names, masked)
        chats = dict(zip(found.kept, found.chats, strict=True))
        encoded: dict[int, tuple[EncodedChat, EncodedChat]] = {}
        masked_count = 0
        for index, number in enumerate(valid):
            problem = side_problems.get(2 * index) or side_problems.get(2 * index + 1)
            result = problem or mask_shared_prompt(chats[2 * index], chats[2 * index + 1], most=self.max_tokens)
            if isinstance(result, str):
                problems[number] = result
            else:
                encoded[number] = result
                if chunk[number].source_id not in self.exclude:
                    masked_count += len(masked[2 * index]) + len(masked[2 * index + 1])
        problems = self._counted(chunk, problems)
        self._raise_for_problems(chunk, problems, first=first)
        facts = found.facts + Counter({_MASKED: masked_count})
        return _EncodedExamples(
            conversations=[
                drop_text(pair)._replace(group=prompt_hash(pair.messages, pair.rejected or [], split_by=self.split_by))
                for pair in map(chunk.__getitem__, encoded)
            ],
            chats=[*chain.from_iterable(encoded.values())],
            drops=collect_drops(chunk, problems, first, facts),
            position=position,
            hints=found.hints,
        )

    def _counted(self, chunk: list[Conversation], problems: Mapping[int, str]) -> dict[int, str]:
        """Return the entries, by number in the chunk, of conversations that are not excluded."""
        return {number: problem for number, problem in problems.items() if chunk[number].source_id not in self.exclude}

    def _raise_for_problems(self, chunk: list[Conversation], problems: Mapping[int, str], *, first: int) -> None:
        """Raise NielsCacheError for the first conversation with a problem that the settings treat as an error.

        Args:
            chunk: The conversations.
            problems: The reasons, by number in the chunk.
            first: The number of the chunk's first conversation in the source.
        """
        for index in sorted(problems):
            example, problem = example_name(chunk[index], first + index), problems[index]
            if problem == COLLISION:
                if self.on_collision == "raise":
                    raise NielsCacheError(f"{example}: a message contains a special token; remove it")
            elif problem not in (INVALID_UNICODE, "too_long") and self.on_invalid == "raise":
                messages = [*chunk[index].messages, *(chunk[index].rejected or [])]
                what = (weight_problem(messages)[1] if problem in WEIGHT_PROBLEMS else None) or problem
                raise NielsCacheError(f"{example}: {what}; correct it, or pass on_invalid='drop'")


def _write(spool: SftSpool, batch: _EncodedExamples, journal: Journal | None, state: _State) -> None:
    """Write a batch, then record the state after this batch if the journal is due for a record."""
    spool.write(batch.conversations, batch.chats, batch.units)
    if journal is not None and journal.due(spool.bytes):
        journal.record_writer(spool, state, "spool", share=state.reached.share, documents=spool.examples)
