"""The key `steps` of a data set: the user's functions that its documents pass through, in order. `steps/` runs them."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, ConfigDict, Field, PositiveFloat, ValidationInfo, model_validator

from niels_cache_assets.base.beside import load_beside
from niels_cache_assets.base.config_path import ConfigPath
from niels_cache_assets.base.schema import Table

CLEANING = "cleaning"  # the entry that stands for the shipped cleaning
EXPORTED = ("id", "text", "title", "file", "row", "split")  # columns of each text export, so kept columns cannot have these names


def _are_columns(value: tuple[str, ...]) -> tuple[str, ...]:
    for name in value:
        if not name:
            raise ValueError("keep holds an empty name; write the names of columns")
        if name in EXPORTED:
            raise ValueError(f"{name!r} is the name of a column that exports of text have already; leave it out")
    if len(set(value)) != len(value):
        raise ValueError("keep names a column twice")
    return value


KeptColumns = Annotated[tuple[str, ...], AfterValidator(_are_columns)]


class StepUse(Table):
    """An entry of `steps`: a table, or only the text of `use`. All other keys are settings of the step."""

    model_config = ConfigDict(extra="allow")

    use: str = ""
    """Function or class, as 'module:name' or the name of an entry point; 'cleaning' stands for the shipped cleaning"""
    where: str | None = None
    """Instead of `use`: a condition on columns, such as "score > 0.5"; other documents are dropped"""
    name: str | None = Field(None, pattern=r"^[\w .-]{1,60}$")
    """Name of the step in drop reasons; by default the name of the function"""
    keep: KeptColumns = Field((), strict=False)
    """Columns that the step returns and that stay with the documents, such as ["score"]"""
    on_error: Literal["stop", "drop"] = "stop"
    """'drop' drops and counts a document for which the step raises an error or takes too long"""
    seconds_per_document: PositiveFloat = 60
    """Maximum time of the step for a document"""
    depends_on: tuple[ConfigPath, ...] = Field((), strict=False)
    """Files whose content the step depends on, such as a model"""
    folder: ConfigPath = "."
    """Folder in which modules are found, after installed ones; by default that of the configuration file"""

    @model_validator(mode="before")
    @classmethod
    def _of_text(cls, entry: Any, info: ValidationInfo) -> Any:
        base_dir = info.context["base_dir"] if info.context else "."
        entry = {"use": entry} if isinstance(entry, str) else entry
        if isinstance(entry, Mapping) and not {"use", "where"} & entry.keys():  # { filter = "too_short" } and other shipped steps
            entry = load_beside("cleaning", "entries").expand(entry, cls.model_fields.keys())
        return {"folder": base_dir, **entry} if isinstance(entry, Mapping) else entry

    @model_validator(mode="after")
    def _names_one_thing(self) -> Self:
        if bool(self.use) is (self.where is not None):
            raise ValueError("an entry of steps has either use or where")
        if not self.is_code and self.model_fields_set - {"use", "where", "folder"}:
            raise ValueError(f"the entry {self.use or 'where'!r} of steps has no other keys")
        return self

    @property
    def is_code(self) -> bool:
        """Whether it is a function or class, and not the shipped cleaning or a condition."""
        return self.use not in ("", CLEANING)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the step."""
        return dict(self.model_extra or {})

    @property
    def masks(self) -> tuple[str, ...]:
        """The kinds of personal data that it masks."""
        return self._shipped("mask")

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages outside which it drops documents."""
        return self._shipped("languages")

    def _shipped(self, key: str) -> tuple[str, ...]:
        return tuple(self.settings.get(key, ())) if self.use == f"niels_cache_cleaning.steps:{key.capitalize()}" else ()

    @property
    def title(self) -> str:
        """The name of the step in drop reasons and messages."""
        return self.name or self.use.rpartition(":")[2] or "where"
