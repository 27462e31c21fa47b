"""Write the commands that pages show, with the address of this server.

A command without an address would act on the default address, which may be another server.
"""

import shlex
from typing import Final

from headrace.broker.virtual_clusters import DEFAULT

_POOL_USER: Final = "TENANCY/USER/OCID"
"""Clients choose a virtual cluster by the user of a stream pool."""


def for_kafka(bootstrap: str, *words: str, cluster: str = DEFAULT) -> str:
    """Return a command that connects to the Kafka listener.

    Args:
        bootstrap: address of the listener.
        words: the command without `headrace`; they are quoted for the shell.
        cluster: the virtual cluster that it must act on.
    """
    login = [] if cluster == DEFAULT else ["--username", _POOL_USER]
    return shlex.join(["headrace", *words, "--bootstrap", bootstrap, *login])


def for_storage(storage: str, *words: str) -> str:
    """Return a command that connects to the storage, by its URL without a password."""
    return shlex.join(["headrace", *words, "--redis", storage])


def creating_user(bootstrap: str) -> str:
    """Return the command that creates the first user."""
    return for_kafka(bootstrap, "users", "create", "NAME", "--password-file", "FILE")
