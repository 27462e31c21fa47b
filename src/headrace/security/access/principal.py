"""Who asks."""

import msgspec


class Principal(msgspec.Struct, frozen=True):
    """Who a request comes from, as far as a login or a signature tells. As text it is Kafka's: `User:<name>`."""

    name: str
    """The user name of a login without the stream pool behind it, or the OCID in a signature."""
    tenancy: str = ""
    """The tenancy of an OCI identity; empty for everybody else."""

    @classmethod
    def of(cls, tenancy: str, user: str) -> "Principal":
        """An OCI identity; a token whose claims nobody here can read has no user, and is anybody's."""
        return cls(user, tenancy) if user else ANONYMOUS

    def __str__(self) -> str:
        return f"User:{self.name}"


ANONYMOUS = Principal("ANONYMOUS")
"""Who did not log in (Kafka's `KafkaPrincipal.ANONYMOUS`)."""
