"""The order of `make walks` and `make cluster`, in which each process of pytest-xdist begins with one of the longest tests.

With `--dist worksteal`, each process gets tests in a row, and takes some from another process when it has none left, but not the last two.
So a long test that comes late would run alone.
"""

import pytest

# Parts of the names of the longest tests of a marker, the longest first.
_LONGEST = {
    "walk": (
        "[scale.py --quick",
        "test_a_project_of_dg_builds_two_components",
        "[parts.py",
        "[packed_documents.py",
        "test_a_person_goes_from_the_first_look",
        "[command.py",
        "[engines.py --models MODEL --megabytes",
        "test_a_materialize_or_its_step_that_is_killed",
        "test_the_tutorial_leads",
        "test_the_comparison_with_peers",
        "[dedup.py",
        "[loader.py",
        "test_megatron_core_finds_every_index",
        "[remote.py --memory",
        "[docs/howto.md]",
        "[gpu.py",
        "test_a_document_that_takes_too_long",
        "--only page]",
        "[first_batch.py",
        "test_every_real_sample_is_built",
    ),
    "cluster": (
        "test_the_services_of_compose",
        "test_terminate_in_the_ui_stops_the_worker[celery]",
        "test_celery",
        "test_dask",
        "test_terminate_in_the_ui_stops_the_worker[local]",
        "test_postgres_is_gone",
        "test_ray",
        "test_array",
        "test_ssh",
        "test_srun",
        "test_nobody_ends",
    ),
}


@pytest.hookimpl(trylast=True)  # after the tests without the marker are left out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    longest = _LONGEST.get(config.option.markexpr)
    if longest is None:
        return
    processes = getattr(config, "workerinput", {}).get("workercount", 1)
    items.sort(key=lambda item: next((place for place, name in enumerate(longest) if name in item.nodeid), len(longest)))
    # The last processes get one test more if there is a rest.
    items[:] = [item for first in reversed(range(processes)) for item in items[first::processes]]
