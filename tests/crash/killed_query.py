"""Queries that copy topics, stop at given steps, and lose a part of themselves, or their server, there.

Several of them run in one session, each with topics, a folder and steps of its own: Spark starts once for all.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.harness.committed import committed
from tests.harness.processes import kill_session, of_session

STEPS = ("write", "written", "commit", "committed")
ONCE_STEPS = (
    "write", "sending", "written", "commit", "stored", "decided", "some", "all", "completing", "committed",
)  # fmt: skip
"""Of `once`; see `killed_writer`."""
VICTIMS = ("everything", "jvm", "python")
"""Of the queries: their session, its JVM, and the Python process that is at work."""
_PROGRAM = Path(__file__).with_name("killed_writer.py")


@dataclass(frozen=True)
class Copy:
    """A query from a topic of two partitions to another one, or to a table; and what it has written."""

    kafka: str
    topic: str
    folder: Path

    def create(self) -> None:
        """Create both topics, and the folder if it is missing."""
        self.folder.mkdir(exist_ok=True)
        admin = AdminClient({"bootstrap.servers": self.kafka})
        for future in admin.create_topics([NewTopic(self.topic, 2), NewTopic(f"{self.topic}-out", 2)]).values():
            future.result(60)

    def fill(self, first: int, count: int) -> None:
        """Append rows, which are numbers, from `first` on."""
        producer = Producer({"bootstrap.servers": self.kafka})
        for number in range(first, first + count):
            producer.produce(self.topic, str(number), partition=number % 2)
        assert producer.flush(60) == 0

    def committed(self) -> Counter[int]:
        """The rows that readers of committed records see."""
        found = committed(self.kafka, f"{self.topic}-out")
        return Counter({int(value): count for value, count in found.items()})

    def arm(self, step: str | None) -> None:
        """Let the next process that comes to a step stop there, and none at another one."""
        for stale in (*self.folder.glob("arm *"), *self.folder.glob("reached")):
            stale.unlink()
        if step is not None:
            (self.folder / f"arm {step}").touch()

    def reached(self) -> int | None:
        """The process that has stopped; None: none has."""
        told = self.folder / "reached"
        return int(told.read_text()) if told.exists() else None

    def failure(self) -> str:
        """Why the query has ended; empty: it has copied what there was, or was killed."""
        ended = self.folder / "ended"
        return ended.read_text() if ended.exists() else ""


@dataclass(frozen=True)
class Run:
    """How a session ended."""

    status: int
    """0: all queries have copied what there was."""
    reached: list[set[str]]
    """For each kill, the topics of the queries that were at its steps."""


@dataclass(frozen=True)
class Session:
    """A program that runs queries, and those who kill it."""

    copies: Sequence[Copy]
    folder: Path
    kind: str
    """`topic`, `once` or `delta`."""
    others: Mapping[str, Callable[[], None]]
    """What happens to victims that are no part of the session. The queries go on afterwards."""
    options: Mapping[str, str]
    """Further options of the sink."""

    def run(self, kills: Sequence[tuple[Mapping[str, str], str]] = ()) -> Run:
        """Start the queries, and take a victim when each is at its step; again for the next kill, and wait for the end.

        A kill is the step of each topic's query, and the victim. A query that ends before its step is left out.
        """
        self._arm(kills[0][0] if kills else {})
        for copy in self.copies:
            (copy.folder / "ended").unlink(missing_ok=True)
        copies = {copy.topic: str(copy.folder) for copy in self.copies}
        given = {"kafka": self.copies[0].kafka, "kind": self.kind, "copies": copies, "options": dict(self.options)}
        environment = os.environ | {"TMPDIR": str(self.folder)}
        reached: list[set[str]] = []
        with (
            (self.folder / "log").open("ab") as log,
            subprocess.Popen(
                [sys.executable, str(_PROGRAM), json.dumps(given)],
                stdout=log, stderr=log, start_new_session=True, env=environment,
            ) as process,
        ):  # fmt: skip
            try:
                for number, (steps, victim) in enumerate(kills):
                    stopped = self._stopped(steps, process)
                    reached.append({copy.topic for copy in stopped})
                    # Before the queries go on: they may be there in no time.
                    follows = victim not in {"everything", "jvm"} and number + 1 < len(kills)
                    self._arm(kills[number + 1][0] if follows else {})
                    if stopped:
                        self._kill(process.pid, victim, stopped)
                return Run(process.wait(), reached)
            finally:
                kill_session(process.pid)

    def run_out(self) -> None:
        """Run until each query has copied what there was. Raises AssertionError with what a query has said."""
        while self.run().status != 0:
            assert self.only_slow(), self.log()[-4000:]

    def only_slow(self) -> bool:
        """Whether a query has failed, and no one for another reason than a busy machine.

        Spark gives a Python process ten seconds to start.
        """
        failures = [found for copy in self.copies if (found := copy.failure())]
        return bool(failures) and all("failed to connect back" in found for found in failures)

    def log(self) -> str:
        """What the queries have said."""
        return (self.folder / "log").read_text()

    def _arm(self, steps: Mapping[str, str]) -> None:
        for copy in self.copies:
            copy.arm(steps.get(copy.topic))

    def _stopped(self, steps: Mapping[str, str], process: "subprocess.Popen[bytes]") -> dict[Copy, int]:
        """Wait until each query is at its step, or has ended; the processes of those at their steps."""
        while True:
            found = {copy: at_work for copy in self.copies if (at_work := copy.reached()) is not None}
            left = [copy for copy in self.copies if copy.topic in steps and copy not in found]
            if all((copy.folder / "ended").exists() for copy in left):
                return found
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.2)
                return {}

    def _kill(self, leader: int, victim: str, stopped: Mapping[Copy, int]) -> None:
        if victim in self.others:
            self.others[victim]()
            for copy, at_work in stopped.items():
                (copy.folder / f"go {at_work}").touch()
        elif victim == "everything":
            kill_session(leader)
        elif victim == "python":
            for at_work in stopped.values():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(at_work, signal.SIGKILL)
        else:
            for number, line in of_session(leader):
                # What it is just starting has its command line for a moment.
                if "org.apache.spark.deploy.SparkSubmit" in line:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(number, signal.SIGKILL)


def doubled(found: Counter[int]) -> list[int]:
    """The rows that are there more than once."""
    return [row for row, count in found.items() if count > 1]
