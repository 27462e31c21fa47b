"""The guide's commands for systemd are run in order, in a folder whose unit is interpreted."""

import re
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from tests.harness.pages import guides
from tests.harness.ports import free_ports
from tests.harness.redis import RedisServer
from tests.harness.systemd import Machine, Service, StepFailed

ROOT = Path(__file__).parents[2]
GUIDE = guides("operations")
SERVING = ("install", "configure", "check", "start")
pytestmark = pytest.mark.servers


def steps(*names: str) -> list[str]:
    found = []
    for name in names:
        block = re.search(rf"^```console {name}\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
        assert block is not None, name
        found += [command.strip() for command in re.split(r"^\$ ", block[1], flags=re.MULTILINE)[1:]]
    return found


def quick(*names: str) -> list[str]:
    """The same without `doctor`, which changes nothing."""
    return [command for command in steps(*names) if "doctor" not in command]


class Ports:
    """Free ports in place of the guide's."""

    def __init__(self) -> None:
        self.kafka, self.http, self.secured = (f"127.0.0.1:{port}" for port in free_ports(3))
        self.given = {
            "127.0.0.1:9092": self.kafka,
            "127.0.0.1:8080": self.http,
            # Tests listen on loopback only.
            "0.0.0.0:9093": self.secured,
        }


@pytest.fixture
def ports() -> Ports:
    return Ports()


@pytest.fixture
def machine(tmp_path: Path, ports: Ports) -> Iterator[Machine]:
    made = Machine(tmp_path / "root", ROOT, ports.given)
    try:
        yield made
    finally:
        made.close()


def take(machine: Machine, commands: list[str]) -> list[str]:
    return [machine.run(command) for command in commands]


def produced(config: Mapping[str, object]) -> int:
    producer = Producer({"log_level": 0, "message.timeout.ms": 60_000, **config})
    failed: list[object] = []
    producer.produce("greetings", b"hello", on_delivery=lambda error, _: failed.append(error) if error else None)
    return producer.flush(60) + len(failed)


def test_the_steps_work_in_their_order(machine: Machine, ports: Ports) -> None:
    outputs = dict(zip(chosen := steps(*SERVING), take(machine, chosen), strict=True))
    assert produced({"bootstrap.servers": ports.kafka}) == 0
    with urllib.request.urlopen(f"http://{ports.http}/readyz", timeout=60) as answer:
        assert answer.status == 200
    # doctor examined the data directory that the server uses.
    (checked,) = [output for command, output in outputs.items() if "doctor" in command]
    data = machine.root / "var/lib/headrace"
    assert f"{data} will be made" in checked
    assert (data / "appendonlydir").is_dir()
    assert data.resolve().stat().st_mode & 0o777 == 0o700
    again = machine.run(steps("check")[0])
    assert f"{data}, in use by the server" in again

    take(machine, steps("tls"))
    name, _, password = (machine.root / "etc/headrace/first-user").read_text().strip().partition(":")
    login = {
        "bootstrap.servers": ports.secured,
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(machine.root / "clone/certificates/ca.pem"),
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": name,
        "sasl.password": password,
    }
    assert produced(login) == 0
    take(machine, steps("users"))
    assert produced(login) == 0
    assert "greetings" in AdminClient({"log_level": 0, **login}).list_topics(timeout=60).topics
    assert not (machine.root / "run/credentials/headrace.service/first-user").exists()
    assert (machine.root / "run/credentials/headrace.service/server.pem").exists()
    assert password not in machine.log()


def test_doctor_gets_the_environment_of_the_service(tmp_path: Path, ports: Ports) -> None:
    with RedisServer() as store:
        given = ports.given | {"redis://:PASSWORD@redis.example.org:6379/0": store.url}
        machine = Machine(tmp_path / "root", ROOT, given)
        try:
            take(machine, steps(*SERVING))
            environment = steps("environment")
            _, checked, _ = take(machine, environment)
            assert store.url in checked
            assert produced({"bootstrap.servers": ports.kafka}) == 0
            assert (machine.root / "etc/headrace/environment").stat().st_mode & 0o777 == 0o600
        finally:
            machine.close()


def moved(commands: list[str], word: str, before: str) -> list[str]:
    """The commands, with the first that has `word` in front of the first that has `before`."""
    first = next(each for each in commands if word in each)
    rest = [each for each in commands if each is not first]
    at = next(number for number, each in enumerate(rest) if before in each)
    return [*rest[:at], first, *rest[at:]]


@pytest.mark.parametrize(
    ("names", "word", "before", "reason"),
    [
        (SERVING, "enable --now", "cp packaging/systemd/headrace.toml", "could not be found"),
        (SERVING, "cp packaging/systemd/headrace.toml", "journalctl", "cannot read the configuration file"),
        (SERVING, "cp packaging/systemd/headrace.toml", "mkdir", "etc/headrace"),
        (SERVING, "doctor", "cp packaging/systemd/headrace.toml", "cannot read the configuration file"),
        (SERVING, "pip install", "python3 -m venv", "pip"),
        (SERVING, "cp packaging/systemd/headrace.service", "journalctl", "could not be found"),
        ((*SERVING, "tls"), "first-user.conf", "systemctl restart", "daemon-reload is missing"),
    ],
)
def test_a_step_in_the_wrong_place_is_noticed(
    machine: Machine, names: tuple[str, ...], word: str, before: str, reason: str
) -> None:
    with pytest.raises(StepFailed, match=reason):
        take(machine, moved(steps(*names) if word == "doctor" else quick(*names), word, before))


@pytest.mark.parametrize(
    ("changed", "by", "reason"),
    [
        ("install -D -m 644 packaging/systemd/tls.conf", "true", "needs a certificate"),
        ("sed -i", "rm /etc/headrace/first-user; sed -i", "243/CREDENTIALS"),
        ("%d/server.pem", "/etc/headrace/server.pem", "cannot read .*server.pem: Permission denied"),
        ("echo 'listeners", "chmod 600 /etc/headrace/headrace.toml; echo 'listeners", "Permission denied"),
    ],
)
def test_files_of_root_are_out_of_reach(machine: Machine, changed: str, by: str, reason: str) -> None:
    drop = machine.root / "clone/packaging/systemd/tls.conf"
    drop.write_text(drop.read_text().replace(changed, machine.here(by)))
    with pytest.raises(StepFailed, match=reason):
        take(machine, [command.replace(changed, by) for command in quick(*SERVING, "tls")])


def test_data_outside_of_the_state_directory_is_refused(machine: Machine) -> None:
    file = machine.root / "clone/packaging/systemd/headrace.toml"
    file.write_text(file.read_text().replace("/var/lib/headrace", "/opt/headrace"))
    with pytest.raises(StepFailed, match="Read-only file system"):
        take(machine, quick(*SERVING))


def test_units_are_read_as_systemd_reads_them() -> None:
    service = Service.read(
        ["[Unit]\nA=b\n[Service]\n# C=d\nEnvironment=a=1\nEnvironment=b=2\n", "[Service]\nEnvironment=\n"]
    )
    assert service.all("Environment") == []
    assert service.one("StateDirectory", "x") == "x"
    with pytest.raises(StepFailed, match="SetCredential"):
        Service.read(["[Service]\nSetCredential=a:b\n"])


def test_the_shipped_configuration_is_that_of_the_guide() -> None:
    shipped = (ROOT / "packaging/systemd/headrace.toml").read_text("utf-8")
    block = re.search(r"^```toml\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    assert block is not None
    options = [line for line in shipped.splitlines() if " = " in line]
    assert [line for line in options if line not in block[1].splitlines()] == []
