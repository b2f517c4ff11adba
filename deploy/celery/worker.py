"""The application of the workers, run by `celery -A worker worker --concurrency 1 -Q dagster`."""

from dagster_celery.make_app import make_app
from dagster_celery.tasks import create_task
from settings import BROKER, CONFIG

app = make_app({"broker": BROKER, "backend": BROKER, "config_source": CONFIG})

execute_plan = create_task(app)
