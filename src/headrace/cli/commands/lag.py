"""`headrace groups lag`: how many records each group has to come, once or again and again."""

import contextlib
import time
from collections import defaultdict
from typing import Any

import click
import msgspec

from headrace.cli import completions, group_lag
from headrace.cli.client import Client, KafkaServer, client_options
from headrace.cli.command import CommandFailed, Status, command
from headrace.cli.output import console, print_json, print_table
from headrace.groups.classic.states import in_words
from headrace.text import times
from headrace.text.escaping import json_text, quoted


class GroupLag(msgspec.Struct, frozen=True):
    """What a group has to come of a topic."""

    group: str
    topic: str | None
    """None: the group has neither positions nor members."""
    state: str
    members: int
    lag: int | None
    """None: it cannot be known, as the topic is gone, or there is nothing that tells which topics the group reads."""


Rates = dict[tuple[str, str | None], float]
"""(group, topic) -> change of the lag per second."""


@command(
    "lag",
    examples="""
    headrace groups lag
    headrace groups lag billing --watch
    headrace groups lag --topic flights --json | jq '[.[].lag] | add'
    """,
)
@click.argument("names", metavar="[GROUP]...", nargs=-1, shell_complete=completions.groups)
@click.option("--topic", metavar="T", shell_complete=completions.topics, help="Only what is to come of this topic.")
@click.option("--watch", is_flag=True, help="Look again and again, until Ctrl-C.")
@click.option(
    "--every",
    type=click.FloatRange(min=0.1),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="How often --watch looks.",
)
@click.option("-n", "most", type=click.IntRange(min=1), metavar="N", help="With --watch: look N times.")
@client_options
def lag(
    names: tuple[str, ...],
    topic: str | None,
    watch: bool,
    every: float,
    most: int | None,
    kafka: KafkaServer,
    as_json: bool,
) -> None:
    """Show how many records each GROUP (default: every one) has to come, a line for each topic.

    With --watch the change per second stands beside it; with --json too, each look is a line.
    """
    if most is not None and not watch:
        raise click.UsageError("-n counts the looks of --watch")
    client = Client(kafka)
    if topic is not None:
        client.partitions(topic)
    seen = look(client, names, topic)
    if watch:
        with contextlib.suppress(KeyboardInterrupt):  # which is how this is meant to end
            _Watch(kafka, client, names, topic).run(seen, every, most, as_json)
    elif as_json:
        print_json(msgspec.to_builtins(seen))
    else:
        _print(seen, {})


def look(client: Client, names: tuple[str, ...], topic: str | None) -> list[GroupLag]:
    """The groups of those names, or all; raises CommandFailed where one of them is not there."""
    there = client.groups()
    for name in names:
        if name not in there:
            raise client.no_group(name)
    client.refresh()
    chosen = list(names or there)
    found: list[GroupLag] = []
    described = client.admin.describe_consumer_groups(chosen) if chosen else {}
    for group in chosen:
        answer = client.result(described[group], f"describe group {quoted(group)}")
        present = group_lag.members(answer)
        by_topic: dict[str, list[int | None]] = defaultdict(list)
        for standing in group_lag.standings(client, group, group_lag.positions(client, group), present):
            by_topic[standing.topic].append(standing.lag)
        state = in_words(answer.state.name)
        if not by_topic and topic is None:
            found.append(GroupLag(group, None, state, len(present), None))
        for name, counts in by_topic.items():
            known = [count for count in counts if count is not None]
            if topic in {None, name}:
                found.append(GroupLag(group, name, state, len(present), sum(known) if known else None))
    return found


class _Watch:
    """Looks again and again, also when the server was away for a while."""

    def __init__(self, kafka: KafkaServer, client: Client, names: tuple[str, ...], topic: str | None) -> None:
        self._kafka = kafka
        self._client = client
        self._names = names
        self._topic = topic

    def look(self, every: float) -> list[GroupLag]:
        """Look; while the server is away, say so once and try again."""
        told = False
        while True:
            try:
                if told:
                    # The client library does not find back to a coordinator that was away.
                    self._client = Client(self._kafka)
                return look(self._client, self._names, self._topic)
            except CommandFailed as error:
                if error.status is not Status.UNREACHABLE:
                    raise
                if not told:
                    click.echo(
                        f"headrace: {self._kafka} does not answer any more; waiting for it (Ctrl-C ends)", err=True
                    )
                    told = True
                time.sleep(every)

    def run(self, seen: list[GroupLag], every: float, most: int | None, as_json: bool) -> None:
        """Show what was seen, and what is seen from now on, until Ctrl-C or `most` times."""
        at, before, before_at, looks = time.monotonic(), seen, None, 1
        while True:
            rates: Rates = _rates(before, seen, at - before_at) if before_at is not None else {}
            _show(self._kafka, seen, rates, as_json)
            if looks == most:
                return
            before, before_at = seen, at
            time.sleep(max(0.0, every - (time.monotonic() - at)))
            seen, at, looks = self.look(every), time.monotonic(), looks + 1


def _show(kafka: KafkaServer, seen: list[GroupLag], rates: Rates, as_json: bool) -> None:
    if as_json:
        click.echo(json_text({"time": round(time.time() * 1000), "groups": msgspec.to_builtins(seen)}))
        return
    to = console()
    if to.is_terminal:
        to.clear()
    click.echo(f"{times.clock()}  {kafka}")
    _print(seen, rates)


def _rates(before: list[GroupLag], now: list[GroupLag], seconds: float) -> Rates:
    """Change of the lag per second, of what was there before."""
    old: dict[tuple[str, str | None], Any] = {(line.group, line.topic): line.lag for line in before}
    return {
        (line.group, line.topic): (line.lag - old[line.group, line.topic]) / max(seconds, 0.001)
        for line in now
        if line.lag is not None and old.get((line.group, line.topic)) is not None
    }


def _print(seen: list[GroupLag], rates: Rates) -> None:
    columns = ["group", "topic", "state", ">members", ">lag"]
    rows: list[list[object]] = [[line.group, line.topic, line.state, line.members, line.lag] for line in seen]
    if rates:
        columns.append(">per second")
        for row, line in zip(rows, seen, strict=True):
            rate = rates.get((line.group, line.topic))
            row.append(None if rate is None else f"{rate:+,.0f}" if round(rate) else "0")
    print_table(columns, rows)
