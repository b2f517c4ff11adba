"""Whether the values of a meta.json are of the kind that `meta_keys` says: checked once, where a cache is opened, for all who then take it
for granted.

Somebody who edits a meta.json and hashes it again passes `read_meta`. Whether values agree with each other and with the files is `verify`'s
business.
"""

from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.meta import Meta
from niels_cache_runtime.format.meta_keys import FORM_OF, FORMS, is_count

__all__ = ["check_form", "form_problem", "is_count"]


def form_problem(meta: Meta) -> str | None:
    """One clause about the first key with a value that no such key has, else None."""
    for name, form in FORM_OF.items():
        if name in meta and not FORMS[form](meta[name]):
            return f"{name} is {meta[name]!r:.80}, expected {form}"
    return None


def check_form(meta: Meta, path: object) -> Meta:
    """`meta`, read from `path`. Raises NielsCacheError with its `form_problem`."""
    if problem := form_problem(meta):
        raise NielsCacheError(f"{path}: {problem}; rebuild this data set")
    return meta
