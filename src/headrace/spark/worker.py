"""Settings applied once in each of Spark's Python workers."""

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
    """Freeze loaded objects at the second task, so that later garbage collections skip them.

    Call it at the start of each task. Spark's collection after each one takes 25 to 50 ms of a core, more than the
    other Python work of a small micro-batch. Does nothing outside Spark's workers.
    """
    if TaskContext.get() is not None and next(_tasks) == _SECOND:
        gc.freeze()


def leave() -> None:
    """Suppress errors at the end of a reader process, which Spark kills after it has closed the connection.

    On a busy machine the process may first find the end of its input and print a traceback.
    """
    if isinstance(sys.exception(), EOFError):
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115  # until the process ends
