"""Run the demo. One thread handles the events of children, sender and watch in order."""

import contextlib
import queue
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

import msgspec
from confluent_kafka import KafkaException
from rich.console import Console

from headrace.demo import cancellations, flights, messages, report
from headrace.demo.board import Board, Member
from headrace.demo.flights import WHOLE, Figures
from headrace.demo.processes import Child, DirectoryRefused, Heard, end, prepare_directory
from headrace.demo.report import Coverage
from headrace.demo.sender import Sender
from headrace.demo.servers import Servers, ServersFailed
from headrace.demo.watch import Seen, Watch

TOPIC = "flights"
PARTITIONS = 6
READERS = "flights-readers"
ARCHIVE = "flights-archive"
_FIRST_READERS = 3
_NOTICED_S = 5.0
_STALLED_S = 180.0


class DemoFailed(Exception):
    """The message has the reason and where to look."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the demo."""

    leave: bool
    """Exit when done, without waiting for Ctrl-C."""
    data: Path
    kafka: str | None
    """HOST:PORT; None: the default or a free port."""
    http: str | None
    rate: int
    """Flights per second; 0: unlimited."""
    flights: int | None
    """Number of flights; None: all."""
    cluster: bool = False
    """Three brokers over a Redis Cluster, one of which is killed."""


def run(options: Options, console: Console) -> int:
    """Run the demo and return the exit status: 0 if every figure agrees.

    Raises DemoFailed; KeyboardInterrupt for Ctrl-C, SIGTERM or SIGHUP, when every process has ended.
    """
    with _signals_interrupt() as interrupts:
        demo = Demo(options, console, interrupts)
        try:
            return demo.run()
        except (flights.FlightsMissing, DirectoryRefused, ServersFailed) as error:
            raise DemoFailed(str(error)) from None
        except (KafkaException, TimeoutError) as error:
            raise DemoFailed(f"the server did not answer: {error} (its log: {demo.server_log})") from None
        finally:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # protects the cleanup
                signal.signal(number, signal.SIG_IGN)
            demo.close()


