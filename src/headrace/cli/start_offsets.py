"""Where in a topic to begin: what `--offset`, `--since` and `--partition` mean, the same for tail and trim."""

import re
import time
from collections.abc import Callable

import click
from confluent_kafka.admin import OffsetSpec

from headrace.cli.client import Client
from headrace.cli.command import CommandFailed, Status
from headrace.text import times
from headrace.text.escaping import shown

_EARLIEST = {"earliest", "start", "beginning"}
_LATEST = {"latest", "end"}
_NUMBER = re.compile(r"(?P<sign>[+-]?)(?P<count>[0-9]{1,19})")


class Range:
    """Log starts and ends of the chosen partitions of a topic, and where in it to begin."""

    def __init__(self, client: Client, topic: str, only: tuple[int, ...]) -> None:
        """Look; raises CommandFailed when the topic or a partition is not there."""
        there = client.partitions(topic)
        for number in only:
            if number not in there:
                raise client.no_partition(topic, number, there)
        self._client = client
        self._places = [(topic, number) for number in dict.fromkeys(only or there)]
        self.starts = self._look(OffsetSpec.earliest)
        self.ends = self._look(OffsetSpec.latest)
        if not len(self.starts) == len(self.ends) == len(self._places):
            # It was deleted a moment ago.
            raise client.no_topic(topic, client.metadata.topics.keys() - {topic})

    def _look(self, spec: Callable[[], OffsetSpec]) -> dict[int, int]:
        found = self._client.offsets(self._places, spec)
        return {number: offset for (_, number), offset in found.items()}

    def at(self, offset: str | None, since: str | None) -> dict[int, int]:
        """Partition -> where to begin, as `--offset` and `--since` say, within the log.

        Args:
            offset: `earliest`, `latest`, an offset, `-N` for N before the end, `+N` for N after the start.
            since: a time as people write it; the first record of it or later.

        Raises:
            CommandFailed: neither of these forms.
        """
        if since is not None:
            return self._since(since)
        if offset is None or offset in _LATEST:
            return dict(self.ends)
        if offset in _EARLIEST:
            return dict(self.starts)
        number = _NUMBER.fullmatch(offset)
        if number is None:
            raise CommandFailed(
                f"--offset {shown(offset)}: expected earliest, latest, an offset, -N for the last N of each partition "
                "or +N for N after its start",
                Status.USAGE,
            )
        count = int(number["count"])
        if number["sign"] == "-":
            return {part: max(start, self.ends[part] - count) for part, start in self.starts.items()}
        origins = self.starts if number["sign"] == "+" else dict.fromkeys(self.starts, 0)
        return {part: min(max(start, origins[part] + count), self.ends[part]) for part, start in self.starts.items()}

    def _since(self, text: str) -> dict[int, int]:
        try:
            moment = times.instant(text, round(time.time() * 1000))
        except ValueError as error:
            raise CommandFailed(f"--since: {error}", Status.USAGE) from None
        found = self._look(lambda: OffsetSpec.for_timestamp(moment))
        return {part: end if found.get(part, -1) < 0 else found[part] for part, end in self.ends.items()}


def at_most_one(**flags: object) -> None:
    """Raises a usage error when more than one of these flags was given."""
    given = [f"{'-' if len(name) == 1 else '--'}{name.replace('_', '-')}" for name, value in flags.items() if value]
    if len(given) > 1:
        raise click.UsageError(f"{' and '.join(given)} both say where to begin: give one of them")
