"""Settings of TokenLoader that tests change one by one: flat ones go into their groups."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from niels_cache_runtime import SFT, Blocks, Copy


def grouped(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of TokenLoader. A flat setting, such as `lanes` or `limit`, replaces that of the group in `settings`."""
    given = dict(settings)
    for name, group in (("sft", SFT), ("order", Blocks), ("remote", Copy)):
        flat = {field.name: given.pop(field.name) for field in fields(group) if field.name in given}
        before = {field.name: getattr(given[name], field.name) for field in fields(group)} if isinstance(given.get(name), group) else {}
        if flat:
            given[name] = group(**before | flat)
    return given
