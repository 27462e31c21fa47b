"""A client that asks again and again, in a process of its own: `python -m tests.hostile.http.pinging KAFKA HTTP`.

Each line that it reads begins a watch or ends one; the end is answered with the longest waits in milliseconds.
"""

import http.client
import select
import sys
import time

from headrace.kafka.codec.messages import ApiVersionsRequest
from headrace.testing.raw import RawClient

_PAUSE_S = 0.002


def main(kafka: str, address: str) -> None:
    """Ping until there is nothing more to read."""
    wire = RawClient(kafka, timeout_s=60)
    web = http.client.HTTPConnection(address, timeout=60)
    worst = [0.0, 0.0]
    while True:
        if select.select([sys.stdin], [], [], _PAUSE_S)[0]:
            if not sys.stdin.readline():
                return
            print(*(f"{each * 1000:.1f}" for each in worst), flush=True)
            worst = [0.0, 0.0]
        begun = time.monotonic()
        wire.ask(ApiVersionsRequest(client_software_name="ping", client_software_version="1"), 3)
        after = time.monotonic()
        web.request("GET", "/healthz")
        answer = web.getresponse()
        answer.read()
        assert answer.status == 200
        worst = [max(worst[0], after - begun), max(worst[1], time.monotonic() - after)]


if __name__ == "__main__":
    main(*sys.argv[1:])
