"""The program: the services are started from this folder."""

import sys
from unittest.mock import patch

from niels_cache_assets.cli import main
from niels_cache_assets.defs.ui import services
from niels_cache_assets.defs.ui.services import Services

_start = Services._start


def _start_here(self: Services, name: str, module: str, arguments: list[str]) -> object:
    return _start(self, name, "tests.helpers.ui.quick.daemon" if module == services.DAEMON else module, arguments)


with patch.object(services, "MODULE", "tests.helpers.ui.quick.definitions"), patch.object(Services, "_start", _start_here):
    sys.exit(main())
