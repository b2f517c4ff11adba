"""The files of nanoGPT: train.bin and val.bin, uint16 without a header, EOT after each document.

nanoGPT's data/openwebtext/prepare.py writes files of the same form.
"""

from niels_cache_assets.exchange.splits import ExportSplit
from niels_cache_assets.exchange.writing import PlannedFile, Unit, unit_of
from niels_cache_runtime.format.layout import TOKEN_BYTES, Split

DEFAULT_VOCAB_SIZE = 50_304  # train.py uses this size if there is no meta.pkl


def units(split: ExportSplit) -> list[Unit]:
    """Return one file for the split."""
    planned = PlannedFile(name=file_name(split.split), bytes=split.tokens * TOKEN_BYTES, tokens=split.tokens, documents=len(split.doc_ends))
    return [unit_of((planned, lambda: split.blocks(0, split.tokens)))]


def file_name(split: Split) -> str:
    return f"{split}.bin"


def vocabulary_note(vocab_size: int | None) -> str:
    known = "is unknown" if vocab_size is None else f"has {vocab_size:,} ids"
    return f"train.py takes a vocabulary of {DEFAULT_VOCAB_SIZE:,} ids without a meta.pkl; the vocabulary of this cache {known}"


def lines(vocab_size: int | None) -> list[str]:
    """Return the line of train.py that sets the vocabulary if there is no meta.pkl. train.py has no option for this."""
    return [] if vocab_size is None else [f"meta_vocab_size = {vocab_size}  # in train.py, in place of: meta_vocab_size = None"]
