"""The number of machines that share the lanes of an order in blocks, from the arguments or from torchrun's environment.

Ranks count machine by machine, as torchrun counts them: machine m has the ranks m * R .. (m+1) * R - 1, where R is the number of ranks per
machine. `steps` divides the samples.
"""

from collections.abc import Mapping
from typing import Any

from niels_cache_runtime.cache.checks import check_positive
from niels_cache_runtime.errors import NielsCacheError

_SHOWN = 12


def resolve_machines(
    *, lanes: int, world_size: int, machines: Any = None, ranks_per_machine: Any = None, environment: Mapping[str, str]
) -> int:
    """Return the number of machines, a divisor of `lanes` and of `world_size`.

    Without `machines` and `ranks_per_machine`, the variables of torchrun in `environment` decide. Without these variables, or with a single
    rank, there is one machine. Raises NielsCacheError for other numbers, and names the allowed ones.
    """
    machines = None if machines is None else check_positive("machines", machines)
    ranks = None if ranks_per_machine is None else check_positive("ranks_per_machine", ranks_per_machine)
    origin = ""
    if machines is None and ranks is None:
        ranks = _ranks_of_torchrun(world_size, environment)
        origin = " (from torchrun)" if world_size > 1 and "LOCAL_WORLD_SIZE" in environment else ""
    if machines is None:
        if ranks is not None and world_size % ranks:
            raise NielsCacheError(
                f"ranks_per_machine={ranks}{origin}: must divide world_size={world_size}; allowed are {_listed(_divisors(world_size))}"
            )
        machines = 1 if ranks is None else world_size // ranks
    elif ranks is not None and machines * ranks != world_size:
        raise NielsCacheError(
            f"machines={machines}, ranks_per_machine={ranks}: {machines * ranks} ranks, but world_size={world_size}; leave out one of them"
        )
    allowed = [count for count in _divisors(world_size) if lanes % count == 0]
    if machines not in allowed:
        raise NielsCacheError(
            f"machines={machines}{origin}: must divide lanes={lanes} and world_size={world_size}; allowed are {_listed(allowed)}"
            f"{_other_lanes(machines, world_size)}; with machines=1, each machine reads all lanes"
        )
    return machines


def _ranks_of_torchrun(world_size: int, environment: Mapping[str, str]) -> int | None:
    """Return the number of ranks per machine that torchrun set, or None without torchrun and for a single rank."""
    names = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE")
    if world_size == 1 or "LOCAL_WORLD_SIZE" not in environment:
        return None
    try:
        everywhere, here, groups = (int(environment[name]) if name in environment else None for name in names)
    except ValueError:
        everywhere = here = groups = 0
    told = ", ".join(f"{name}={environment[name]}" for name in names if name in environment)
    if not here or everywhere not in (None, world_size) or groups not in (None, world_size // here) or world_size % here:
        raise NielsCacheError(
            f"world_size={world_size}: {told} in the environment do not give equally many ranks on each machine; "
            f"give machines=n or ranks_per_machine=n (machines=1: each machine reads all lanes)"
        )
    return here


def _other_lanes(machines: int, world_size: int) -> str:
    """Return the advice to use other lanes, if this number of machines is possible for some lanes."""
    return "" if world_size % machines else f"; for {machines} machines, give lanes={machines} or a multiple of it"


def _divisors(number: int) -> list[int]:
    small = [count for count in range(1, int(number**0.5) + 1) if number % count == 0]
    return sorted({*small, *(number // count for count in small)})


def _listed(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:_SHOWN]))
    return f"{shown}, ..." if len(numbers) > _SHOWN else shown
