"""`python -m headrace.cli.archive.child`: archive by the first line of input, until its end."""

import logging
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, BinaryIO

from headrace.cli.archive.messages import (
    Batch,
    Ended,
    Failed,
    Note,
    SparkReady,
    Stand,
    Told,
    Wanted,
    line,
    wanted,
)
from headrace.client.errors import SparkError, UnknownTopic
from headrace.text import extras

if TYPE_CHECKING:
    from headrace.spark.archive import Archive

_LOOK_S = 1.0
_PERMANENT = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NotImplementedError,
    TypeError,
    ValueError,
)
"""Errors that another process would also meet."""


class Teller:
    """Sends messages whole, from several threads."""

    def __init__(self) -> None:
        # Other output, such as the JVM's, goes to standard error.
        self._to: BinaryIO = os.fdopen(os.dup(1), "wb", buffering=0)
        os.dup2(2, 1)
        self._lock = threading.Lock()

    def __call__(self, message: Told) -> None:
        """Send a message, ignoring the supervisor's end."""
        try:
            with self._lock:
                self._to.write(line(message))
        except OSError:
            return


def main() -> None:
    """Run the archive."""
    # Ctrl-C is for the supervisor, which closes this process's input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # It logs a traceback of every error of a batch, which the supervisor gets as one line.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    tell = Teller()
    # Unbuffered: a waiting thread must not hold a lock that Python needs at exit.
    asked = wanted(os.fdopen(0, "rb", buffering=0, closefd=False).readline())
    try:
        _archive(asked, tell)
    except ImportError as error:
        tell(Failed(extras.explained("the archive", error), passing=False))
        sys.exit(1)
    except Exception as error:  # a bug, or Spark's bridge
        passing = not isinstance(error, _PERMANENT)
        tell(Failed(f"{type(error).__name__}: {' '.join(str(error).split())[:500]}", passing=passing))
        raise


def _archive(asked: Wanted, tell: Teller) -> None:
    # Not at the top: the supervisor would start a process without one of their modules again and again.
    from headrace.spark.archive import ArchiveSettings, start  # noqa: PLC0415
    from headrace.spark.archive.job import SparkGone  # noqa: PLC0415

    try:
        archive = start(
            ArchiveSettings(**asked.settings),  # type: ignore[arg-type]
            once=asked.once,
            on_progress=lambda progress: tell(Batch(progress)),
            on_note=lambda text: tell(Note(text)),
            reports=False,
        )
        spark = archive.spark
        tell(SparkReady(spark.version, str(spark._jvm.System.getProperty("java.version"))))  # type: ignore[union-attr]
        threading.Thread(target=_drain_at_end, args=(archive,), name="input", daemon=True).start()
        while not archive.wait(_LOOK_S):
            _stand(archive, tell)
        archive.stop()
        tell(Ended())
    except SparkError as error:
        missing = isinstance(error, UnknownTopic)
        tell(Failed(str(error), passing=isinstance(error, SparkGone), missing=missing))
        sys.exit(1)


def _drain_at_end(archive: "Archive") -> None:
    while os.read(0, 4096):
        pass
    archive.drain()


def _stand(archive: "Archive", tell: Teller) -> None:
    try:
        tell(Stand(archive.standing()))
    except SparkError:
        return


if __name__ == "__main__":
    main()
