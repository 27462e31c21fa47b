"""What `headrace archive` does around the process with Spark in it: counts, shows, starts another one."""

import http.client
import io
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.harness.exposition import Samples, read

from headrace.cli.archive import messages, supervisor
from headrace.cli.archive.messages import Batch, Ended, Failed, Note, SparkReady, Stand, Told, Wanted
from headrace.cli.archive.supervisor import ArchiveFailed, Show, Supervisor
from headrace.cli.commands.archive import metrics_page, serve_metrics
from headrace.lakehouse.status.counters import Figures, Progress, Standing, TopicProgress


def told(samples: Samples, name: str, topic: str = "t") -> float | None:
    return samples.get((f"headrace_archive_{name}", frozenset({("topic", topic)})))


def batch(rows: int, lag: int = 0, *, files: int = 1, failed: bool = False, topic: str = "t") -> Batch:
    of_topic = TopicProgress(
        lag=lag, version=rows, fences={0: rows}, batch_rows=rows, batch_bytes=10 * rows, batch_files=files
    )
    return Batch(Progress(rows=rows, batch_s=0.5, topics={topic: of_topic}, group_failed=failed))


def test_the_table_is_as_fresh_as_the_last_moment_all_of_which_it_has() -> None:
    now = 1_000.0
    figures = Figures(lambda: now)
    figures.stands({"t": Standing(0, 0)})
    samples = read(metrics_page(figures))
    assert (told(samples, "lag"), told(samples, "fresh_timestamp_seconds")) == (0, 1_000)
    seen = []
    # It never has everything, but it goes on: ten records behind, a hundred a step.
    for step in range(1, 5):
        now = 1_000.0 + step
        figures.stands({"t": Standing(100 * step - 10, 100 * step)})
        samples = read(metrics_page(figures))
        assert told(samples, "lag") == 10
        seen.append(told(samples, "fresh_timestamp_seconds"))
    assert seen == [1_000, 1_001, 1_002, 1_003]


def test_what_was_counted_goes_on_in_the_next_process() -> None:
    figures = Figures()
    figures.took(batch(5, files=2).progress)
    figures.unknown()
    assert told(read(metrics_page(figures)), "lag") is None
    figures.took(batch(2, failed=True).progress)
    figures.took(batch(9, topic="u").progress)
    samples = read(metrics_page(figures))
    names = ("records_total", "bytes_total", "files_total", "batches_total", "group_failures_total", "table_version")
    assert [told(samples, name) for name in names] == [7, 70, 3, 2, 1, 2]
    assert told(samples, "records_total", "u") == 9


def test_it_answers_this_machine_by_its_own_name_only() -> None:
    address = serve_metrics(Figures(), "127.0.0.1:0")

    def status(path: str, host: str) -> int:
        connection = http.client.HTTPConnection(address, timeout=60)
        connection.request("GET", path, headers={"host": host})
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return answer.status

    assert status("/metrics", address) == 200
    assert status("/metrics", "localhost:1") == 200
    assert status("/metrics", "evil.example:80") == 404
    assert status("/", address) == 404
    for wrong in ("0.0.0.0:0", "192.0.2.1:0", "127.0.0.1", "example.org:80", ":80", "127.0.0.1:x"):
        with pytest.raises(ValueError, match=r"expected HOST:PORT|does not appear to be"):
            serve_metrics(Figures(), wrong)


def test_lines_for_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    now = 50.0
    figures = Figures(lambda: now)
    with Show(figures, clock=lambda: now) as show:
        now = 54.0
        show(SparkReady("4.2.1", "17.0.15"))
        figures.took(batch(1000, lag=7).progress)
        show(batch(1000, lag=7))
        figures.stands({"t": Standing(993, 1000)})
        show(Stand({"t": Standing(993, 1000)}))
        now = 150.0
        show(Stand({"t": Standing(993, 1000)}))
        show(Note("a\x1b[31mnote"))
    lines = [line.partition(" ")[2] for line in capsys.readouterr().err.splitlines()]
    assert lines[:3] == [
        "starting Spark",
        "Spark 4.2.1 on Java 17.0.15 is up (4.0 s)",
        "archived 1,000 (+1,000 at 2,000/s, 0.0 MB in 1 files), lag 7, table version 1000",
    ]
    assert lines[3] == "archived 1,000, 0/s, lag 7, 1 files"
    assert "\x1b" not in lines[4]


def test_the_start_of_spark_is_timed_from_its_restart(capsys: pytest.CaptureFixture[str]) -> None:
    now = 50.0
    with Show(Figures(lambda: now), clock=lambda: now) as show:
        show(SparkReady("4.2.1", "17"))
        now = 90.0
        show(Note("killed", restarting=True))
        now = 93.0
        show(SparkReady("4.2.1", "17"))
    assert capsys.readouterr().err.endswith("is up (3.0 s)\n")


