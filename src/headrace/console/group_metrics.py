"""Metrics of the groups that this server coordinates, of their lag, and of share groups in its partitions."""

from collections import Counter
from collections.abc import Callable, Iterator

from headrace.broker.group_lag import log_lags, topics_read
from headrace.broker.time_lag import TimeLags
from headrace.broker.virtual_clusters import DEFAULT
from headrace.console.transaction_metrics import Brokers
from headrace.groups.model import GroupKind
from headrace.metrics import families
from headrace.metrics.counters import ShareCounters
from headrace.metrics.families import Exposition, Family, labels

_TOTALS: tuple[tuple[Family, Callable[[ShareCounters], int]], ...] = (
    (families.SHARE_ACQUIRED, lambda counted: counted.acquired),
    (families.SHARE_REDELIVERED, lambda counted: counted.redelivered),
    (families.SHARE_EXPIRED, lambda counted: counted.expired),
    (families.SHARE_GIVEN_UP, lambda counted: counted.given_up),
)


def write_groups(page: Exposition, brokers: Brokers) -> Iterator[None]:
    """Add the number of groups, their members and rebalances."""
    groups = [(cluster, runner) for cluster, broker in brokers for runner in broker.groups.runners()]
    yield
    kinds: Counter[tuple[str, str, str]] = Counter()
    for cluster, runner in groups:
        kinds[cluster, runner.machine.kind.value, runner.machine.state_name] += 1
        yield
    for (cluster, kind, state), count in sorted(kinds.items()):
        page.sample(families.GROUPS, count, labels(cluster=cluster, type=kind, state=state))
    for _, broker in brokers[:1]:
        # All virtual clusters share it.
        assignments = broker.groups.memory.assignments
        if assignments.count:
            page.histogram(families.GROUP_ASSIGNMENTS, assignments)
    for cluster, runner in groups:
        page.sample(families.GROUP_MEMBERS, runner.machine.size, labels(cluster=cluster, group=runner.name))
        yield
    for cluster, runner in groups:
        page.sample(families.GROUP_REBALANCES, runner.machine.generations, labels(cluster=cluster, group=runner.name))
        yield


def write_lags(page: Exposition, brokers: Brokers) -> Iterator[None]:
    """Add the lag of groups in records, except share groups."""
    for cluster, broker in brokers:
        for runner in broker.groups.runners():
            if runner.machine.kind is GroupKind.SHARE:
                continue
            topics = set()
            for topic in topics_read(broker, runner):
                topics.add(topic)
                yield
            for topic, index, lag in log_lags(broker, runner.positions, sorted(topics)):
                text = labels(cluster=cluster, group=runner.name, topic=topic, partition=str(index))
                page.sample(families.GROUP_LAG, lag, text)
                yield


def write_time_lags(page: Exposition, lags: TimeLags) -> Iterator[None]:
    """Add the lag of groups in seconds."""
    for (cluster, group, place), seconds in lags.all():
        where = "" if cluster == DEFAULT else cluster
        text = labels(cluster=where, group=group, topic=place.topic, partition=str(place.partition))
        page.sample(families.GROUP_LAG_SECONDS, seconds, text)
        yield


def write_share_lags(page: Exposition, lags: TimeLags) -> Iterator[None]:
    """Add the lag of share groups in records, as of the last refresh."""
    for (cluster, group, place), lag in lags.share_lags.items():
        where = "" if cluster == DEFAULT else cluster
        text = labels(cluster=where, group=group, topic=place.topic, partition=str(place.partition))
        page.sample(families.GROUP_LAG, lag, text)
        yield


def write_shares(page: Exposition, brokers: Brokers) -> Iterator[None]:
    """Add the sessions of share consumers, the records that they hold, and the totals of deliveries."""
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
