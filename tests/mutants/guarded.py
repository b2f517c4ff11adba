"""The program `python guarded.py COMMAND...`. It runs a command. When the command ends in any way, or the parent of this program ends, it
ends all processes that the command started. The exit code is that of the command, or 128 after SIGTERM.

A broken line may take memory or write without end, so both have limits. Mounts disappear with the last process.
"""

import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

_SET_PARENT_DEATH_SIGNAL, _SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
_NEW_MOUNTS, _PRIVATE_MOUNTS = 0x20000, 0x4000 | 0x40000  # unshare(2), mount(2)
_MOST_MEMORY = 8 * 2**30  # of a process
_LARGEST_FILE = 4 * 2**30


def main(command: list[str]) -> int:
    libc = ctypes.CDLL(None)
    libc.prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
    libc.prctl(_SET_CHILD_SUBREAPER, 1)  # orphans become children of this process
    if libc.unshare(_NEW_MOUNTS) == 0:  # only root may
        libc.mount(None, b"/", None, _PRIVATE_MOUNTS, None)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128))
    for limit, most in ((resource.RLIMIT_DATA, _MOST_MEMORY), (resource.RLIMIT_FSIZE, _LARGEST_FILE)):
        resource.setrlimit(limit, (most, most))
    try:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True).wait()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        while children := Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="utf-8").split():
            for process in children:  # the children of each then become children of this process
                with suppress(ProcessLookupError):
                    os.kill(int(process), signal.SIGKILL)
            with suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            time.sleep(0.02)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
