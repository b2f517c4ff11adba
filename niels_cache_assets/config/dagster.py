"""The settings of the asset graph: table [dagster]. Read by defs/ alone; nothing here imports Dagster."""

import re

from pydantic import BaseModel, ConfigDict, Field, field_validator

_OWNER = re.compile(r"team:\w+|[^@\s]+@[^@\s]+\.[^@\s]+")
_TAG = re.compile(r"[A-Za-z0-9_.-]{1,63}")


class DagsterSettings(BaseModel):
    """[dagster]: what the UI shows beside what was built. Nothing here changes a byte of a cache."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    owners: tuple[str, ...] = Field((), strict=False, description='Of every asset: addresses ("ada@example.org") and teams ("team:data")')
    tags: dict[str, str] = Field({}, description='Of every asset, such as { project = "tiny" }')
    plots: bool = Field(
        True, description="Draw plots of what was built: a second or two to a materialization, about 100 kB in the database"
    )
    repository: str | None = Field(
        None, description='Where the code links of assets lead: a fork on the web ("https://github.com/NAME/niels-cache"); None: files here'
    )
    branch: str = Field("main", min_length=1, description="The branch of `repository`")

    upstream_seconds: int = Field(3600, ge=30, description="`upstream_revision_sensor` looks at the hub at most once in so many seconds")
    upstream_builds: bool = Field(
        False, description="`upstream_revision_sensor` also asks for a run where what was built before has moved, whatever it takes"
    )
    notes_seconds: int = Field(60, ge=1, description="`notes_folder_sensor` looks at the folders at most once in so many seconds")
    notes_quiet_seconds: int = Field(300, ge=0, description="A folder of notes is built when nothing in it has changed for so long")
    nightly_hour: int = Field(3, ge=0, le=23, description="When the nightly schedules run, in UTC")
    automatic_sft: tuple[str, ...] | None = Field(
        None, strict=False, description="SFT data sets that `sft_automation` builds when what they are made of changes; None: every one"
    )

    @field_validator("owners")
    @classmethod
    def _people_or_teams(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for owner in value:
            if not _OWNER.fullmatch(owner):
                raise ValueError(f"{owner!r} is neither an address nor a team; write it as 'ada@example.org' or 'team:data'")
        return value

    @field_validator("tags")
    @classmethod
    def _short_words(cls, value: dict[str, str]) -> dict[str, str]:
        for key, text in value.items():
            if not _TAG.fullmatch(key) or not (text == "" or _TAG.fullmatch(text)):
                raise ValueError(f"{key!r} = {text!r}: a tag is made of at most 63 letters, digits, _ - .")
        return value

    @field_validator("repository")
    @classmethod
    def _on_the_web(cls, value: str | None) -> str | None:
        if value is not None and not (value.startswith("https://") and ("github" in value or "gitlab" in value)):
            raise ValueError("is an address of GitHub or GitLab that begins with https://")
        return None if value is None else value.rstrip("/").removesuffix(".git")
