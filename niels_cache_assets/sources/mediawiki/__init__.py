"""MediaWiki: pages of an XML dump, and the plain text of their markup. No code here depends on a particular data set."""

from typing import TYPE_CHECKING

from niels_cache_runtime.old_paths import former_names

if not TYPE_CHECKING:  # a type checker would accept every name
    __getattr__ = former_names(__name__, "niels_cache_assets.sources.mediawiki.dump")
