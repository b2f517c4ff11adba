"""The number of examples that Hypothesis draws, which is 25 for each property in `make test`, and 500 in `make torture`.

`make test` draws the same examples each time, so that it fails where the code changed and nowhere else.
"""

from typing import TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

T = TypeVar("T")

_PROFILES = {"test": 25, "torture": 500}

for _name, _examples in _PROFILES.items():
    settings.register_profile(
        _name,
        max_examples=_examples,
        derandomize=_name == "test",
        deadline=None,  # the first call of torch takes long, and so does any call on a busy machine
        print_blob=True,
        database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
settings.load_profile("test")


def sized(items: st.SearchStrategy[T], most: int) -> st.SearchStrategy[list[T]]:
    """Draw lists of every length up to `most` alike. The lists of Hypothesis have 5 items on average, however long they may be."""
    return st.integers(0, most).flatmap(lambda count: st.lists(items, min_size=count, max_size=count))


def cases(number: int) -> settings:
    """Set the number of examples for a property with slow or quick examples. `make test` draws so many, and `make torture` more in
    proportion.
    """
    return settings(max_examples=number * settings().max_examples // _PROFILES["test"])
