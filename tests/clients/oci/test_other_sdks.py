"""Oracle's TypeScript, Java and Go SDKs: one program per language makes the same requests, with the same results.

The server verifies every signature, once without and once with TLS; then three brokers do. Dependencies come from the
languages' own registries, in pinned versions.
"""

import datetime as dt
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.clients.middle import VALUES, feed_while_a_broker_dies
from tests.harness import fetching
from tests.harness.brokers import STORAGES, brokers_over
from tests.harness.fed import Fed

from headrace.security.tls.files import GeneratedFiles, create
from headrace.testing import InProcessServer

HERE = Path(__file__).parent
BUILD_S = 900
RUN_S = 240
COMPARTMENT = "ocid1.compartment.oc1..other"


class Sdk(msgspec.Struct, frozen=True):
    """How the program of one language is built and run, in a copy of its folder."""

    folder: str
    build: tuple[tuple[str, ...], ...]
    run: tuple[str, ...]
    tells_work_requests: bool = True


TYPESCRIPT = Sdk(
    folder="typescript",
    build=(
        ("npm", "install", "--no-package-lock", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"),
        ("node", "node_modules/typescript/bin/tsc", "--project", "."),
    ),
    run=("node", "built/flow.js"),
)
JAVA = Sdk(
    folder="java",
    build=(
        ("mvn", "--batch-mode", "--quiet", "dependency:copy-dependencies"),
        ("javac", "-d", "target", "-cp", "target/dependency/*", "Flow.java"),
    ),
    run=("java", "-cp", "target:target/dependency/*", "Flow"),
    tells_work_requests=False,  # this SDK has nothing about them
)
GO = Sdk(folder="go", build=((*fetching.GO_BUILD, "-o", "flow", "."),), run=("./flow",))


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(TYPESCRIPT, id="typescript", marks=pytest.mark.npm),
        pytest.param(JAVA, id="java", marks=pytest.mark.maven),
        pytest.param(GO, id="go", marks=pytest.mark.go),
    ],
)
def sdk(request: pytest.FixtureRequest) -> Sdk:
    found: Sdk = request.param
    return found


