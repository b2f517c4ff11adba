"""The assets `published/pretrain` and `published/sft`, which exist only with [publish]: caches in its object store.

There is one partition for each data set. The data version of a partition is the content hash of the cache. So the partition becomes stale
when the cache is rebuilt with other tokens. If the address already has the build, a run sends nothing.
"""

import dagster as dg

from niels_cache_assets.base.wording import file_size, format_count
from niels_cache_assets.defs.keys import mapped, names_of
from niels_cache_assets.defs.progress import readable_failures
from niels_cache_assets.defs.resources import root_of
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.publish.push import open_local_build, push
from niels_cache_runtime.format.layout import FAMILIES, Family, dataset_dir

CODE_VERSION = "1"  # raise this by hand if a push of the same cache leaves other objects

_DESCRIPTION = """A copy of each cache and of its tokenizer in the object store that `[publish]` names.

Other machines get it with `niels-cache pull ADDRESS --out DIR`. A push replaces an older build at the address. The older build stays there
until `niels-cache push NAME ADDRESS --prune` deletes it. `niels-cache push` publishes the same without Dagster."""


def published_assets(registry: Registry) -> list[dg.AssetsDefinition]:
    """Return one asset for each family with data sets to publish."""
    return [_published(registry, family) for family in FAMILIES if registry.published(family)]


def _published(registry: Registry, family: Family) -> dg.AssetsDefinition:
    names, chosen = names_of(registry), registry.published(family)

    @dg.asset(
        key=names.published[family],
        deps=[mapped(names.meta[family], chosen)],
        partitions_def=dg.StaticPartitionsDefinition(chosen),
        kinds={"file"},
        code_version=CODE_VERSION,
        description=_DESCRIPTION,
        required_resource_keys=names.resources,
    )
    def published(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        name = context.partition_key
        address = f"{registry.publish.address}/{family}/{name}"
        with readable_failures():  # another build of this data set at the address is exchanged
            pushed = push(open_local_build(dataset_dir(root_of(context, names), family, name)), address, replace_other=True)
        content = pushed.record.content_sha256
        metadata = {
            "address": address,
            "state": pushed.state,
            "contents": f"{format_count(pushed.files, 'file')}; {format_count(pushed.sent, 'file')} sent, {file_size(pushed.sent_bytes)}",
            "content_sha256": content,
        }
        return dg.MaterializeResult(metadata=metadata, data_version=dg.DataVersion(content))

    return published
