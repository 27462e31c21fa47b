"""An archiver to be killed: says which step it has reached and waits there. Run by test_archive_job.

Arguments: storage URL, topics with commas between, folder, step, in which batch.
"""

import sys
import time
from pathlib import Path

from headrace.spark.archive import ArchiveSettings, run


class Stop:
    """Stops the process for good at one step of one batch."""

    def __init__(self, step: str, batch: int) -> None:
        self._step = step
        self._batch = batch
        self._batches = 0

    def __call__(self, step: str) -> None:
        self._batches += step == "started"
        if step == self._step and self._batches == self._batch:
            print(step, flush=True)
            while True:
                time.sleep(3600)


def main() -> None:
    redis, topic, folder, step, batch = sys.argv[1:]
    settings = ArchiveSettings(
        topics=tuple(topic.split(",")),
        table=str(Path(folder) / "{topic}"),
        redis=redis,
        checkpoint=str(Path(folder) / "checkpoint"),
        max_rows=30,
    )
    run(settings, once=True, step=Stop(step, int(batch)))


if __name__ == "__main__":
    main()
