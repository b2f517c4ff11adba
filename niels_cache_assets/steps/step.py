"""What the author of a step uses: `Drop`, and the decorator `step`. This module imports nothing that takes time."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

Target = TypeVar("Target", bound=Callable[..., Any])


class Drop(NamedTuple):
    """The result of a step that drops the document.

    Attributes:
        reason: The reason, under which such documents are counted. It has few different values, and no part of the text.
        value: A measured value that examples show, or None.
    """

    reason: str
    value: float | None = None


def step(
    *,
    batch: bool = False,
    stateful: bool = False,
    version: object = None,
    depends_on: Sequence[str] = (),
    identity: str = "code",
) -> Callable[[Target], Target]:
    """Declare a function or class to be a step with these attributes. Without any, a step needs no decorator.

    Args:
        batch: Whether it takes a batch of documents as a `pyarrow.RecordBatch` (text, title, source_id, file, row), and returns columns:
            `text` and `title` replace those of the documents, `drop` holds reasons or nulls, and all others are scores.
        stateful: Whether a result depends on earlier documents. One process then sees all documents in order, and a build that is stopped
            begins again.
        version: A version to change by hand when results change for other reasons than changed code.
        depends_on: Files whose content counts as code, relative to the module.
        identity: "version" if only `version` counts, and not the code.
    """

    def declare(target: Target) -> Target:
        attributes = {"batch": batch, "stateful": stateful, "version": version, "depends_on": depends_on, "identity": identity}
        for name, value in attributes.items():
            setattr(target, name, value)
        return target

    return declare
