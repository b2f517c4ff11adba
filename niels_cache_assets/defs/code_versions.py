"""The code versions of the assets that record artifacts. Some cover settings, so that changed settings show as unsynced."""

from niels_cache_assets.artifacts.corpus import Corpus
from niels_cache_assets.artifacts.corpus_report import CorpusReport
from niels_cache_assets.artifacts.duplicates import CODE_VERSION as RANGES_VERSION
from niels_cache_assets.artifacts.duplicates import Duplicates
from niels_cache_assets.artifacts.graph import graph
from niels_cache_assets.artifacts.index import BlendIndex
from niels_cache_assets.artifacts.tokenizer import CODE_VERSION as TOKENIZER_VERSION
from niels_cache_assets.base.fingerprint import fingerprint_of, identity_settings
from niels_cache_assets.build_cache import CODE_VERSIONS
from niels_cache_assets.corpus.identity import dedup_identity, dedup_order
from niels_cache_assets.parts.plan import CODE_VERSION as PLAN_VERSION
from niels_cache_assets.project.registry import Registry
from niels_cache_runtime.errors import NielsCacheError

_OF_KINDS = {
    **CODE_VERSIONS,
    "val_part": CODE_VERSIONS["pretrain"],
    "part": CODE_VERSIONS["pretrain"],
    "plan": PLAN_VERSION,
    "corpus": Corpus.version,
    "corpus_part": Corpus.version,
    "hashes": RANGES_VERSION,
    "range": RANGES_VERSION,
    "report": CorpusReport.version,
}


def code_version(registry: Registry, key: str) -> str:
    """Return the code version of the asset that records the artifact with this key, or artifacts of this kind."""
    if key == "tokenizer":
        try:
            return _with_settings(TOKENIZER_VERSION, graph(registry, "").tokenizer().identity())
        except NielsCacheError:  # the model to import is missing; a run reports this, but the definitions must load
            return TOKENIZER_VERSION
    if key == "corpus/duplicates":
        return _with_settings(Duplicates.version, {**dedup_identity(registry.dedup), "order": dedup_order(registry)})
    kind = key.partition("/")[0]
    if kind == "index":
        return _with_settings(
            BlendIndex.version, {name: identity_settings(registry.blend[name], "blend") for name in registry.blend_keys()}
        )
    return _OF_KINDS[kind]


def _with_settings(version: str, settings: object) -> str:
    return f"{version}-{fingerprint_of(settings)[:8]}"
