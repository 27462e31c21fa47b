"""The door itself: what operations work on, and the way of a request through them. The ASGI part is `asgi`."""

from headrace.broker.broker import Broker
from headrace.broker.topics import LiveTopic
from headrace.oci import ocids
from headrace.oci.errors import unknown_stream
from headrace.oci.settings import OciSettings
from headrace.topics.errors import UnknownTopic


class Door:
    """What the operations of one server share."""

    def __init__(self, broker: Broker, settings: OciSettings) -> None:
        self.broker = broker
        self.settings = settings
        self.clock = broker.clock

    def stream(self, stream_id: str) -> tuple[Broker, LiveTopic]:
        """The topic of a stream and the broker (virtual cluster) it is in. Raises OciError 404."""
        topic_id = ocids.topic_of(stream_id)
        if topic_id is None:
            raise unknown_stream(stream_id)
        try:
            return self.broker, self.broker.topics.by_id(topic_id)
        except UnknownTopic:
            raise unknown_stream(stream_id) from None

    def stream_id(self, topic: LiveTopic) -> str:
        """The OCID of a topic as a stream."""
        return ocids.stream(self.settings.region, topic.topic.id)
