"""The note of `status` about a trained tokenizer: the data sets in the training sample, and those that could not be read."""

from typing import Any

from niels_cache_assets.project.registry import Registry
from niels_cache_runtime.format.meta import Meta

_ADVICE = "niels-cache build-all --only tokenizer --force trains it again, and every cache is built again with it"


def training_note(registry: Registry, meta: Meta) -> str | None:
    """Return a text like `trained on notes (prepared), web; without chats, which could not be read: ...`.

    Return None for an imported tokenizer.
    """
    trained_on = meta.get("trained_on")
    if not isinstance(trained_on, dict):
        return None
    sources, skipped, read_as = (_table(trained_on, key) for key in ("sources", "skipped", "read_as"))
    notes = [f"trained on {', '.join(name + _read_note(registry, name, read_as) for name in sources)}"] if sources else []
    removed = [name for name in sources if name not in registry.pretrain and name not in registry.sft]
    if removed:
        notes.append(
            f"{', '.join(removed)} {'is' if len(removed) == 1 else 'are'} not configured any more, which changes nothing: {_ADVICE}"
        )
    unread = [f"the rest of {name}" if sources.get(name) else name for name in skipped]
    if unread:
        notes.append(f"without {', '.join(unread)}, which could not be read then: {_ADVICE}")
    return "; ".join(notes) or None


def _table(trained_on: dict[str, Any], key: str) -> dict[str, Any]:
    """Return a table in `trained_on`, or an empty table if the value is not a table. No other code checks the form of this value."""
    value = trained_on.get(key)
    return value if isinstance(value, dict) else {}


def _read_note(registry: Registry, name: str, read_as: dict[str, Any]) -> str:
    """Return ` (prepared)` or a similar note. Return "" for a data set without `prepare`, because only its raw text can be read."""
    words = {"prepared": " (prepared)", "members": " (mixed from its members)"}
    return words.get(str(read_as.get(name)), " (raw text)" if name in registry.prepared() else "")
