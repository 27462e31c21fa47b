"""The SDK's signers against each of the server's modes."""

import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

import oci
from headrace.testing import InProcessServer
from headrace.testing.oci import OciClients

LISTING = "/20180418/streampools?compartmentId=ocid1.compartment.oc1..x"
REFUSED = {
    "code": "NotAuthenticated",
    "message": "The required information to complete authentication was not provided or was incorrect.",
}


def configuration(folder: Path, *arguments: str) -> dict[str, Any]:
    """What `headrace oci-config` writes, as the SDK reads it."""
    command = [sys.executable, "-m", "headrace", "oci-config", str(folder), "--json", *arguments]
    written = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    config: dict[str, Any] = oci.config.from_file(written["config_file"], written["profile"])
    return config


def admin(config: dict[str, Any], started: InProcessServer, **options: Any) -> Any:
    no_retries = oci.retry.NoneRetryStrategy()
    return oci.streaming.StreamAdminClient(config, service_endpoint=started.http, retry_strategy=no_retries, **options)


def make_and_fill(client: Any, stream_client: Any) -> int:
    """Use a signature of each kind: with a body, without one, with one that is left out. How many failed."""
    details = oci.streaming.models.CreateStreamDetails(name="s", partitions=1, compartment_id="ocid1.x.oc1..x")
    stream = client.create_stream(details).data
    entry = oci.streaming.models.PutMessagesDetailsEntry(value="dg==")
    put = stream_client.put_messages(stream.id, oci.streaming.models.PutMessagesDetails(messages=[entry])).data
    client.delete_stream(stream.id)
    failures: int = put.failures
    return failures


def status_of(url: str) -> tuple[int, dict[str, str]]:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, {}
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def refused(call: Any, *arguments: Any) -> tuple[int, str]:
    with pytest.raises(oci.exceptions.ServiceError) as caught:
        call(*arguments)
    return caught.value.status, caught.value.code


def test_verify_takes_the_key_that_it_knows(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    known = configuration(tmp_path / "known", "--keys", str(keys))
    stranger = configuration(tmp_path / "stranger")
    with InProcessServer(oci_auth="verify", oci_auth_keys=str(keys)) as started:
        client = admin(known, started)
        streams = oci.streaming.StreamClient(known, started.http, retry_strategy=oci.retry.NoneRetryStrategy())
        assert make_and_fill(client, streams) == 0
        assert refused(admin(stranger, started).list_stream_pools, "ocid1.x.oc1..x") == (401, "NotAuthenticated")
        assert status_of(started.http + LISTING) == (401, REFUSED)
        for key in keys.rglob("*.pem"):
            key.unlink()
        assert refused(client.list_stream_pools, "ocid1.x.oc1..x") == (401, "NotAuthenticated")


def test_parse_takes_any_key_but_wants_one(headrace_oci: OciClients) -> None:
    assert make_and_fill(headrace_oci.admin_client(), headrace_oci.stream_client()) == 0
    assert status_of(headrace_oci.endpoint + LISTING) == (401, REFUSED)


def test_parse_takes_security_tokens(headrace_oci: OciClients, headrace_server: InProcessServer) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    signer = oci.auth.signers.SecurityTokenSigner("a.b.c", key)
    streams = oci.streaming.StreamClient({}, headrace_oci.endpoint, signer=signer)

    assert make_and_fill(admin({}, headrace_server, signer=signer), streams) == 0


def test_off_accepts_every_client() -> None:
    with InProcessServer(oci_auth="off") as started:
        assert status_of(started.http + LISTING) == (200, {})
        clients = OciClients(started.http)
        assert make_and_fill(clients.admin_client(), clients.stream_client()) == 0
