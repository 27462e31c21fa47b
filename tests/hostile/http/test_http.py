"""No HTTP request of any client delays others by more than 100 ms or takes more memory than 256 MiB."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Route

from headrace.http import app
from headrace.oci.api.registry import OPERATIONS
from headrace.oci.forwarding.append_router import PATH as APPEND
from headrace.records.build import build
from headrace.testing import InProcessServer, server
from headrace.testing.process import Server
from tests.harness.redis import RedisServer
from tests.harness.wire import Wire
from tests.hostile.http import batches
from tests.hostile.http.attacking import COMPARTMENT, Target
from tests.hostile.http.bystander import Bystander
from tests.hostile.http.corpus import BOMBS, CORPUS
from tests.hostile.http.paths import PATHS

MIB = 1 << 20
CASES = [(place, name) for place, cases in CORPUS.items() for name in cases]


def test_every_operation_and_path_has_a_case() -> None:
    assert set(OPERATIONS) <= set(CORPUS), f"write cases for {set(OPERATIONS) - set(CORPUS)}"
    assert set(PATHS) <= set(CORPUS)
    assert all(CORPUS.values())


def test_every_route_has_a_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a server that is one of several brokers: no other has more."""
    routes: list[Route] = []
    made = Route.__init__

    def noted(route: Route, *arguments: Any, **named: Any) -> None:
        made(route, *arguments, **named)
        routes.append(route)

    monkeypatch.setattr(Route, "__init__", noted)
    with RedisServer() as redis, InProcessServer(redis=redis.url):
        found = list(routes)
    assert {"/metrics", "/events", "/login", app.RESET_PATH} <= {route.path for route in found}
    assert [route.path for route in found if not any(route.path_regex.match(path) for path in PATHS)] == []
    # Paths that are dispatched before the routes.
    assert {"/livez", "/readyz", APPEND} <= set(PATHS)


def fill(started: Server) -> Target:
    """Streams with everything in them that is hard to read."""
    target = Target(http=started.http.removeprefix("http://"), kafka=started.kafka, streams={}, cursors={}, open=True)
    filled = {
        "empty": [],
        "sink": [],
        "full": [build([(None, bytes(1000), 1, ())] * 900)] * 3,
        "one large value": [batches.one_large_value(126 * MIB)],
        "zeros": [batches.zeros()] * 20,
        "many records": [batches.many_records(MIB)],
        "headers": [batches.headers(MIB)],
        "40 MB of gzip": [batches.spread(40 * MIB)],
    }
    assert set(BOMBS) < set(filled)
    for place, (stream, contents) in enumerate(filled.items()):
        name = f"hostile-{place}"
        made = target.done("POST", "/streams", {"name": name, "partitions": 1, "compartmentId": COMPARTMENT})
        target.streams[stream] = made["id"]
        with Wire(started.kafka, timeout_s=60) as wire:
            for batch in contents:
                assert wire.produce(name, bytes(batch)).error_code == 0
        target.cursors[stream] = target.cursor(stream)
    target.cursors["the end of many records"] = target.cursor("many records", type="AT_OFFSET", offset=MIB - 1)
    return target


@pytest.fixture(scope="module")
def attacked(request: pytest.FixtureRequest) -> Iterator[tuple[Target, Bystander]]:
    """A server that accepts every client, full of bombs, and its bystander."""
    with server(oci_auth="off", oci_cursor_expiry_ms=86_400_000, console_write=True) as started:
        target = fill(started)
        bystander = Bystander(started)
        yield target, bystander
        bystander.close()
        assert "Traceback" not in started.log()


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Target, Bystander]]:
    """A broker that may have other brokers, verifies signatures, and accepts none of these."""
    keys: Path = tmp_path_factory.mktemp("keys")
    user: Path = tmp_path_factory.mktemp("user") / "first"
    user.write_text("admin:a-password\n")
    arguments = ["--bootstrap-user", str(user)]
    with (
        RedisServer() as redis,
        server(redis=redis.url, arguments=arguments, oci_auth="verify", oci_auth_keys=keys) as started,
    ):
        names = ("empty", "sink", "full", *BOMBS)
        target = Target(
            http=started.http.removeprefix("http://"),
            kafka=started.kafka,
            streams=dict.fromkeys(names, "ocid1.stream.oc1.local." + "0" * 32),
            cursors={},
            open=False,
        )
        bystander = Bystander(started)
        yield target, bystander
        bystander.close()
        assert "Traceback" not in started.log()


@pytest.mark.parametrize(("place", "name"), CASES)
def test_a_request_affects_no_other_client(attacked: tuple[Target, Bystander], place: str, name: str) -> None:
    target, bystander = attacked
    print(bystander.harmless(lambda: CORPUS[place][name](target)))


@pytest.mark.parametrize(("place", "name"), CASES)
def test_a_request_without_rights_affects_no_other_client(
    strange: tuple[Target, Bystander], place: str, name: str
) -> None:
    target, bystander = strange
    print(bystander.harmless(lambda: CORPUS[place][name](target)))
