"""Principals of requests and client certificates (`ssl.principal.mapping.rules`, KIP-371). Pure."""

import re
from collections.abc import Iterator

import msgspec


class Principal(msgspec.Struct, frozen=True):
    """The principal of a request. As text it is Kafka's: `User:<name>`."""

    name: str
    """The user name of a login without the stream pool at its end, or `<tenancy>/<OCID>` of a signature."""
    tenancy: str = ""
    """The tenancy of an OCI identity; empty for all others."""
    user: str = ""
    """The OCID in a signature; empty for all others."""

    @classmethod
    def of(cls, tenancy: str, user: str) -> "Principal":
        """Return the principal of an OCI identity, or ANONYMOUS without a user."""
        # User names are unique per tenancy only.
        return cls(f"{tenancy}/{user}", tenancy, user) if user else ANONYMOUS

    @property
    def also_denied(self) -> str | None:
        """The principal of older ACLs without the tenancy. They still deny, but do not allow."""
        return f"User:{self.user}" if self.user else None

    def __str__(self) -> str:
        return f"User:{self.name}"


ANONYMOUS = Principal("ANONYMOUS")
"""A client without a login (Kafka's `KafkaPrincipal.ANONYMOUS`)."""


def lacks_tenancy(principal: str) -> bool:
    """Return whether a principal is an OCID without a tenancy, as signatures had earlier."""
    return principal.startswith("User:ocid1.") and "/" not in principal


_RULE = re.compile(r"RULE:(?P<pattern>(?:[^\\/]|\\.)*)/(?P<replacement>(?:[^\\/]|\\.)*)/(?P<case>[LU]?)")
_GROUP = re.compile(r"\$([0-9])")
_LONGEST = 1_000
"""Maximum characters of a name that rules match."""


class _Rule(msgspec.Struct, frozen=True):
    pattern: re.Pattern[str] | None
    """None: the name as it is (DEFAULT)."""
    replacement: str
    case: str

    def apply(self, name: str) -> str | None:
        if self.pattern is None:
            return name
        match = self.pattern.fullmatch(name)
        if match is None:
            return None
        found = _GROUP.sub(lambda group: match[int(group[1])] or "", self.replacement)
        return found.lower() if self.case == "L" else found.upper() if self.case == "U" else found


class Mapping:
    """Mapping rules; the first match applies."""

    def __init__(self, text: str) -> None:
        """Parse `RULE:pattern/replacement/[LU]` and `DEFAULT`, separated by commas. Raises ValueError."""
        self._rules = tuple(_parse(text))

    def name(self, distinguished: str) -> str | None:
        """Return the principal's name for a distinguished name (RFC 2253), or None."""
        if len(distinguished) > _LONGEST:
            return None
        for rule in self._rules:
            found = rule.apply(distinguished)
            if found is not None:
                return found
        return None


def _parse(text: str) -> Iterator[_Rule]:
    at = 0
    text = text.strip() or "DEFAULT"
    while at < len(text):
        if text.startswith("DEFAULT", at):
            yield _Rule(None, "", "")
            at += len("DEFAULT")
        else:
            match = _RULE.match(text, at)
            if match is None:
                raise ValueError(
                    f"ssl.principal.mapping.rules={text}: expected DEFAULT or RULE:pattern/replacement/[LU], "
                    f"such as RULE:^CN=([^,]+).*$/$1/, found {text[at:]!r}"
                )
            yield _rule(match, text)
            at = match.end()
        rest = re.compile(r"\s*(,\s*|$)").match(text, at)
        if rest is None:
            raise ValueError(f"ssl.principal.mapping.rules={text}: expected a comma before {text[at:]!r}")
        at = rest.end()


def _rule(match: re.Match[str], text: str) -> _Rule:
    try:
        pattern = re.compile(match["pattern"])
    except re.error as error:
        raise ValueError(f"ssl.principal.mapping.rules={text}: {match['pattern']!r} is no pattern: {error}") from None
    replacement = match["replacement"]
    if any(int(group) > pattern.groups for group in _GROUP.findall(replacement)):
        raise ValueError(f"ssl.principal.mapping.rules={text}: {replacement!r} names a group that its pattern has not")
    return _Rule(pattern, replacement, match["case"])
