"""`headrace oci-config`: what it writes works with Oracle's SDK and command line, signatures verified."""

import base64
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient

import oci
from headrace.cli import main
from headrace.oci import ocids
from headrace.server import config
from headrace.testing import Server, server

OCI = Path(sys.executable).with_name("oci")


def run(*arguments: object) -> int:
    return main.run(["oci-config", *map(str, arguments)])


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys")


@pytest.fixture(scope="module")
def verifying(keys: Path) -> Iterator[Server]:
    """A server that verifies every signature."""
    with server(oci_auth="verify", oci_auth_keys=keys) as started:
        yield started


def stream_of(running: Server, name: str) -> str:
    """The OCID of a topic, made where it is missing."""
    assert main.run(["topics", "create", name, "--kafka", running.kafka]) == 0
    admin = AdminClient({"bootstrap.servers": running.kafka})
    found = admin.describe_topics(TopicCollection([name]))[name].result()
    return ocids.stream("local", UUID(_hex(found.topic_id)))


def _hex(topic_id: Any) -> str:
    most, least = topic_id.get_most_significant_bits(), topic_id.get_least_significant_bits()
    return f"{most & (2**64 - 1):016x}{least & (2**64 - 1):016x}"


def messages(text: str) -> oci.streaming.models.PutMessagesDetails:
    entry = oci.streaming.models.PutMessagesDetailsEntry(value=base64.b64encode(text.encode()).decode())
    return oci.streaming.models.PutMessagesDetails(messages=[entry])


def test_the_sdk_reads_the_profile_and_its_signatures_are_verified(
    verifying: Server, keys: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "--endpoint", verifying.http, "--keys", keys, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    profile = oci.config.from_file(told["config_file"])
    oci.config.validate_config(profile)
    client = oci.streaming.StreamClient(profile, told["endpoint"], retry_strategy=oci.retry.NoneRetryStrategy())
    stream = stream_of(verifying, "by-sdk")
    assert client.put_messages(stream, messages("hello")).data.failures == 0
    cursor = client.create_cursor(
        stream, oci.streaming.models.CreateCursorDetails(partition="0", type="TRIM_HORIZON")
    ).data.value
    (message,) = client.get_messages(stream, cursor).data
    assert base64.b64decode(message.value) == b"hello"
    Path(told["installed"]).unlink()
    with pytest.raises(oci.exceptions.ServiceError) as caught:
        client.get_messages(stream, cursor)
    assert (caught.value.status, caught.value.code) == (401, "NotAuthenticated")


def test_the_lines_it_prints_are_all_that_a_shell_needs_for_the_oci_command(
    verifying: Server, keys: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / 'with "odd" $names'
    assert run(folder, "--endpoint", verifying.http + "/", "--keys", keys, "--profile", "local") == 0
    lines = capsys.readouterr().out
    stream = stream_of(verifying, "by-command")
    put = [{"key": None, "value": base64.b64encode(b"hello").decode()}]
    script = "\n".join(
        (
            lines,
            f"{OCI} streaming stream message put --stream-id {stream} --messages '{json.dumps(put)}'",
            f"{OCI} streaming stream cursor create-cursor --stream-id {stream} --partition 0 --type TRIM_HORIZON",
        )
    )
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    ended = subprocess.run(
        ["bash", "-ec", script], capture_output=True, text=True, timeout=100, check=False, env=environment
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    assert '"failures": 0' in ended.stdout
    assert '"value": ' in ended.stdout


def test_what_it_writes_is_for_its_owner_only_and_stays_out_of_repositories(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    assert run(folder) == 0
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for name in ("config", "key.pem"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
    assert (folder / ".gitignore").read_text() == "*\n"


def test_a_second_run_keeps_the_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "--json") == 0
    first = json.loads(capsys.readouterr().out)
    key = (tmp_path / "key.pem").read_bytes()
    assert run(tmp_path, "--json", "--user", "ocid1.user.oc1..alice", "--region", "eu-frankfurt-1") == 0
    second = json.loads(capsys.readouterr().out)
    assert (tmp_path / "key.pem").read_bytes() == key
    assert second == first | {"user": "ocid1.user.oc1..alice", "region": "eu-frankfurt-1"}
    assert first["installed"] is None


def test_a_foreign_configuration_is_not_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config").write_text("[DEFAULT]\nuser=me\n")
    assert run(tmp_path) == 1
    assert capsys.readouterr().err == (
        f"headrace: {tmp_path}/config exists and was not written by headrace oci-config; name another directory\n"
    )
    assert [each.name for each in tmp_path.iterdir()] == ["config"]


@pytest.mark.parametrize("content", [b"", b"garbage"])
def test_a_key_that_cannot_be_used_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    (tmp_path / "key.pem").write_bytes(content)
    assert run(tmp_path) == 1
    assert "key.pem is no RSA private key" in capsys.readouterr().err
    assert (tmp_path / "key.pem").read_bytes() == content


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert run(tmp_path / "file" / "below") == 1
    assert capsys.readouterr().err.startswith(f"headrace: cannot write {tmp_path}/file")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--user", "me"), "--user me: expected an OCID"),
        (("--tenancy", "../ocid1.tenancy.oc1..x"), "--tenancy ../ocid1.tenancy.oc1..x: expected an OCID"),
        (("--region", "a b"), "--region a b: expected letters"),
        (("--profile", "]"), "--profile ]: expected letters"),
        (("--endpoint", "127.0.0.1:8080"), "--endpoint 127.0.0.1:8080: expected a URL"),
        (("--endpoint", 'http://h"; rm -r'), '--endpoint http://h"; rm -r: expected a URL'),
    ],
)
def test_wrong_options_are_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    assert run(tmp_path / "new", *arguments) == 2
    assert capsys.readouterr().err.startswith(f"headrace: {message}")
    assert not (tmp_path / "new").exists()


def test_the_endpoint_is_where_the_server_of_this_environment_answers() -> None:
    assert config.client(environ={}).http == "http://127.0.0.1:8080"
    for variable, url in (
        ("0.0.0.0:18080", "http://127.0.0.1:18080"),
        ("[::]:1", "http://127.0.0.1:1"),
        ("https://0:1/", "https://127.0.0.1:1/"),
        ("[0:0:0:0:0:0:0:0]:1", "http://127.0.0.1:1"),
        ("h.example.org:1", "http://h.example.org:1"),
        ("http://h.example.org:1", "http://h.example.org:1"),
        ("https://h.example.org", "https://h.example.org"),
    ):
        assert config.client(environ={"HEADRACE_HTTP": variable}).http == url


def test_a_port_that_the_server_picks_has_to_be_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_HTTP", "127.0.0.1:0")
    assert run(tmp_path / "new") == 2
    assert "give the one that its ready line names" in capsys.readouterr().err
    assert run(tmp_path / "new", "--endpoint", "http://127.0.0.1:18080") == 0
