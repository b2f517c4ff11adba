"""Preparation of the next items on a thread, while the current item is in use.

numpy releases the interpreter's lock while it gathers and widens tokens, so the thread costs the training loop little. There is one thread,
so the order is kept. Closing or dropping the iterator stops the thread.
"""

import queue
import threading
from collections.abc import Iterator
from typing import Any, TypeVar

import torch

from niels_cache_runtime.loader.batch import Batch

_Item = TypeVar("_Item")
_POLL_SECONDS = 0.1  # the thread waits this long for room in the queue, then checks whether its iterator was dropped


def prefetched(items: Iterator[_Item], *, ahead: int) -> Iterator[_Item]:
    """Yield `items`, each prepared up to `ahead` items early.

    If `items` raises an exception, the exception is raised where the next item would come.
    """
    ready: queue.Queue[tuple[bool, Any]] = queue.Queue(maxsize=ahead)
    stop = threading.Event()
    thread = threading.Thread(target=_prepare, args=(items, ready, stop), name="niels-cache-prefetch", daemon=True)
    thread.start()
    try:
        while True:
            more, item = ready.get()
            if not more:
                if item is not None:
                    raise item
                return
            yield item
            del item  # otherwise the memory of the item could not be reused for the batch after next
    finally:
        stop.set()
        if thread is not threading.current_thread():  # they are equal if the garbage collector closes this generator on the thread
            thread.join()


def prefetched_batches(batches: Iterator[Batch], *, device: torch.device, ahead: int) -> Iterator[Batch]:
    """Yield `batches`, each prepared up to `ahead` batches early.

    On CUDA the copies run on a separate stream, and the training stream waits only for the batch that it takes.
    """
    if device.type != "cuda":
        yield from prefetched(batches, ahead=ahead)
        return
    side_stream = torch.cuda.Stream(device)

    def on_side_stream() -> Iterator[tuple[Batch, torch.cuda.Event]]:
        with torch.cuda.stream(side_stream):
            for batch in batches:
                yield batch, side_stream.record_event()

    for batch, ready in prefetched(on_side_stream(), ahead=ahead):
        stream = torch.cuda.current_stream(device)
        stream.wait_event(ready)
        for tensor in batch.tensors():
            tensor.record_stream(stream)
        yield batch


def _prepare(items: Iterator[Any], ready: "queue.Queue[tuple[bool, Any]]", stop: threading.Event) -> None:
    def put(more: bool, item: Any) -> bool:
        while not stop.is_set():
            try:
                ready.put((more, item), timeout=_POLL_SECONDS)
            except queue.Full:
                continue
            return True
        return False

    try:
        for item in items:
            if not put(True, item):
                return
            del item
    except BaseException as error:  # `prefetched` raises it again in the thread that reads
        put(False, error)
    else:
        put(False, None)
    finally:  # on this thread, because `items` entered its CUDA stream here
        close = getattr(items, "close", None)
        if close is not None:
            close()
