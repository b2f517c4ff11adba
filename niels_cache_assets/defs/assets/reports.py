"""The assets `reports/*`: reports about all data sets for people, on which no asset depends.

A report takes seconds, and no file is hashed. Dagster does not compare data versions of more than 100 partitions. So with more than 100
data sets, a report becomes stale only when its settings change.
"""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import dagster as dg

from niels_cache_assets.base.beside import load_beside
from niels_cache_assets.base.fingerprint import fingerprint_of, identity_settings
from niels_cache_assets.base.wording import file_size, format_count
from niels_cache_assets.defs.home.history import history_of
from niels_cache_assets.defs.keys import names_of
from niels_cache_assets.defs.metadata.builds import Metadata
from niels_cache_assets.defs.metadata.entries import images
from niels_cache_assets.defs.progress import readable_failures
from niels_cache_assets.defs.recording import AssetRecord
from niels_cache_assets.defs.resources import root_of
from niels_cache_assets.facts.mixture import CODE_VERSION as MIXTURE_CODE_VERSION
from niels_cache_assets.facts.mixture import MixturePlan, all_mixtures
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.reports import page_path
from niels_cache_assets.reports.cache import CODE_VERSION, cache_report, find_items

NOT_TOO_OFTEN = "no_data_set_is_read_too_often"

_MIXTURE = """The part of each pretrain data set that a run reads: configured, available and read shares, tokens, epochs, excess repeats.

One table for each `[blend.NAME]`; without a blend, one for all data sets by size. `[reports]` sets the run. It follows the order of
samples of TokenLoader, so it is exact. Nothing is stored in `reports/`: the table is here.

```python
from niels_cache_runtime import TokenLoader
loader = TokenLoader("cache/pretrain/<data set>/train", T=1024, B=32, seed=0)
print(loader.report(steps=1000))
```"""

_CACHE = """Everything that is built: status, size, sha256, checks, and plots of each.

The page is `reports/cache.html`, a single file. `niels-cache report --open` writes it without Dagster, with excerpts of documents. The
data version covers everything that is built and the mixtures of runs, but no times or checks.

```python
import webbrowser
from pathlib import Path
webbrowser.open(Path("cache/reports/cache.html").absolute().as_uri())
```"""


def reports_assets(registry: Registry) -> list[dg.AssetsDefinition]:
    """Return the two assets."""
    return [_mixture(registry), _cache(registry)]


def _code_version(registry: Registry, by_hand: str) -> str:
    """Return the code version of the reports.

    It contains a hash of the settings of [reports] and [blend.*], so that changed settings show as unsynced.
    """
    blends = {name: identity_settings(blend, "blend") for name, blend in registry.blend.items()}
    settings = {"reports": identity_settings(registry.reports, "reports"), "blend": blends}
    return f"{by_hand}-{fingerprint_of(settings)[:8]}"


def _mixture(registry: Registry) -> dg.AssetsDefinition:
    names = names_of(registry)

    @dg.asset(
        key=names.mixture,
        deps=[names.meta["pretrain"]],
        required_resource_keys=names.resources,
        kinds={"report"},
        code_version=_code_version(registry, MIXTURE_CODE_VERSION),
        check_specs=[
            dg.AssetCheckSpec(
                NOT_TOO_OFTEN, asset=names.mixture, description="No run reads a data set more often than max_epochs of [reports]."
            )
        ],
        description=_MIXTURE,
    )
    def mixture(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        with readable_failures():
            mixtures = all_mixtures(registry, root=root_of(context, names))
        warnings = [f"{each.name}: {warning}" for each in mixtures for warning in each.warnings]
        for warning in warnings:
            context.log.warning(warning)
        result = dg.AssetCheckResult(
            check_name=NOT_TOO_OFTEN,
            passed=not warnings,
            severity=dg.AssetCheckSeverity.WARN,
            description="; ".join(warnings) or None,
            metadata={"warnings": len(warnings)},
        )
        return _mixture_record(registry, mixtures).result()._replace(check_results=[result])

    return mixture


def _mixture_record(registry: Registry, mixtures: Sequence[MixturePlan]) -> AssetRecord:
    shown = [load_beside("pages", "markdown").mixture_markdown(each) for each in mixtures]
    if registry.dagster.plots:
        pictures = load_beside("pages", "pictures").mixture_pictures
        shown += [images(pictures(each), each.name) for each in mixtures if each.sources]
    metadata: Metadata = {
        "report": dg.MetadataValue.md("\n\n".join(shown) or "There is no pretrain data set."),
        "contents": ", ".join(f"{each.name}: {format_count(len(each.sources), 'data set')}" for each in mixtures) or "nothing",
        "most_epochs": max((source.epochs for each in mixtures for source in each.sources), default=0.0),
        "warnings": sum(len(each.warnings) for each in mixtures),
    }
    return AssetRecord(names_of(registry).mixture, metadata, fingerprint_of({"mixtures": [each.as_json() for each in mixtures]}))


def _cache(registry: Registry) -> dg.AssetsDefinition:
    names = names_of(registry)
    above = [names.tokenizer, *names.meta.values()]
    above += [names.documents] if registry.prepared() else []
    above += [names.index] if registry.blend_keys() else []
    above += [names.suffixes] if registry.indexed() else []

    @dg.asset(
        key=names.cache_report,
        deps=above,
        required_resource_keys=names.resources,
        kinds={"report"},
        code_version=_code_version(registry, CODE_VERSION),
        description=_CACHE,
    )
    def cache(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        with readable_failures():
            return _write_report(registry, context.instance, root_of(context, names)).result()

    return cache


def _write_report(registry: Registry, instance: dg.DagsterInstance, root: Path) -> AssetRecord:
    """Write the page of everything that is built, and return its record."""
    items = find_items(registry, root=root)
    report = cache_report(registry, items, root=root, history=history_of(instance, registry, items, root=root))
    page, path = load_beside("pages", "page"), page_path(root)
    page.write_page(path, page.render_page(report, page.draw_report(registry, report), now=time.time()))
    metadata: Metadata = {
        "report": dg.MetadataValue.md(load_beside("pages", "markdown").cache_markdown(report)),
        "page": dg.MetadataValue.path(str(path)),
        "contents": f"{report.complete} of {format_count(len(report.expected), 'folder')} complete, {file_size(report.bytes)}; "
        f"{format_count(len(report.notices), 'notice')}",
        "checks": report.outcome_counts,
        "bytes": report.bytes,
        "train_tokens": report.total("train_tokens", "pretrain"),
        "train_examples": report.total("train_examples", "sft"),
        "dagster/uri": path.absolute().as_uri(),
    }
    contents = [(item.name, item.state, item.meta.get("meta_sha256")) for item in report.items]
    version = fingerprint_of({"contents": contents, "mixtures": [each.as_json() for each in report.mixtures]})
    return AssetRecord(names_of(registry).cache_report, metadata, version)


def report_records(registry: Registry, instance: dg.DagsterInstance, *, root: Path) -> Iterator[AssetRecord]:
    """Write the reports, and yield the record of each.

    Raises:
        NielsCacheError: If a cache cannot be read, or the page cannot be written.
    """
    yield _mixture_record(registry, all_mixtures(registry, root=root))
    yield _write_report(registry, instance, root)
