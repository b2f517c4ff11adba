"""The exit codes of the command line, which do not change. The code, the help and the documentation share this table."""

DONE = 0
FAILED = 1
WRONG_USE = 2
BUG = 70  # EX_SOFTWARE of sysexits.h
BUSY = 75  # EX_TEMPFAIL of sysexits.h
INTERRUPTED = 130  # 128 + SIGINT
BROKEN_PIPE = 141  # 128 + SIGPIPE, as a shell reports for `niels-cache status | head -1`
TERMINATED = 143  # 128 + SIGTERM

MEANINGS = {
    DONE: "success",
    FAILED: "a data set failed; a disk, database or object store operation failed; `verify`, `doctor` or `diff` found a problem or "
    "difference; or `status` lists something incomplete",
    WRONG_USE: "wrong usage, invalid configuration or a missing input; nothing was changed",
    BUG: "a bug in niels-cache; the traceback shows its location",
    BUSY: "another process is building this part (only with `part --no-wait`); try again later",
    INTERRUPTED: "interrupted by Ctrl-C; finished caches are unchanged",
    BROKEN_PIPE: "the program that reads the output, such as `head`, exited early",
    TERMINATED: "terminated by SIGTERM; finished caches are unchanged",
}
