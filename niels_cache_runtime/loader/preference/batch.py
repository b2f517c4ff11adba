"""Batches of preference pairs: a batch of the chosen sides, and a batch of the rejected sides of the same pairs.

Each side costs what a batch of SFT rows costs. `rows` decides which pairs are in a row.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

import torch

from niels_cache_runtime.cache.checks import check_choice, check_positive
from niels_cache_runtime.errors import NielsCacheError
from niels_cache_runtime.format.layout import IGNORE_INDEX, SIDES, has_target_weights
from niels_cache_runtime.loader.batch import Batch, BatchMaker, TensorFields
from niels_cache_runtime.loader.preference.rows import side_of
from niels_cache_runtime.loader.run_order import SampleLocations
from niels_cache_runtime.loader.settings import WEIGHT_SETTINGS, LoaderSettings
from niels_cache_runtime.loader.source import NamedSources, SampleSource
from niels_cache_runtime.loader.target_weights import TargetWeights

Padding = Literal["max_length", "longest"]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PreferenceBatch(TensorFields):
    """B rows of the chosen sides of pairs, and B rows of their rejected sides.

    Row r of both sides holds the same pairs in the same order: document k of the row (`document_ids` == k) is one pair. Targets (`y_masked`
    is not -100) are the words of the assistant after the prompt.

    Attributes:
        chosen: A Batch of the chosen sides, with B rows of T tokens.
        rejected: A Batch of the rejected sides, with B rows of T tokens.
    """

    chosen: Batch
    rejected: Batch

    @property
    def chosen_mask(self) -> torch.Tensor:
        """Which of `chosen.y` are targets, (B, T) bool."""
        return _mask(self.chosen)

    @property
    def rejected_mask(self) -> torch.Tensor:
        """Which of `rejected.y` are targets, (B, T) bool."""
        return _mask(self.rejected)

    @property
    def pairs(self) -> torch.Tensor:
        """The number of pairs in each row, (B,) int64."""
        assert self.chosen.document_ids is not None
        return torch.where(self.chosen_mask, self.chosen.document_ids.long() + 1, 0).amax(dim=1)  # every pair has a target

    def padded_inputs(self, *, padding: Padding = "max_length", pad_to_multiple_of: int | None = None) -> dict[str, torch.Tensor]:
        """Return the batch as trl's DPOTrainer takes it, for rows of one pair each (`packing=False`, or PreferenceDataset).

        Args:
            padding: "max_length" gives a length of T + 1. "longest" gives the length of the longest side of the batch, as trl's collator
                does. So the length differs between batches, which makes torch.compile compile again and prevents CUDA graphs.
            pad_to_multiple_of: With "longest", the length is rounded up to a multiple of this number. T + 1 must be a multiple of it. None
                means 1.

        Returns:
            `input_ids`, `attention_mask` and `completion_mask`, each (2 * B, length) int64: B rows of chosen sides, then B rows of rejected
            sides. The completion mask is 1 at targets. The attention mask is 0 at padding, and at a last token that is no target, because
            nothing follows it.

        Raises:
            NielsCacheError: For rows with several pairs, because trl takes one pair a row, and for an invalid setting.
        """
        check_choice("padding", padding, get_args(Padding))
        width = self.chosen.x.shape[1] + 1
        if pad_to_multiple_of is not None and width % check_positive("pad_to_multiple_of", pad_to_multiple_of):
            raise NielsCacheError(
                f"pad_to_multiple_of={pad_to_multiple_of}: T + 1 is {width}, which is no multiple of it; "
                f"use T={-(-width // pad_to_multiple_of) * pad_to_multiple_of - 1}"
            )
        if int(self.pairs.amax(dim=0) if len(self.pairs) else 0) > 1:
            raise NielsCacheError("padded_inputs: a row holds several pairs; give the loader SFT(packing=False)")
        ids, attention, completion = [], [], []
        for side, mask in ((self.chosen, self.chosen_mask), (self.rejected, self.rejected_mask)):
            assert side.document_ids is not None
            ids.append(torch.cat([side.x[:, :1], side.y], dim=1))
            is_token = side.document_ids == 0  # padding is a document of its own
            attention.append(torch.cat([is_token, is_token[:, -1:] & mask[:, -1:]], dim=1))  # the last y may be padding
            completion.append(torch.cat([torch.zeros_like(mask[:, :1]), mask], dim=1))
        if padding == "longest" and ids[0].numel():
            multiple = pad_to_multiple_of or 1
            width = -(-int(torch.cat(attention).sum(dim=1).amax()) // multiple) * multiple
        return {
            "input_ids": torch.cat(ids)[:, :width].contiguous(),
            "attention_mask": torch.cat(attention)[:, :width].long(),
            "completion_mask": torch.cat(completion)[:, :width].long(),
        }


class PreferenceMaker:
    """A maker of preference batches from sources that are all PackedPairs.

    Args:
        sources: The sources.
        **settings: The other arguments of BatchMaker.
    """

    def __init__(self, sources: Sequence[SampleSource], **settings: Any) -> None:
        self._chosen, self._rejected = (BatchMaker([side_of(source, side) for source in sources], **settings) for side in SIDES)

    def check_boundaries(self) -> None:
        """Do nothing: pairs always have boundaries. See BatchMaker."""

    def make(self, located: SampleLocations) -> PreferenceBatch:
        """Return a batch of the samples at `located` (n,): one row for each sample, in the same order."""
        return PreferenceBatch(chosen=self._chosen.make(located), rejected=self._rejected.make(located))


def make_maker(sources: NamedSources, settings: LoaderSettings, device: torch.device) -> BatchMaker:
    """Return the maker of the batches of a loader. For preference pairs, it is a PreferenceMaker, which has the same methods."""
    cls = cast(type[BatchMaker], PreferenceMaker) if settings.pairs else BatchMaker
    weights = None
    if settings.weighs:
        if settings.pairs:
            raise NielsCacheError(
                "preference pairs: take no weights of targets; leave out loss_weights, goldfish, mask_repetitive and weights"
            )
        weights = TargetWeights(sources, **{name: getattr(settings, name) for name in WEIGHT_SETTINGS})
    if "weights" not in settings.fields and (weighted := [name for name, source in sources.items() if has_target_weights(source.meta)]):
        warnings.warn(f'{weighted[0]}: messages have weights, and only batches with fields=["weights"] have them', stacklevel=3)
    masks = settings.mask_cross_document_targets
    of_batches: dict[str, Any] = {"fields": settings.fields, "mask_cross_document_targets": masks, "weights": weights}
    of_batches |= {"max_documents": settings.max_documents, "cp": (settings.cp_rank, settings.cp_size)}
    return cls([*sources.values()], T=settings.T, device=device, **of_batches)


def _mask(batch: Batch) -> torch.Tensor:
    assert batch.y_masked is not None
    return batch.y_masked != IGNORE_INDEX
