"""Starting: how long until the server on an empty data directory is ready, and what it holds in memory when idle; and
how long the command line takes to say what it can do.

The yardsticks are of the same run: a bare Python that starts and ends, and an embedded Valkey that starts alone.
"""

import argparse
import asyncio
import statistics
import subprocess
import sys
import time

import msgspec
import uvloop
from tests.harness.valkey import running_valkey

from bench.machine import describe
from bench.processes import memory_mb
from bench.table import Cell, table
from headrace.testing import server

_READY_S, _IDLE_MB, _HELP_S = 1.0, 120.0, 0.3
"""What the design asks for."""
_SETTLE_S = 0.5


class Start(msgspec.Struct, frozen=True):
    """One start, and the idle processes after it."""

    ready_s: float
    server_mb: float
    valkey_mb: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, help="starts whose median counts (9; quick: 3)")


def run(options: argparse.Namespace) -> None:
    rounds = options.rounds or (3 if options.quick else 9)
    print(describe(fsync="no", median_of=f"{rounds} starts"), end="\n\n", flush=True)
    starts, pythons, valkeys, helps, lists = [], [], [], [], []
    for _ in range(rounds):
        starts.append(_start())
        pythons.append(_command_s("-c", "pass"))
        helps.append(_command_s("-m", "headrace", "--help"))
        lists.append(_command_s("-m", "headrace", "topics", "list", "--help"))
        valkeys.append(uvloop.run(_valkey_s()))
    ready = statistics.median(start.ready_s for start in starts)
    python, valkey = statistics.median(pythons), statistics.median(valkeys)
    idle_server = statistics.median(start.server_mb for start in starts)
    idle_valkey = statistics.median(start.valkey_mb for start in starts)
    idle = idle_server + idle_valkey
    rows: list[list[Cell]] = [
        ["start to ready", "s", ready, _READY_S, ready / _READY_S],
        ["bare Python, start to end", "s", python, None, None],
        ["headrace --help", "s", statistics.median(helps), _HELP_S, statistics.median(helps) / _HELP_S],
        ["headrace topics list --help, with the client library", "s", statistics.median(lists), None, None],
        ["embedded Valkey alone, start to ready", "s", valkey, None, None],
        ["start to ready, of these two together", "times", ready / (python + valkey), None, None],
        ["idle memory (PSS), server and Valkey", "MB", idle, _IDLE_MB, idle / _IDLE_MB],
        ["of that the server", "MB", idle_server, None, None],
        ["of that Valkey", "MB", idle_valkey, None, None],
    ]
    print(table(["starting", "unit", "measured", "asked for", "of that"], rows))


def _start() -> Start:
    began = time.monotonic()
    with server() as started:
        ready_s = time.monotonic() - began
        # What it does right after the start, such as its first look for retention, is not idling.
        time.sleep(_SETTLE_S)
        return Start(ready_s, memory_mb(started.pid), memory_mb(started.storage_pid))


def _command_s(*arguments: str) -> float:
    """How long a Python takes from start to end."""
    began = time.monotonic()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


async def _valkey_s() -> float:
    began = asyncio.get_running_loop().time()
    async with running_valkey():
        return asyncio.get_running_loop().time() - began
