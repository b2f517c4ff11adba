"""The documented import path of `niels_cache_runtime.loader.trace` and `document_steps`, which have the code."""

from niels_cache_runtime.loader.document_steps import DocumentRead, DocumentReads, DocumentSteps  # noqa: F401
from niels_cache_runtime.loader.trace import *  # noqa: F403
