"""A broker over a storage, on a stopped clock; its streams are named `<topic>:<partition>`."""

from headrace.broker.broker import Broker
from headrace.broker.brokers.ownership import Ownership
from headrace.broker.config.settings import BrokerSettings
from headrace.broker.services import Services
from headrace.storage.storage import RedisStorage
from headrace.testing.clock import ManualClock


def over(storage: RedisStorage, ownership: Ownership | None = None) -> Broker:
    settings, clock = BrokerSettings.of({}), ManualClock()
    return Broker(
        storage,
        settings,
        clock,
        cluster_id="c",
        stream_of=lambda name, _, index: f"{name}:{index}",
        parts=Services(storage.documents, settings, clock, ownership=ownership),
    )
