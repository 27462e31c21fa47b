"""What the guides for operators say: steps are taken, and messages that they quote are ones that there are."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.harness.member import commit, position
from tests.harness.pages import guides
from tests.harness.wire import Wire, batch, fetch_request, opened

from headrace.kafka.errors import Code
from headrace.testing import Server

ROOT = Path(__file__).parents[2]
OPERATIONS = guides(
    "operations", "container", "kubernetes", "backup", "upgrade", "sizing", "external-redis", "monitoring"
)
TROUBLESHOOTING = guides("troubleshooting")


def commands(name: str) -> list[str]:
    block = re.search(rf"^```console {name}\n(.*?)^```$", OPERATIONS, re.MULTILINE | re.DOTALL)
    assert block is not None
    return [command.strip() for command in re.split(r"^\$ ", block[1], flags=re.MULTILINE)[1:]]


def test_a_backup_is_restored_with_records_and_positions(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    variables = os.environ | {"DATA": str(tmp_path / "data"), "RESTORED": str(tmp_path / "restored"), "PATH": path}
    with Server(tmp_path / "data") as started, Wire(started.kafka) as client:
        client.create("flights")
        assert client.produce("flights", batch(b"UA 1545", b"AA 1141")).error_code == Code.NONE
        assert commit(client, "readers", "flights", 1) == Code.NONE
        for command in (*commands("backup"), *commands("restore")):
            subprocess.run(["bash", "-c", command], cwd=tmp_path, env=variables, check=True)
    with Server(tmp_path / "restored") as started, Wire(started.kafka) as client:
        assert [record.value for record in opened(client.fetch("flights", 0).records)] == [b"UA 1545", b"AA 1141"]
        assert position(client, "readers", "flights")[0] == 1
        assert client.produce("flights", batch(b"UA 1714")).base_offset == 2


def test_records_are_copied_to_another_server(tmp_path: Path) -> None:
    with Server(tmp_path / "old") as old, Server(tmp_path / "new") as new:
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        variables = os.environ | {"OLD": old.kafka, "NEW": new.kafka, "PATH": path}
        with Wire(old.kafka) as client:
            client.create("flights", 2)
            for partition in range(2):
                answer = client.produce("flights", batch(b"UA", b"", b"\xff\0"), partition=partition)
                assert answer.error_code == Code.NONE
        for command in commands("copy"):
            subprocess.run(["bash", "-o", "pipefail", "-c", command], env=variables, check=True, timeout=60)
        with Wire(old.kafka) as before, Wire(new.kafka) as after:
            for partition in range(2):
                sent, copied = (
                    client.ask(fetch_request([("flights", partition, 0)]), 12).responses[0].partitions[0].records
                    for client in (before, after)
                )
                assert opened(copied) == opened(sent)
                assert len(opened(copied)) == 3
            assert position(after, "billing", "flights")[0] == 3


SOURCES = "\n".join(path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py"))
PLAIN = re.sub(r'["\']\s*\n\s*f?["\']', "", SOURCES)
"""The sources with the pieces of long texts put together."""


@pytest.mark.parametrize(
    "quoted",
    sorted(
        {
            text
            for row in re.findall(r"^\| (.*?) \|", TROUBLESHOOTING, re.MULTILINE)
            for text in re.findall(r"`([^`]+)`", row)
        }
    ),
)
def test_quoted_symptoms_are_messages_of_the_server(quoted: str) -> None:
    assert quoted in PLAIN


def test_settings_that_the_guides_name_are_ones() -> None:
    known = (ROOT / "docs/settings.md").read_text("utf-8")
    named = set(
        re.findall(r"`((?:headrace|oci|log|num|retention|message|max)\.[a-z.]+)[`=]", OPERATIONS + TROUBLESHOOTING)
    )
    of_clients = {"max.poll.interval.ms"}
    assert {name for name in named - of_clients if f"`{name}`" not in known} == set()


def test_the_configuration_in_the_guide_is_one(tmp_path: Path) -> None:
    from headrace.server import config  # noqa: PLC0415

    block = re.search(r"^```toml\n(.*?)^```$", OPERATIONS, re.MULTILINE | re.DOTALL)
    assert block is not None
    (tmp_path / "headrace.toml").write_text(block[1])
    options, broker, _ = config.load(config=str(tmp_path / "headrace.toml"), environ={})
    assert (options.maxmemory, broker.num_partitions) == (4 << 30, 6)
