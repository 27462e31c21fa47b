"""What is done once in each of Spark's Python workers."""

import gc
import itertools
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
