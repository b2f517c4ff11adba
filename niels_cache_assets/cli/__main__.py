"""The program `python -m niels_cache_assets.cli`."""

import sys

from niels_cache_assets.cli import main

if __name__ == "__main__":
    sys.exit(main())
