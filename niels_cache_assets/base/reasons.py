"""The table of reasons for which a build drops documents, conversations and messages.

A reason is a key of `dropped` in meta.json. Everything that counts drops uses DropCounts, which accepts only reasons in this table.
docs/drop_reasons.md is generated from it. To add a reason, add a row to the stage that drops for it, and run
`python docs/drop_reasons.py`. A reason may have details after a colon, as `step:drop_short:no words`: the name of the step, and its reason.

A drop is requested (`is_asked`) if a setting, such as a filter, a budget or the kind of source, asks for it. Any other drop means that the
data differ from what the settings expect, so a build warns about it (`facts/drops.py`).
"""

from collections import Counter
from collections.abc import Iterable
from typing import Literal, NamedTuple

from niels_cache_assets.base.beside import load_beside

Stage = Literal["reading", "conversations", "pairs", "mixtures", "cleaning", "steps", "duplicates", "decontamination", "encoding"]


class DropReason(NamedTuple):
    """One row of the table.

    Attributes:
        is_asked: Whether a setting asks for these drops.
        meaning: What is true of the dropped item, as a clause.
        advice: What to do about it, as a clause. Empty if there is nothing to do.
        stages: The stages of a build that drop for this reason.
    """

    is_asked: bool
    meaning: str
    advice: str
    stages: tuple[Stage, ...]


def _asked(meaning: str, advice: str = "", *stages: Stage) -> DropReason:
    return DropReason(True, meaning, advice, stages)


def _unasked(meaning: str, advice: str = "correct the row", *stages: Stage) -> DropReason:
    return DropReason(False, meaning, advice, stages)


_ENCODING = "set `encoding` in the table of the data set"
_EXTRACTOR = "try the other `extractor`"
_FIELDS = "check the field names in the table of the data set"
_EXPORT = "export the graph again"
_BENCHMARK = "to keep such documents, remove the text from `decontaminate_against`"
_VAL = 'to keep such documents, set `decontaminate = "off"`'
_MEMBER = f"{_VAL} in the table of that member"
_LANGUAGES = "add the language to `languages`"