def test_one_line_that_moves_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    screen.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    figures = Figures()
    with Show(figures) as show:
        show(SparkReady("4.2.1", "17"))
        figures.took(batch(1234, lag=5).progress)
        show(batch(1234, lag=5))
        show(Note("a note"))
    text = screen.getvalue()
    assert "a note" in text
    assert "archived 1,234" in text
    assert "starting Spark" in text


WANTED = Wanted(settings={}, once=True)
CHILD = """
import os, signal, sys
from pathlib import Path
from headrace.lakehouse.status.counters import Progress, TopicProgress
from headrace.cli.archive.messages import *
def tell(message):
    sys.stdout.buffer.write(line(message)); sys.stdout.buffer.flush()
wanted(sys.stdin.buffer.readline())
runs = Path(os.environ["RUNS"])
runs.write_text(runs.read_text() + "x")
run = len(runs.read_text())
done = Batch(Progress(1, 0.1, {{"t": TopicProgress(0, 1, {{0: 1}}, 1, 1, 1)}}))
{body}
"""


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a letter for each process that was started."""
    path = tmp_path / "runs"
    path.write_text("")
    monkeypatch.setenv("RUNS", str(path))
    monkeypatch.setattr(supervisor, "_LONGEST_PAUSE_S", 0.0)
    return path


def supervise(body: str, folder: Path, monkeypatch: pytest.MonkeyPatch, hear: Callable[[Told], None]) -> Supervisor:
    (folder / "archiving_child.py").write_text(CHILD.format(body=body))
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{os.environ.get('PYTHONPATH', '')}:{':'.join(sys.path)}")
    monkeypatch.setattr(supervisor, "_CHILD", "archiving_child")
    return Supervisor(WANTED, hear)


def test_a_process_that_is_killed_is_replaced(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[Told] = []
    (temporary := runs.parent / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setenv("TMPDIR", str(temporary))
    body = """
import tempfile
Path(tempfile.mkdtemp(), "left").touch()
if run < 3:
    tell(done); os.kill(os.getpid(), signal.SIGKILL)
tell(Ended())
"""
    supervise(body, runs.parent, monkeypatch, heard.append).run()
    assert runs.read_text() == "xxx"
    notes = [message for message in heard if isinstance(message, Note)]
    assert notes == [Note("the archive's process was killed by SIGKILL; restarting in 0 s", restarting=True)] * 2
    assert list(temporary.iterdir()) == []


def test_permanent_errors_end_the_process(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "tell(Failed(\"no topic 'x'\", passing=False)); sys.exit(1)"
    with pytest.raises(ArchiveFailed, match=r"^no topic 'x'$"):
        supervise(body, runs.parent, monkeypatch, lambda _: None).run()
    assert runs.read_text() == "x"


def test_it_gives_up_on_what_never_gets_anywhere(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArchiveFailed, match="ended with status 3; that was 10 times in a row"):
        supervise("sys.exit(3)", runs.parent, monkeypatch, lambda _: None).run()
    assert runs.read_text() == "x" * 10


@pytest.mark.parametrize("twice", [False, True])
def test_asked_to_stop_it_ends_its_process(twice: bool, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = """
tell(SparkReady("4", "17"))
sys.stdin.buffer.read()
tell(Note("asked"))
"""
    body += "signal.pause()" if twice else "tell(Ended())"
    heard: list[Told] = []
    ready, asked = SparkReady("4", "17"), Note("asked")

    def hear(message: Told) -> None:
        heard.append(message)
        if message == ready or (twice and message == asked):
            supervised.stop()

    supervised = supervise(body, runs.parent, monkeypatch, hear)
    running = threading.Thread(target=supervised.run)
    running.start()
    running.join(60)
    assert not running.is_alive()
    assert heard == [ready, asked]
    assert runs.read_text() == "x"


def test_asked_to_stop_while_spark_starts_it_ends_its_process_at_once(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervised: Supervisor = supervise(
        'tell(Note("starting")); signal.pause()', runs.parent, monkeypatch, lambda _: supervised.stop()
    )
    running = threading.Thread(target=supervised.run)
    running.start()
    running.join(60)
    assert not running.is_alive()
    assert runs.read_text() == "x"


def test_nothing_is_left_of_it_to_complain(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's Python workers are not of its process group."""
    alive = runs.parent / "alive"
    os.mkfifo(alive)
    body = f"""
import subprocess
subprocess.Popen([sys.executable, "-c", "import signal; open({str(alive)!r}, 'w'); signal.pause()"], process_group=0)
signal.pause()
"""
    supervised = supervise(body, runs.parent, monkeypatch, lambda _: None)
    running = threading.Thread(target=supervised.run)
    running.start()
    with alive.open() as ends_with_the_worker:
        supervised.stop()
        assert ends_with_the_worker.read() == ""
    running.join(60)
    assert not running.is_alive()


def test_messages_come_back_as_they_were() -> None:
    for message in (
        batch(3),
        Stand({"t": Standing(1, 2)}),
        Note("n"),
        SparkReady("4", "17"),
        Ended(),
        Failed("f", True),
    ):
        assert messages.told(messages.line(message)) == message
    assert messages.wanted(messages.line(WANTED)) == WANTED
