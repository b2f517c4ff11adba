"""Dagster's daemon, looking for back-fills every second."""

from unittest.mock import patch

from dagster._daemon import controller
from dagster._daemon.cli import main

with patch.object(controller, "DEFAULT_DAEMON_INTERVAL_SECONDS", 1):
    main()
