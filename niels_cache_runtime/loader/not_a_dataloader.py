"""The parts of a torch DataLoader that a TokenLoader refuses to play, with advice for users of Accelerate."""

from typing import NoReturn

from niels_cache_runtime.errors import NielsCacheError


class _NoDataLoaderError(NielsCacheError, AttributeError):
    """An AttributeError, so that `hasattr(loader, "dataset")` returns False."""


class NotADataLoader:
    """The base class of TokenLoader. Its names exist in a DataLoader, and raise an error here."""

    @property
    def dataset(self) -> NoReturn:
        """A name that raises AttributeError, because a TokenLoader is not a DataLoader.

        The message has advice for those functions of Accelerate that need a DataLoader.
        """
        raise _NoDataLoaderError(
            "a TokenLoader is not a DataLoader: accelerator.prepare takes the TokenLoader itself, skip_first_batches takes "
            "DataLoader(loader, batch_size=None)"
        )

    def set_epoch(self, epoch: int) -> NoReturn:
        """Raise NielsCacheError: a loader begins its next epoch by itself.

        Accelerate calls this method before the first batch of a DataLoader that Accelerate has prepared. Such a DataLoader would divide the
        batches of process 0 among all processes, or would read ahead of the loader's position.
        """
        raise NielsCacheError(
            "set_epoch: a TokenLoader begins its next epoch by itself; if accelerator.prepare was given a DataLoader of it, that would "
            "divide this rank's batches again or read ahead of its position: make the TokenLoader with rank=accelerator.process_index, "
            "world_size=accelerator.num_processes, device=accelerator.device and pass it to prepare itself"
        )
