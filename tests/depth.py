"""How many examples Hypothesis draws: 25 of each property in `make test`, 500 in `make torture`.

`make test` draws the same examples each time, so that it fails where the code changed and nowhere else.
"""

from hypothesis import HealthCheck, settings

_PROFILES = {"test": 25, "torture": 500}

for _name, _examples in _PROFILES.items():
    settings.register_profile(
        _name,
        max_examples=_examples,
        derandomize=_name == "test",
        deadline=None,  # a first call of torch takes long, and so does any on a busy machine
        print_blob=True,
        database=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
settings.load_profile("test")


def cases(number: int) -> settings:
    """For a property whose examples are slow, or quick: so many in `make test`, and in `make torture` more in proportion."""
    return settings(max_examples=number * settings().max_examples // _PROFILES["test"])
