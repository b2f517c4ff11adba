"""The schemas of [dedup], [lines] and [spans]."""

from typing import Literal, Self

from pydantic import Field, model_validator

from niels_cache_assets.base.schema import Table, Words


class DedupSettings(Table):
    """[dedup]: how near duplicates are defined, and which copy is kept, for every data set with `prepare = [..., "dedup"]`."""

    threshold: float = Field(0.85, gt=0, lt=1)
    """Minimum Jaccard similarity of the word n-grams of near duplicates"""
    num_perm: int = Field(128, ge=16, le=1024)
    """Number of hashes per MinHash signature"""
    ngram: int = Field(5, ge=1, le=32)
    """Number of words per n-gram"""
    units: Literal["words", "code"] = "words"
    """'code' compares names, numbers and keywords of code, with case and without signs; equal files have equal characters"""
    bands: int | None = Field(None, ge=1)
    """Number of LSH bands; by default chosen to fit the threshold. Must be set together with `rows`"""
    rows: int | None = Field(None, ge=1)
    """Number of hashes per band"""
    verify: Literal["none", "jaccard"] = "none"
    """'jaccard' also compares the texts of documents that share a band"""
    priority: Words = ()
    """Data sets whose copies are kept, highest priority first; the rest follow in table order"""
    ranges: int = Field(1, ge=1, le=1024)
    """Number of hash ranges. More ranges need less memory and drop the same documents"""

    @model_validator(mode="after")
    def _bands_fit(self) -> Self:
        if (self.bands is None) != (self.rows is None):
            raise ValueError("give bands and rows, or neither")
        if self.bands is not None and self.rows is not None and self.bands * self.rows > self.num_perm:
            raise ValueError(f"bands x rows is {self.bands * self.rows}, more than num_perm = {self.num_perm}")
        return self


class LinesSettings(Table):
    """[lines]: which repeated lines and paragraphs are cut, for every data set with `prepare = [..., "lines"]`."""

    min_characters: int = Field(20, ge=1)
    """Minimum length of a compared line or paragraph, without white space at its ends"""
    max_copies: int = Field(3, ge=1)
    """Largest number of documents in which a text stays; of a text in more documents, only the first copy stays"""
    ranges: int = Field(1, ge=1, le=1024)
    """Number of hash ranges. More ranges need less disk, read the text more often, and cut the same text"""


class SpansSettings(Table):
    """[spans]: which repeated spans are cut, for every data set with `prepare = [..., "spans"]`."""

    min_bytes: int = Field(200, ge=50, le=65_536)
    """Length of the shortest span in bytes of UTF-8. 200 bytes are about 50 tokens"""
    ranges: int | None = Field(None, ge=1, le=1024)
    """Number of hash ranges, by default one for each 4 MB of text, at most 256. The number does not change what is cut"""
