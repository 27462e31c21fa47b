"""`headrace groups`: list, configure and delete groups of all types, and show their lag."""

import contextlib
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import click
import msgspec
from confluent_kafka.admin import ResourceType

from headrace.cli import configuration, group_lag, newer_groups
from headrace.cli.client import Client, KafkaServer, client_options, complete_groups, complete_topics
from headrace.cli.command import YES, CommandFailed, Status, TeachingGroup, command, confirm
from headrace.cli.commands.dead_letters import dead_letters
from headrace.cli.commands.group_description import describe, whole
from headrace.cli.commands.reset import reset
from headrace.cli.output import console, print_json, print_table
from headrace.groups.classic.states import in_words
from headrace.text import times
from headrace.text.escaping import json_text, quoted, shown


class GroupLag(msgspec.Struct, frozen=True):
    """A group's lag in a topic."""

    group: str
    topic: str | None
    """None: the group has neither committed offsets nor members."""
    state: str
    members: int
    lag: int | None
    """None: unknown, because the topic is gone or the group's topics are unknown."""
    seconds_behind: float | None = None
    """Age of the oldest next record in a partition; None if unknown."""


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
@click.argument("names", metavar="[GROUP]...", nargs=-1, shell_complete=complete_groups)
@click.option("--topic", metavar="T", shell_complete=complete_topics, help="Only the lag in this topic.")
@click.option("--watch", is_flag=True, help="Repeat until Ctrl-C.")
@click.option(
    "--every",
    type=click.FloatRange(min=0.1),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Interval of --watch.",
)
@click.option("-n", "most", type=click.IntRange(min=1), metavar="N", help="With --watch: number of measurements.")
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
    """Show the number of unread records of each GROUP (default: all groups) per topic, and the age of the next one.

    With --watch, it also shows the change per second. With --watch and --json, each measurement is one line.
    """
    if most is not None and not watch:
        raise click.UsageError("-n counts the measurements of --watch")
    client = Client(kafka)
    if topic is not None:
        client.partitions(topic)
    seen = look(kafka, client, names, topic)
    if watch:
        with contextlib.suppress(KeyboardInterrupt):
            _Watch(kafka, client, names, topic).run(seen, every, most, as_json)
    elif as_json:
        print_json(msgspec.to_builtins(seen))
    else:
        _print_lag(seen, {})


def look(kafka: KafkaServer, client: Client, names: tuple[str, ...], topic: str | None) -> list[GroupLag]:
    """Return the named groups, or all. Raise CommandFailed for a missing one."""
    there = client.groups()
    newer = newer_groups.listed(kafka, client)
    shared = {name: each for name, each in newer.items() if each.kind == newer_groups.SHARE}
    for name in names:
        if name not in there and name not in shared:
            raise client.no_group(name)
    client.refresh()
    found = _consumed(client, [name for name in names or there if name not in shared], topic, newer)
    for name in names or shared:
        if name in shared:
            found += _shared(kafka, client, shared[name], topic)
    return sorted(found, key=lambda line: line.group) if shared and not names else found


def _shared(kafka: KafkaServer, client: Client, listed: newer_groups.Listed, topic: str | None) -> list[GroupLag]:
    described = newer_groups.share_group(kafka, client, listed.group)
    members = 0 if described is None else len(described.members)
    state = in_words(listed.state)
    lags: dict[str, int | None] = {}
    for each in newer_groups.share_offsets(kafka, listed.group):
        lag = lags.get(each.topic)
        lags[each.topic] = lag if each.lag is None else (lag or 0) + each.lag
    if not lags and topic is None:
        return [GroupLag(listed.group, None, state, members, None)]
    return [GroupLag(listed.group, name, state, members, lag) for name, lag in lags.items() if topic in {None, name}]


def _consumed(
    client: Client, chosen: list[str], topic: str | None, newer: Mapping[str, newer_groups.Listed]
) -> list[GroupLag]:
    found: list[GroupLag] = []
    described = client.admin.describe_consumer_groups(chosen) if chosen else {}
    for group in chosen:
        answer = client.result(described[group], f"describe group {quoted(group)}")
        present = group_lag.members(answer)
        by_topic: dict[str, list[int | None]] = defaultdict(list)
        ages: dict[str, list[float]] = defaultdict(list)
        for standing in group_lag.group_offsets(client, group, group_lag.positions(client, group), present):
            by_topic[standing.topic].append(standing.lag)
            if standing.seconds_behind is not None:
                ages[standing.topic].append(standing.seconds_behind)
        state = in_words(newer[group].state if group in newer else answer.state.name)
        if not by_topic and topic is None:
            found.append(GroupLag(group, None, state, len(present), None))
        for name, counts in by_topic.items():
            known = [count for count in counts if count is not None]
            if topic in {None, name}:
                behind = max(ages[name], default=None)
                found.append(GroupLag(group, name, state, len(present), sum(known) if known else None, behind))
    return found


