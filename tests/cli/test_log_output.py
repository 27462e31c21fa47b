import json
import logging
import subprocess
import sys
from typing import Any

import pytest

SCRIPT = """
import logging, sys
import structlog
from headrace.cli import log_output
log_output.configure(sys.argv[1], sys.argv[2])
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
        [sys.executable, "-c", SCRIPT, level, style], capture_output=True, text=True, timeout=60, check=True
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


NAMED = """
from contextvars import Context
import structlog
from headrace.cli import log_output
log_output.configure("info", "json", node=7)
log = structlog.get_logger("test")
log.info("view")
Context().run(log.info, "member expired")
log.info("a broker has ended", node=3)
"""


def test_a_broker_among_others_says_in_each_line_which_one_it_is() -> None:
    ended = subprocess.run([sys.executable, "-c", NAMED], capture_output=True, text=True, timeout=60, check=True)
    assert [json.loads(line)["node"] for line in ended.stderr.splitlines()] == [7, 7, 3]


UNUSUAL = """
import sys
import structlog
from headrace.cli import log_output

class Unshowable:
    def __repr__(self):
        raise ValueError

log_output.configure(sys.argv[2], sys.argv[1])
log = structlog.get_logger("test")
log.info("lost", value=Unshowable())
log.info("named as we are", method="GET", logger="y", level="z")
log.info("named", topic="a\\x1b[2J\\nb\\x9b\\udc80", config={"key": "\\x1b[2J", "no\\n": None, 3: 4.5}, nodes=[1, 2])
log.info("long", topic="x" * 1_000_000)
password = "correct-horse"
try:
    int(password[:0])
except ValueError:
    log.exception("with\\nlines")
for _ in range(50):
    log.warning("again", topic="flights")
"""


def unusual(style: str, level: str = "info") -> list[str]:
    ended = subprocess.run(
        [sys.executable, "-c", UNUSUAL, style, level], capture_output=True, text=True, timeout=60, check=True
    )
    assert "correct-horse" not in ended.stderr
    return ended.stderr.splitlines()


def test_lines_that_cannot_be_made_are_counted_and_long_ones_cut() -> None:
    lines: list[dict[str, Any]] = [json.loads(line) for line in unusual("json")]
    by_event = {line["event"]: line for line in lines}
    assert by_event["log lines lost"]["lines"] == 1
    assert by_event["named"]["topic"] == "a\x1b[2J\nb\x9b\udc80"
    assert by_event["named"]["config"] == {"key": "\x1b[2J", "no\n": None, "3": "4.5"}
    assert by_event["named"]["nodes"] == [1, 2]
    assert len(by_event["long"]["topic"]) < 1_100
    assert [line.get("repeated") for line in lines if line["event"] == "again"] == [None, 49]


def test_at_debug_nothing_is_held_back() -> None:
    lines: list[dict[str, Any]] = [json.loads(line) for line in unusual("json", "debug")]
    assert [line["event"] for line in lines].count("again") == 50


def test_foreign_text_cannot_imitate_lines_or_move_the_cursor() -> None:
    lines = unusual("text")
    assert all(line.isprintable() for line in lines)
    events = [line for line in lines if not line.startswith("    ")]
    assert len(events) == 7
    assert all(line.startswith("20") for line in events)
