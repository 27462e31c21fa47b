"""Every `oci streaming` command, in one go; the three of the product documentation word for word but for --endpoint."""

import contextlib
import itertools
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from headrace.testing import InProcessServer
from headrace.testing.oci import base64_of, text_of

pytestmark = pytest.mark.cli
COMPARTMENT = "ocid1.compartment.oc1..cli"


# What `oci` imports takes it most of a second of a core: here once; after that each command has a process of its own.
# What is imported depends on the words of the first command, as `oci` looks at them itself.
FORKING = """
import json, os, signal, sys
sys.argv = ["oci", "streaming"]
from oci_cli.cli import cli
signal.signal(signal.SIGALRM, lambda *_: os.kill(pid, signal.SIGKILL))
print("ready", flush=True)
for line in sys.stdin:
    words, folder, limit_s = json.loads(line)
    if (pid := os.fork()) == 0:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(f"{folder}/{name}", os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), number)
        sys.argv = words
        sys.exit(cli())
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    status = os.waitpid(pid, 0)[1]
    signal.setitimer(signal.ITIMER_REAL, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
"""


class CommandLine:
    """Runs `oci` as a newcomer does after `headrace oci-config`."""

    def __init__(self, home: Path, endpoint: str) -> None:
        configured = subprocess.run(
            [sys.executable, "-m", "headrace", "oci-config", str(home / "config"), "--endpoint", endpoint, "--json"],
            capture_output=True,
            check=True,
        )
        self.endpoint = endpoint
        self.used: set[str] = set()
        """Commands that were run, such as `streaming stream message get`."""
        self._environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("OCI_", "HEADRACE_"))
        } | json.loads(configured.stdout)["environment"]
        self._environment |= {"HOME": str(home)}
        self._home = home
        self._forking = subprocess.Popen(
            [sys.executable, "-c", FORKING], env=self._environment, text=True, stdin=PIPE, stdout=PIPE
        )
        try:
            self._answer("ready")
        except BaseException:
            with self._forking as process:
                process.kill()
            raise

    def close(self) -> None:
        """No command comes after this."""
        with self._forking as process:
            assert process.stdin is not None
            try:
                process.stdin.close()
                assert process.wait(60) == 0
            finally:
                process.kill()  # else `with` waits for it without a limit

    def _answer(self, asked: str) -> str:
        assert self._forking.stdout is not None
        line = self._forking.stdout.readline()
        assert line, f"{asked}: nothing runs it any more"
        return line

    def run(self, command: str, limit_s: float = 240) -> subprocess.CompletedProcess[str]:
        """Run it; one that takes longer is killed, and its status says so."""
        words = shlex.split(command)
        named = words[words.index("streaming") :]
        self.used.add(" ".join(itertools.takewhile(lambda word: not word.startswith("-"), named)))
        assert words[0] == "oci"
        assert self._forking.stdin is not None
        print(json.dumps([words, str(self._home), limit_s]), file=self._forking.stdin, flush=True)
        status = int(self._answer(command))
        said = ((self._home / name).read_text("utf-8") for name in ("stdout", "stderr"))
        return subprocess.CompletedProcess(words, status, *said)

    def __call__(self, command: str) -> Any:
        """What a command prints, decoded; None when it prints nothing."""
        ended = self.run(command)
        assert ended.returncode == 0, f"{command}\n{ended.stdout}{ended.stderr}"
        return json.loads(ended.stdout) if ended.stdout.strip() else None


@pytest.fixture
def line(tmp_path: Path, headrace_server: InProcessServer, headrace_kafka: str) -> Iterator[CommandLine]:
    assert headrace_kafka == headrace_server.kafka  # its fixture removes the streams
    with contextlib.closing(CommandLine(tmp_path, headrace_server.http)) as made:
        yield made