class Demo:
    """One run."""

    def __init__(self, options: Options, console: Console, interrupts: Sequence[int]) -> None:
        self._options = options
        self._interrupts = interrupts
        self._console = console
        self._board = Board(console)
        self._inbox: queue.SimpleQueue[tuple[Child | None, Heard | Seen]] = queue.SimpleQueue()
        self._moved = time.monotonic()
        self._servers = Servers(options.data, self._hear, self._board.say)
        self._spark: Child | None = None
        self._readers: dict[str, Child] = {}
        self._leaving: set[Child] = set()
        """Killed or stopped by the demo."""
        self._queried: messages.Queried | None = None
        self._sender: Sender | None = None
        self._watch: Watch | None = None
        self._coverage = Coverage()
        self._seen: Seen | None = None
        self._package: Figures = {}

    def run(self) -> int:
        """Return the exit status."""
        began = time.monotonic()
        with self._board:
            ready = self._start()
            self._stream(ready)
            outcome = self._look_back(ready)
        checks = report.check(outcome)
        report.show(self._console, outcome, checks)
        agreed = all(check.holds for check in checks)
        verdict = "Every figure agreed." if agreed else "NOT EVERY FIGURE AGREED."
        self._console.print(
            f"\n{verdict} {time.monotonic() - began:.0f} seconds.", style="bold" if agreed else "bold red"
        )
        if not self._options.leave:
            self._stay(ready)
        return 0 if agreed else 1

    def log(self, name: str) -> Path:
        """Return a process's log file."""
        return self._options.data / f"{name}.log"

    @property
    def server_log(self) -> Path:
        """Log of the server or first broker."""
        return self.log("broker-1" if self._options.cluster else "server")

    def close(self) -> None:
        """End every process, clients before the server."""
        self._board.close()
        clients = [child for child in (*self._readers.values(), self._spark) if child is not None]
        self._leaving.update(clients)
        if self._sender is not None:
            self._sender.stop()
        if self._watch is not None:
            self._watch.stop()
        end(clients)
        self._leaving.update(self._servers.all)
        self._servers.close()

    # Start

    def _start(self) -> messages.Ready:
        options, board = self._options, self._board
        file = flights.package_file()
        prepare_directory(options.data)
        self._spark = self._child("spark", "headrace.demo.lakehouse")
        board.say(f"server and Spark are starting; data, table and logs in {options.data}")
        start = self._servers.start_cluster if options.cluster else self._servers.start_one
        start(options.kafka, options.http)
        self._until(lambda: self._servers.ready is not None, "the server to be ready")
        ready = self._servers.ready
        assert ready is not None
        board.say(f"server ready  kafka={ready.kafka} http={ready.http} storage={ready.storage}", "green")
        self._watch = Watch(ready.kafka, TOPIC, PARTITIONS, (READERS, ARCHIVE))
        self._watch.create_topics(cancellations.TOPIC)
        self._spark.ask(
            messages.Archive(
                TOPIC, str(self._table), str(self._named), cancellations.TOPIC, ready.storage, ready.kafka, ARCHIVE
            )
        )
        board.say(f"topic {TOPIC} with {PARTITIONS} partitions")
        board.say(f"console {ready.http}", "bold green")
        self._package = flights.figures(file, options.flights)
        whole = self._package[WHOLE]
        board.say(
            f"{whole.flights:,} flights in the package, {whole.flights - whole.departed:,} of them cancelled: "
            "no departure delay, left out of the mean"
        )
        self._sender = Sender(ready.kafka, TOPIC, file, rate=options.rate, limit=options.flights)
        return ready

    def _child(self, name: str, module: str, *arguments: str) -> Child:
        return Child(name, module, arguments, self._hear, self.log(name))

    @property
    def _table(self) -> Path:
        return self._options.data.absolute() / "flights-table"

    @property
    def _named(self) -> Path:
        return self._options.data.absolute() / "flights-with-airlines"

    # Stream

    def _stream(self, ready: messages.Ready) -> None:
        board, total = self._board, self._package[WHOLE].flights
        assert self._watch is not None
        assert self._sender is not None
        for number in range(1, _FIRST_READERS + 1):
            self._start_reader(ready, f"reader-{number}")
        self._until(self._shared, "the readers to share the partitions")
        pace = f"at {self._options.rate:,} per second" if self._options.rate else "as fast as it goes"
        board.say(f"sending {total:,} flights {pace}, keyed by carrier, in order of scheduled departure")
        board.total = total
        self._watch.start(lambda seen: self._inbox.put((None, seen)))
        self._sender.start()
        self._until(lambda: self._coverage.seen * 2 >= total, "half of the flights to be read")
        self._kill_one()
        self._kill_a_broker()
        self._start_reader(ready, f"reader-{_FIRST_READERS + 1}")
        self._until(self._shared, "the group to rebalance")
        self._until(self._arrived, "every flight to be read and archived")
        board.say("every flight has been sent, read and archived", "green")

    def _start_reader(self, ready: messages.Ready, name: str) -> None:
        child = self._child(name, "headrace.demo.reader", ready.kafka, READERS, TOPIC, name)
        self._readers[name] = child
        self._board.members[name] = Member(child.pid)
        self._board.say(f"{name} started, pid {child.pid}")

    def _kill_one(self) -> None:
        board = self._board
        name = max(self._readers, key=lambda name: sum(board.ends.get(p, 0) for p in board.members[name].partitions))
        child, member = self._readers[name], board.members[name]
        self._leaving.add(child)
        child.kill()
        board.say(
            f"{name} (partitions {_listed(member.partitions)}) killed with SIGKILL, {self._coverage.seen:,} flights "
            "read; its session ends in 6 s",
            "bold red",
        )
        member.note, member.partitions = "killed", []

    def _kill_a_broker(self) -> None:
        """The others take over after three seconds."""
        killed = self._servers.kill_one()
        if killed is not None:
            self._leaving.add(killed)
            self._board.say(f"{killed.name} killed with SIGKILL, pid {killed.pid}", "bold red")

    def _shared(self) -> bool:
        living = [self._board.members[name] for name, child in self._readers.items() if child not in self._leaving]
        held = sorted(partition for member in living for partition in member.partitions)
        return held == list(range(PARTITIONS)) and all(member.partitions for member in living)

    def _arrived(self) -> bool:
        total = self._package[WHOLE].flights
        assert self._sender is not None
        return self._sender.done and self._coverage.seen >= total and self._board.archived.value >= total

    # End

    def _look_back(self, ready: messages.Ready) -> report.Outcome:
        assert self._spark is not None
        assert self._sender is not None
        assert self._watch is not None
        self._spark.ask(messages.Query(str(self._table), str(self._named)))
        living = [child for child in self._readers.values() if child not in self._leaving]
        self._leaving.update(living)
        for child in living:
            child.terminate()
        self._until(lambda: not any(child.running for child in living), "the readers to commit and leave")
        self._watch.stop()
        seen = self._watch.look_again()
        self._board.say("Spark reads the table")
        self._until(lambda: self._queried is not None, "Spark to read the table")
        self._leaving.add(self._spark)
        self._spark.terminate()
        assert self._queried is not None
        return report.Outcome(
            package=self._package,
            airlines=dict(flights.airlines()),
            readers=self._coverage.figures(),
            acknowledged=self._sender.acknowledged,
            checksum=self._sender.checksum,
            unread=self._coverage.missing(seen.ends),
            again=self._coverage.again,
            lags={group: seen.lag(group) for group in (READERS, ARCHIVE)},
            table=self._queried,
            cancelled=cancellations.read(ready.kafka, PARTITIONS),
        )

    def _stay(self, ready: messages.Ready) -> None:
        assert self._watch is not None
        report.show_next_steps(
            self._console, ready, TOPIC, READERS, self._watch.stream(0), self._options.data, self._table
        )
        with contextlib.suppress(KeyboardInterrupt):
            self._until(lambda: self._servers.ended(0) is not None, "Ctrl-C", stalled_s=float("inf"))
        self._leaving.update(self._servers.all)
        self._console.print("\nstopping")

    # Events

    def _hear(self, child: Child, message: Heard) -> None:
        self._inbox.put((child, message))

    def _until(self, reached: Callable[[], bool], what: str, stalled_s: float = _STALLED_S) -> None:
        """Handle events until a condition holds. Raises DemoFailed after three minutes without an event."""
        self._moved = time.monotonic()
        while not reached():
            if self._interrupts:  # may be lost if raised in a destructor
                raise KeyboardInterrupt
            with contextlib.suppress(queue.Empty):
                child, message = self._inbox.get(timeout=0.1)
                if child is not None:
                    self._moved = time.monotonic()
                self._act(child, message)
            self._refresh()
            if time.monotonic() - self._moved > stalled_s:
                raise DemoFailed(f"waited {stalled_s:.0f} s for {what}; the logs are in {self._options.data}")

    def _refresh(self) -> None:
        sender, board = self._sender, self._board
        if sender is not None:
            if sender.error is not None:
                raise DemoFailed(f"sending failed: {sender.error} (the server's log: {self.server_log})")
            board.sent.set(sender.acknowledged)
            board.read.set(self._coverage.seen)
            board.archived.set(board.archived.value)
        board.tick()

    def _act(self, child: Child | None, message: Heard | Seen) -> None:  # one line per kind
        match message:
            case Seen():
                self._saw(message)
            case messages.Read():
                self._coverage.add(message)
                self._board.again = self._coverage.again
            case messages.Assigned(partitions=partitions):
                assert child is not None
                self._assigned(child, partitions)
            case messages.Archived(rows=rows, lag=lag, version=version):
                self._board.archived.set(rows)
                self._board.archive_lag, self._board.version = lag, version
            case messages.SparkReady(version=version, java=java):
                self._board.say(
                    f"Spark {version} ready on Java {java}, archives {TOPIC} into {self._table.name} and writes "
                    f"{self._named.name}, joined with the airlines' names, and the topic {cancellations.TOPIC}",
                    "green",
                )
            case messages.Ready():
                assert child is not None
                self._servers.heard(child, message)
            case messages.Queried():
                self._queried = message
            case messages.Failed(reason=reason):
                assert child is not None
                self._blame_server()
                raise DemoFailed(f"{child.name}: {reason} (its log: {child.log})")
            case messages.Ended(status=status):
                assert child is not None
                self._ended(child, status)

    def _assigned(self, child: Child, partitions: list[int]) -> None:
        member = self._board.members[child.name]
        if child in self._leaving:
            return
        member.note, member.partitions = "reading", partitions
        self._board.say(f"{child.name} has partitions {_listed(partitions)}")

    def _saw(self, seen: Seen) -> None:
        before, self._seen, board = self._seen, seen, self._board
        board.ends, board.positions = seen.ends, seen.positions.get(READERS, {})
        board.lag, board.archive_lag = seen.lag(READERS), seen.lag(ARCHIVE)
        board.state = seen.state
        if before is None or (before.state, before.members) != (seen.state, seen.members):
            board.say(f"group {READERS} is {seen.state}, lag {board.lag:,}; {_shares(seen)}", "cyan")

    def _blame_server(self) -> None:
        """Raise DemoFailed if the server ends: its clients may fail first."""
        ended = self._servers.ended(_NOTICED_S)
        if ended is not None:
            assert ended.status is not None
            self._ended(ended, ended.status)

    def _ended(self, child: Child, status: int) -> None:
        if child in self._leaving and status in {0, -signal.SIGKILL}:
            return
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        last = child.last_words()
        raise DemoFailed(f"{child.name} {how}" + (f"; the end of its log, {child.log}:\n{last}" if last else ""))


def _shares(seen: Seen) -> str:
    if not any(seen.members.values()):
        return f"members {', '.join(seen.members)}" if seen.members else "no members"
    return "; ".join(f"{name} has {_listed(partitions)}" for name, partitions in seen.members.items())


def _listed(partitions: list[int]) -> str:
    return ", ".join(map(str, partitions)) or "none"


@contextlib.contextmanager
def _signals_interrupt() -> Iterator[Sequence[int]]:
    interrupts: list[int] = []

    def interrupt(number: int, _frame: FrameType | None) -> None:
        interrupts.append(number)
        raise KeyboardInterrupt

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    previous = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        signal.signal(number, interrupt)
    try:
        yield interrupts
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
