"""A client that asks again and again, as a process of its own: `tests.hostile.http.pinging KAFKA HTTP PID...`.
HTTP empty: by the Kafka protocol alone.

Each line that it reads begins a watch or ends one; the end is answered with the longest waits in milliseconds. For how
long these processes, and this one, were ready to run and the machine ran others is not counted (Linux, sched-stats):
otherwise a test would measure other work of the machine.
"""

import http.client
import os
import select
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from headrace.protocol.messages import ApiVersionsRequest
from tests.harness.raw import RawClient

_PAUSE_S = 0.002


def main(kafka: str, address: str, pids: Sequence[str]) -> None:
    """Ping until there is nothing more to read."""
    wire = RawClient(kafka, timeout_s=60)
    web = http.client.HTTPConnection(address or kafka, timeout=60)
    queues = [Path(f"/proc/{pid}/schedstat") for pid in (*pids, os.getpid())]

    def ask_kafka() -> None:
        wire.ask(ApiVersionsRequest(client_software_name="ping", client_software_version="1"), 3)

    def ask_http() -> None:
        if not address:
            return
        web.request("GET", "/healthz")
        answer = web.getresponse()
        answer.read()
        assert answer.status == 200

    worst = [0.0, 0.0]
    while True:
        if select.select([sys.stdin], [], [], _PAUSE_S)[0]:
            if not sys.stdin.readline():
                return
            print(*(f"{each * 1000:.1f}" for each in worst), flush=True)
            worst = [0.0, 0.0]
        worst = [max(worst[0], _waited(ask_kafka, queues)), max(worst[1], _waited(ask_http, queues))]


def _waited(ask: Callable[[], None], queues: Sequence[Path]) -> float:
    """How long an answer took, in seconds."""
    queued, begun = _queued_s(queues), time.monotonic()
    ask()
    waited = time.monotonic() - begun
    return max(0.0, waited - (_queued_s(queues) - queued))


def _queued_s(queues: Sequence[Path]) -> float:
    """How long processes' first threads have been waiting for a processor; the second number is in nanoseconds."""
    return sum(int(each.read_text().split()[1]) for each in queues) / 1e9


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
