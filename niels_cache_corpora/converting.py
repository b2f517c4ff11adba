"""What sources share whose documents are converted after they are read, in the workers of a corpus or here."""

from collections.abc import Iterator

from niels_cache_assets.base.documents import Document
from niels_cache_assets.sources.types import PretrainSource, StreamContext


def converted(source: PretrainSource, context: StreamContext) -> Iterator[list[Document]]:
    """Yield the documents of a source as `convert` returns them, in this process. What it drops is counted in `context.report`."""
    for batch in source.unconverted(context):
        documents, dropped, _ = source.convert([*batch])
        context.report.join(dropped)
        if documents:
            yield documents
