"""`headrace groups reset`: change the committed offsets of an inactive group."""

import time
from collections.abc import Iterable

import click
import msgspec
from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import OffsetSpec

from headrace.cli import group_lag, newer_groups
from headrace.cli.client import Client, KafkaServer, client_options, complete_groups, complete_topics, in_pieces
from headrace.cli.command import CommandFailed, Status, command
from headrace.cli.group_lag import Partition
from headrace.cli.output import print_json, print_table
from headrace.groups.offsets import Move, Target, destination
from headrace.text import times
from headrace.text.escaping import quoted, shown


@command(
    "reset",
    examples="""
    headrace groups reset billing --to-earliest
    headrace groups reset billing --to-time 2026-11-22T06:00 --topic flights --execute
    headrace groups reset billing --by-duration 2h --topic flights:0,1 --execute
    """,
)
@click.argument("group", shell_complete=complete_groups)
@click.option("--to-earliest", is_flag=True, help="To the log start offset, to read all records again.")
@click.option("--to-latest", is_flag=True, help="To the log end offset, to skip present records.")
@click.option(
    "--to-offset", type=click.IntRange(min=0), metavar="N", help="To this offset, or the nearest one in the log."
)
@click.option(
    "--to-time", metavar="TIME", help="To the first record at or after a time: 2026-11-22T06:00, @1700000000000."
)
@click.option("--by-duration", metavar="D", help="To the first record of the last D: 90s, 2h, 1d, PT1H30M.")
@click.option(
    "--topic",
    "topics",
    metavar="T[:P,P]",
    multiple=True,
    shell_complete=complete_topics,
    help="Only this topic, or partitions of it. Repeatable (default: all committed offsets).",
)
@click.option("--execute", is_flag=True, help="Set the offsets. Without it, the command only shows them.")
@client_options
def reset(
    group: str,
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_time: str | None,
    by_duration: str | None,
    topics: tuple[str, ...],
    execute: bool,
    kafka: KafkaServer,
    as_json: bool,
) -> None:
    """Show new committed offsets for GROUP, and set them with --execute. The group must have no members.

    For a share group, they are its start offsets. The group gets all records from there on again.
    """
    target = _target(to_earliest, to_latest, to_offset, to_time, by_duration)
    client = Client(kafka)
    found = client.result(client.admin.describe_consumer_groups([group])[group], f"describe group {quoted(group)}")
    # Redis has positions of a share group on a native topic, too.
    shared = newer_groups.share_group(kafka, client, group) if found.state == ConsumerGroupState.DEAD else None
    noun = "committed offset" if shared is None else "start offset"
    if shared is None:
        committed = group_lag.positions(client, group)
    else:
        committed = newer_groups.begun(newer_groups.share_offsets(kafka, group))
    if not committed and not topics:
        if shared is None and found.state == ConsumerGroupState.DEAD:
            raise client.no_group(group)
        raise CommandFailed(f"group {quoted(group)} has no {noun}s yet: name a topic with --topic")
    partitions = _partitions(client, topics) if topics else sorted(p for p in committed if _is_there(client, p))
    many = len(found.members if shared is None else shared.members)
    if many and execute:
        raise CommandFailed(
            f"group {quoted(group)} has {many} member{'s' * (many > 1)}, which would continue from their own offsets: "
            "stop them first"
        )
    moves = _moves(client, target, partitions, committed)
    if execute and shared is not None:
        newer_groups.alter_share_offsets(kafka, group, {(move.topic, move.partition): move.to for move in moves})
    elif execute:
        _move(client, group, moves)
    if as_json:
        print_json({"group": group, "executed": execute, "positions": msgspec.to_builtins(moves)})
        return
    print_table(
        ["topic", ">partition", f">{noun}", ">new offset", ">lag"],
        [msgspec.structs.astuple(move) for move in moves],
    )
    if not execute:
        busy = f" Stop its {many} member{'s' * (many > 1)} first." if many else ""
        click.echo(f"\nNothing was changed; --execute resets the {noun}s of {shown(group)}.{busy}")


def _target(earliest: bool, latest: bool, offset: int | None, to_time: str | None, by_duration: str | None) -> Target:
    given = [earliest or None, latest or None, offset, to_time, by_duration]
    if sum(each is not None for each in given) != 1:
        raise click.UsageError("give one of --to-earliest, --to-latest, --to-offset, --to-time and --by-duration")
    now_ms = round(time.time() * 1000)
    moment = None
    try:
        if to_time is not None:
            moment = times.instant(to_time, now_ms)
        if by_duration is not None:
            moment = max(0, now_ms - times.duration(by_duration))
    except ValueError as error:
        raise click.UsageError(f"{'--to-time' if to_time is not None else '--by-duration'}: {error}") from None
    return Target(earliest, latest, offset, moment)


def _partitions(client: Client, texts: Iterable[str]) -> list[Partition]:
    chosen: set[Partition] = set()
    for text in texts:
        topic, colon, numbers = text.partition(":")
        there = client.partitions(topic)
        if colon and not all(number.isdecimal() for number in numbers.split(",")):
            raise CommandFailed(f"--topic {shown(text)}: expected TOPIC or TOPIC:0,1", Status.USAGE)
        wanted = [int(number) for number in numbers.split(",")] if colon else list(there)
        for number in wanted:
            if number not in there:
                raise client.no_partition(topic, number, there)
            chosen.add((topic, number))
    return sorted(chosen)


def _is_there(client: Client, partition: Partition) -> bool:
    topic, number = partition
    topics = client.metadata.topics
    return topic in topics and number in topics[topic].partitions


def _moves(client: Client, target: Target, partitions: list[Partition], committed: dict[Partition, int]) -> list[Move]:
    starts = client.offsets(partitions, OffsetSpec.earliest)
    ends = client.offsets(partitions, OffsetSpec.latest)
    at: dict[Partition, int] = {}
    if target.time_ms is not None:
        moment = target.time_ms
        at = client.offsets(partitions, lambda: OffsetSpec.for_timestamp(moment))
    natives = client.natives(sorted({topic for topic, _ in partitions}))
    moves = []
    for place in partitions:
        if place not in starts or place not in ends:
            continue
        start, end = starts[place], ends[place]
        to = destination(target, start, end, at.get(place))
        topic, number = place
        native = natives.get(topic)
        lag = end - to if native is None else group_lag.records_from(native, number, to, start, end)
        moves.append(Move(topic, number, committed.get(place), to, lag))
    return moves


def _move(client: Client, group: str, moves: list[Move]) -> None:
    wanted = [TopicPartition(move.topic, move.partition, move.to) for move in moves]
    what = f"reset the committed offsets of group {quoted(group)}"
    for some in in_pieces(wanted):
        asked = client.admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, [*some])])[group]
        answer = client.result(asked, what)
        for part in answer.topic_partitions or []:
            if part.error is not None:
                raise client.failure(f"{what} in partition {part.partition} of {quoted(part.topic)}", part.error)
