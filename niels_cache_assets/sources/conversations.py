"""What makes a conversation trainable: one check, shared by the sources that read conversations and the builder that writes them."""

from collections.abc import Mapping, Sequence
from typing import Any

from niels_cache_assets.config.defaults import ROLE_TO_KEY


def conversation_problem(messages: Sequence[Mapping[str, Any]]) -> str | None:
    """The reason (as counted in `dropped`) why messages are no SFT example, or None.

    Roles may come in any order; what is asked is known roles, content in every message, and something for the loss: an assistant.
    """
    if not messages:
        return "empty_conversation"
    roles = set()
    for message in messages:
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str) or role not in ROLE_TO_KEY:
            return "unknown_role"
        if not isinstance(content, str):
            return "null_content" if content is None else "non_string_content"
        if not content or content.isspace():
            return "empty_content"
        roles.add(role)
    return None if "assistant" in roles else "no_assistant"
