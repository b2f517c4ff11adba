"""The schema of [publish]: where Dagster publishes caches. No key here changes a byte of a cache."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, field_validator

from niels_cache_runtime.format.layout import Family
from niels_cache_runtime.remote.store import check_address


class PublishSettings(BaseModel):
    """[publish]: where the assets `published/pretrain` and `published/sft` put caches, and the licences in data cards."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)
    address: str | None = Field(
        None,
        repr=False,  # not in messages, because it may hold a password by mistake
        description="An address such as `s3://bucket/caches`; each cache lies at ADDRESS/pretrain/NAME or ADDRESS/sft/NAME",
    )
    data_sets: tuple[str, ...] | None = Field(None, strict=False, description="The data sets to publish; None: all of them")
    licenses: dict[str, str] = Field(
        {}, description='The licence of a data set, for its data card on the hub, such as `{ wikitext = "cc-by-sa-3.0" }`'
    )

    @field_validator("address")
    @classmethod
    def _is_an_address(cls, value: str | None) -> str | None:
        return None if value is None else check_address(value)

    def address_of(self, family: Family, name: str) -> str:
        """Return the address of the cache of a data set."""
        return f"{self.address}/{family}/{name}"
