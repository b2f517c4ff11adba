"""`python -m niels_cache_assets.attended FD MODULE [ARGUMENT ...]`: run a module until the process that started it is gone.

FD is the end of a pipe for reading, whose other end only that process holds: it closes when the process ends, also by SIGKILL, and the
module is then interrupted as by Ctrl-C. Services started like this outlive nobody. They leave the group of the terminal's Ctrl-C, too,
when they are started in a session of their own: who started them decides the order in which they end.
"""

import os
import runpy
import signal
import sys
import threading


def main() -> None:
    descriptor, module, *arguments = sys.argv[1:]

    def watch() -> None:
        os.read(int(descriptor), 1)
        os.kill(os.getpid(), signal.SIGINT)

    signal.signal(signal.SIGINT, signal.default_int_handler)  # who was started in the background of a shell inherits that it is ignored
    threading.Thread(target=watch, name="attended", daemon=True).start()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
