"""`python -m headrace.server.child MODULE ...`: run a module that ends when its parent process ends.

Otherwise a killed command would leave its server, consumers and Spark running. Linux only.
"""

import contextlib
import ctypes
import os
import runpy
import signal
import sys

_PR_SET_PDEATHSIG = 1


def end_with(parent: int) -> None:
    """Send SIGTERM to this process when the parent thread ends, or exit if it has."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        sys.exit(1)


def main() -> None:
    """Run a module; arguments are the parent's process id and the module."""
    parent, module = sys.argv[1:3]
    end_with(int(parent))
    sys.argv = [module, *sys.argv[3:]]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
