"""Which answers of Redis tell that its append-only file has the write.

Redis and Valkey execute commands, write their file and then send the answers, so that an answer tells that the write
is there. But where earlier answers did not fit into the socket, what is left goes as soon as there is room, together
with what was answered meanwhile, and that is before the file is written (`writeToClient` as the handler of a writable
socket, `beforeSleep`; only `appendfsync always` waits). Whoever kills Redis then takes back what was answered.

Such a write is known to be in the file once something that was sent *after* its answer is answered: that was executed
in a later turn of Redis' loop, and each turn begins with the file.
"""

STEP = 16 << 10
"""An answer that comes behind more than three such steps may have left early: Redis sends at most 64 KiB at a time
(NET_MAX_WRITES_PER_EVENT), and sockets take as much."""
ANSWER = 192
"""Bytes counted for each answer beside its own: a unix socket has room for 277 that were written one by one."""


class Backlog:
    """Counts what Redis may still have had to send when it answered a request: all that came since that was sent.

    An answer counts whole when its end comes: a request that is sent in its middle waits behind it all the same.
    """

    __slots__ = ("_before", "_older", "_weight", "early")

    def __init__(self) -> None:
        self._weight = 0
        """What has come in this step."""
        self._before = 0
        """How much of what came before may belong to an answer that is not whole yet."""
        self._older = 0
        """So many of those that wait have waited since the step before this one."""
        self.early = 0
        """So many of the next answers may have left early."""

    def came(self, count: int, waiting: int) -> None:
        """Bytes have come, and are about to be read, while so many requests wait."""
        self._weight += self._before + count
        self._before += count
        if self._weight >= STEP:
            self.early = waiting if self._weight >= 2 * STEP else self._older
            self._older = waiting
            self._weight = 0

    def answered(self, answers: int, count: int) -> None:
        """So many answers were whole; `count`: the bytes that came last."""
        if answers:
            self._before = count
            self._weight += ANSWER * answers
            self._older = max(0, self._older - answers)
            self.early = max(0, self.early - answers)

    def forget(self) -> None:
        """Nobody waits: whatever is sent from now on has nothing before it."""
        self._weight = self._before = self._older = self.early = 0
