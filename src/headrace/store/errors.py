"""Why a storage cannot be used. Messages are one line for a person: what is in the way, and what to try."""


class StoreError(Exception):
    """Base of what goes wrong while a storage is opened."""


class WrongLayout(StoreError):
    """The keyspace was written by another Headrace, in a layout that this one does not know."""


class Unreachable(StoreError):
    """Redis does not answer, or refuses the connection."""


class TooOld(StoreError):
    """The server at the URL is older than what the scripts need."""


class Stray(Exception):
    """A log's stream has entries that somebody else wrote. Never leaves this room."""
