"""What to try on the server that the demo leaves running, with its real addresses."""

import os
import shlex
import shutil
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

from rich.console import Console

from headrace.demo.messages import Ready


def show(console: Console, ready: Ready, topic: str, group: str, stream: str, data: Path, table: Path) -> None:
    """Print addresses and command lines."""
    headrace = _program()
    console.print("\nThe server stays up until Ctrl-C:\n", style="bold")
    for name, address in (("Kafka", ready.kafka), ("HTTP", ready.http), ("storage", ready.storage), ("table", table)):
        console.print(f"  {name:<8} {address}", soft_wrap=True)
    console.print("\nThings to try in another terminal:\n", style="bold")
    for line in (
        f"{headrace} topics describe {topic} --bootstrap {ready.kafka}",
        f"{headrace} groups describe {group} --bootstrap {ready.kafka}",
        f"{headrace} records tail {topic} --from-beginning --max 3 --bootstrap {ready.kafka}",
        f"kcat -b {ready.kafka} -C -t {topic} -o beginning -c 3",
        f"kcat -b {ready.kafka} -G my-group -X auto.offset.reset=earliest {topic} | head -n 1000 > my-flights",
        f"redis-cli {_storage(ready.storage)} XINFO GROUPS {shlex.quote(stream)}",
        f"curl {ready.http}/healthz",
    ):
        console.print(f"  {line}", soft_wrap=True, highlight=False)
    console.print(f"\nLogs: {data}/*.log; the next demo empties {data}.")


def _storage(url: str) -> str:
    """The options by which redis-cli finds it."""
    found = urlsplit(url)
    if found.scheme == "redis+cluster":
        # It is told of the others.
        host, _, port = found.netloc.partition(",")[0].rpartition(":")
        return f"-c -h {host} -p {port}"
    return f"-s {shlex.quote(unquote(found.path))}"


def _program() -> str:
    """How the user can type the `headrace` of this environment."""
    here = Path(sys.argv[0]) if Path(sys.argv[0]).name == "headrace" else Path(sys.executable).with_name("headrace")
    found = shutil.which("headrace")
    if found is not None and Path(found).resolve() == here.resolve():
        return "headrace"
    return shlex.quote(os.path.relpath(here))
