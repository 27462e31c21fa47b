"""Fault injection against a real server, from a seed: `python -m tests.crash.chaos --rounds 20 --seed 1`.

Two idempotent producers with acks=all run all the time, one with small and one with large batches. An iteration is a
handful of faults:

- SIGKILL of server, of Valkey, or of both in any order
- processes that are stopped for a while
- lost connections
- full memory
- a full disk with requests of every kind in between
- changed clocks
- entries of other writers

At the end every acknowledged record is looked up at its offset.

Each iteration prints its seed, its faults, and the number of lost and duplicate records. It needs user namespaces: the
server's directory is a small private file system. It is not a test, because it runs as long as requested.
"""

import argparse
import contextlib
import ctypes
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import redis
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.harness.ledger import Ledger, numbers

from headrace.testing import Server, ServerFailed

INSIDE = "HEADRACE_CHAOS_INSIDE"
DISK_BYTES = 512 << 20
PARTITIONS = 3
KINDS: dict[str, dict[str, Any]] = {
    "small": {"value_bytes": 100},
    "large": {"value_bytes": 20_000, "batch_size": 500_000, "linger_ms": 20},
}
_CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static volatile long *ahead;
static int (*real)(clockid_t, struct timespec *);
__attribute__((constructor)) static void begin(void) {
    real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int file = open(getenv("CHAOS_CLOCK"), O_RDONLY);
    if (file >= 0) {
        void *found = mmap(0, 8, PROT_READ, MAP_SHARED, file, 0);
        if (found != MAP_FAILED) ahead = found;
        close(file);
    }
}
int clock_gettime(clockid_t which, struct timespec *now) {
    int result = real(which, now);
    if (ahead && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) now->tv_sec += *ahead;
    return result;
}
int gettimeofday(struct timeval *now, void *zone) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *to) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (to) *to = found.tv_sec;
    return found.tv_sec;
}
"""
"""Answers the time of day with so many seconds more as a file says; loaded before the C library."""


class Clock:
    """The wall clock of the server and of its Valkey."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"
        self._file.write_bytes(bytes(8))
        self.environment: dict[str, str] = {}
        compiler = shutil.which("gcc") or shutil.which("cc")
        if compiler is not None:
            source, library = folder / "clock.c", folder / "clock.so"
            source.write_text(_CLOCK)
            subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
            self.environment = {"LD_PRELOAD": str(library), "CHAOS_CLOCK": str(self._file)}

    def set(self, ahead_s: int) -> None:
        with self._file.open("r+b") as file:
            file.write(ctypes.c_long(ahead_s))


