"""What every asset shows beside its own: owners and tags of [dagster], where the caches lie, and links to the code that makes it.

A link leads to the file here (the UI opens it in an editor), or with `repository` to the same line on the web. An external asset has no
code; its link is the configuration that names what it stands for.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from pathlib import Path

import dagster as dg

import niels_cache_assets
from niels_cache_assets.config.registry import FALLBACK_PROFILE, Registry, cache_root

_ANCHOR = Path(niels_cache_assets.__file__)
_ROOT = re.compile(r'"cache(?=[/"])')

Asset = dg.AssetsDefinition | dg.AssetSpec


def presented(assets: Sequence[Asset], registry: Registry) -> list[Asset]:
    """Descriptions have the cache root as `cache`; in the snippets that are copied from them it becomes the one that there is."""
    settings, root = registry.dagster, cache_root(registry).absolute().as_posix()

    def present(spec: dg.AssetSpec) -> dg.AssetSpec:
        located = _ROOT.sub(lambda _: f'"{root}', spec.description or "")
        return spec.replace_attributes(description=located).merge_attributes(owners=settings.owners, tags=settings.tags)

    owned = dg.map_asset_specs(present, assets)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)  # of code references; without them an asset is as good
        linked: list[Asset] = list(dg.with_source_code_references(owned))  # type: ignore[arg-type]
        if settings.repository is not None:
            anchor = dg.AnchorBasedFilePathMapping(_ANCHOR, f"{_ANCHOR.parent.name}/{_ANCHOR.name}")
            linked = list(dg.link_code_references_to_git(linked, settings.repository, settings.branch, anchor))  # type: ignore[arg-type]
        return [_with_configuration(asset, registry) if isinstance(asset, dg.AssetSpec) else asset for asset in linked]


def _with_configuration(spec: dg.AssetSpec, registry: Registry) -> dg.AssetSpec:
    file = Path(registry.origin)
    if not file.is_file():
        file = _ANCHOR.parent / "config" / "profiles" / f"{registry.profile or FALLBACK_PROFILE}.toml"
    reference = dg.LocalFileCodeReference(file_path=str(file.absolute()), line_number=1, label=file.name)
    return spec.merge_attributes(metadata={"dagster/code_references": dg.CodeReferencesMetadataValue(code_references=[reference])})
