"""`caches_in_sync`: what the graph cannot show of a partitioned asset, as one warning per family.

Unpartitioned on purpose: it looks at every data set of the family, reading meta.json only.
"""

import dagster as dg

from niels_cache_assets.cache_state import cache_state
from niels_cache_assets.defs.keys import META_KEYS
from niels_cache_assets.defs.resources import CacheRoot
from niels_cache_assets.registry import Registry
from niels_cache_runtime.formats import Family

IN_SYNC = "caches_in_sync"


def in_sync_check(registry: Registry, family: Family) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=META_KEYS[family],
        name=IN_SYNC,
        description="Every data set of the family is built with the current settings and tokenizer. Cheap: upstream is not asked.",
    )
    def caches_in_sync(cache_root: CacheRoot) -> dg.AssetCheckResult:
        states = [cache_state(registry, name, root=cache_root.path) for name in registry.datasets(family)]
        behind = [state.name for state in states if state.needs_build]
        rows = [dg.TableRecord({"data_set": state.name, "state": state.state, "advice": state.advice}) for state in states]
        columns = [dg.TableColumn("data_set"), dg.TableColumn("state"), dg.TableColumn("advice")]
        return dg.AssetCheckResult(
            passed=not behind,
            severity=dg.AssetCheckSeverity.WARN,
            description=f"not as configured: {', '.join(behind)}" if behind else None,
            metadata={
                "data_sets": len(states),
                "not_in_sync": len(behind),
                "states": dg.MetadataValue.table(rows, schema=dg.TableSchema(columns)),
            },
        )

    return caches_in_sync
