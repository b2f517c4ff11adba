"""The source `chat_jsonl`, for SFT rows in the user's files, with one conversation or preference pair per row.

This module turns rows into messages. `sources.conversations` decides which conversations are valid. One row at a time is in memory.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Self

from pydantic import PositiveInt, model_validator

from niels_cache_assets.base.config_path import SENTINELS
from niels_cache_assets.base.documents import Conversation, Message
from niels_cache_assets.base.reasons import DROP_REASONS
from niels_cache_assets.sources.chat_forms import advice, describe_fields, note_of_lost_messages
from niels_cache_assets.sources.conversations import (
    Kto,
    OnBroken,
    RowErrorPolicy,
    broken_row,
    contents,
    example_problem,
    has_label,
    instruction_messages,
    label_problem,
    stops_build,
    valid_batches,
    with_system,
    without_labels,
)
from niels_cache_assets.sources.messages import (
    ReadMessages,
    holds_messages,
    join_input,
    media_of,
    plain_messages,
    template_messages,
    tools_of,
)
from niels_cache_assets.sources.pairs import complete_prompt, pair_sides, prompt_length, system_messages
from niels_cache_assets.sources.reading.compressed import endings_with_compressions
from niels_cache_assets.sources.reading.encodings import DecodingCounts, RowStream, Values
from niels_cache_assets.sources.reading.file_source import FileSource
from niels_cache_assets.sources.reading.files import SourceFile
from niels_cache_assets.sources.reading.positions import FilePass, FilePosition
from niels_cache_assets.sources.reading.rows import LABELS, SEARCH_LIMITS, file_rows, first_rows, kind_of, row_id, rows_of_files
from niels_cache_assets.sources.types import SftSource, Siblings, StreamContext
from niels_cache_runtime.errors import NielsCacheError

_MAX_FIELDS, _SAMPLE_ROWS = 50, 20
_MAX_CHECKED_ROWS = 1000  # rows in which a check looks for a broken one
_OPTIONAL = ("input_field", "history_field", "system_field", "prompt_field", "tools_field")
_CHAT_KEYS = ("messages_field", "instruction_field", "history_field", "output_field", "kto")
_INSTRUCTION_KEYS = ("input_field", "history_field", "output_field")
_PAIR_KEYS = ("prompt_field", "chosen_field", "rejected_field", "max_tokens", "split_by")
_PROMPT, _TOOLS = "prompt", "tools"  # the fields that are read if `prompt_field` and `tools_field` are not set
_OF_FORM = {  # reasons which show, if all rows have them, that the table names the wrong fields
    "malformed_messages",
    "unknown_role",
    "null_content",
    "non_string_content",
    "malformed_pair",
    "malformed_history",
    "no_prompt",
    "differs_from_prompt",
    "no_place_for_input",
}
_EXPECTED = {
    "messages_field": "a list of messages",
    **dict.fromkeys(("instruction_field", "output_field"), "text or messages"),
    "tools_field": "a list of tools",
    "history_field": "a list of earlier turns",
}
_FORMS = (
    'messages are [{"role": "user", "content": ...}, ...] or [{"from": "human", "value": ...}, ...]'
    " (for an instruction and its answer in two fields, set instruction_field and output_field)"
)

Example = tuple[list[Message], list[Message] | None]  # the messages, and those of the rejected side of a pair


class ChatJsonl(FileSource, SftSource):
    """Your JSON Lines or Parquet files. Rows contain messages, fields for instruction, input and output, or preference pairs.

    A prompt and its completion are in the fields for instruction and output, as text or as messages.

    Messages are {role, content}, or ShareGPT's {from, value} with human and gpt. With a chat template, they may also have LLaMA-Factory's
    roles observation and function_call. Empty system messages are left out.
    """

    never_counts = frozenset({"on_broken"})  # a build that succeeds has the same bytes
    endings = (*endings_with_compressions(".jsonl", ".ndjson", ".json"), ".parquet")

    source: Literal["chat_jsonl"] = "chat_jsonl"
    messages_field: str = "messages"
    """Field with the list of messages"""
    instruction_field: str | None = None
    """Field with the instruction (text) or the prompt (messages), for rows with the answer in a separate field"""
    input_field: str | None = None
    """Field with additional input, added to the instruction or a pair's prompt after a blank line"""
    history_field: str | None = None
    """Field with earlier turns: a list of [instruction, answer]"""
    output_field: str | None = None
    """Field with the answer (text or messages); required with instruction_field"""
    system_field: str | None = None
    """Field with a system message"""
    tools_field: str | None = None
    """With a template: field that contains the tools (a list or JSON); by default `tools` if it exists"""
    kind: Literal["chat", "preference"] = "chat"
    """'preference' reads pairs of a chosen and a rejected answer, for DPO and similar methods"""
    prompt_field: str | None = None
    """For pairs: field with the prompt (text or messages); by default `prompt` if it exists; '' means no prompt field"""
    chosen_field: str = "chosen"
    """For pairs: field that contains the chosen side (text or messages)"""
    rejected_field: str = "rejected"
    """For pairs: field that contains the rejected side"""
    max_tokens: PositiveInt | None = None
    """For pairs: maximum number of tokens per side; pairs with a longer side are dropped and counted"""
    split_by: Literal["prompt", "conversation"] = "prompt"
    """For pairs: 'prompt' keeps all pairs with the same prompt in one split; 'conversation' keeps pairs together if their prompts are
    identical up to the first user message"""
    kto: Kto | None = None
    """For rows whose `label` or `kto_tag` is true or false: 'positives' keeps the true rows and drops the false ones; 'drop' drops both. By
    default, such a row is an error"""
    on_broken: OnBroken | None = None
    """For rows with an unknown role, no assistant message, an unclear message weight, or broken JSON in calls or tools: 'stop' fails the
    build, 'drop' drops and counts the row. Default: 'stop' with a chat template, 'drop' with sentinels"""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        others = _CHAT_KEYS if self.is_preference else _PAIR_KEYS
        if unused := [key for key in others if key in self.model_fields_set]:
            needed = '"chat"' if self.is_preference else '"preference"'
            raise ValueError(f"{unused[0]} is for kind = {needed}; remove it, or set kind")
        if self.tools_field and self.template == SENTINELS:
            raise ValueError("tools_field is for a chat template; remove it, or set template")
        if self.is_preference and self.turns == "each":
            raise ValueError('turns = "each" is not for preference pairs; "last" learns the last turn of each side')
        if self.is_preference and self.input_field and not self.prompt_field:
            raise ValueError("input_field is added to the prompt of a pair; set prompt_field, or remove it")
        return self

    @property
    def is_preference(self) -> bool:
        return self.kind == "preference"

    @property
    def split_unit(self) -> Literal["example", "group", "prompt", "conversation"]:
        return self.split_by if self.is_preference else "example"

    def missing_setting(self) -> str | None:
        if self.instruction_field and not self.output_field:
            return "output_field (instruction_field needs it)"
        unused = [key for key in _INSTRUCTION_KEYS if getattr(self, key)]
        is_needed = not self.instruction_field and not self.is_preference
        return f"instruction_field ({unused[0]} needs it)" if unused and is_needed else None

    def check_input(self, siblings: Siblings) -> None:
        """Check that each configured field occurs in the first rows, and that at least one of these rows has the right form.

        An optional field may occur in any row. If a build would stop at a broken row, no broken row may be among the first rows.
        """
        files = self.readable_files()
        stream = ((file.name, row, values) for file in files for row, values in self._rows(file))
        unseen, fields, has_labels = self._configured(), "", False
        problems: Counter[str | None] = Counter()
        sample: list[Values] = []
        broken = None
        for name, row, values in first_rows(stream, *SEARCH_LIMITS):
            sample += [values] if len(sample) < _SAMPLE_ROWS else []
            fields = fields or describe_fields([values], [*values][:_MAX_FIELDS])
            unseen = {key: name for key, name in unseen.items() if name not in values}
            problem = self._problem(values)
            problems[problem] += 1
            has_labels |= has_label(values)
            if broken is None and problem is not None and stops_build(problem, self._on_broken):
                broken = (name, row, problem, values)
            is_proven = not unseen and (self.kto is None or has_labels) and (len(problems) > 1 or not problems.keys() & _OF_FORM)
            if is_proven and (self._on_broken != "stop" or broken is not None or problems.total() >= _MAX_CHECKED_ROWS):
                break
        ends_here = next(stream, None) is None
        fitting = partial(advice, sample, lambda keys: self.fits(sample, keys))
        for key, name in unseen.items():
            if problems and (ends_here or key not in _OPTIONAL):
                wrong = f"no field {name!r} in the first rows; set {key} to one of: {fields}"
                raise NielsCacheError(f"{files[0].name}: {wrong}{fitting() if key not in _OPTIONAL else ''}")
        if broken is not None:
            name, row, problem, values = broken
            example = self.example_of(values)
            messages = [] if isinstance(example, str) else [*example[0], *(example[1] or [])]
            raise broken_row(f"{name}: row {row}", problem, messages, self.roles, fitting())
        if self.kto and problems and ends_here and not has_labels:
            raise without_labels(files[0].name, self.kto)
        for problem, count in problems.items():
            if problem in _OF_FORM and len(problems) == 1:
                first = f"first {count:,} {'row' if count == 1 else 'rows'}"
                found, more = DROP_REASONS[problem], self._template_advice(sample) or fitting()
                raise NielsCacheError(f"{files[0].name}: {found.meaning}, in each of the {first}; {found.advice}; {_FORMS}{more}")

    def _template_advice(self, rows: Sequence[Values]) -> str:
        """Return a clause for a table without a chat template whose rows need one, for example for tool calls. Otherwise it is empty."""
        with_template = self.model_copy(update={"template": "model"})
        needs = self.template == SENTINELS and any(with_template._problem(row) is None for row in rows)
        return '; these rows need a chat template, such as template = "model"' if needs else ""

    @classmethod
    def fits(cls, rows: Sequence[Values], keys: Mapping[str, str]) -> bool:
        """Return whether a table with these keys makes a conversation or a pair from at least one row. A list of messages may be empty."""
        for template in (SENTINELS, "chatml"):  # a template supports more roles, and tool calls
            table = cls.model_validate({"source": "chat_jsonl", "files": ["*"], "template": template, **keys})
            unlabelled = ({name: value for name, value in row.items() if name not in LABELS} for row in rows)
            if any(table._problem(row) in (None, "empty_conversation") for row in unlabelled):
                return True
        return False

    def _problem(self, values: Values) -> str | None:
        example = self._parse_row(values)
        return example if isinstance(example, str) else example_problem(example, self.roles)

    def _parse_row(self, values: Values, file: str = "", row: int = 0) -> Conversation | str:
        """Return a row as a conversation or pair, with its tools, or the reason why it is none."""
        example, tools = self.example_of(values), self._tools(values)
        if isinstance(example, str):
            return example
        if isinstance(tools, str):
            return tools
        return Conversation(example[0], row_id(values.get("id"), file, row), file, row, rejected=example[1], tools=tools)

    @property
    def _on_broken(self) -> OnBroken | None:
        """The treatment of broken rows. None counts them without a report."""
        return self.on_broken or (None if self.template == SENTINELS else "stop")

    def _configured(self) -> dict[str, str]:
        """Return the names of the configured fields, by their keys in the configuration."""
        keys: tuple[str, ...] = ("messages_field",)
        if self.is_preference:
            keys = ("chosen_field", "rejected_field", "prompt_field", "input_field")
        elif self.instruction_field:
            keys = ("instruction_field", *_INSTRUCTION_KEYS)
        return {key: name for key in (*keys, "system_field", "tools_field") if (name := getattr(self, key))}

    def _rows(self, file: SourceFile, position: FilePosition | None = None) -> RowStream:
        labels = {*LABELS}.difference(self._configured().values())  # a field that a key names holds text
        return file_rows(file, position, self.text_options, labels=labels)

    def first_examples(self, count: int) -> list[Conversation | str]:
        rows = ((file.name, row, values) for file in self.readable_files() for row, values in self._rows(file))
        return [self._problem(values) or self._parse_row(values, name, row) for name, row, values in first_rows(rows, count)]

    def conversations(self, context: StreamContext) -> Iterator[list[Conversation]]:
        files = FilePass(self.input_files(), context)
        broken = RowErrorPolicy(context, self._on_broken, self.roles)
        yield from valid_batches(self._conversations(files, context, broken), broken, files)

    def _conversations(self, files: FilePass, context: StreamContext, broken: RowErrorPolicy) -> Iterator[Conversation]:
        configured = self._configured()
        needed = {"messages_field": self.instruction_field or self.messages_field}
        if self.is_preference:
            needed = {key: configured[key] for key in ("chosen_field", "rejected_field")}
        state = files.state
        state.setdefault("unseen", sorted(configured))  # keys whose field has not occurred in any row so far
        state.setdefault("labels", False)  # whether a row had a label
        decoding = DecodingCounts(self, context)
        unproven = dict(configured)  # keys whose field has not yet held a valid value
        wrong: dict[str, tuple[str, int, Any, list[str]]] = {}
        texts_of = lambda values: _contents(self.example_of(values))  # noqa: E731
        for file, row, values in rows_of_files(files, self._rows, context):
            replaced = decoding.count_row(file, values, texts_of)
            if "first" not in state:
                state["first"] = [file, row, [*values][:_MAX_FIELDS]]
                if not self.is_preference and (lost := note_of_lost_messages(values, configured.values())):
                    context.report.hints.append(f"{file}: row {row}: {lost}")
                    context.log(context.report.hints[-1])
            if state["unseen"]:
                state["unseen"] = [key for key in state["unseen"] if configured[key] not in values]
            state["labels"] = state["labels"] or has_label(values)
            for key, name in [*unproven.items()]:
                if _is_right(key, values.get(name)):
                    del unproven[key]
                elif values.get(name) is not None and key not in wrong:
                    others = [other for other, value in values.items() if value is not None and _is_right(key, value)]
                    wrong[key] = (file, row, values[name], others[:_MAX_FIELDS])
            missing = next((key for key, name in needed.items() if name not in values), None)
            parsed = f"missing_{missing}" if missing else self._parse_row(values, file, row)
            if isinstance(parsed, str):
                broken.refuse(parsed, file, row)
            elif decoding.admits(file, *_contents((parsed.messages, parsed.rejected)), replaced=replaced, row=row):
                yield parsed
        if "first" in state and state["unseen"]:
            name, row, fields = state["first"]
            key = next(key for key in configured if key in state["unseen"])
            raise NielsCacheError(
                f"{name}: row {row}: no field {configured[key]!r}, and no row has it; set {key} to one of: {', '.join(fields)}"
            )
        if "first" in state and self.kto and not state["labels"]:
            raise without_labels(state["first"][0], self.kto)
        for key in (key for key in unproven if key in wrong and context.start is None):
            name, row, value, fields = wrong[key]
            expected = _EXPECTED.get(key, "text or messages" if self.is_preference else "text")
            hint = f"set {key} to one of: {', '.join(fields)}" if fields else f"no field of that row is {expected}"
            context.report.hints.append(
                f"{name}: row {row}: {configured[key]!r} holds {kind_of(value)}, and no row has {expected} there; {hint}"
            )

    def example_of(self, values: Values) -> Example | str:
        """Return the messages of a row and those of the rejected side or None, or the reason why the row has none."""
        if self.template != SENTINELS and (media := media_of(values)) is not None:
            return media
        system = values.get(self.system_field) if self.system_field else None
        if self.is_preference:
            sides = (self._prompt_of(values), values.get(self.chosen_field), values.get(self.rejected_field))
            pair = pair_sides(*sides, self._read, extra=values.get(self.input_field) if self.input_field else None)
            return pair if isinstance(pair, str) else (with_system(system, pair[0]), with_system(system, pair[1]))
        if (problem := label_problem(values, self.kto)) is not None:
            return problem
        messages = self._messages_of_fields(values) if self.instruction_field else self._read(values.get(self.messages_field))
        if isinstance(messages, str):
            return messages
        return with_system(system, messages), None

    def _read(self, value: Any) -> ReadMessages:
        return plain_messages(value) if self.template == SENTINELS else template_messages(value)

    def _prompt_of(self, values: Values) -> Any:
        """Return the prompt of a pair if it has a field of its own, or None."""
        return values.get(_PROMPT if self.prompt_field is None else self.prompt_field)

    def _tools(self, values: Values) -> list[Any] | str | None:
        """Return the tools of a row for the chat template, None if there are none, or the reason why they cannot be used."""
        if self.template == SENTINELS:
            return None
        prompt = self._prompt_of(values) if self.is_preference else None
        beside = prompt.get(_TOOLS) if isinstance(prompt, dict) else None  # where OpenAI's pairs have their tools
        return tools_of(values.get(self.tools_field or _TOOLS, beside))

    def _messages_of_fields(self, values: Values) -> ReadMessages:
        """Return the messages of an instruction (or prompt) and its answer, after those of the history, or the reason if there are none."""
        prompt, answer = values.get(self.instruction_field or ""), values.get(self.output_field or "")
        extra = values.get(self.input_field) if self.input_field else None
        history = values.get(self.history_field) if self.history_field else None
        if history and not _are_history_turns(history):
            return "malformed_history"
        earlier = [message for turn in history or [] for message in instruction_messages(None, *turn)]
        if isinstance(prompt, list | dict) or isinstance(answer, list | dict):
            if not prompt:
                return "null_content" if prompt is None else "empty_content"
            messages = complete_prompt(prompt, answer, self._read, extra=extra)
            if isinstance(messages, str):
                return "malformed_messages" if messages == "malformed_pair" else messages
            system = system_messages(messages)
            return [*system, *earlier, *messages[len(system) :]]
        return [*earlier, *instruction_messages(None, join_input(prompt, extra, "\n\n"), answer)]


def _is_right(key: str, value: Any) -> bool:
    """Return whether the field of a key holds a valid value. An optional field may be missing."""
    if value is None:
        return key in _OPTIONAL
    if key == "history_field":
        return _are_history_turns(value)
    if key == "tools_field":
        return not isinstance(tools_of(value), str)
    if key in _PAIR_KEYS:
        return isinstance(value, str | dict) or not isinstance(plain_messages(value), str)
    if key in ("instruction_field", "output_field") and not isinstance(value, str):
        return holds_messages(value)
    return isinstance(plain_messages(value) if key == "messages_field" else value, list if key == "messages_field" else str)


def _are_history_turns(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(turn, list | tuple) and len(turn) == 2 for turn in value)


def _contents(example: Example | str) -> list[str]:
    """Return the texts of all messages of an example, those of the prompt of a pair only once."""
    if isinstance(example, str):
        return []
    messages, rejected = example
    others = [] if rejected is None else rejected[prompt_length(messages, rejected) :]
    return contents(Conversation(messages, rejected=others))