class Round:
    """A server on a small disk and its producers."""

    def __init__(self, disk: Path, chance: random.Random, folder: Path) -> None:
        self.disk = disk
        self.chance = chance
        self.clock = Clock(folder)
        self.happened: list[str] = []
        journal = [] if chance.random() < 0.7 else ["--set", "headrace.journal.bytes=0"]
        self.happened.append("journal off" if journal else "journal on")
        settings = ["--set", f"num.partitions={PARTITIONS}", "--set", "log.retention.check.interval.ms=200"]
        self.server = Server(disk / "data", [*settings, *journal], self.clock.environment)
        # What is written to the full disk must not be its log.
        self.server.log_file = folder / "server.log"
        self.made = 0

    def run(self, accidents: int) -> dict[str, int]:
        """Inject faults, and return the fate of the records."""
        with self.server, contextlib.ExitStack() as stack:
            self.server.start() if not self.server.running else None
            self.ledgers = {
                name: stack.enter_context(Ledger(self.server.kafka, name, partitions=PARTITIONS, **options))
                for name, options in KINDS.items()
            }
            self.send()
            for _ in range(accidents):
                accident = self.chance.choice(ACCIDENTS)
                begun = time.monotonic()
                self.happened.append(accident.__name__)
                accident(self)
                self.send()
                self.happened[-1] += f" {time.monotonic() - begun:.1f} s"
            self.clock.set(0)
            self.up()
            self.free()
            for ledger in self.ledgers.values():
                ledger.settle()
            return self.account()

    def send(self) -> None:
        """Something is under way when this returns."""
        for name, ledger in self.ledgers.items():
            count = self.chance.randrange(1, 3_000 if name == "small" else 100)
            for _ in range(count):
                if sum(ledger.sent) - ledger.acknowledged_count > 20_000:
                    break
                ledger.send(1)

    def account(self) -> dict[str, int]:
        """Counts over everything that was acknowledged."""
        found = {"acknowledged": 0, "refused": 0, "lost": 0, "doubled": 0, "moved": 0, "missing in order": 0}
        for name, ledger in self.ledgers.items():
            found["acknowledged"] += ledger.acknowledged_count
            found["refused"] += sum(ledger.refused.values())
            logs = numbers(self.server.kafka, name, PARTITIONS)
            for log, acknowledged in zip(logs, ledger.acknowledged, strict=True):
                there = {number: offset for offset, number in enumerate(log)}
                found["doubled"] += len(log) - len(there)
                found["lost"] += sum(number not in there for number in acknowledged)
                found["moved"] += sum(there.get(number, offset) != offset for number, offset in acknowledged.items())
                found["missing in order"] += sum(later < earlier for earlier, later in pairwise(log))
        return found

    # Accidents

    def up(self) -> None:
        """Start the server where it is down."""
        if not self.server.running:
            with contextlib.suppress(ServerFailed):
                self.server.kill()
            self.server.start()

    @property
    def storage_pid(self) -> int:
        return self.server.storage_pid

    def kill_the_server(self) -> None:
        self.server.kill()
        self.up()

    def kill_the_storage(self) -> None:
        os.kill(self.storage_pid, signal.SIGKILL)
        self.server.wait(60)
        self.up()

    def kill_both(self) -> None:
        self._kill_both(self.storage_pid)
        self.up()

    def _kill_both(self, pid: int) -> None:
        if self.chance.random() < 0.5:
            os.kill(pid, signal.SIGKILL)
            time.sleep(self.chance.choice([0, 0.001, 0.01]))
            self.server.kill()
        else:
            self.server.kill()
            time.sleep(self.chance.choice([0, 0.001, 0.01]))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stop_the_storage_for_a_while(self) -> None:
        with stopped(pid := self.storage_pid):
            self.send()
            if self.chance.random() < 0.3:
                self._kill_both(pid)
        self.up()

    def stop_the_server_for_a_while(self) -> None:
        with stopped(self.server.pid):
            self.send()

    def stop_restart(self) -> None:
        self.server.restart()

    def lose_the_connection(self) -> None:
        with redis.Redis.from_url(self.server.storage) as link:
            for _ in range(self.chance.randrange(1, 4)):
                link.client_kill_filter(_type="normal", skipme=True)
                self.send()

    def fill_the_memory(self) -> None:
        with redis.Redis.from_url(self.server.storage) as link:
            used = link.info("memory")["used_memory"]
            before = link.config_get("maxmemory")["maxmemory"]
            link.config_set("maxmemory", used + self.chance.choice([-(1 << 20), 0, 1 << 20, 70 << 20]))
            self.send()
            self.ask()
            if self.chance.random() < 0.3:
                self._kill_both(self.storage_pid)
            else:
                link.config_set("maxmemory", before)
        self.up()

    def write_a_stray_entry(self) -> None:
        with redis.Redis.from_url(self.server.storage) as link:
            streams = [key for key in link.scan_iter("headrace:small:*") if link.type(key) == b"stream"]
            if streams:
                entry = link.xadd(self.chance.choice(streams), {"what": "ever"})
                if self.chance.random() < 0.3:
                    link.xdel(streams[0], entry)

    def set_the_clock(self) -> None:
        # Not beyond what a producer is remembered for: then its batches may come twice, in Kafka as here.
        self.clock.set(self.chance.choice([-3_600, -60, -1, 1, 60, 3_600, 20_000]))
        self.send()
        if self.chance.random() < 0.5:
            self.kill_both()
            self.send()
        self.clock.set(0)

    def fill_the_disk(self) -> None:
        pid = self.storage_pid
        self.fill(self.chance.choice([0, 0, 1 << 10, 1 << 20, 30 << 20, 66 << 20, 100 << 20]))
        for _ in range(self.chance.randrange(1, 4)):
            self.send()
            self.ask()
        self._kill_both(pid)
        if self.chance.random() < 0.3:
            # A start on a disk that is still full is refused, or comes up; it loses nothing.
            begun = time.monotonic()
            with contextlib.suppress(ServerFailed):
                self.server.start()
            self.happened.append(f"(start on the full disk {time.monotonic() - begun:.1f} s)")
            if self.server.running:
                with contextlib.suppress(redis.RedisError):
                    self._kill_both(self.storage_pid)
        self.free()
        self.up()

    def fill(self, left: int) -> None:
        found = os.statvfs(self.disk)
        size = found.f_bavail * found.f_frsize - left
        if size > 0:
            with (self.disk / "filling").open("ab") as file, contextlib.suppress(OSError):
                os.posix_fallocate(file.fileno(), os.fstat(file.fileno()).st_size, size)

    def free(self) -> None:
        (self.disk / "filling").unlink(missing_ok=True)

    def ask(self) -> None:
        """One request of another kind; whatever becomes of it."""
        admin = AdminClient({"bootstrap.servers": self.server.kafka, "log_level": 0})
        with contextlib.suppress(KafkaException, Exception):
            kind = self.chance.choice(["create", "delete", "commit", "records", "retention", "none"])
            begun = time.monotonic()
            self.happened.append(f"({kind})")
            if kind == "create":
                self.made += 1
                for done in admin.create_topics(
                    [NewTopic(f"made-{self.made}", PARTITIONS)], operation_timeout=2
                ).values():
                    done.result(3)
            elif kind == "delete" and self.made:
                for done in admin.delete_topics([f"made-{self.made}"], operation_timeout=2).values():
                    done.result(3)
            elif kind == "commit":
                place = ConsumerGroupTopicPartitions("g", [TopicPartition("small", 0, 1)])
                for done in admin.alter_consumer_group_offsets([place], request_timeout=2).values():
                    done.result(3)
            elif kind == "records":
                admin.delete_records([TopicPartition("small", 0, 0)])[TopicPartition("small", 0, 0)].result(3)
            elif kind == "retention":
                time.sleep(0.25)
            self.happened[-1] = f"({kind} {time.monotonic() - begun:.1f} s)"


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


