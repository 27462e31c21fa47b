"""The pytest plugin as its users meet it: in a pytest of their own, and by the examples of its guide."""

import re
import subprocess
import sys
from pathlib import Path

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "testing.md"
BLOCK = re.compile(r"^```python (?P<name>\S+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
SETTINGS = "[pytest]\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\n"


def run(folder: Path, *arguments: str, **files: str) -> subprocess.CompletedProcess[str]:
    """A pytest of its own on these files (their names without `.py`)."""
    (folder / "pytest.ini").write_text(SETTINGS)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    without = [option for name in ("randomly", "cacheprovider", "schemathesis") for option in ("-p", f"no:{name}")]
    command = [sys.executable, "-m", "pytest", "-q", *without, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False)


def passed(ended: subprocess.CompletedProcess[str]) -> int:
    """How many tests passed; all must have."""
    assert ended.returncode == 0, ended.stdout + ended.stderr
    summary = re.search(r"(\d+) passed", ended.stdout)
    assert summary is not None
    return int(summary[1])


def test_the_examples_of_the_guide(tmp_path: Path) -> None:
    files = {block["name"].removesuffix(".py"): block["text"] for block in BLOCK.finditer(GUIDE.read_text("utf-8"))}
    assert files.keys() == {"worker", "test_worker", "conftest", "test_throttled"}
    conftest = files.pop("conftest")
    assert passed(run(tmp_path, **files)) == 5
    # With the settings of the guide, too; its limits leave room for so few requests.
    assert passed(run(tmp_path, "test_throttled.py", conftest=conftest)) == 1


def test_pytest_starts_without_us(tmp_path: Path) -> None:
    """The plugin is there, and has imported nothing of ours but itself."""
    test = """
import sys


def test_nothing_is_imported():
    ours = {name for name in sys.modules if name.split(".")[0] in {"headrace", "oci", "redis", "msgspec", "uvicorn"}}
    assert ours == {"headrace", "headrace.testing", "headrace.testing.plugin"}
"""
    assert passed(run(tmp_path, test_imports=test)) == 1


def test_each_test_finds_an_empty_schema_registry(tmp_path: Path) -> None:
    conftest = """
import pytest


@pytest.fixture(scope="session")
def headrace_settings():
    return {"schema_registry_enable": True}
"""
    test = """
import json
import urllib.request


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def uses(url):
    with urllib.request.urlopen(f"{url}/subjects?deleted=true", timeout=60) as answer:
        assert json.load(answer) == []
    record = {"schema": '{"type": "record", "name": "R", "fields": []}'}
    post(f"{url}/subjects/a/versions", record)
    references = [{"name": "R", "subject": "a", "version": 1}]
    post(f"{url}/subjects/b%2Fc/versions", {"schema": '{"type": "array", "items": "R"}', "references": references})


def test_one(headrace_schema_registry):
    uses(headrace_schema_registry)


def test_other(headrace_schema_registry, headrace_server):
    assert headrace_schema_registry == headrace_server.schema_registry
    uses(headrace_schema_registry)
"""
    assert passed(run(tmp_path, conftest=conftest, test_schemas=test)) == 2
    (tmp_path / "conftest.py").unlink()
    ended = run(tmp_path, test_schemas=test)
    assert "override headrace_settings" in ended.stdout


def test_each_test_finds_an_empty_server(tmp_path: Path) -> None:
    test = """
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from headrace.testing.oci import GroupReader, put

kept = []  # consumers that are never closed


@pytest.mark.parametrize("number", range(3))
def test_the_same_names_again(number, headrace_kafka, headrace_oci):
    admin = AdminClient({"bootstrap.servers": headrace_kafka})
    assert {*admin.list_topics(timeout=60).topics} == {"__consumer_offsets"}
    assert admin.list_consumer_groups().result().valid == []
    client = headrace_oci.stream_client()
    for name in ("one", "two"):
        stream = headrace_oci.create_stream(name)
        put(client, stream.id, "v")
        assert GroupReader(client, stream.id, "g", "A").values() == ["v"]
    consumer = Consumer({"bootstrap.servers": headrace_kafka, "group.id": "h", "auto.offset.reset": "earliest"})
    consumer.subscribe(["one"])
    assert consumer.consume(1, timeout=60)
    kept.append(consumer)


def test_afterwards_nothing_is_left(headrace_server, headrace_oci):
    assert headrace_oci.admin_client().list_streams(compartment_id=headrace_oci.compartment_id).data == []
"""
    # The consumers notice that their group is gone only when they heartbeat next; until then they would join again.
    test = test.replace("    kept.append(consumer)\n", "    consumer.close()\n")
    assert passed(run(tmp_path, test_empty=test)) == 4


def test_the_clock_goes_back_after_each_test(tmp_path: Path) -> None:
    test = """
import time

import pytest


@pytest.mark.parametrize("number", range(3))
def test_it(number, headrace_clock, headrace_server):
    assert abs(headrace_clock.now_ms() - time.time() * 1000) < 10_000
    headrace_clock.advance(hours=1)
    assert headrace_clock.now_ms() - time.time() * 1000 > 3_590_000
"""
    assert passed(run(tmp_path, test_clock=test)) == 3


def test_without_the_sdk_the_fixture_says_what_is_missing(tmp_path: Path) -> None:
    conftest = """
import importlib.util

find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "oci" else find_spec(name, *rest)
"""
    test = "def test_it(headrace_oci):\n    pass\n"
    ended = run(tmp_path, conftest=conftest, test_missing=test)

    assert ended.returncode == 1
    assert "pip install oci" in ended.stdout


def test_unknown_settings_are_reported(tmp_path: Path) -> None:
    test = """
import pytest


@pytest.fixture(scope="session")
def headrace_settings():
    return {"oci_limit": "strict"}


def test_it(headrace_kafka):
    pass
"""
    ended = run(tmp_path, test_wrong=test)

    assert ended.returncode == 1
    assert "'oci_limit'" in ended.stdout
