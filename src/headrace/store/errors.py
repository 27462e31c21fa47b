"""Why a storage cannot be used. Messages are one line for a person: what is in the way, and what to try."""


class StoreError(Exception):
    """Base of what goes wrong while a storage is opened."""


class WrongLayout(StoreError):
    """The keyspace was written by a newer Headrace, in a layout this one does not know."""


class Unreachable(StoreError):
    """Redis does not answer, or refuses the connection."""


class TooOld(StoreError):
    """The server at the URL is older than what the scripts need."""


class Displaced(Exception):
    """A log does not end where a batch that has its offset already must go. Never leaves this room."""
