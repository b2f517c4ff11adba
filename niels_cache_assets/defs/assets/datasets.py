"""The assets `pretrain/*` and `sft/*`: token shards of text, and tokens and offsets of conversations, one partition per data set.

One streaming op writes the three assets of a data set and reports all three at its end. The op is not subsettable, because one pass makes
all three assets. The op yields its first result only after everything is built and renamed. Otherwise, an error would leave a wrong record:
Dagster keeps results that were yielded before an error, and records an asset as built if its result is missing.
"""

from collections.abc import Iterator

import dagster as dg

from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.base.choices import raise_unknown_choice
from niels_cache_assets.build_cache import CODE_VERSIONS
from niels_cache_assets.defs import keys
from niels_cache_assets.defs.assets.building import build_artifact, recorded_results
from niels_cache_assets.defs.config import FamilyConfig, PretrainConfig
from niels_cache_assets.defs.keys import names_of
from niels_cache_assets.defs.metadata.builds import split_schema
from niels_cache_assets.defs.progress import readable_failures
from niels_cache_assets.defs.resources import root_of
from niels_cache_assets.facts.training_code import loader_code
from niels_cache_assets.project.registry import Registry
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import Family, Split

_SPLITS: dict[Family, str] = {
    "pretrain": """The {split} split of a data set: headerless tokens in shards, every document followed by one EOT.

`pretrain/<data set>/{split}/shard_*.bin` (uint16 or uint32, as meta.json says), with `{split}_doc_ends.npy` (where each document ends) and
`{split}_documents.parquet` (where each came from) beside the folder. The data version is the sha256 over its token and doc_ends files.
[Its checks](/assets/{meta}?view=checks), plots, samples and the code to open the data set are with `meta_json`.

```python
{code}
```""",
    "sft": """The {split} split of a data set of conversations: tokens and the start of each example.

`sft/<data set>/{split}_tokens.bin` (headerless uint16 or uint32; every message is its role's sentinel, its text, EOT) and
`sft/<data set>/{split}_idx.npy` (int64 offsets), with `{split}_examples.parquet` (where each came from). The data version is the sha256
over tokens and offsets.
[Its checks](/assets/{meta}?view=checks), plots, samples and the code to open the data set are with `meta_json`.

```python
{code}
```""",
}

_META = """The commit record of a data set: counts, settings, revision of upstream, sha256 of every file.

`{family}/<data set>/meta.json`, written last: a folder without it is not finished. The same input, settings and tokenizer give the same
bytes. [Its checks](/assets/{meta}?view=checks) read the whole cache again; `caches_in_sync` lists all data sets.

```python
{code}
```"""


def dataset_assets(registry: Registry, family: Family) -> dg.AssetsDefinition:
    """Return the three assets of the data sets of a family, in topological order."""
    names = names_of(registry)
    run_config = PretrainConfig if family == "pretrain" else FamilyConfig
    # The version of upstream also covers the settings of a data set, such as its token budgets. So one with a corpus needs upstream, too.
    above = [dg.AssetDep(names.tokenizer), dg.AssetDep(names.upstream[family]), *keys.deps_on(registry, family, "part", "corpus")]
    version = CODE_VERSIONS[family]
    columns = {"dagster/column_schema": split_schema(family)}
    files = "shards" if family == "pretrain" else "pairs"

    def described(text: str, split: Split) -> str:
        code = loader_code(f'"cache/{family}/<data set>/{split}"', family, T=1024, B=8)
        return text.format(family=family, split=split, meta="/".join(names.meta[family].path), code=code)

    @dg.multi_asset(
        name=names.stream_ops[family],
        specs=[
            *(
                dg.AssetSpec(
                    key, deps=above, description=described(_SPLITS[family], split), kinds={"numpy"}, metadata=columns, code_version=version
                )
                for split, key in names.splits[family].items()
            ),
            dg.AssetSpec(
                names.meta[family],
                deps=[*above, *names.splits[family].values()],
                description=described(_META, "train"),
                kinds={"json"},
                code_version=version,
            ),
        ],
        partitions_def=keys.partitions(registry, family),
        required_resource_keys=names.resources,
        description=f"Stream one data set through the tokenizer into train and val {files}, in one pass.",
    )
    def stream(context: dg.AssetExecutionContext, config: run_config) -> Iterator[dg.MaterializeResult]:  # type: ignore[valid-type]
        name = context.partition_key
        with readable_failures():
            if name not in registry.partition_keys(family):  # Dagster accepts any partition key
                if name in registry.switched_off():
                    raise NielsCacheError(f"{registry.origin}: [{family}.{name}] is switched off; set enabled = true in it to build it")
                raise_unknown_choice(registry.origin, f"no {family} data set", name, registry.partition_keys(family))
            settings: FamilyConfig = config
            artifact = graph(registry, root_of(context, names)).dataset(name, settings.run_settings())
        source, observed = artifact.spec.source, names.splits[family]["train"]
        outcome = build_artifact(context, artifact, settings, names, observed=observed, source=source)
        yield from recorded_results(context, registry, outcome, source=source)

    return stream
