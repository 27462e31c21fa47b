"""The whole API in its three modes of authentication, with Oracle's SDK and without it."""

import http.client
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.harness.wire import Wire, batch

import oci
from headrace.broker.config.keys import STANDARD_AUTHORIZER
from headrace.cli import main
from headrace.oci.settings import UNCONFIGURED
from headrace.testing.inprocess import InProcessServer

TEXT = "The required information to complete authentication was not provided or was incorrect."
STREAMS = "/20180418/streams?compartmentId=ocid1.compartment.oc1..x"
NONE = oci.retry.NoneRetryStrategy()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A profile, and a directory of keys with its public key."""
    made = tmp_path_factory.mktemp("access")
    assert main.run(["oci-config", str(made / "profile"), "--keys", str(made / "keys")]) == 0
    return made


@pytest.fixture(scope="module")
def config(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = oci.config.from_file(str(folder / "profile" / "config"))
    return found


@pytest.fixture(scope="module")
def verifying(folder: Path) -> Iterator[InProcessServer]:
    with InProcessServer(oci_auth="verify", oci_auth_keys=folder / "keys") as started:
        yield started


@pytest.fixture(scope="module")
def parsing() -> Iterator[InProcessServer]:
    with InProcessServer() as started:
        yield started


def admin(server: InProcessServer, config: dict[str, Any], suffix: str = "") -> oci.streaming.StreamAdminClient:
    return oci.streaming.StreamAdminClient(config, service_endpoint=server.http + suffix, retry_strategy=NONE)


def bare(server: InProcessServer, method: str, target: str, **headers: str) -> tuple[int, Any]:
    """A request without the SDK; status and body."""
    connection = http.client.HTTPConnection(server.http.removeprefix("http://"), timeout=60)
    try:
        connection.request(method, target, headers={name.replace("_", "-"): text for name, text in headers.items()})
        answer = connection.getresponse()
        assert answer.headers["opc-request-id"]
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def refused(call: Any, *arguments: Any, **named: Any) -> None:
    with pytest.raises(oci.exceptions.ServiceError) as caught:
        call(*arguments, **named)
    assert (caught.value.status, caught.value.code, caught.value.message) == (401, "NotAuthenticated", TEXT)


@pytest.mark.parametrize("suffix", ["", "/", "/20180418", "/20180418/"])
def test_signatures_hold_for_the_path_as_it_was_sent(
    verifying: InProcessServer, config: dict[str, Any], suffix: str
) -> None:
    client = admin(verifying, config, suffix)
    details = oci.streaming.models.CreateStreamDetails(
        name=f"s{len(suffix)}", partitions=1, compartment_id=config["tenancy"]
    )
    made = client.create_stream(details).data
    listed = client.list_streams(compartment_id=config["tenancy"], name=made.name)
    assert [each.id for each in listed.data] == [made.id]


@pytest.mark.parametrize("group", ["plain", "a/b c%2Fd", "grüße?x=1#y", "..//.."])
def test_signatures_hold_for_odd_names_in_a_path(
    verifying: InProcessServer, config: dict[str, Any], group: str
) -> None:
    client = oci.streaming.StreamClient(config, verifying.http, retry_strategy=NONE)
    with pytest.raises(oci.exceptions.ServiceError) as caught:
        client.get_group("ocid1.stream.oc1.local." + "0" * 32, group)
    assert caught.value.status == 404


def test_an_unregistered_key_is_rejected(
    verifying: InProcessServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["oci-config", str(tmp_path), "--json"]) == 0
    stranger = oci.config.from_file(json.loads(capsys.readouterr().out)["config_file"])
    refused(admin(verifying, stranger).list_streams, compartment_id="x")


def test_a_fingerprint_does_not_make_the_key(
    verifying: InProcessServer, config: dict[str, Any], tmp_path: Path
) -> None:
    assert main.run(["oci-config", str(tmp_path)]) == 0
    refused(admin(verifying, config | {"key_file": str(tmp_path / "key.pem")}).list_streams, compartment_id="x")


def test_a_date_is_good_for_five_minutes_of_the_servers_time(folder: Path, config: dict[str, Any]) -> None:
    with InProcessServer(oci_auth="verify", oci_auth_keys=folder / "keys") as server:
        client = admin(server, config)
        server.clock.advance(seconds=250)
        client.list_streams(compartment_id="x")
        server.clock.advance(seconds=60)
        refused(client.list_streams, compartment_id="x")


@pytest.mark.parametrize("authorization", [None, "", "Basic dTpw", "Signature", 'Signature keyId="a/b/c"'])
def test_a_request_without_a_signature_is_rejected(
    verifying: InProcessServer, parsing: InProcessServer, authorization: str | None
) -> None:
    headers = {} if authorization is None else {"authorization": authorization}
    for server in (verifying, parsing):
        assert bare(server, "GET", STREAMS, **headers) == (401, {"code": "NotAuthenticated", "message": TEXT})


def test_an_unauthorized_client_is_refused_before_its_body_is_read(verifying: InProcessServer) -> None:
    connection = http.client.HTTPConnection(verifying.http.removeprefix("http://"), timeout=60)
    try:
        connection.putrequest("POST", "/20180418/streams/ocid1.stream.oc1.local.x/messages")
        connection.putheader("content-length", str(30 << 20))
        connection.endheaders()
        connection.send(b"{")
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read())["code"]) == (401, "NotAuthenticated")
    finally:
        connection.close()
    # Who sends it all and reads only then gets the same answer, and may go on with the connection.
    connection = http.client.HTTPConnection(verifying.http.removeprefix("http://"), timeout=60)
    try:
        for _ in range(2):
            connection.request("POST", "/20180418/streams/ocid1.stream.oc1.local.x/messages", body=bytes(3 << 20))
            answer = connection.getresponse()
            assert (answer.status, json.loads(answer.read())["code"]) == (401, "NotAuthenticated")
    finally:
        connection.close()


def test_parsing_takes_any_key(parsing: InProcessServer, config: dict[str, Any]) -> None:
    assert admin(parsing, config | {"fingerprint": ":".join(["00"] * 16)}).list_streams(compartment_id="x").data == []


def test_off_takes_anybody() -> None:
    with InProcessServer(oci_auth="off") as server:
        assert bare(server, "GET", STREAMS) == (200, [])
        assert bare(server, "GET", STREAMS, authorization="Basic dTpw") == (200, [])


def test_unauthorized_clients_cannot_find_out_what_exists(verifying: InProcessServer) -> None:
    for target in ("/20180418/streams/ocid1.stream.oc1.local.x", "/20180418/streams?compartmentId=x&limit=0"):
        assert bare(verifying, "GET", target)[0] == 401


def test_with_acls_and_no_word_about_signatures_every_request_is_refused(config: dict[str, Any]) -> None:
    acls = InProcessServer(authorizer_class_name=STANDARD_AUTHORIZER, super_users="User:ANONYMOUS")
    with acls as server, Wire(server.kafka) as wire:
        wire.create("flights")
        assert wire.produce("flights", batch(b"UA 1545")).error_code == 0
        with pytest.raises(oci.exceptions.ServiceError) as caught:
            admin(server, config).list_streams(compartment_id="ocid1.compartment.oc1..x")
        assert (caught.value.status, caught.value.code) == (401, "NotAuthenticated")
        assert caught.value.message == UNCONFIGURED
        assert bare(server, "GET", STREAMS)[0] == 401
        assert bare(server, "POST", "/20180418/streams")[0] == 401
        assert urllib.request.urlopen(f"{server.http}/topics", timeout=60).status == 200