_TABLE: dict[Stage, dict[str, DropReason]] = {
    "reading": {
        "blank_line": _asked("the line is blank", 'set `sample_by = "paragraph"` to read paragraphs instead of lines'),
        "null_text": _unasked("the text field is null", "check `text_field`"),
        "non_string_text": _unasked("the text field contains a value that is not text", "check `text_field`"),
        "missing_text_field": _unasked("the row lacks the text field", "set `text_field`, or read these files as a separate data set"),
        "not_text": _unasked("the text contains a NUL, or too many bytes that are invalid in its encoding", _ENCODING),
        "other_status": _asked("the HTTP status is not in `statuses`"),
        "other_mime": _asked("the media type is not in `mimes`"),
        "record_too_large": _asked("the record is larger than `max_document_mib`", "raise `max_document_mib`"),
        "unreadable_http": _unasked(
            "the record is no HTTP response, or its body is not in the encoding that its headers name", "check the crawler"
        ),
        "damaged_record": _asked("the record is damaged; `keep_damaged` keeps the others", "restore the file"),
        "no_main_text": _asked("`extractor` found no main text in the page", _EXTRACTOR),
        "extractor_failed": _unasked("`extractor` failed; the title of the example is its error", _EXTRACTOR),
        "page_too_slow": _unasked("`extractor` took longer than `seconds_per_page`", _EXTRACTOR),
        "damaged_file": _asked("the file is damaged; `keep_damaged` keeps the data before the damage", "restore the file"),
        "where": _asked("the condition in `where` is false", "to keep more rows, change `where`"),
        "where_wrong_type": _unasked("`where` compares a value of another type", "correct `where`, or the values"),
        "excluded": _asked("`exclude` lists the id", "remove the id from `exclude`"),
        "other_namespace": _asked("the page is not an article"),
        "other_content_model": _asked("the page is not wikitext"),
        "code": _asked(
            "the file is not the code that the settings keep, for the reason after the colon", "change the keys of the data set"
        ),
        "broken_notebook": _unasked("the file is no notebook of Jupyter", "repair the file"),
        "short_docstring": _asked("the docstring is shorter than `min_characters`", "lower `min_characters`"),
        "not_a_roam_export": _unasked("the JSON file is not a Roam export", "move it out of the folder"),
        "page_without_title": _unasked("a page of the export has no title", _EXPORT),
        "malformed_block": _unasked("a block of the export has an unexpected form", _EXPORT),
    },
    "conversations": {
        "malformed_messages": _unasked("the messages are not a list of objects", _FIELDS),
        "malformed_message": _unasked("a message has an unexpected form", _FIELDS),
        "malformed_history": _unasked("the earlier turns are not a list of [instruction, answer]", "check `history_field`"),
        "missing_messages_field": _unasked("the row has no messages field and no instruction field", _FIELDS),
        "missing_prompt": _unasked("the row has no prompt", _FIELDS),
        "missing_message_id": _unasked("the message has no id"),
        "duplicate_message": _unasked("the message has the id of an earlier message"),
        "without_parent": _unasked("the message replies to one that is missing or was dropped", "check whether the files are complete"),
        "empty_conversation": _unasked("there is no message"),
        "empty_message": _unasked("the message has no text"),
        "null_content": _unasked(
            "the content of a message is null", "for messages that only call tools, set `template` to a chat template"
        ),
        "empty_content": _unasked("the content of a message is empty"),
        "non_string_content": _unasked("the content of a message is not text", "for content in parts, set `template` to a chat template"),
        "unknown_role": _unasked(
            "a message has a role other than system, user (human) and assistant (gpt)",
            "rename the role, or set `template` to a chat template that has it",
        ),
        "no_assistant": _unasked("there is no message of the assistant to train on"),
        "not_alternating": _unasked("user and assistant do not take turns"),
        "image_content": _unasked("a message contains an image", "leave such rows out; only text is supported"),
        "audio_content": _unasked("a message contains audio", "leave such rows out; only text is supported"),
        "video_content": _unasked("a message contains a video", "leave such rows out; only text is supported"),
        "broken_json_in_call": _unasked("a tool call is not valid JSON"),
        "broken_tools": _unasked("the tools are not a list of objects, or not valid JSON", "check `tools_field`"),
        "repeated_key_in_json": _unasked("an object in the JSON text of a call or of tools repeats a key"),
        "unusable_weight": _unasked("a message has a weight that cannot be used"),
        "contradictory_weights": _unasked("a message is marked both to be trained on and not to be"),
        "weight_of_other_role": _unasked("a message of a role other than assistant is marked to be trained on"),
        "kto_label_without_key": _unasked("the row has a KTO label, true or false", "set `kto`, or rename the field"),
        "kto_negative": _asked('the answer was not liked; `kto = "positives"` keeps only the others'),
        "kto_row": _asked('the row has a KTO label; `kto = "drop"` drops such rows', 'set `kto = "positives"` to keep the liked answers'),
        "malformed_label": _unasked("the KTO label is neither true nor false", "correct the label"),
        "deleted": _asked("the message was deleted upstream"),
        "other_language": _asked("the message is in a language that `languages` does not list", _LANGUAGES),
        "duplicate_after_cut": _asked("the thread equals an earlier one after the cut by `max_messages`", "raise `max_messages`"),
    },
    "pairs": {
        "missing_chosen_field": _unasked("the row has no field for the chosen side", _FIELDS),
        "missing_rejected_field": _unasked("the row has no field for the rejected side", _FIELDS),
        "malformed_pair": _unasked("a side of the pair, or its prompt, is neither text nor a list of messages", _FIELDS),
        "differs_from_prompt": _unasked(
            "a side or an answer begins like the prompt of its row, but differs",
            'check the field names, or set `prompt_field = ""` to read only the sides',
            "conversations",
            "pairs",
        ),
        "no_place_for_input": _unasked(
            "there is further input, but no prompt that ends with a message of the user", _FIELDS, "conversations", "pairs"
        ),
        "no_prompt": _unasked("both sides are text, and no field contains their prompt", "set `prompt_field`"),
        "prompts_differ": _unasked("the prompts of the two sides differ"),
        "no_assistant_at_end": _unasked("a side does not end with the assistant"),
        "equal_sides": _unasked("both sides are equal", "correct the row", "pairs", "encoding"),
    },
    "mixtures": {
        "member_val": _asked("the member that contains the document keeps it for its own val"),
        "in_val_of_member": _asked("the document equals one in the val of a member", _MEMBER),
        "near_val_of_member": _asked("the document is a near duplicate of one in the val of a member", _MEMBER),
    },
    "cleaning": {  # in the order in which the filters run
        "redirect": _asked("the page is a redirect"),
        "empty": _unasked("there is no text, or only white space", "check the source", "reading", "cleaning", "encoding"),
        "disambiguation": _asked("the page only lists meanings of its title"),
        "too_short": _asked("the text is shorter than `min_characters` or `min_words`", "lower `min_characters` or `min_words`"),
        "not_english": _asked("the text is in a language that `languages` does not list", _LANGUAGES),
        "list_page": _asked("the page is mostly a list", "raise `max_bullet_share`", "reading", "cleaning"),
        "bad_mean_word_len": _asked(
            "words are too short or too long on average", "change `min_mean_word_length` or `max_mean_word_length`"
        ),
        "high_symbol_ratio": _asked("there are too many symbols per word", "raise `max_symbols_per_word`"),
        "low_alpha_ratio": _asked("too few words contain a letter", "lower `min_alpha_word_share`"),
        "no_stopwords": _asked("there are too few stop words", "lower `min_stopwords`"),
        "repetitive": _asked("the text repeats itself", "raise `max_bigram_share`, or the other limits of repetition that are set"),
        "language_error": _asked("the language cannot be identified", 'add `"language_error"` to `skip`'),
    },
    "steps": {
        "step": _asked("the step of this name dropped the document", "see the code of the step"),
        "step_failed": _unasked("the step of this name raised an error", 'set `on_error = "stop"` to see it'),
        "step_too_slow": _unasked("the step of this name took too long", "raise `seconds_per_document`"),
    },
    "duplicates": {
        "exact_duplicate": _asked("the document equals an earlier one"),
        "near_duplicate": _asked("the document is a near duplicate of an earlier one", "raise `threshold` in `[dedup]`"),
        "only_repeats": _asked("nothing was left of the document without its repeated lines or spans", "raise `max_copies` in `[lines]`"),
    },
    "decontamination": {
        "in_val": _asked("the document equals one in val", _VAL),
        "near_val": _asked("the document is a near duplicate of one in val", _VAL),
        "in_held_out": _asked("the document equals a text of `decontaminate_against`", _BENCHMARK, "mixtures", "decontamination"),
        "near_held_out": _asked(
            "the document is a near duplicate of a text of `decontaminate_against`", _BENCHMARK, "mixtures", "decontamination"
        ),
        "shares_ngrams_with_held_out": _asked(
            "the document shares 13-grams with a text of `decontaminate_against`", _BENCHMARK, "mixtures", "decontamination"
        ),
    },
    "encoding": {
        "special_token_collision": _unasked("the text spells a special token", "remove it from the text, or choose other special tokens"),
        "invalid_unicode": _unasked("the text contains a lone surrogate", _ENCODING),
        "refused_by_template": _unasked("the chat template refuses the conversation", "run `niels-cache sample` to see its message"),
        "unknown_turn": _unasked("the chat template does not show which message a turn is", "choose another template"),
        "too_many_turns": _unasked("the conversation has too many turns, or its examples are too long together", "divide the conversation"),
        "no_target": _unasked("no token is a target of the loss"),
        "too_long": _asked("a side has more tokens than `max_tokens`", "raise `max_tokens`"),
    },
}

