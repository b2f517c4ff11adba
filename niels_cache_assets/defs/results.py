"""The end of a run of a launch: its record, and in words its warning, an interrupt, or its failure."""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from niels_cache_assets.artifacts.base import Artifact
from niels_cache_assets.artifacts.duplicates import OfSearch
from niels_cache_assets.artifacts.parts.plan import PartsPlan
from niels_cache_assets.defs.checks.sync import IN_SYNC
from niels_cache_assets.defs.home.instance import dagster_home
from niels_cache_assets.defs.home.refusals import recorded_refusal
from niels_cache_assets.defs.metadata.builds import DROPS, LEFT_OUT
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.meta import Meta, read_meta


def what_to_know(run: dg.JobExecutionResult, metadata: Mapping[str, dg.MetadataValue[Any]]) -> str | None:
    """Return the warning of a run and the failures of its checks that do not block. Omit the check that covers all data sets."""
    said = [str(metadata["warning"].value)] if "warning" in metadata else []
    for evaluation in run.get_asset_check_evaluations():
        if not evaluation.passed and evaluation.check_name != IN_SYNC:
            said.append(f"{evaluation.check_name}: {evaluation.description}")
    return "; ".join(said) or None


def left_out_in(metadata: Mapping[str, dg.MetadataValue[Any]]) -> dict[str, Any]:
    """Return the fields of a LaunchResult about what a build left out."""
    said = {key: str(metadata[key].value) for key in (LEFT_OUT, DROPS) if key in metadata}
    return {"left_out": said.get(LEFT_OUT), "drop_warnings": said.get(DROPS, "").splitlines()}


def was_interrupted(run: dg.JobExecutionResult) -> bool:
    """Return whether a run ended by an interrupt from the terminal."""
    causes = (event.step_failure_data.error for event in run.all_events if event.is_step_failure)
    return any(cause is not None and cause.cls_name in ("DagsterExecutionInterruptedError", "KeyboardInterrupt") for cause in causes)


def why_failed(run: dg.JobExecutionResult) -> str:
    """Return the reason of a failure in one line. If a check failed, it is the failure of the check. Otherwise, it is the error of the
    first failed step.
    """
    for evaluation in run.get_asset_check_evaluations():
        if not evaluation.passed and evaluation.severity == dg.AssetCheckSeverity.ERROR:
            return f"the check {evaluation.check_name} failed: {evaluation.description}; build it again with force (--force)"
    for event in run.all_events:
        if event.is_step_failure:
            failure = event.step_failure_data
            if failure.user_failure_data is not None and failure.user_failure_data.description:
                return failure.user_failure_data.description
            error = failure.error
            cause = error.cause if error is not None and error.cause is not None else error
            if cause is not None:
                return recorded_refusal(cause.message, dagster_home()) or " ".join(cause.message.split())
    return f"run {run.run_id} failed; the Dagster UI shows its log"


def meta_of(artifact: Artifact) -> Meta | None:
    """Return the record of an artifact that was built or found. Return None for a plan, and for a step of a search that is finished."""
    if isinstance(artifact, PartsPlan) or artifact.record is None:
        return None
    try:
        return read_meta(str(artifact.directory / artifact.record))
    except NielsCacheError:
        if not isinstance(artifact, OfSearch):
            raise
        return None  # another process has finished the search just now
