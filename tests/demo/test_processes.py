import queue
import signal
from pathlib import Path

import pytest

from headrace.demo.messages import Ended, Failed, Query, Ready, asked, told
from headrace.demo.processes import Child, Heard, end, read_ready_line


class Inbox(queue.SimpleQueue[Heard]):
    """What one child says."""

    def hear(self, _: Child, message: Heard) -> None:
        self.put(message)

    def next(self) -> Heard:
        return self.get(timeout=120)


def test_a_child_is_heard_to_its_end(tmp_path: Path) -> None:
    inbox = Inbox()
    child = Child("version", "headrace", ["--version"], inbox.hear, tmp_path / "log")
    message = inbox.next()
    assert isinstance(message, Failed)
    assert message.reason.startswith("sent a line that cannot be parsed: headrace ")
    while not isinstance(message, Ended):
        message = inbox.next()
    assert message == Ended(0)
    assert not child.running
    child.ask(Query("to nobody", "named"))


def test_its_standard_error_is_kept(tmp_path: Path) -> None:
    inbox = Inbox()
    child = Child("wrong", "headrace", ["no-such-command"], inbox.hear, tmp_path / "log")
    assert inbox.next() == Ended(2)
    assert "no-such-command" in child.last_words()


def test_end_ends_it(tmp_path: Path) -> None:
    inbox = Inbox()
    arguments = ["serve", "--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0", "--data", str(tmp_path / "data")]
    child = Child("server", "headrace", arguments, inbox.hear, tmp_path / "log", read_ready_line)
    ready = inbox.next()
    assert isinstance(ready, Ready)
    assert ready.http.startswith("http://127.0.0.1:")
    end([child])
    assert inbox.next() == Ended(0)


@pytest.mark.parametrize("line", [b"{}", b'{"type": "Told"}', b"nonsense", b'{"type": "Assigned"}'])
def test_an_invalid_message_is_refused(line: bytes) -> None:
    for read in (told, asked):
        with pytest.raises(ValueError, match=r"."):
            read(line)


def test_the_ready_line() -> None:
    line = b"ready kafka=127.0.0.1:1 http=http://127.0.0.1:2 storage=unix:///a%20b/sock\n"
    assert read_ready_line(line) == Ready("127.0.0.1:1", "http://127.0.0.1:2", "unix:///a%20b/sock")
    with pytest.raises(ValueError, match=r"."):
        read_ready_line(b"something else\n")


def test_a_kill_is_reported_as_its_signal(tmp_path: Path) -> None:
    inbox = Inbox()
    # It reads its standard input to the end: it does not end by itself, however late the signal comes.
    child = Child("reader", "json.tool", [], inbox.hear, tmp_path / "log")
    child.kill()
    assert inbox.next() == Ended(-signal.SIGKILL)
