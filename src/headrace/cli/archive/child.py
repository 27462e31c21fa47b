"""`python -m headrace.cli.archive.child`: archives as the first line of its input says, until its input ends."""

import os
import signal
import sys
import threading
from typing import BinaryIO

from headrace.cli.archive.messages import (
    Batch,
    Ended,
    Failed,
    Note,
    SparkReady,
    Stand,
    Told,
    line,
    wanted,
)
from headrace.client.errors import SparkError, UnknownTopic
from headrace.spark.archive import Archive, ArchiveSettings, start
from headrace.spark.archive.job import SparkGone

_LOOK_S = 1.0
_PERMANENT = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NotImplementedError,
    TypeError,
    ValueError,
)
"""What another process would meet as well."""


class Teller:
    """Sends messages from several threads; nothing else of this process gets between them."""

    def __init__(self) -> None:
        # The JVM and whatever else prints does so to standard error from now on.
        self._to: BinaryIO = os.fdopen(os.dup(1), "wb", buffering=0)
        os.dup2(2, 1)
        self._lock = threading.Lock()

    def __call__(self, message: Told) -> None:
        """Send. Whoever watched may be gone: then nobody is told."""
        try:
            with self._lock:
                self._to.write(line(message))
        except OSError:
            return


def main() -> None:
    """Archive."""
    # Ctrl-C is for the process that watches, which closes our input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    tell = Teller()
    # Unbuffered: a thread that waits for the end must not hold a lock that Python wants when it ends.
    asked = wanted(os.fdopen(0, "rb", buffering=0, closefd=False).readline())
    settings = ArchiveSettings(**asked.settings)  # type: ignore[arg-type]
    try:
        archive = start(
            settings,
            once=asked.once,
            on_progress=lambda progress: tell(Batch(progress)),
            on_note=lambda text: tell(Note(text)),
            tells=False,
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
    except Exception as error:  # a bug, which another process has as well, or Spark's bridge
        passing = not isinstance(error, _PERMANENT)
        tell(Failed(f"{type(error).__name__}: {' '.join(str(error).split())[:500]}", passing=passing))
        raise


def _drain_at_end(archive: Archive) -> None:
    while os.read(0, 4096):
        pass
    archive.drain()


def _stand(archive: Archive, tell: Teller) -> None:
    try:
        tell(Stand(archive.standing()))
    except SparkError:
        return  # the storage is away: whoever archives says so


if __name__ == "__main__":
    main()
