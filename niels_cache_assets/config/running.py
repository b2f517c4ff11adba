"""The schema of [cluster], the table that says how parts are built on several machines. No key here changes a byte of a cache."""

from __future__ import annotations

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

_LEAST_RENEWALS = 3  # a lease ends after so many missed renewals at the earliest


class ClusterSettings(BaseModel):
    """[cluster]: how processes on several machines share the parts of a data set."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    renew_seconds: float = Field(
        15.0,
        gt=0,
        le=3_600,
        allow_inf_nan=False,
        strict=False,
        description="The process that builds a part renews its lease after so many seconds",
    )
    lease_seconds: float = Field(
        120.0,
        gt=0,
        le=86_400,
        allow_inf_nan=False,
        strict=False,
        description="A process that waits for a part takes it over if it sees no renewal for so many seconds",
    )

    @model_validator(mode="after")
    def _leases_are_renewed_in_time(self) -> Self:
        if self.lease_seconds < _LEAST_RENEWALS * self.renew_seconds:
            raise ValueError(f"lease_seconds is less than {_LEAST_RENEWALS} times renew_seconds, so a short pause would end a lease")
        return self
