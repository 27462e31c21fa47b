"""`python -m headrace.server.child MODULE ...`: run a module as `python -m MODULE ...`, ended when its starter ends.

Without it a command that is killed would leave behind what it has started: a server, readers, Spark. Only Linux can ask
for that.
"""

import contextlib
import ctypes
import os
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Have SIGTERM sent to this process when the thread that started it ends; exit when it has ended already."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(1)


def main() -> None:
    """Read the parent's process id and the module from the command line, and become the module."""
    parent, module = sys.argv[1:3]
    end_with(int(parent))
    sys.argv = [module, *sys.argv[3:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