# In a process of its own: importing the program changes how the SDK is imported ever after.
WALK = """
import click
from oci_cli import cli_root, dynamic_loader

def walk(command, path):
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            walk(below, f"{path} {name}")
    else:
        print(path)

dynamic_loader.load_service("streaming")
walk(cli_root.cli.commands["streaming"], "streaming")
"""


def commands() -> set[str]:
    """Every command of `oci streaming` that there is, from the program itself."""
    ended = subprocess.run([sys.executable, "-c", WALK], check=True, capture_output=True, text=True, timeout=240)
    return set(ended.stdout.splitlines())


def details_of(**fields: object) -> str:
    return shlex.quote(json.dumps(fields))


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_every_command(line: CommandLine) -> None:
    use_messages_cursors_and_groups(line)
    use_streams_pools_and_work_requests(line)
    use_connect_harnesses(line)
    wait_in_vain(line)

    assert line.used == commands()


def use_messages_cursors_and_groups(line: CommandLine) -> None:
    created = line(
        f"oci streaming admin stream create --name s --partitions 1 --compartment-id {COMPARTMENT}"
        " --wait-for-state SUCCEEDED --wait-interval-seconds 1"
    )
    assert created["data"]["status"] == "SUCCEEDED"
    (stream,) = (one["identifier"] for one in created["data"]["resources"])

    messages = json.dumps([{"key": base64_of("k"), "value": base64_of(f"v{number}")} for number in range(3)])
    put = line(f"oci streaming stream message put --stream-id {stream} --messages {shlex.quote(messages)}")
    assert (put["data"]["failures"], len(put["data"]["entries"])) == (0, 3)

    single = line(f"oci streaming stream cursor create-cursor --stream-id {stream} --partition 0 --type trim_horizon")
    assert set(single) == {"data"}

    # The three of the documentation.
    cursor = line(
        f"oci --endpoint {line.endpoint} streaming stream cursor create-group-cursor --stream-id {stream}"
        " --group-name g --type TRIM_HORIZON"
    )
    assert set(cursor) == {"data"}
    assert set(cursor["data"]) == {"value"}
    got = line(
        f"oci --endpoint {line.endpoint} streaming stream message get --stream-id {stream}"
        f" --cursor {cursor['data']['value']}"
    )
    assert set(got) == {"data", "opc-next-cursor"}
    assert [text_of(message["value"]) for message in got["data"]] == ["v0", "v1", "v2"]
    assert set(got["data"][0]) == {"key", "offset", "partition", "stream", "timestamp", "value"}
    assert (got["data"][0]["stream"], got["data"][0]["partition"], got["data"][0]["offset"]) == ("s", "0", 0)
    beat = line(
        f"oci --endpoint {line.endpoint} streaming stream group heartbeat --stream-id {stream}"
        f" --cursor {got['opc-next-cursor']}"
    )
    assert set(beat) == {"data"}

    committed = line(f"oci streaming stream group commit --stream-id {stream} --cursor {beat['data']['value']}")
    assert set(committed) == {"data"}
    shown = line(f"oci streaming stream group get --stream-id {stream} --group-name g")
    assert shown["data"]["reservations"][0]["committed-offset"] == 2
    line(f"oci streaming stream group update --stream-id {stream} --group-name g --type TRIM_HORIZON")
    again = line(
        f"oci streaming stream message get --stream-id {stream} --cursor {committed['data']['value']} --limit 2"
    )
    assert [text_of(message["value"]) for message in again["data"]] == ["v0", "v1"]

    refused = line.run(f"oci streaming stream message get --stream-id {stream} --cursor garbage")
    assert refused.returncode == 1
    assert '"The cursor is invalid. Create a new one."' in refused.stderr


