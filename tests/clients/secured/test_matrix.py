"""Every client by every mechanism that it has, over TLS: who is let in, who is not, and which server is not believed.

`make test LANE=security` runs all of it. Others have a sample: `make test` Python's clients, `make test LANE=maven`,
`make test LANE=go` and `make test LANE=apt` one mechanism of theirs.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs
from tests.clients.secured.conftest import Secured
from tests.clients.secured.interface import CERTIFICATE, MECHANISMS, Login, Refused, SecuredClient
from tests.clients.secured.programs import FranzGo, Java, KafkaTools, Kcat
from tests.clients.secured.python_clients import AioKafka, Confluent, KafkaPython
from tests.harness.waiting import wait_for

from headrace.broker.admin.audit import WINDOW_MS

pytestmark = pytest.mark.timeout(900)

PYTHONS: tuple[type[SecuredClient], ...] = (Confluent, KafkaPython, AioKafka)
PROGRAMS: tuple[type[SecuredClient], ...] = (Java, KafkaTools, FranzGo, Kcat)
SAMPLES = {("java", "SCRAM-SHA-512"): "maven", ("franz-go", "SCRAM-SHA-256"): "go", ("kcat", "PLAIN"): "apt"}
"""What CI runs of the programs: the client, its mechanism, and the mark that it has there."""
SLOW = {("kafka-python", mechanism) for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")}
"""What CI does not run of Python's clients: refused, kafka-python tries again until its time is over."""
VALUES = ["one", "zwei", "trois"]
WORDS_OF_A_REFUSAL = r"(?i)authent|oauth|certificate|ssl|tls|handshake|connectionerror"
PATIENCE_S = 10
_numbers = itertools.count()


def _mark(client: type[SecuredClient], mechanism: str) -> list[pytest.MarkDecorator]:
    if client in PYTHONS:
        return [pytest.mark.security] if (client.name, mechanism) in SLOW else []
    return [getattr(pytest.mark, SAMPLES.get((client.name, mechanism), "security"))]


def _cells() -> Iterator[object]:
    for client in (*PYTHONS, *PROGRAMS):
        for mechanism in client.mechanisms:
            yield pytest.param(client, mechanism, id=f"{client.name}-{mechanism}", marks=_mark(client, mechanism))


def _clients() -> Iterator[object]:
    for client in (*PYTHONS, *PROGRAMS):
        mechanism = next((each for name, each in SAMPLES if name == client.name), "SCRAM-SHA-512")
        yield pytest.param(client, mechanism, id=client.name, marks=_mark(client, mechanism))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[type[SecuredClient]], SecuredClient]:
    """Makes a client, once."""
    known: dict[type[SecuredClient], SecuredClient] = {}

    def make(kind: type[SecuredClient]) -> SecuredClient:
        if kind not in known:
            known[kind] = kind(tmp_path_factory.mktemp(kind.name))
        return known[kind]

    return make


Make = Callable[[type[SecuredClient]], SecuredClient]


def _topic(mechanism: str) -> str:
    return f"{mechanism.lower()}-{next(_numbers)}"


def _refused(client: SecuredClient, login: Login) -> None:
    """The client does not get in, and says so."""
    login = msgspec.structs.replace(login, patience_s=PATIENCE_S)
    with pytest.raises(Refused, match=WORDS_OF_A_REFUSAL):
        client.write_and_read(login, _topic(login.mechanism), VALUES)


def _events(lines: Sequence[Any]) -> set[str]:
    """Only those about logins."""
    return {line["event"] for line in lines} & {"logged in", "login refused", "handshake failed"}


@pytest.mark.parametrize(("kind", "mechanism"), list(_cells()))
def test_only_an_authorized_client_writes_and_reads(
    kind: type[SecuredClient], mechanism: str, made: Make, secured: Secured
) -> None:
    client = made(kind)
    assert client.write_and_read(secured.login(mechanism), _topic(mechanism), VALUES) == VALUES
    secured.all_have_gone()
    # Beyond ten a minute of a kind the log only counts them.
    secured.server.clock.advance(seconds=WINDOW_MS // 1000 + 1)
    told = "handshake failed" if mechanism == CERTIFICATE else "login refused"
    with capture_logs() as lines:
        _refused(client, secured.wrong(mechanism))
        # The client may hear of it first. One that ends may break off another handshake.
        wait_for(lambda: told in _events(lines), f"{told!r} in the log")
    assert "logged in" not in _events(lines)


@pytest.mark.parametrize(("kind", "mechanism"), list(_clients()))
def test_a_wrong_server_receives_no_secret(
    kind: type[SecuredClient], mechanism: str, made: Make, secured: Secured, expired: Secured
) -> None:
    client = made(kind)
    good = secured.login(mechanism)
    with capture_logs() as lines:
        # Of an authority that the client does not know; of another host; too old.
        _refused(client, msgspec.structs.replace(good, authority=secured.foreign.authority))
        _refused(client, secured.login(mechanism, "ELSEWHERE"))
        _refused(client, expired.login(mechanism))
    assert _events(lines) <= {"handshake failed"}


@pytest.mark.apt
def test_unsigned_tokens_are_rejected(made: Make, secured: Secured) -> None:
    secured.server.clock.advance(seconds=WINDOW_MS // 1000 + 1)
    # `alg: none` is all that a librdkafka without libcurl makes by itself.
    with capture_logs() as lines:
        _refused(made(Kcat), secured.login("OAUTHBEARER"))
        wait_for(lambda: "login refused" in _events(lines), "the refusal in the log")
    refused = [line for line in lines if line["event"] == "login refused"]
    assert refused, lines
    assert all("algorithm 'none'" in line["reason"] for line in refused)


def test_the_matrix_has_every_mechanism_of_every_client() -> None:
    lacking = {kind.name: set(MECHANISMS) - set(kind.mechanisms) for kind in (*PYTHONS, *PROGRAMS)}
    assert {name: missing for name, missing in lacking.items() if missing} == {
        "kcat": {"SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"}
    }
