"""The number of machines that share the lanes of an order in blocks, from the settings or from torchrun's environment.

Ranks count machine by machine, as torchrun counts them: machine m has the ranks m * R .. (m+1) * R - 1, where R is the number of ranks per
machine. `steps` divides the samples.
"""

from collections.abc import Mapping

from niels_cache_runtime.errors import NielsCacheError

_SHOWN = 12


def resolve_machines(given: int | None, *, lanes: int, world_size: int, environment: Mapping[str, str]) -> int:
    """Return the number of machines, a divisor of `lanes` and of `world_size`.

    If none is given, the variables of torchrun in `environment` decide. Without these variables, or with a single rank, there is one
    machine. Raises NielsCacheError for other numbers, and names the allowed ones.
    """
    machines = _machines_of_torchrun(world_size, environment) if given is None else given
    origin = " (from torchrun)" if given is None and machines > 1 else ""
    allowed = [count for count in _divisors(world_size) if lanes % count == 0]
    if machines not in allowed:
        raise NielsCacheError(
            f"machines={machines}{origin}: must divide lanes={lanes} and world_size={world_size}; allowed are {_listed(allowed)}"
            f"{_other_lanes(machines, world_size)}; with machines=1, each machine reads all lanes"
        )
    return machines


def _machines_of_torchrun(world_size: int, environment: Mapping[str, str]) -> int:
    """Return the number of machines that torchrun set: 1 without torchrun and for a single rank."""
    names = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE")
    if world_size == 1 or "LOCAL_WORLD_SIZE" not in environment:
        return 1
    try:
        everywhere, here, groups = (int(environment[name]) if name in environment else None for name in names)
    except ValueError:
        everywhere = here = groups = 0
    told = ", ".join(f"{name}={environment[name]}" for name in names if name in environment)
    if not here or everywhere not in (None, world_size) or groups not in (None, world_size // here) or world_size % here:
        raise NielsCacheError(
            f"world_size={world_size}: {told} in the environment do not give equally many ranks on each machine; "
            f"give Blocks(machines=n) (machines=1: each machine reads all lanes)"
        )
    return world_size // here


def _other_lanes(machines: int, world_size: int) -> str:
    """Return the advice to use other lanes, if this number of machines is possible for some lanes."""
    return "" if world_size % machines else f"; for {machines} machines, give lanes={machines} or a multiple of it"


def _divisors(number: int) -> list[int]:
    small = [count for count in range(1, int(number**0.5) + 1) if number % count == 0]
    return sorted({*small, *(number // count for count in small)})


def _listed(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:_SHOWN]))
    return f"{shown}, ..." if len(numbers) > _SHOWN else shown
