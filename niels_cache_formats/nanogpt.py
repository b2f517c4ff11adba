"""The files of nanoGPT: train.bin and val.bin, the cache's tokens without a header, with EOT after each document.

nanoGPT's data/openwebtext/prepare.py writes files of the same form, with uint16 tokens. To read uint32 tokens, one line of nanoGPT must be
changed.
"""

from niels_cache_assets.exchange.formats import ExportFormat
from niels_cache_assets.exchange.replacing import ExportTarget
from niels_cache_assets.exchange.splits import ExportSplit
from niels_cache_assets.exchange.writing import Unit, make_unit, tokens_file
from niels_cache_runtime.format.layout import TOKEN_DTYPE, Split

DEFAULT_VOCAB_SIZE = 50_304  # train.py uses this size if there is no meta.pkl


def units(split: ExportSplit, *_: object) -> list[Unit]:
    """Return one file for the split."""
    return [make_unit(tokens_file(split, file_name(split.split), 0, split.tokens, documents=len(split.doc_ends)))]


def file_name(split: Split) -> str:
    """Return the name of a split's file."""
    return f"{split}.bin"


def vocabulary_note(split: ExportSplit) -> str:
    """Return a note on the vocabulary size in train.py."""
    known = "is unknown" if split.vocab_size is None else f"has {split.vocab_size:,} ids"
    return f"train.py takes a vocabulary of {DEFAULT_VOCAB_SIZE:,} ids without a meta.pkl; the vocabulary of this cache {known}"


def lines(split: ExportSplit) -> list[str]:
    """Return lines for train.py, which has no options for these values.

    One line sets the vocabulary size that applies without a meta.pkl. If tokens are not uint16, another line reads them.
    """
    found = []
    if split.vocab_size is not None:
        found.append(f"meta_vocab_size = {split.vocab_size}  # in train.py, in place of: meta_vocab_size = None")
    if split.dtype != TOKEN_DTYPE:
        read = f"np.memmap(os.path.join(data_dir, f'{{split}}.bin'), dtype=np.{split.dtype.name}, mode='r')"
        found.append(f"data = {read}  # in get_batch of train.py, in place of both np.memmap, which read np.uint16")
    return found


FORMAT = ExportFormat(
    units=units,
    target=lambda name, split, settings: ExportTarget(names=(file_name(split),)),
    label=lambda name, settings: (settings.out, "nanogpt"),  # nanoGPT's files have the same names for each data set
    notes_and_lines=lambda splits, settings: ([vocabulary_note(splits[0])], lines(splits[0])),
)
