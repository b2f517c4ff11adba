"""The data sets that ship with the package: a profile is a whole configuration, and the catalog lists all data sets of the profiles.

A profile is a file profiles/NAME.toml. In the catalog every data set is enabled, because a user adds it by name. This module also has the
descriptions that `init --list` shows. It does not read a user's file.
"""

from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from typing import Any, NamedTuple

from niels_cache_assets.base.toml import parse_toml
from niels_cache_runtime.format.layout import FAMILIES, Family

PROFILES = ("default", "quickstart")


class DatasetDescription(NamedTuple):
    """The description of a shipped data set.

    Attributes:
        what: What it contains.
        size: Approximate size of the download.
        licence: Licence as stated upstream.
    """

    what: str
    size: str
    licence: str


ABOUT: Mapping[str, DatasetDescription] = {
    "fineweb_edu": DatasetDescription("web pages of educational value: one crawl of FineWeb-Edu", "205 M tokens of it: 1 GB", "ODC-By 1.0"),
    "roam": DatasetDescription("your own notes, exported from Roam; needs a path", "your files", ""),
    "wikitext": DatasetDescription("good and featured articles of Wikipedia: WikiText-103", "0.3 GB", "CC BY-SA 3.0, GFDL"),
    "gutenberg": DatasetDescription("books of Project Gutenberg without its headers", "many GB", "public domain (USA)"),
    "wikipedia": DatasetDescription("English Wikipedia of November 2023, cleaned and deduplicated", "12 GB", "CC BY-SA 3.0, GFDL"),
    "dolly15k": DatasetDescription("15,000 instructions and answers, written by people", "13 MB", "CC BY-SA 3.0"),
    "oasst1": DatasetDescription("conversations of OpenAssistant, the English ones", "40 MB", "Apache 2.0"),
    "python_docs": DatasetDescription("the documentation of the Python that runs this", "no network", "PSF"),
    "python_help": DatasetDescription("questions and answers about Python, made of its documentation", "no network", "PSF"),
}


def profile_tables(profile: str) -> dict[str, Any]:
    """Return the tables of a profile as a new object that the caller may change."""
    return parse_toml(resources.files("niels_cache_assets").joinpath(f"project/profiles/{profile}.toml").read_text(encoding="utf-8"))


@lru_cache(maxsize=1)
def catalog() -> Mapping[str, tuple[Family, Mapping[str, Any]]]:
    """Return the family and the table of every shipped data set, by name. All are enabled."""
    found: dict[str, tuple[Family, Mapping[str, Any]]] = {}
    for profile in PROFILES:
        tables = profile_tables(profile)
        for family in FAMILIES:
            for name, table in tables.get(family, {}).items():
                found.setdefault(name, (family, {key: value for key, value in table.items() if key != "enabled"}))
    return found