DROP_REASONS = {name: row if row.stages else row._replace(stages=(stage,)) for stage, rows in _TABLE.items() for name, row in rows.items()}


class DropCounts(Counter[str]):
    """The number of dropped items for each reason. Raises ValueError for a reason that is not in the table."""

    def __setitem__(self, reason: str, count: int) -> None:
        require_known(reason)
        super().__setitem__(reason, count)

    def update(self, counts: Iterable[str] | None = None, /) -> None:  # type: ignore[override]  # a Counter fills itself without __setitem__
        for reason in counts or ():
            require_known(reason)
        super().update(counts)


def row_of(reason: str) -> DropReason | None:
    """Return the row of a reason, with or without details, or None if it is not in the table."""
    return DROP_REASONS.get(reason.partition(":")[0])


def require_known(reason: str) -> None:
    """Raise ValueError for a reason that is not in the table."""
    if row_of(reason) is None:
        raise ValueError(f"{reason!r} is not a drop reason; docs/drop_reasons.md lists them")


def reasons_of(*stages: Stage) -> tuple[str, ...]:
    """Return the reasons of these stages, in the order of the table."""
    return tuple(name for name, row in DROP_REASONS.items() if {*stages} & {*row.stages})


def is_asked(reason: str) -> bool:
    """Return whether settings ask for drops of this reason. A reason that is not in the table is unasked."""
    row = row_of(reason)
    return row is not None and row.is_asked


def explain(reason: str) -> str:
    """Return what a reason means and what to do, or an empty string if it is not in the table."""
    if reason.startswith("step:") and (meaning := load_beside("cleaning", "entries").meaning_of(reason)):
        return str(meaning)
    row = row_of(reason)
    return "; ".join(filter(None, row[1:3])) if row else ""
