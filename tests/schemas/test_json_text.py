import threading
import time

import pytest

from headrace.schemas import json_text
from headrace.schemas.errors import InvalidSchema, Steps


def test_numbers_are_read_exactly() -> None:
    assert json_text.parse("[1.5, 1e3, -0.25, 12345678901234567890, 1.234567890123456789e-300]", Steps()) == [
        1.5, 1000.0, -0.25, 12345678901234567890, 1.234567890123456789e-300,
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["1e999", "-1e999", "[1.5", "", "NaN"])
def test_what_is_not_json_is_refused(text: str) -> None:
    with pytest.raises(InvalidSchema, match="not valid JSON"):
        json_text.parse(text, Steps())


def test_the_number_of_values_is_bounded_before_they_are_read() -> None:
    most = json_text.MOST_PUNCTUATION
    assert len(json_text.parse(f"[{'1,' * (most - 2)}1]", Steps())) == most - 1
    for text in (f"[{'1,' * most}1]", f"[{'[],' * most}1]", "[{},{}" * most, '"' + "," * (most + 1) + '"'):
        with pytest.raises(InvalidSchema, match="more than 100,000 commas and brackets"):
            json_text.parse(text, Steps())


def test_others_run_while_numbers_with_many_digits_are_read() -> None:
    """Compiled code that calls Python code hands Python's lock over in between."""
    text = "[" + ",".join(["1.234567890123456789e-300"] * 40_000) + "]"
    done = threading.Event()

    def read() -> None:
        json_text.parse(text, Steps())
        done.set()

    thread = threading.Thread(target=read)
    others = 0
    thread.start()
    while not done.is_set():
        others += 1
        time.sleep(0)
    thread.join()
    assert others > 3