ACCIDENTS: list[Callable[[Round], None]] = [
    Round.kill_the_server, Round.kill_the_storage, Round.kill_both, Round.stop_the_storage_for_a_while,
    Round.stop_the_server_for_a_while, Round.stop_restart, Round.lose_the_connection, Round.fill_the_memory,
    Round.write_a_stray_entry, Round.set_the_clock, Round.fill_the_disk, Round.fill_the_disk,
]  # fmt: skip


def one(seed: int, accidents: int, only: str) -> dict[str, int]:
    """A round; what became of its records."""
    chance = random.Random(seed)
    if only:
        ACCIDENTS[:] = [each for each in ACCIDENTS if only in each.__name__]
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        folder = Path(name)
        disk = folder / "disk"
        disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "chaos", disk], check=True)
        running = Round(disk, chance, folder)
        begun = time.monotonic()
        try:
            found = running.run(accidents)
        except BaseException as error:
            kept = Path(tempfile.gettempdir(), f"chaos-{seed}.log")
            shutil.copy(running.server.log_file, kept)
            print(f"seed {seed}: {running.happened} FAILED, log in {kept}\n{traceback.format_exc()}", flush=True)
            if not isinstance(error, Exception):
                raise
            found = {"failed": 1}
        finally:
            with contextlib.suppress(Exception):
                running.server.kill()
                running.server.close()
            subprocess.run(["umount", "-l", disk], check=False)
        print(f"seed {seed}: {', '.join(running.happened)}: {found} in {time.monotonic() - begun:.0f} s", flush=True)
        if any(found.get(word) for word in ("lost", "doubled", "moved")):
            shutil.copy(running.server.log_file, Path(tempfile.gettempdir(), f"chaos-{seed}.log"))
        return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=None, help="of the first round; those of the others follow")
    parser.add_argument("--accidents", type=int, default=6, help="in a round")
    parser.add_argument("--only", default="", help="accidents with this in their name")
    options = parser.parse_args()
    if INSIDE not in os.environ:
        os.environ[INSIDE] = "1"
        os.execvp("unshare", ["unshare", "-rm", sys.executable, "-m", "tests.crash.chaos", *sys.argv[1:]])
    first = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    total: dict[str, int] = {}
    for seed in range(first, first + options.rounds):
        for word, count in one(seed, options.accidents, options.only).items():
            total[word] = total.get(word, 0) + count
    print(f"{options.rounds} rounds from seed {first}: {total}")
    return any(total.get(word) for word in ("lost", "doubled", "moved", "failed"))


if __name__ == "__main__":
    sys.exit(main())
