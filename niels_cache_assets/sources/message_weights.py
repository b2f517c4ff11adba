"""Keys of messages that say whether to train on them.

    {"role": "assistant", "content": ..., "weight": 0}    OpenAI and Mistral
    {"from": "gpt", "value": ..., "loss": false}          AgentInstruct, XTuner, ms-swift
    {"from": "gpt", "value": ..., "train": false}         axolotl

A message of the assistant with such a key at 0 or false stays in the conversation, and has no targets. null is the same as no key. A column
of a row with one of these names is not read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from niels_cache_assets.documents import Message

BAD_WEIGHT = "unusable_weight"
CONTRADICTION = "contradictory_weights"
OTHER_ROLE = "weight_of_other_role"
WEIGHT_PROBLEMS = (BAD_WEIGHT, CONTRADICTION, OTHER_ROLE)

_MASKING = "masked"  # of torchtune; true means no training
WEIGHT_KEYS = frozenset({"weight", "train", "training", "trainable", "loss", "loss_mask", "loss_scale", "train_detail", _MASKING})


def masked_messages(messages: Sequence[Mapping[str, Any]], *, first: int = 0) -> frozenset[int]:
    """Return the numbers of the assistant's messages, from number `first` on, that are marked not to be trained on."""
    if all(map(WEIGHT_KEYS.isdisjoint, messages)):
        return frozenset()
    return frozenset(
        number
        for number, message in enumerate(messages)
        if number >= first and message.get("role") == "assistant" and False in _marks(message).values()
    )


def weight_problem(messages: Iterable[Mapping[str, Any]]) -> str | None:
    """Return why the weights of these messages cannot be used, as a reason for `dropped`, or None if they can."""
    found = _find(messages)
    return None if found is None else found[0]


def describe_weight_problem(messages: Iterable[Mapping[str, Any]]) -> str | None:
    """Return the `weight_problem` of messages in words, or None if they have none."""
    found = _find(messages)
    return None if found is None else found[1]


def without_weights(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message without the keys that say whether to train on it."""
    return message if WEIGHT_KEYS.isdisjoint(message) else {key: value for key, value in message.items() if key not in WEIGHT_KEYS}


def masked_before(messages: Sequence[Message], first: int) -> list[Message]:
    """Return messages whose replies before number `first` are marked not to be trained on, unless they have a mark already."""
    return [
        cast(Message, {**message, "train": False})
        if number < first and message["role"] == "assistant" and WEIGHT_KEYS.isdisjoint(message)
        else message
        for number, message in enumerate(messages)
    ]


def _marks(message: Mapping[str, Any]) -> dict[str, bool | None]:
    """Return for each key whether to train on the message, or None if its value says neither. Keys that are null are left out."""
    return {key: _says_train(key, message[key]) for key in sorted(WEIGHT_KEYS & message.keys()) if message[key] is not None}


def _says_train(key: str, value: Any) -> bool | None:
    if not isinstance(value, int | float) or value not in (0, 1):
        return None
    return bool(value) != (key == _MASKING)


def _find(messages: Iterable[Mapping[str, Any]]) -> tuple[str, str] | None:
    """Return the reason and the words for the first message whose weights cannot be used."""
    for number, message in enumerate(messages):
        if WEIGHT_KEYS.isdisjoint(message):
            continue
        marks = _marks(message)
        bad = next((key for key, mark in marks.items() if mark is None), None)
        if bad is not None:
            return BAD_WEIGHT, f"message {number} has {bad} = {message[bad]!r:.40}; only 0, 1, true and false can be used"
        given = ", ".join(f"{key} = {message[key]!r}" for key in marks)
        if len({*marks.values()}) > 1:
            return CONTRADICTION, f"message {number} has {given}, which contradict each other"
        if True in marks.values() and message.get("role") != "assistant":
            return (
                OTHER_ROLE,
                f"message {number} has {given}, but only messages of the assistant are targets, and its role is not assistant",
            )
    return None
