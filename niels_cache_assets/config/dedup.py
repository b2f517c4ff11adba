"""The settings of deduplication: table [dedup], one for all data sets, because duplicates are looked for across them."""

from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class DedupSettings(BaseModel):
    """[dedup]: what a near duplicate is, and who stays, for every data set with `prepare = [..., "dedup"]`."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    threshold: float = Field(0.85, gt=0, lt=1, description="Jaccard similarity of word n-grams from which documents are near duplicates")
    num_perm: int = Field(128, ge=16, le=1024, description="Slots of a MinHash signature")
    ngram: int = Field(5, ge=1, le=32, description="Words of a shingle")
    bands: int | None = Field(None, ge=1, description="LSH bands; None: chosen for the threshold. Goes with `rows`")
    rows: int | None = Field(None, ge=1, description="Slots of a band; None: chosen for the threshold")
    verify: Literal["none", "jaccard"] = Field("none", description="'jaccard': a shared band alone is not enough, the texts are compared")
    priority: tuple[str, ...] = Field((), strict=False, description="Data sets whose documents win, best first; the rest in table order")

    @model_validator(mode="after")
    def _bands_fit(self) -> Self:
        if (self.bands is None) != (self.rows is None):
            raise ValueError("give bands and rows, or neither")
        if self.bands is not None and self.rows is not None and self.bands * self.rows > self.num_perm:
            raise ValueError(f"bands x rows is {self.bands * self.rows}, more than num_perm = {self.num_perm}")
        return self
