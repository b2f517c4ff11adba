"""The documented import path for `niels_cache_assets.defs.home.instance`, also for `python -m`. The code is in that module."""

from niels_cache_assets.defs.home.instance import *  # noqa: F403

if __name__ == "__main__":
    from niels_cache_assets.defs.home.instance import main

    main()