@pytest.fixture(scope="module")
def built(sdk: Sdk, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the program, ready to be run."""
    folder = tmp_path_factory.mktemp(sdk.folder) / "program"
    shutil.copytree(HERE / sdk.folder, folder)
    for command in sdk.build:
        if shutil.which(command[0]) is None:
            pytest.fail(f"{command[0]} is not installed", pytrace=False)
        fetching.run(command, folder, each_s=BUILD_S / 3)
    return folder


@pytest.fixture
def made(tmp_path: Path) -> GeneratedFiles:
    """Certificates of an authority of our own."""
    return create(tmp_path / "certificates", (), "jane", dt.datetime.now(dt.UTC))


@pytest.fixture(params=[False, True], ids=["http", "https"])
def verifying(request: pytest.FixtureRequest, tmp_path: Path, made: GeneratedFiles) -> Iterator[InProcessServer]:
    keys = tmp_path / "keys"
    configure = [sys.executable, "-m", "headrace", "oci-config", str(tmp_path), "--keys", str(keys)]
    subprocess.run(configure, check=True, capture_output=True)
    with InProcessServer(
        https=request.param, ssl_keystore_location=made.server, oci_auth="verify", oci_auth_keys=str(keys)
    ) as started:
        yield started


def trusting(authority: Path) -> dict[str, str]:
    """The environment in which each language's programs believe an authority."""
    store = authority.with_suffix(".p12")
    password = ("-storetype", "PKCS12", "-storepass", "changeit")
    if shutil.which("keytool") is not None:
        imported = ["keytool", "-importcert", "-noprompt", "-alias", "own", "-file", str(authority)]
        subprocess.run([*imported, "-keystore", str(store), *password], check=True, capture_output=True)
    java = f"-Djavax.net.ssl.trustStore={store} -Djavax.net.ssl.trustStorePassword=changeit"
    return {
        "NODE_EXTRA_CA_CERTS": str(authority),
        "SSL_CERT_FILE": str(authority),
        "JAVA_TOOL_OPTIONS": f"{os.environ.get('JAVA_TOOL_OPTIONS', '')} {java}",
    }


def started(sdk: Sdk, built: Path, folder: Path, environment: dict[str, str], *arguments: str) -> Fed:
    """The program, which is given lines to put and read."""
    environment = os.environ | {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"} | environment
    return Fed([*sdk.run, *arguments], folder, cwd=built, env=environment)


@pytest.mark.timeout(BUILD_S + RUN_S)
def test_every_sdk_sees_the_same(
    sdk: Sdk, built: Path, verifying: InProcessServer, made: GeneratedFiles, tmp_path: Path
) -> None:
    environment = trusting(made.authority) if verifying.http.startswith("https:") else {}
    config = str(tmp_path / "config")
    with started(sdk, built, tmp_path, environment, verifying.http, config, COMPARTMENT) as program:
        program.feed(VALUES)
        report = program.result()
    assert sorted(report["lines"]["stored"]) == sorted(VALUES)
    check(sdk, report)


@pytest.mark.timeout(BUILD_S + RUN_S)
@pytest.mark.parametrize("storage", STORAGES)
def test_every_sdk_sees_the_same_while_a_broker_dies(storage: str, sdk: Sdk, built: Path, tmp_path: Path) -> None:
    """The one that coordinates its group, and leads some of the stream; the rest of its flow is with those left."""
    keys = tmp_path / "keys"
    configure = [sys.executable, "-m", "headrace", "oci-config", str(tmp_path), "--keys", str(keys)]
    subprocess.run(configure, check=True, capture_output=True)
    beating = {"broker_session_timeout_ms": 1_500, "broker_heartbeat_interval_ms": 200}
    with brokers_over(storage, oci_auth="verify", oci_auth_keys=str(keys), **beating) as three:
        killed = three.coordinator(1, "followers")
        asked = next(node for node in three.servers if node != killed)
        config = str(tmp_path / "config")
        with started(sdk, built, tmp_path, {}, three.servers[asked].http, config, COMPARTMENT) as program:
            feed_while_a_broker_dies(program, three, "second", killed)
            check(sdk, program.result())


def check(sdk: Sdk, report: dict[str, Any]) -> None:
    """What the program of a language must have seen."""
    lines = report.pop("lines")
    assert set(lines["read"]) == set(VALUES)
    # A client that retries without an answer, as the SDKs do, cannot know whether the value is stored.
    assert set(lines["stored"]) == set(VALUES)
    reservations = sorted(report["group"].pop("reservations"))
    errors = report.pop("errors")
    assert errors["stream"][:2] == [404, "NotAuthorizedOrNotFound"]
    assert errors["stream"][2].startswith("Unknown stream ocid1.stream.")
    assert errors["cursor"] == [400, "InvalidParameter", "The cursor is invalid. Create a new one."]
    assert reservations == [["0", "one", True], ["1", "one", True]]
    if sdk.tells_work_requests:
        assert report.pop("work request") == "SUCCEEDED"
    assert report == {
        "stream": {
            "name": "first",
            "partitions": 2,
            "retention": 24,
            "state": "ACTIVE",
            "tags": {"made by": sdk.folder},
        },
        "listed": ["first", "second"],
        "put": {"failures": 0, "entries": 7, "errors": 0},
        "read": {
            "messages": [[name, f"of {name}"] for name in "abcdef"] + [[None, "without a key"]],
            "at offset": True,
            "after offset": 0,
            "at time": 7,
            "latest": 0,
        },
        "group": {"read": 7, "after commit": 0, "name": "readers of/2026", "after update": 7},
        "deleted": "DELETED",
    }
