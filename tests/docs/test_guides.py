"""Runs the short examples of the migration guides."""

import re
import tempfile
from pathlib import Path

import pytest
import redis
from confluent_kafka import Producer
from tests.harness.pages import ADDRESS, Shell, lines, steps
from tests.harness.redis import RedisServer

from headrace.server.config import load
from headrace.testing import Server, server

GUIDES = Path(__file__).parents[2] / "docs" / "guides"


def guide(name: str) -> str:
    return (GUIDES / name).read_text("utf-8")


def blocks(page: str, kind: str) -> list[str]:
    """The lines of the blocks of a kind, one after the other."""
    found = re.findall(rf"^```{kind}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return "".join(found).splitlines()


@pytest.mark.apt
def test_records_are_moved_over_from_another_kafka(tmp_path: Path) -> None:
    page = guide("from-kafka.md")
    _, listing, mirroring = blocks(page, "text")
    resetting = re.search(r"`(headrace groups reset billing [^`]*)`", page)
    assert resetting is not None
    with server() as old, server() as new:
        producer = Producer({"bootstrap.servers": old.kafka})
        for number in range(3):
            producer.produce("orders", str(number), f"k{number}")
        assert producer.flush(60) == 0
        shell = Shell(tmp_path, new, page)
        listing, mirroring = (
            re.split(r" {3,}", line)[0].replace("old:9092", old.kafka).replace(ADDRESS, new.kafka)
            for line in (listing, mirroring)
        )
        shell.run(mirroring)
        assert 'topic "orders" with 1 partitions' in shell.run(listing)
        assert "orders" in shell.run(resetting[1])
        assert shell.run("headrace records tail orders --from-beginning --exit --format '%k %v\\n'").split() == [
            word for number in range(3) for word in (f"k{number}", str(number))
        ]


def test_a_stream_of_ones_own_becomes_a_topic(tmp_path: Path) -> None:
    page = guide("from-redis-streams.md")
    serving, adopting = blocks(page, "text")
    given = re.search(r"--set headrace\.adopt\.prefixes=(\S+)", serving)
    assert given is not None
    with RedisServer() as store, redis.Redis.from_url(store.url) as client:
        client.xadd("readings:kitchen", {"value": "21.5"})
        with server(redis=store.url, headrace_adopt_prefixes=given[1]) as started:
            shell = Shell(tmp_path, started, page)
            shell.run(adopting)
            assert shell.run("headrace records tail readings --from-beginning --exit --format '%v\\n'") == "21.5\n"
        assert client.xlen("readings:kitchen") == 1


def test_an_external_server_is_waited_for_and_emptied(tmp_path: Path) -> None:
    page = guide("from-an-emulator.md")
    (waiting,) = [line for line in blocks(page, "text") if line.startswith("timeout")]
    emptying = re.search(r"`(curl -X DELETE [^`]*)`", page)
    assert emptying is not None
    with server(oci_auth="off", headrace_testing_reset=True) as started:
        shell = Shell(tmp_path, started, page)
        shell.run("headrace topics create left-over")
        for command in (waiting, emptying[1].replace("curl", "curl --fail --silent")):
            shell.run(command.replace("http://127.0.0.1:8080", started.http))
        assert "left-over" not in shell.run("headrace topics list")


def test_two_oci_instances_share_a_stream() -> None:
    page = guide("oci-groups.md")
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder, Server(Path(folder) / ".headrace") as started:
        shell = Shell(Path(folder), started, page)
        done = [step for step in steps(page) if step[0] != "headrace serve"]
        for command, output in done:
            assert lines(shell.run(command)) == lines(output), command
        assert len(done) == 5


def test_the_options_of_a_server_for_good_are_taken(tmp_path: Path) -> None:
    (tmp_path / "headrace.toml").write_text("\n".join(blocks(guide("operations.md"), "toml")), "utf-8")
    options, settings, _ = load(config=str(tmp_path / "headrace.toml"), environ={})
    assert (options.maxmemory, settings.num_partitions) == (4 << 30, 6)
