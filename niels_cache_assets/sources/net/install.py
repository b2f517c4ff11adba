"""The patient transport, put into the hub's library and into fsspec."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=1)
def install() -> None:
    """Make the hub's library and fsspec's http(s) ask patiently. Costs the import of huggingface_hub the first time, then nothing.

    Listings of the hub come page by page in the calling thread: threads of the library would hold up an interrupt.
    """
    import fsspec
    from huggingface_hub.utils import _http, set_client_factory

    from niels_cache_assets.sources.net.transport import made_patient

    factory = _http._GLOBAL_CLIENT_FACTORY
    set_client_factory(lambda: made_patient(factory()))
    for scheme in ("http", "https"):
        fsspec.register_implementation(scheme, "niels_cache_assets.sources.net.http_files.HttpFiles", clobber=True)
    fsspec.config.conf.setdefault("hf", {}).setdefault("max_workers", 1)