def use_streams_pools_and_work_requests(line: CommandLine) -> None:
    admin = "oci streaming admin"
    pool = line(f"{admin} stream-pool create --name p --compartment-id {COMPARTMENT}")
    assert {"data", "etag", "opc-work-request-id"} <= set(pool)
    pool_id = pool["data"]["id"]
    made = [line(f"{admin} stream create --name {name} --partitions 1 --stream-pool-id {pool_id}") for name in "ab"]
    stream = made[0]["data"]["id"]
    assert made[0]["data"]["lifecycle-state"] == "ACTIVE"
    assert made[0]["data"]["time-created"].endswith("+00:00")

    page = line(f"{admin} stream list --stream-pool-id {pool_id} --limit 1 --sort-by NAME")
    assert [one["name"] for one in page["data"]] == ["a"]
    assert page["opc-next-page"]
    every = line(f"{admin} stream list --stream-pool-id {pool_id} --all --page-size 1 --sort-by NAME")
    assert [one["name"] for one in every["data"]] == ["a", "b"]
    assert line(f"{admin} stream get --stream-id {stream}")["data"]["id"] == stream
    tags = details_of(team="blue")
    updated = line(f"{admin} stream update --stream-id {stream} --freeform-tags {tags} --force")
    assert updated["data"]["freeform-tags"] == {"team": "blue"}
    line(f"{admin} stream change-compartment --stream-id {stream} --compartment-id ocid1.compartment.oc1..there")
    moved = line(f"{admin} stream get --stream-id {stream}")["data"]
    assert moved["compartment-id"] == "ocid1.compartment.oc1..there"
    line(f"{admin} stream delete --stream-id {stream} --force --wait-for-state SUCCEEDED --wait-interval-seconds 1")

    assert line(f"{admin} stream-pool get --stream-pool-id {pool_id}")["data"]["name"] == "p"
    assert [one["name"] for one in line(f"{admin} stream-pool list --compartment-id {COMPARTMENT} --name p")["data"]]
    renamed = line(f"{admin} stream-pool update --stream-pool-id {pool_id} --name q --force")
    assert renamed["data"]["name"] == "q"
    line(f"{admin} stream-pool change-compartment --stream-pool-id {pool_id} --compartment-id {COMPARTMENT}")

    request = pool["opc-work-request-id"]
    assert line(f"{admin} work-request get --work-request-id {request}")["data"]["status"] == "SUCCEEDED"
    line(f"{admin} work-request-error-collection list-work-request-errors --work-request-id {request}")
    line(f"{admin} work-request-log-entry list-work-request-logs --work-request-id {request}")
    listed = line(f"{admin} work-request-summary-collection list-work-requests --resource-id {pool_id}")
    assert request in [one["id"] for one in listed["data"]["items"]]
    line(f"{admin} stream-pool delete --stream-pool-id {pool_id} --force")


def use_connect_harnesses(line: CommandLine) -> None:
    admin = "oci streaming admin connect-harness"
    made = line(f"{admin} create --name h --compartment-id {COMPARTMENT}")
    harness = made["data"]["id"]
    assert line(f"{admin} get --connect-harness-id {harness}")["data"]["lifecycle-state"] == "ACTIVE"
    assert [one["id"] for one in line(f"{admin} list --compartment-id {COMPARTMENT}")["data"]] == [harness]
    tagged = line(f"{admin} update --connect-harness-id {harness} --freeform-tags {details_of(a='b')} --force")
    assert tagged["data"]["freeform-tags"] == {"a": "b"}
    line(f"{admin} change-compartment --connect-harness-id {harness} --compartment-id ocid1.compartment.oc1..there")
    line(f"{admin} delete --connect-harness-id {harness} --force")
    assert line(f"{admin} get --connect-harness-id {harness}")["data"]["lifecycle-state"] == "DELETED"


def wait_in_vain(line: CommandLine) -> None:
    """A command that hangs is ended, and does not keep the next one from its turn."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        listing = f"streaming admin stream list --compartment-id {COMPARTMENT}"
        assert line.run(f"oci --endpoint {url} {listing}", limit_s=0.1).returncode == -signal.SIGKILL
    line(f"oci {listing}")
