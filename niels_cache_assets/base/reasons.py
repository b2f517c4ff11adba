"""The table of reasons for which a build leaves out documents, conversations and messages.

A reason is a key of `dropped` in meta.json. A drop is *asked for* if the settings say so: a filter, a budget, a search for duplicates, or
the kind of source that was chosen. Every other drop is unasked: the data differ from what the settings expect. `facts/drops.py` says both
to the user. Each new reason needs a line here. Cleaning and callers of the public builders may add reasons of their own.
"""

from typing import NamedTuple


class DropReason(NamedTuple):
    """One line of the table. is_asked: whether the settings ask for these drops. meaning: what is the case, as a clause. advice: what to do
    about an unasked drop, as a clause; empty if the meaning says it all.
    """

    is_asked: bool
    meaning: str
    advice: str = ""


def _asked(meaning: str) -> DropReason:
    return DropReason(True, meaning)


def _unasked(meaning: str, advice: str = "") -> DropReason:
    return DropReason(False, meaning, advice)


_ROLES = "for other roles, set template to a chat template"
_ENCODING = "set encoding in the table of the data set"
_FIELDS = "check the field names in the table of the data set"

DROP_REASONS: dict[str, DropReason] = {
    # Rows and files, while they are read
    "empty": _unasked("there is no text, or only white space"),
    "blank_line": _asked("a line is blank; the data set reads lines"),
    "null_text": _unasked("the field of the text is null", "check text_field"),
    "non_string_text": _unasked("the field of the text holds something else than text", "check text_field"),
    "missing_text_field": _unasked("a row has no field of that name", "set text_field, or read these files as a data set of their own"),
    "not_text": _unasked("there is a NUL, or too many bytes are not of the encoding", _ENCODING),
    "damaged_file": _asked("a file is damaged; keep_damaged keeps what comes before the damage"),
    "where": _asked("`where` is false"),
    "where_wrong_type": _unasked("`where` compares a value of another type", "correct `where`, or the values"),
    "excluded": _asked("`exclude` names the id"),
    "other_namespace": _asked("the page is no article"),
    "other_content_model": _asked("the page is no wikitext"),
    "list_page": _asked("the page is a list"),
    "short_docstring": _asked("the docstring is shorter than min_characters"),
    "not_a_roam_export": _unasked("a JSON file is no export of Roam", "move it out of the folder"),
    "page_without_title": _unasked("a page of an export has no title", "export the graph again"),
    "malformed_block": _unasked("a block of an export has another form", "export the graph again"),
    # Mixtures, and copies of val
    "member_val": _asked("a member keeps the document for its val"),
    "in_val": _asked("the document equals one of val"),
    "near_val": _asked("the document is near to one of val"),
    "in_val_of_member": _asked("the document equals one in the val of a member"),
    "near_val_of_member": _asked("the document is near to one in the val of a member"),
    "in_held_out": _asked("the document equals a text of decontaminate_against"),
    "near_held_out": _asked("the document is near to a text of decontaminate_against"),
    "shares_ngrams_with_held_out": _asked("the document shares 13-grams with a text of decontaminate_against"),
    # Conversations
    "malformed_messages": _unasked("the messages are not a list of objects", _FIELDS),
    "malformed_message": _unasked("a message has another form", _FIELDS),
    "malformed_history": _unasked("the earlier turns are not a list of [instruction, answer]", "check history_field"),
    "missing_messages_field": _unasked("a row has no field for messages or the instruction", _FIELDS),
    "missing_prompt": _unasked("a row has no prompt", _FIELDS),
    "missing_message_id": _unasked("a message has no id"),
    "duplicate_message": _unasked("a message has the id of an earlier one"),
    "without_parent": _unasked("the message that is answered is missing or was left out"),
    "empty_conversation": _unasked("there is no message"),
    "empty_message": _unasked("a message has no text"),
    "null_content": _unasked("the content of a message is null", "for messages that only call tools, set template to a chat template"),
    "empty_content": _unasked("the content of a message is empty"),
    "non_string_content": _unasked("the content of a message is not text", "for contents in parts, set template to a chat template"),
    "unknown_role": _unasked("a message has an unknown role", _ROLES),
    "no_assistant": _unasked("the assistant never speaks"),
    "not_alternating": _unasked("user and assistant do not take turns"),
    "image_content": _unasked("a message holds an image"),
    "audio_content": _unasked("a message holds audio"),
    "video_content": _unasked("a message holds a video"),
    "broken_json_in_call": _unasked("a call of a tool is not valid JSON"),
    "broken_tools": _unasked("the tools are no list of objects, or not valid JSON"),
    "repeated_key_in_json": _unasked("an object in the JSON text of a call or of tools has a key twice"),
    "unusable_weight": _unasked("a message has a weight other than 0 and 1"),
    "contradictory_weights": _unasked("a message is marked both to be trained on and not to be"),
    "weight_of_other_role": _unasked("a message of another role than assistant is marked to be trained on"),
    "kto_label_without_key": _unasked("a row has a label of KTO, true or false", "set kto, or rename the field"),
    "kto_negative": _asked('the answer was not liked; kto = "positives" keeps only the others'),
    "kto_row": _asked('a row has a label of KTO; kto = "drop" leaves out such rows'),
    "malformed_label": _unasked("the label of KTO is neither true nor false"),
    "refused_by_template": _unasked("the chat template refuses the conversation", "niels-cache sample shows what the template says"),
    "unknown_turn": _unasked("the chat template does not show which message a turn is"),
    "too_many_turns": _unasked("a conversation has too many turns, or all its examples together are too long", "divide it"),
    "no_target": _unasked("no token is a target of the loss"),
    "deleted": _asked("the message was deleted upstream"),
    "other_language": _asked("the message is in a language that `languages` does not name"),
    "duplicate_after_cut": _asked("the thread equals an earlier one after the cut by max_messages"),
    # Preference pairs
    "missing_chosen_field": _unasked("a row has no field for the chosen side", _FIELDS),
    "missing_rejected_field": _unasked("a row has no field for the rejected side", _FIELDS),
    "malformed_pair": _unasked("a side of the pair, or its prompt, is neither text nor a list of messages", _FIELDS),
    "differs_from_prompt": _unasked("a side or an answer begins like the prompt of its row, but differs", _FIELDS),
    "no_place_for_input": _unasked("there is further input, but no prompt that ends with a message of the user", _FIELDS),
    "no_prompt": _unasked("both sides are text, and no field holds their prompt", "set prompt_field"),
    "prompts_differ": _unasked("the prompts of both sides differ"),
    "no_assistant_at_end": _unasked("a side does not end with the assistant"),
    "equal_sides": _unasked("both sides are equal"),
    "too_long": _asked("a side has more tokens than max_tokens"),
    # Encoding
    "special_token_collision": _unasked("the text spells a special token", "remove it from the text, or choose other special tokens"),
    "invalid_unicode": _unasked("the text has a lone surrogate", _ENCODING),
    # Cleaning and duplicates
    "redirect": _asked("the page is a redirect"),
    "disambiguation": _asked("the page only lists meanings of its title"),
    "too_short": _asked("the text is shorter than min_characters or min_words"),
    "not_english": _asked("the text is in a language that `languages` does not name"),
    "language_error": _asked("the language cannot be found"),
    "bad_mean_word_len": _asked("words are too short or too long on average"),
    "high_symbol_ratio": _asked("there are too many symbols"),
    "low_alpha_ratio": _asked("there are too few words with letters"),
    "no_stopwords": _asked("there are too few common words"),
    "repetitive": _asked("the text repeats itself"),
    "exact_duplicate": _asked("the document equals an earlier one"),
    "near_duplicate": _asked("the document is near to an earlier one"),
}


def require_known(reason: str) -> None:
    """Raise ValueError for a reason that the table lacks."""
    if reason not in DROP_REASONS:
        raise ValueError(f"the reason {reason!r} is not in the table; add a line to DROP_REASONS in niels_cache_assets/base/reasons.py")


def is_asked(reason: str) -> bool:
    """Return whether settings ask for drops of this reason. A reason of a caller is unasked."""
    return reason in DROP_REASONS and DROP_REASONS[reason].is_asked
