"""What is done once in each of Spark's Python workers."""

import gc
import itertools
import os
import sys
from pathlib import Path
from typing import Final

from pyspark import TaskContext

_tasks: Final = itertools.count(1)
_SECOND: Final = 2


def settle() -> None:
    """To be called at the start of each task: from the second on, collections leave out what the first one loaded.

    Spark collects garbage after each task, which looks at every object of every module: 25 to 50 ms of a core, more
    than all else that a small micro-batch asks of Python. What a worker has at its second task stays as long as it
    does, and Spark has only just collected what does not. Does nothing outside Spark's workers.
    """
    if TaskContext.get() is not None and next(_tasks) == _SECOND:
        gc.freeze()


def leave() -> None:
    """To be called at the end of a reader that Spark asks again and again: says no more where Spark has gone.

    Spark closes the connection to such a process and kills it then. On a busy machine the process comes first: it finds
    the end of its input, cannot tell Spark so, and writes a traceback to the standard error of whoever ran the query,
    behind a query that went well.
    """
    if isinstance(sys.exception(), EOFError):
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115  # until the process ends
