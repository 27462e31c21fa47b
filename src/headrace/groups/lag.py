"""How many records a group has to come: the one rule for commands, metrics and pages."""


def to_come(position: int | None, log_start: int, log_end: int) -> int:
    """Records from the position on, from the log start where nothing was committed.

    What retention has taken since does not come any more.
    """
    return max(0, log_end - max(log_start, position or 0))


def native_to_come(undelivered: int | None, pending: int) -> int | None:
    """The same in a native topic: records not delivered or not committed; None: Redis cannot tell."""
    return None if undelivered is None else undelivered + pending
