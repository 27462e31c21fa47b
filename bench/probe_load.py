"""What small requests take while a server does something else: a Produce, an ApiVersions and an XADD, again and again.

Like the other loads, it runs in a process of its own (`python -m bench.probe_load TASK`), until `Worker.stop`.
"""

import sys
import threading
import time
from collections.abc import Callable

import msgspec
import redis
from tests.harness.wire import batch, produce_request

from bench.load import Delays, LoadFailed, begin, summed_up
from headrace.client.channel import Channel, connect
from headrace.kafka.errors import Code
from headrace.protocol.messages import ApiVersionsRequest

_PAUSE_S = 0.002
_TIMEOUT_S = 60
_BYTES = 1024
_PRODUCE_VERSION = 9
_KEY = "bench-probe"
_MOST_ENTRIES = 100


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """Where to."""

    servers: str
    topic: str
    """Another topic than the one at work."""
    storage: str | None = None
    """URL of the server's Redis; None: no XADD."""
    entry_bytes: int = 16_384


class Probed(msgspec.Struct, frozen=True):
    """What each took."""

    produce: Delays
    ping: Delays
    xadd: Delays | None


def probe(task: Probe) -> Probed:
    """Ask for one after the other. Raises LoadFailed."""
    host, _, port = task.servers.rpartition(":")
    channel = Channel(connect(host, int(port), _TIMEOUT_S), "probe")
    request = produce_request(task.topic, batch(bytes(_BYTES)))

    def produce() -> None:
        answer = channel.ask(request, _PRODUCE_VERSION)
        code = answer.responses[0].partition_responses[0].error_code
        if code != Code.NONE:
            raise LoadFailed(f"a record was refused with error {code}")

    probes: dict[str, Callable[[], object]] = {
        "produce": produce, "ping": lambda: channel.ask(ApiVersionsRequest(), 0)
    }  # fmt: skip
    if task.storage is not None:
        link, entry = redis.Redis.from_url(task.storage), bytes(task.entry_bytes)
        probes["xadd"] = lambda: link.xadd(_KEY, {"b": entry}, maxlen=_MOST_ENTRIES)
    taken: dict[str, list[int]] = {name: [] for name in probes}
    for call in probes.values():
        call()
    begin()
    stopped = threading.Event()
    threading.Thread(target=_await_stop, args=(stopped,), daemon=True).start()
    while not stopped.is_set() or len(taken["ping"]) < 2:
        for name, call in probes.items():
            began = time.monotonic_ns()
            call()
            taken[name].append(time.monotonic_ns() - began)
        time.sleep(_PAUSE_S)
    return Probed(
        summed_up(taken["produce"]), summed_up(taken["ping"]), summed_up(taken["xadd"]) if "xadd" in taken else None
    )


def _await_stop(stopped: threading.Event) -> None:
    sys.stdin.readline()
    stopped.set()


if __name__ == "__main__":
    try:
        print(msgspec.json.encode(probe(msgspec.json.decode(sys.argv[1], type=Probe))).decode(), flush=True)
    except LoadFailed as failed:
        raise SystemExit(str(failed)) from None
