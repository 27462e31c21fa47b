import json
import logging
import subprocess
import sys
from typing import Any

import pytest

SCRIPT = """
import logging, sys
import structlog
from headrace.cli import logs
logs.configure(sys.argv[1], sys.argv[2])
log = structlog.get_logger("test")
log.info("opened", topic="flights")
try:
    1 / 0
except ZeroDivisionError:
    log.exception("went wrong")
logging.getLogger("some.library").info("about itself")
logging.getLogger("some.library").warning("careful: %s", "hot")
"""


def logged(level: str, style: str) -> list[str]:
    """What a process of its own logs to stderr: logging is set up once per process."""
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, level, style], capture_output=True, text=True, timeout=30, check=True
    )
    assert ended.stdout == ""
    return ended.stderr.splitlines()


@pytest.mark.parametrize("style", ["json", "auto"])
def test_into_a_pipe_every_line_is_json(style: str) -> None:
    lines: list[dict[str, Any]] = [json.loads(line) for line in logged("info", style)]
    assert [line["event"] for line in lines] == ["opened", "went wrong", "careful: hot"]
    assert (lines[0]["topic"], lines[0]["level"]) == ("flights", "info")
    assert "ZeroDivisionError" in lines[1]["exception"]
    assert lines[2]["level"] == "warning"
    assert all(line["timestamp"].endswith("Z") for line in lines)


def test_text_is_for_people() -> None:
    first, *rest = logged("info", "text")
    assert "opened" in first
    assert "topic=flights" in first
    assert any("ZeroDivisionError" in line for line in rest)


def test_the_level_counts_for_us_and_for_libraries() -> None:
    assert [json.loads(line)["event"] for line in logged("error", "json")] == ["went wrong"]
    assert logging.getLogger("some.library").level == logging.NOTSET
