"""An archiver to be killed: reports each step, waits there, and continues on request.

Run by test_archive_crashes. Arguments: JSON of the settings, step, in which batch (0: never stop).
"""

import json
import sys

from headrace.spark.archive import ArchiveSettings, run


class Stop:
    """Stops the process at one step of one batch, until a line comes."""

    def __init__(self, step: str, batch: int) -> None:
        self._step = step
        self._batch = batch
        self._batches = 0

    def __call__(self, step: str) -> None:
        self._batches += step == "started"
        if step == self._step and self._batches == self._batch:
            self._batch = 0
            print(step, flush=True)
            sys.stdin.readline()


def main() -> None:
    settings, step, batch = sys.argv[1:]
    run(ArchiveSettings(**json.loads(settings)), once=True, step=Stop(step, int(batch)))


if __name__ == "__main__":
    main()
