"""The limits page cannot disagree with the code: the figures of its totals are looked up there."""

import re
from pathlib import Path

import pytest

from headrace.broker import time_lag
from headrace.broker.admin import users
from headrace.broker.config.settings import BrokerSettings
from headrace.broker.coordinator.instances import MOST_GROUPS
from headrace.broker.partition import producer_total
from headrace.cli import log_output
from headrace.console import event_stream, events, sampler, sessions
from headrace.http import shared_pages
from headrace.oci.resources import table

_PAGE = Path(__file__).parents[2] / "docs" / "limits.md"
_SETTINGS = BrokerSettings.of({})
_MIB = 1 << 20
_TOTALS: dict[str, tuple[int, ...]] = {
    "members of all groups": (_SETTINGS.headrace_groups_max_bytes // _MIB,),
    "committed offsets of all groups": (_SETTINGS.headrace_offsets_max_bytes // _MIB,),
    "idempotent producers": (_SETTINGS.headrace_max_producers, producer_total.LEAST_SILENT_MS // 1_000),
    "deleted streams": (table.MOST_REMEMBERED, table.MOST_REMEMBERED_BYTES // _MIB),
    "streams made through the OCI API": (table.MOST_IN_USE, table.MOST_IN_USE_BYTES // _MIB),
    "retry tokens": (table.MOST_TOKENS,),
    "sessions": (sessions.MOST, sessions.MOST_OF_ONE),
    "passwords that wait": (users.MOST_WAITING, users.MOST_WAITING_OF_ONE),
    "pages of the web console": (event_stream.MOST, event_stream.MOST_OF_ONE),
    "history of the web console's charts": (sampler.MOST_SERIES,),
    "events of the web console": (events.MOST,),
    "lookups for `headrace_group_lag_seconds`": (time_lag.MOST_LOOKUPS, time_lag.MOST_NATIVE, time_lag.MOST_KNOWN),
    "pages of `/metrics`": (shared_pages.MOST_KEPT, shared_pages.PIECE >> 10),
    "log lines of one event": log_output.OF_ONE_EVENT,
    "log lines of one event and client address": log_output.OF_ONE_CLIENT,
}
"""Row of the table -> the figures in it."""


def _rows() -> dict[str, str]:
    section = _PAGE.read_text("utf-8").partition("\n## Totals\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")][2:]
    return {line.split("|")[1].strip(): line for line in lines}


@pytest.mark.parametrize("total", _TOTALS)
def test_each_total_is_on_the_limits_page(total: str) -> None:
    [row] = [row for name, row in _rows().items() if re.fullmatch(rf"{re.escape(total)}([:,( ](?!and ).*)?", name)]
    for figure in _TOTALS[total]:
        assert re.search(rf"(?<![\d,]){figure:,}(?![\d,]\d)", row), f"{figure:,} is not in: {row}"


def test_each_row_is_looked_up() -> None:
    assert len(_rows()) == len(_TOTALS)


def test_groups_of_a_stream_are_on_the_limits_page() -> None:
    assert f"a stream has {MOST_GROUPS} groups at most" in _PAGE.read_text("utf-8")
