"""Names and folders of a data set in parts, below `ROOT/pretrain/.parts/NAME/`."""

from pathlib import Path

from niels_cache_runtime.format.layout import parts_root

PLAN_NAME = "plan.json"
VAL_BITS = "val-*.npy"  # the files of a plan that say which documents go to val (`sources/val_share.py`)
PLAN_STAGED = "plan"  # the name for the lease and the staging directory of the plan; no file has it
VAL_NAME = "val"
PART_KINDS = ("plan", "val_part", "part")  # kinds of artifacts that only data sets in parts have
CHILD_BUILT_KINDS = ("part", "corpus_part", "range")  # kinds of which several are built at a time, each in a separate process


def parts_dir(root: str | Path, name: str) -> Path:
    """Return the folder with the plan and the parts of a data set."""
    return parts_root(root) / name


def number_in(name: str) -> int:
    """Return the number in the name of a part or a range, such as part-00017."""
    return int(name.rpartition("-")[2])


def part_name(number: int) -> str:
    """Return the name of a part, which is the name of its folder and of its lineage in the sealed cache."""
    return f"part-{number:05d}"
