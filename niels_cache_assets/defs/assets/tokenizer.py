"""The asset `tokenizer`: the model that every cache in the root uses."""

import dagster as dg

from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.artifacts.input_problems import require_inputs
from niels_cache_assets.artifacts.tokenizer import CODE_VERSION, Tokenizer
from niels_cache_assets.base.fingerprint import fingerprint_of
from niels_cache_assets.defs.assets.building import artifact_asset
from niels_cache_assets.defs.config import BuildConfig
from niels_cache_assets.project.registry import Registry
from niels_cache_assets.sources.net.retries import retry_at_most
from niels_cache_runtime.errors import NielsCacheError

_DESCRIPTION = """The tokenizer of all caches in the root: imported, or trained on the data sets.

`tokenizer/` has `spm.model`, `tokenizer.json` or tiktoken's ranks; set `model` to import one. The data version is `sha256`:
a retrained model with the same bytes makes nothing stale, a different one makes every cache stale. A model is kept until its settings
change, or you use `force`. It does not depend on upstream, because then one new note would make every cache stale. For a data set with
`prepare` it is trained on the prepared documents of train, if they exist (`corpus/documents`, `corpus/duplicates`). `trained_on` lists the
text of each data set, and data sets that could not be read.

```python
from niels_cache_assets import open_built_model
tokenizer = open_built_model("cache/tokenizer")
tokenizer.decode(tokenizer.encode("any text"))
```"""


def tokenizer_asset(registry: Registry) -> dg.AssetsDefinition:
    """Return the asset."""
    return artifact_asset(
        registry,
        "tokenizer",
        begin=_require_inputs,
        kinds={"file"},
        code_version=_code_version(registry),
        description=_DESCRIPTION,
    )


def _require_inputs(artifact: Tokenizer, config: BuildConfig, context: dg.AssetExecutionContext) -> None:
    if artifact.needs_training(force=config.force):
        require_inputs(artifact.registry, ())


def _code_version(registry: Registry) -> str:
    """Return the code version, which contains a hash of the settings, so that changed settings show as unsynced."""
    try:
        with retry_at_most(seconds=0.0):
            return f"{CODE_VERSION}-{fingerprint_of(graph(registry, '').tokenizer().identity())[:8]}"
    except NielsCacheError:  # the model to import is missing; a run reports this, but the definitions must load
        return CODE_VERSION
