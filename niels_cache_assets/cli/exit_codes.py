"""What the command line's exit codes mean: one table, for the code, the help and the documentation. They do not change."""

from __future__ import annotations

DONE = 0
FAILED = 1
WRONG_USE = 2
BUG = 70  # EX_SOFTWARE of sysexits.h
INTERRUPTED = 130  # 128 + SIGINT
BROKEN_PIPE = 141  # 128 + SIGPIPE, what a shell reports for `niels-cache list | head -1`
TERMINATED = 143  # 128 + SIGTERM

MEANINGS = {
    DONE: "done, and all is well",
    FAILED: "a data set failed, a disk or database refused, `verify` found something, `status` something incomplete, `doctor` something "
    "to mend",
    WRONG_USE: "wrong use or configuration, or what a command needs is not there; nothing was changed",
    BUG: "a bug of niels-cache: a traceback says where",
    INTERRUPTED: "interrupted by Ctrl-C; finished caches are as they were",
    BROKEN_PIPE: "the reader of the output left early, such as `head`",
    TERMINATED: "terminated (SIGTERM); finished caches are as they were",
}
