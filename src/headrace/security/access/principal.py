"""The principal of a request."""

import msgspec


class Principal(msgspec.Struct, frozen=True):
    """The principal of a request, by its login or signature. As text it is Kafka's: `User:<name>`."""

    name: str
    """The user name of a login without the stream pool at its end, or `<tenancy>/<OCID>` of a signature."""
    tenancy: str = ""
    """The tenancy of an OCI identity; empty for all others."""
    user: str = ""
    """The OCID in a signature; empty for all others."""

    @classmethod
    def of(cls, tenancy: str, user: str) -> "Principal":
        """An OCI identity. Where its user is unknown, as in a token with unreadable claims, it is ANONYMOUS."""
        # Each tenancy names its users itself: the same name is another user elsewhere.
        return cls(f"{tenancy}/{user}", tenancy, user) if user else ANONYMOUS

    @property
    def also_denied(self) -> str | None:
        """The principal of older rules, which leave out the tenancy: they still deny, and no longer allow."""
        return f"User:{self.user}" if self.user else None

    def __str__(self) -> str:
        return f"User:{self.name}"


ANONYMOUS = Principal("ANONYMOUS")
"""A client that did not log in (Kafka's `KafkaPrincipal.ANONYMOUS`)."""


def lacks_tenancy(principal: str) -> bool:
    """Whether a principal of a rule or of `super.users` is an OCID alone, as signatures were named before."""
    return principal.startswith("User:ocid1.") and "/" not in principal
