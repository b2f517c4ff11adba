"""The settings that the executor and the workers of Celery share. docs/cluster.md says why they are needed."""

import os

BROKER = os.environ.get("NIELS_CACHE_BROKER", "redis://127.0.0.1:6379/0")
VISIBILITY_SECONDS = int(os.environ.get("NIELS_CACHE_VISIBILITY_SECONDS", str(24 * 3600)))  # longer than the longest part

CONFIG = {
    "task_default_queue": "dagster",
    "task_acks_late": True,  # a task leaves the queue when it has ended, and not when it begins
    "task_reject_on_worker_lost": True,  # a task whose process was killed goes back to the queue
    "worker_prefetch_multiplier": 1,  # a worker takes one task at a time, so that others get the rest
    # With a throttle of 1, a worker looks for such tasks every 10 s. By default, it looks every 100 s.
    "broker_transport_options": {"visibility_timeout": VISIBILITY_SECONDS, "unacked_restore_throttle": 1},
    "result_backend_transport_options": {"visibility_timeout": VISIBILITY_SECONDS},
}
