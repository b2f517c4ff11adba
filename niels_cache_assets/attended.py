"""`python -m niels_cache_assets.attended FD MODULE [ARGUMENT ...]`: run a module until the process that started it is gone.

FD is the end of a pipe for reading, whose other end only that process holds: it closes when the process ends, also by SIGKILL. Then this
process and all that it started are interrupted as by Ctrl-C, and killed if that takes long. For that it must lead a session of its own
(`start_new_session`), which also keeps Ctrl-C in the terminal from it: who started it decides when it ends.
"""

import os
import runpy
import signal
import sys
import threading
import time

GRACE_SECONDS = 5.0


def main() -> None:
    descriptor, module, *arguments = sys.argv[1:]
    assert os.getpgrp() == os.getpid(), "start it in a session of its own: it ends its whole group"

    def watch() -> None:
        os.read(int(descriptor), 1)
        os.killpg(os.getpid(), signal.SIGINT)
        time.sleep(GRACE_SECONDS)
        os.killpg(os.getpid(), signal.SIGKILL)

    signal.signal(signal.SIGINT, signal.default_int_handler)  # who was started in the background of a shell inherits that it is ignored
    threading.Thread(target=watch, name="attended", daemon=True).start()
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except KeyboardInterrupt:  # while it is still loading; its traceback would say nothing
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    main()
