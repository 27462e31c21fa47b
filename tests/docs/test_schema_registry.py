"""The guide and the reference of the schema registry are true."""

import re
import subprocess
import sys
from pathlib import Path

from headrace.schema_registry.routes import ROUTES
from headrace.testing import Server

DOCS = Path(__file__).parents[2] / "docs"
ROW = re.compile(r"^\| `(?P<path>/[^`]*)` \| (?P<methods>[A-Z, ]+) \|", re.MULTILINE)


def test_the_program_of_the_guide_runs(tmp_path: Path) -> None:
    page = (DOCS / "guides" / "schema-registry.md").read_text("utf-8")
    found = re.search(r"^```python\n(from confluent_kafka import.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert found is not None
    with Server(tmp_path / "d", ["--set", "schema.registry.enable=true", *_ANY]) as server:
        program = found[1].replace("127.0.0.1:9092", server.kafka)
        program = program.replace("http://127.0.0.1:8080/registry", server.schema_registry)
        assert server.kafka in program
        assert server.schema_registry in program
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
        assert done.stdout == "{'id': 'a', 'count': 3}\n", done.stderr


_ANY = ("--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0")


def test_the_tests_of_the_guide_pass(tmp_path: Path) -> None:
    page = (DOCS / "guides" / "schema-registry.md").read_text("utf-8")
    files = dict(re.findall(r"^```python (\w+\.py)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    assert sorted(files) == ["conftest.py", "test_orders.py"]
    for name, text in files.items():
        (tmp_path / name).write_text(text, "utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_the_reference_lists_every_route() -> None:
    page = (DOCS / "schema-registry.md").read_text("utf-8")
    listed = {(method, row["path"]) for row in ROW.finditer(page) for method in row["methods"].split(", ")}
    assert listed == set(ROUTES)
