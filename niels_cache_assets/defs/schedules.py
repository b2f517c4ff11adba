"""Nightly runs, as examples to turn on or to copy: what they start are jobs that have a button as well (jobs.py). Off by default."""

import dagster as dg

from niels_cache_assets.config.registry import Registry
from niels_cache_assets.defs.keys import OBSERVE_JOB, VERIFY_JOB

_NIGHTLY = {
    "nightly_upstream": (OBSERVE_JOB, 0, "Look at what every data set is made of, so that what has changed shows as unsynced."),
    "nightly_verification": (VERIFY_JOB, 30, "Read and verify every file of every cache, and compare it with the settings."),
}


def build_schedules(registry: Registry) -> list[dg.ScheduleDefinition]:
    return [
        dg.ScheduleDefinition(
            name=name,
            job_name=job,
            cron_schedule=f"{minute} {registry.dagster.nightly_hour} * * *",
            execution_timezone="UTC",
            default_status=dg.DefaultScheduleStatus.STOPPED,
            description=f"{description} Every night at {registry.dagster.nightly_hour:02}:{minute:02} UTC (nightly_hour in [dagster]).",
        )
        for name, (job, minute, description) in _NIGHTLY.items()
    ]
