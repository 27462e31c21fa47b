"""A Redis that comes back with less than it had acknowledged, as after a failover to a replica that was behind."""

import redis

from tests.harness.redis import RedisServer

_VIEW = b"headrace:{meta}:view"


class Failover:
    """What a replica would have had at one moment, and what it is to become the primary."""

    def __init__(self, storage: RedisServer) -> None:
        self._url = storage.url
        with redis.Redis.from_url(self._url) as link:
            self._kept = {key: link.dump(key) for key in link.scan_iter() if key != _VIEW}

    def happen(self) -> None:
        """Everything since is gone, and so are the connections."""
        with redis.Redis.from_url(self._url) as link:
            whole = link.pipeline(transaction=True)
            for key in link.scan_iter():
                if key != _VIEW:
                    whole.delete(key)
            for key, value in self._kept.items():
                whole.restore(key, 0, value)
            whole.execute()
            link.client_kill_filter(_type="normal", skipme=True)
