"""The project, with steps that run on the workers of Celery."""

import sys
from pathlib import Path

from dagster_celery import celery_executor

from niels_cache_assets.defs.assembly import build_defs

sys.path.insert(0, str(Path(__file__).parent))  # Dagster loads this file by its path

from settings import BROKER, CONFIG

defs = build_defs(executor=celery_executor.configured({"broker": BROKER, "backend": BROKER, "config_source": CONFIG}))
