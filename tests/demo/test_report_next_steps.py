"""What the demo proposes to try."""

from pathlib import Path

from rich.console import Console

from headrace.demo.messages import Ready
from headrace.demo.report import show_next_steps


def test_a_group_that_is_new_reads_what_is_there_already(tmp_path: Path) -> None:
    """Nothing comes any more: from the end on kcat would wait for ever."""
    console = Console(record=True, width=200)
    ready = Ready(kafka="127.0.0.1:9092", http="http://127.0.0.1:8080", storage="unix:///sock")
    show_next_steps(console, ready, "flights", "readers", "headrace:flights:0", tmp_path, tmp_path)
    [line] = [line for line in console.export_text().splitlines() if "-G my-group" in line]
    assert "-X auto.offset.reset=earliest flights" in line