class _Watch:
    def __init__(self, kafka: KafkaServer, client: Client, names: tuple[str, ...], topic: str | None) -> None:
        self._kafka = kafka
        self._client = client
        self._names = names
        self._topic = topic

    def look(self, every: float) -> list[GroupLag]:
        told = False
        while True:
            try:
                if told:
                    # The client library cannot recover a lost coordinator.
                    self._client = Client(self._kafka)
                return look(self._kafka, self._client, self._names, self._topic)
            except CommandFailed as error:
                if error.status is not Status.UNREACHABLE:
                    raise
                if not told:
                    click.echo(f"headrace: {self._kafka} no longer responds; waiting for it (Ctrl-C ends)", err=True)
                    told = True
                time.sleep(every)

    def run(self, seen: list[GroupLag], every: float, most: int | None, as_json: bool) -> None:
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
    _print_lag(seen, rates)


def _rates(before: list[GroupLag], now: list[GroupLag], seconds: float) -> Rates:
    old: dict[tuple[str, str | None], Any] = {(line.group, line.topic): line.lag for line in before}
    return {
        (line.group, line.topic): (line.lag - old[line.group, line.topic]) / max(seconds, 0.001)
        for line in now
        if line.lag is not None and old.get((line.group, line.topic)) is not None
    }


def _print_lag(seen: list[GroupLag], rates: Rates) -> None:
    columns = ["group", "topic", "state", ">members", ">lag", ">seconds behind"]
    rows: list[list[object]] = [
        [line.group, line.topic, line.state, line.members, line.lag, whole(line.seconds_behind)] for line in seen
    ]
    if rates:
        columns.append(">per second")
        for row, line in zip(rows, seen, strict=True):
            rate = rates.get((line.group, line.topic))
            row.append(None if rate is None else f"{rate:+,.0f}" if round(rate) else "0")
    print_table(columns, rows)


@click.group("groups", cls=TeachingGroup)
def groups() -> None:
    """List, describe, configure, reset and delete groups."""


@groups.command(
    "list",
    examples="""
    headrace groups list
    headrace groups list --json | jq -r '.[].group'
    """,
)
@client_options
def list_(kafka: KafkaServer, as_json: bool) -> None:
    """List the groups with their states and types.

    The types are classic, consumer (KIP-848, the server assigns partitions) and share (KIP-932).
    """
    client = Client(kafka)
    listed = client.result(client.admin.list_consumer_groups(), "list consumer groups")
    for error in listed.errors:
        raise client.failure("list consumer groups", error)
    found = {str(group.group_id): (in_words(group.state.name), in_words(group.type.name)) for group in listed.valid}
    found |= {name: (in_words(each.state), each.kind) for name, each in newer_groups.listed(kafka, client).items()}
    answer = [{"group": name, "state": state, "type": kind} for name, (state, kind) in sorted(found.items())]
    if as_json:
        print_json(answer)
    else:
        print_table(["group", "state", "type"], [list(line.values()) for line in answer])


@groups.command(
    "alter",
    examples="""
    headrace groups alter mailers --config share.auto.offset.reset=earliest
    headrace groups alter billing --config consumer.session.timeout.ms=60000
    """,
)
@click.argument("group", shell_complete=complete_groups)
@configuration.change_options
@client_options
def alter(group: str, pairs: tuple[str, ...], unset: tuple[str, ...], kafka: KafkaServer, as_json: bool) -> None:
    """Change the configuration of GROUP, and show each value before and after.

    The group does not need to exist. Only consumer groups and share groups have a configuration.
    """
    config = configuration.changes_of(pairs, unset, ResourceType.GROUP)
    configuration.alter(Client(kafka), ResourceType.GROUP, group, config, unset, as_json=as_json)


groups.add_command(dead_letters)
groups.add_command(describe)
groups.add_command(lag)
groups.add_command(reset)


@groups.command(
    "delete",
    examples="""
    headrace groups delete billing
    headrace groups delete billing reports --yes
    """,
)
@click.argument("names", metavar="GROUP...", nargs=-1, required=True, shell_complete=complete_groups)
@YES
@client_options
def delete(names: tuple[str, ...], yes: bool, kafka: KafkaServer, as_json: bool) -> None:
    """Delete groups and their offsets. The groups must have no members."""
    client = Client(kafka)
    there = {*client.groups(), *newer_groups.share_groups(kafka, client)}
    for name in names:
        if name not in there:
            raise client.no_group(name)
    confirm(f"Delete {', '.join(map(quoted, names))} with all their offsets, at {kafka}?", yes)
    deleted: list[str] = []
    try:
        for name, future in client.admin.delete_consumer_groups(list(names)).items():
            client.result(future, f"delete group {quoted(name)}")
            deleted.append(name)
            if not as_json:
                click.echo(f"deleted group {shown(name)}")
    except CommandFailed as error:
        done = f"; deleted before it: {', '.join(map(quoted, deleted))}" if deleted else ""
        raise CommandFailed(f"{error}{done}", error.status) from None
    if as_json:
        print_json({"deleted": deleted})
