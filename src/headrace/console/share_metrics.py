"""Metrics of share groups in the partitions that this server leads."""

from collections import Counter
from collections.abc import Callable, Iterator

from headrace.console.transaction_metrics import Brokers
from headrace.metrics import families
from headrace.metrics.counters import ShareCounters
from headrace.metrics.families import Exposition, Family, labels

_TOTALS: tuple[tuple[Family, Callable[[ShareCounters], int]], ...] = (
    (families.SHARE_ACQUIRED, lambda counted: counted.acquired),
    (families.SHARE_REDELIVERED, lambda counted: counted.redelivered),
    (families.SHARE_EXPIRED, lambda counted: counted.expired),
    (families.SHARE_GIVEN_UP, lambda counted: counted.given_up),
)


def write_shares(page: Exposition, brokers: Brokers) -> Iterator[None]:
    """Add the sessions of share consumers, the records that they hold, and what became of records."""
    for cluster, broker in brokers:
        page.sample(families.SHARE_SESSIONS, len(broker.shares.sessions), labels(cluster=cluster))
    for family, value in _TOTALS:
        for cluster, broker in brokers:
            page.sample(family, value(broker.shares.counters), labels(cluster=cluster))
    yield
    held: Counter[tuple[str, str, str]] = Counter()
    for cluster, broker in brokers:
        for share in broker.shares:
            held[cluster, share.group, share.log.topic] += sum(run.length for run in share.runs() if run.held)
            yield
    for (cluster, group, topic), count in held.items():
        page.sample(families.SHARE_HELD, count, labels(cluster=cluster, group=group, topic=topic))
        yield
