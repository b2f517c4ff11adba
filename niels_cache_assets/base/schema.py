"""The base class of configuration tables, and types that several tables share."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Words = Annotated[tuple[str, ...], Field(strict=False)]  # a list in TOML
Share = Annotated[float, Field(ge=0, le=1)]


class Table(BaseModel):
    """A table of the configuration: no unknown keys, no conversion between types, and frozen.

    The string after a key describes it in docs/configuration.md.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
