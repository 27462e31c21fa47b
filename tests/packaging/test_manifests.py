"""What others start Headrace with: systemd, Kubernetes, a container. Each file is checked by its own checker."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from headrace import __version__
from headrace.cli.commands.archive import archive
from headrace.server import config
from headrace.server.options import OPTIONS

ROOT = Path(__file__).parents[2]
PACKAGING = ROOT / "packaging"
PROGRAMS = Path(sys.executable).parent


def checked(*command: str | Path) -> None:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_one_version_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["version"] == __version__
    for path in (PACKAGING / "container/compose.yaml", *(PACKAGING / "kubernetes").iterdir()):
        versions = re.findall(r"image: headrace(?:-spark)?:(\S+)", path.read_text("utf-8"))
        assert versions
        assert set(versions) == {__version__}
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text("utf-8")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="a machine without systemd has no use for its unit")
def test_the_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    unit = (PACKAGING / "systemd/headrace.service").read_text("utf-8")
    # systemd looks for the program as well.
    (tmp_path / "headrace.service").write_text(unit.replace("/opt/headrace/bin/headrace", str(PROGRAMS / "headrace")))
    (tmp_path / "headrace.service.d").mkdir()
    for drop in (PACKAGING / "systemd").glob("*.conf"):
        shutil.copy(drop, tmp_path / "headrace.service.d")
    checked("systemd-analyze", "verify", "--man=no", tmp_path / "headrace.service")


@pytest.mark.parametrize("name", ["headrace.yaml", "cluster.yaml"])
def test_the_manifests_are_what_kubernetes_takes(name: str) -> None:
    checked(PROGRAMS / "kubernetes-validate", "--strict", PACKAGING / "kubernetes" / name)


def test_the_container_file_has_no_known_mistakes() -> None:
    checked(PROGRAMS / "hadolint", PACKAGING / "container/Containerfile")


@pytest.mark.parametrize(
    "path",
    [
        "container/compose.yaml",
        "kubernetes/headrace.yaml",
        "kubernetes/cluster.yaml",
        "systemd/headrace.service",
        "systemd/tls.conf",
        "systemd/first-user.conf",
    ],
)
def test_every_option_that_they_give_is_one(path: str) -> None:
    text = (PACKAGING / path).read_text("utf-8")
    flags = set(re.findall(r"--([a-z][a-z-]+)", re.sub(r"^\s*#.*$", "", text, flags=re.MULTILINE)))
    of_archives = {option.removeprefix("--") for each in archive.params for option in each.opts}
    assert flags <= {option.name for option in OPTIONS} | {"set", "config"} | of_archives
    variables = set(re.findall(r"\bHEADRACE_[A-Z_]+", text))
    assert variables <= {option.variable for option in OPTIONS} | {"HEADRACE_SET"}


def configured(name: str, folder: Path) -> Path:
    """The configuration file that a manifest brings."""
    text = (PACKAGING / "kubernetes" / name).read_text("utf-8")
    block = re.search(r"headrace\.toml: \|\n((?:    .*\n)+)", text)
    assert block is not None
    file = folder / "headrace.toml"
    file.write_text(re.sub(r"^    ", "", block[1], flags=re.MULTILINE))
    return file


def test_the_configuration_in_the_manifests_starts_a_server(tmp_path: Path) -> None:
    options, broker, _ = config.load(config=str(configured("headrace.yaml", tmp_path)), environ={})
    assert str(options.advertise) == "headrace-broker:9092"
    assert broker.num_partitions == 3
    assert broker.headrace_insecure


def test_each_pod_of_a_cluster_is_a_broker_of_its_own(tmp_path: Path) -> None:
    """With what Kubernetes puts in place of the variables."""
    text = (PACKAGING / "kubernetes/cluster.yaml").read_text("utf-8")
    block = re.search(r"args:\n((?: +- .*\n)+)", text)
    assert block is not None
    given = re.findall(r"- (.*)", block[1])
    pod = {"BROKER_INDEX": "2", "BROKER_NAME": "headrace-broker-2", "BROKER_NAMESPACE": "streams"}
    given = [re.sub(r"\$\((\w+)\)", lambda found: pod[found[1]], word) for word in given]
    assert given[:3] == ["serve", "--config", "/etc/headrace/headrace.toml"]
    options, broker, _ = config.load(
        config=str(configured("cluster.yaml", tmp_path)),
        # The image sets the rest.
        environ={"HEADRACE_REDIS": "redis+cluster://valkey:6379", "HEADRACE_DATA": "/data"},
        flags={"advertise": given[given.index("--advertise") + 1]},
        sets=[given[given.index("--set") + 1]],
    )
    assert str(options.advertise) == "headrace-broker-2.headrace-brokers.streams.svc:9092"
    assert broker.node_id == 2


def test_a_broker_serves_until_requests_go_elsewhere_and_has_time_to_hand_over() -> None:
    """Kubernetes takes a pod out of its service while it ends it, not before."""
    text = (PACKAGING / "kubernetes/cluster.yaml").read_text("utf-8")
    waits = re.search(r'preStop:\n(?: *#.*\n)? *exec:\n *command: \[sleep, "(\d+)"\]', text)
    grace = re.search(r"terminationGracePeriodSeconds: (\d+)", text)
    assert waits is not None
    assert grace is not None
    assert 5 <= int(waits[1]) <= int(grace[1]) - 30


def test_the_requirements_with_hashes_are_the_versions_that_the_tests_run_with() -> None:
    text = (PACKAGING / "requirements-hashed.txt").read_text("utf-8")
    pinned = dict(re.findall(r"^([a-z0-9-]+)==([^ ]+)", text, flags=re.MULTILINE))
    constraints = (ROOT / "constraints.txt").read_text("utf-8")
    tested = {
        name.lower().replace("_", "-"): version
        for name, version in re.findall(r"^([A-Za-z0-9_.-]+)==(\S+)", constraints, flags=re.MULTILINE)
    }
    assert {name: tested.get(name, version) for name, version in pinned.items()} == pinned
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert {re.split(r"[^a-z0-9-]", name)[0] for name in project["dependencies"]} <= pinned.keys()
    assert all("--hash=sha256:" in entry for entry in re.split(r"^(?=[a-z])", text, flags=re.MULTILINE)[1:])
