"""What this server cannot show where there are several brokers, and who can. Pure."""

from headrace.broker.broker import Broker
from headrace.broker.partition.partition import Partition
from headrace.broker.topics.live import LiveTopic
from headrace.console import text


def note(broker: Broker) -> str:
    """Whose figures a page shows; empty where there is one broker only."""
    others = broker.ownership.others
    if not others:
        return ""
    rest = ", ".join(who(broker, each.node_id) for each in others)
    return (
        f"This is broker {broker.node_id} of {len(others) + 1}. Figures are of the partitions that it leads and the "
        f"groups that it coordinates; for the rest open the console of {rest}."
    )


def who(broker: Broker, node_id: int) -> str:
    """A broker by its number, and where Kafka's clients reach it."""
    found = broker.ownership.member(node_id)
    return f"broker {node_id}" + ("" if found is None else f" ({text.name(found.host)}, Kafka port {found.port})")


def led_here(live: LiveTopic) -> list[Partition]:
    """The partitions of a topic whose figures this server knows."""
    return [each for each in live.partitions if each.leader is None]
