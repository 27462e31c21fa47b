"""Alert rules and dashboard ask for metrics that there are, and a Prometheus that scrapes a server answers them all."""

import contextlib
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import msgspec
import pytest
from tests.harness.ports import free_ports
from tests.harness.wire import Wire, batch
from tests.kafka.sharer import Sharer
from tests.kafka.transactions import TransactionalProducer
from tests.oci.conftest import COMPARTMENT, Api

from headrace.kafka.errors import Code
from headrace.metrics.families import FAMILIES
from headrace.protocol.messages import ConsumerGroupHeartbeatRequest
from headrace.testing import Server, server

ROOT = Path(__file__).parent.parent.parent
MONITORING = ROOT / "monitoring"
NAMES = {each.name for each in FAMILIES}
RULES = [
    rule
    for group in msgspec.yaml.decode((MONITORING / "headrace.rules.yml").read_bytes())["groups"]
    for rule in group["rules"]
]
DASHBOARD = json.loads((MONITORING / "headrace.dashboard.json").read_text())
PANELS = [(panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
COMPARISON = re.compile(r" (<|>) [0-9.]+$")


def test_the_dashboard_is_current() -> None:
    command = [sys.executable, str(MONITORING / "generate.py"), "--check"]
    checked = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize("expression", [*(rule["expr"] for rule in RULES), *(query for _, query in PANELS)])
def test_only_metrics_that_there_are_are_asked_for(expression: str) -> None:
    asked = re.findall(r"\b(?:headrace|process)_\w+", expression)
    assert {re.sub("_bucket$", "", name) for name in asked} <= NAMES
    recorded = {rule.get("record") for rule in RULES}
    assert set(re.findall(r"\bheadrace:[\w:]+", expression)) <= recorded


def test_every_alert_is_explained_and_every_file_is_there() -> None:
    guide = (ROOT / "docs" / "guides" / "monitoring.md").read_text("utf-8")
    assert [rule["alert"] for rule in RULES if "alert" in rule and rule["alert"] not in guide] == []
    assert set(re.findall(r"`((?:headrace|process)_\w+)`", guide)) <= NAMES


def test_alerts_compare_something_with_a_number() -> None:
    assert [rule["alert"] for rule in RULES if "alert" in rule and not COMPARISON.search(rule["expr"])] == []


@pytest.mark.apt
def test_the_guide_shows_what_a_server_says(running: Server) -> None:
    guide = (ROOT / "docs" / "guides" / "monitoring.md").read_text("utf-8")
    [(command, promised)] = re.findall(r"^```console\n\$ (.*?)\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)
    command = command.replace("http://127.0.0.1:8080", running.http)
    assert (
        subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60, check=True).stdout == promised
    )


# With Debian's prometheus


def promtool(*arguments: str) -> None:
    done = subprocess.run(
        ["promtool", *arguments], cwd=MONITORING, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.apt
def test_promtool_takes_configuration_and_rules() -> None:
    promtool("check", "config", "prometheus.yml")
    promtool("test", "rules", "rules.test.yml")


class Prometheus:
    """Questions to a Prometheus."""

    def __init__(self, address: str) -> None:
        self._address = address

    def ask(self, query: str) -> list[dict[str, object]]:
        with urlopen(f"http://{self._address}/api/v1/query?{urlencode({'query': query})}", timeout=60) as answer:
            found: list[dict[str, object]] = json.load(answer)["data"]["result"]
        return found

    def until(self, query: str) -> list[dict[str, object]]:
        """Ask until there is something."""
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            with contextlib.suppress(URLError, ConnectionError):
                found = self.ask(query)
                if found:
                    return found
        raise AssertionError(f"no answer to {query}")

    def answers(self, queries: Iterable[str]) -> None:
        """Each of them has an answer; rates have one after two scrapes."""
        for query in queries:
            self.until(query)


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with server(oci_auth="off") as started:
        yield started


@pytest.fixture(scope="module")
def prometheus(running: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Debian's, with the configuration of the repository, in a hurry."""
    home = tmp_path_factory.mktemp("prometheus")
    text = (MONITORING / "prometheus.yml").read_text().replace("15s", "1s")
    (home / "prometheus.yml").write_text(text.replace("127.0.0.1:8080", running.http.removeprefix("http://")))
    shutil.copy(MONITORING / "headrace.rules.yml", home)
    address = f"127.0.0.1:{free_ports(1)[0]}"
    command = [
        "prometheus", f"--config.file={home / 'prometheus.yml'}", f"--storage.tsdb.path={home / 'data'}",
        f"--web.listen-address={address}",
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield Prometheus(address)
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def busy(running: Server, prometheus: Prometheus) -> Iterator[Prometheus]:
    """After a little of everything, between two scrapes."""
    prometheus.until('up{job="headrace"} == 1')
    with Wire(running.kafka) as wire:
        wire.create("watched", 2)
        for _ in range(3):
            wire.produce("watched", batch(b"value"))
        wire.fetch("watched", 0)
        wire.produce("not-there", batch(b"value"))
        member = ConsumerGroupHeartbeatRequest(
            group_id="served",
            member_id="one",
            rebalance_timeout_ms=60_000,
            subscribed_topic_names=["watched"],
            topic_partitions=[],
        )
        assert wire.ask(member, 1).error_code == Code.NONE
        producer = TransactionalProducer(wire, "transactional", 2)
        assert producer.initialize() == Code.NONE
        assert producer.send("watched", b"value") == Code.NONE
        assert producer.end(commit=True) == Code.NONE
    api = Api(running.http)
    stream = api.done("POST", "/streams", {"name": "stream", "partitions": 1, "compartmentId": COMPARTMENT})["id"]
    api.put(stream, (None, b"a"), (None, b"b"))
    cursor = api.group_cursor(stream, "instances")
    cursor = api.get(stream, cursor, 1).next_cursor
    assert api.consumer("commit", stream, cursor).status == 200
    api.put(stream, (None, b"c"))
    api.close()
    # Its session ends with the connection.
    with Wire(running.kafka) as sharing:
        sharer = Sharer(sharing, "sharers", "watched")
        sharer.beat()
        sharer.fetch(0, 1)
        prometheus.until('count_over_time(headrace_topic_records_in_total{topic="stream"}[1m]) > 3')
        prometheus.until("headrace:group_lag_seconds:max")
        prometheus.until("headrace_share_held_records")
        yield prometheus


@pytest.mark.apt
def test_every_rule_has_an_answer(busy: Prometheus) -> None:
    busy.answers(rule["record"] if "record" in rule else COMPARISON.sub("", rule["expr"]) for rule in RULES)


@pytest.mark.apt
def test_every_panel_has_an_answer(busy: Prometheus) -> None:
    # The panels may be asked minutes after the requests that they show.
    busy.answers(query.replace("$__rate_interval", "1h").replace("$instance", ".*") for _, query in PANELS)


@pytest.mark.apt
def test_a_healthy_server_raises_no_alert(busy: Prometheus) -> None:
    busy.until("sum(headrace_group_lag) == 2")
    assert busy.ask('ALERTS{alertstate="firing"}') == []
