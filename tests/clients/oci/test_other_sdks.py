"""Oracle's TypeScript, Java and Go SDKs: one program in each language does the same, and must have seen the same.

The server verifies every signature, once without and once with TLS. Dependencies come from the languages' own
registries, in the versions that are pinned beside the programs.
"""

import datetime as dt
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.harness.brokers import brokers

from headrace.testing import InProcessServer
from headrace.tls.files import Made, create

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
GO = Sdk(folder="go", build=(("go", "build", "-o", "flow", "."),), run=("./flow",))


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
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=BUILD_S, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr
    return folder


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Certificates of an authority of our own."""
    return create(tmp_path / "certificates", (), "jane", dt.datetime.now(dt.UTC))


@pytest.fixture(params=[False, True], ids=["http", "https"])
def verifying(request: pytest.FixtureRequest, tmp_path: Path, made: Made) -> Iterator[InProcessServer]:
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


def run(sdk: Sdk, built: Path, environment: dict[str, str], *arguments: str) -> dict[str, Any]:
    """What the program printed."""
    command = [*sdk.run, *arguments]
    environment = os.environ | {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"} | environment
    ended = subprocess.run(
        command, cwd=built, env=environment, capture_output=True, text=True, timeout=RUN_S, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    report: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return report


@pytest.mark.timeout(BUILD_S + RUN_S)
def test_every_sdk_sees_the_same(sdk: Sdk, built: Path, verifying: InProcessServer, made: Made, tmp_path: Path) -> None:
    environment = trusting(made.authority) if verifying.http.startswith("https:") else {}
    check(sdk, run(sdk, built, environment, verifying.http, str(tmp_path / "config"), COMPARTMENT))


@pytest.mark.timeout(BUILD_S + RUN_S)
def test_every_sdk_sees_the_same_of_brokers_that_are_left(sdk: Sdk, built: Path, tmp_path: Path) -> None:
    """Of three, one was killed: what it had is with the others."""
    keys = tmp_path / "keys"
    configure = [sys.executable, "-m", "headrace", "oci-config", str(tmp_path), "--keys", str(keys)]
    subprocess.run(configure, check=True, capture_output=True)
    with brokers(3, oci_auth="verify", oci_auth_keys=str(keys), broker_session_timeout_ms=30_000) as three:
        three.servers[2].kill()
        three.agree([1, 3])
        check(sdk, run(sdk, built, {}, three.servers[1].http, str(tmp_path / "config"), COMPARTMENT))


def check(sdk: Sdk, report: dict[str, Any]) -> None:
    """What the program of a language must have seen."""
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
