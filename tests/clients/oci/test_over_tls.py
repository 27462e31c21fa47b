"""Oracle's Python SDK and `oci` over HTTPS with an authority of our own; those of other languages: test_other_sdks."""

import datetime as dt
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import oci
from headrace.security.tls.files import GeneratedFiles, create
from headrace.testing import InProcessServer
from headrace.testing.oci import base64_of, text_of

COMPARTMENT = "ocid1.compartment.oc1..tls"
models = oci.streaming.models


class Secured(msgspec.Struct):
    """A server that verifies every signature, over HTTPS alone."""

    server: InProcessServer
    made: GeneratedFiles
    foreign: GeneratedFiles
    """Of an authority that is not the server's."""
    configured: dict[str, Any]
    """The configuration that `headrace oci-config` printed."""

    def clients(self, authority: Path) -> tuple[Any, Any]:
        """An admin client and one for messages, which believe an authority."""
        config = oci.config.from_file(self.configured["config_file"], self.configured["profile"])
        no_retries = oci.retry.NoneRetryStrategy()
        made = (
            oci.streaming.StreamAdminClient(config, service_endpoint=self.server.http, retry_strategy=no_retries),
            oci.streaming.StreamClient(config, self.server.http, retry_strategy=no_retries),
        )
        for each in made:
            each.base_client.session.verify = str(authority)
        return made


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("tls")
    now = dt.datetime.now(dt.UTC)
    made, foreign = create(folder / "own", (), "jane", now), create(folder / "foreign", (), "jane", now)
    keys = folder / "keys"
    with InProcessServer(
        https=True, ssl_keystore_location=made.server, oci_auth="verify", oci_auth_keys=_directory(keys)
    ) as server:
        configure = [sys.executable, "-m", "headrace", "oci-config", str(folder / "config"), "--json"]
        told = subprocess.run(
            [*configure, "--keys", str(keys), "--endpoint", server.http], check=True, capture_output=True
        ).stdout
        yield Secured(server, made, foreign, json.loads(told))


def _directory(path: Path) -> Path:
    path.mkdir()
    return path


@pytest.fixture(autouse=True)
def no_bundle_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """These would go over what is said here."""
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)


def test_the_python_sdk_writes_and_reads_and_believes_no_other_authority(secured: Secured) -> None:
    admin, streams = secured.clients(secured.made.authority)
    details = models.CreateStreamDetails(name="sdk", partitions=1, compartment_id=COMPARTMENT)
    made = admin.create_stream(details).data
    # The messages endpoint of the stream is the one that this client already uses.
    assert made.messages_endpoint == secured.server.http
    entries = [models.PutMessagesDetailsEntry(value=base64_of(f"v{number}" * 1_000)) for number in range(100)]
    assert streams.put_messages(made.id, models.PutMessagesDetails(messages=entries)).data.failures == 0
    start = models.CreateCursorDetails(partition="0", type="TRIM_HORIZON")
    cursor = streams.create_cursor(made.id, start).data.value
    got = streams.get_messages(made.id, cursor, limit=100).data
    assert [text_of(each.value) for each in got] == [f"v{number}" * 1_000 for number in range(100)]

    strange, _ = secured.clients(secured.foreign.authority)
    with pytest.raises(oci.exceptions.RequestException, match="CERTIFICATE_VERIFY_FAILED"):
        strange.list_stream_pools(COMPARTMENT)


@pytest.mark.cli
def test_the_oci_program_writes_and_reads(secured: Secured, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OCI_", "HEADRACE_"))}
    environment |= secured.configured["environment"] | {"HOME": str(tmp_path)}

    def run(authority: Path, *words: str) -> subprocess.CompletedProcess[str]:
        program = str(Path(sys.executable).with_name("oci"))
        command = [program, "--cert-bundle", str(authority), "--no-retry", "streaming", *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)

    def ask(*words: str) -> Any:
        ended = run(secured.made.authority, *words)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return json.loads(ended.stdout)

    created = ask("admin", "stream", "create", "--name", "cli", "--partitions", "1", "--compartment-id", COMPARTMENT)
    stream = created["data"]["id"]
    message = json.dumps([{"value": base64_of("by the program")}])
    put = ask("stream", "message", "put", "--stream-id", stream, "--messages", message)
    assert put["data"]["failures"] == 0
    cursor = ask(
        *("stream", "cursor", "create-cursor", "--stream-id", stream, "--partition", "0", "--type", "TRIM_HORIZON")
    )
    got = ask("stream", "message", "get", "--stream-id", stream, "--cursor", cursor["data"]["value"])
    assert [text_of(each["value"]) for each in got["data"]] == ["by the program"]

    refused = run(secured.foreign.authority, "admin", "stream", "get", "--stream-id", stream)
    assert refused.returncode != 0
    assert refused.stderr.startswith("SSLException")
