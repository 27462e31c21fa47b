"""What a server is among others, as it says in `INFO replication`."""

import re
from typing import Self

import msgspec

_LINE = re.compile(rb"^(role|master_replid|connected_slaves):([^\r\n]*)", re.MULTILINE)


class ReplicationInfo(msgspec.Struct, frozen=True):
    """Of a server, at the moment that it was asked."""

    primary: bool = True
    """Whether it takes writes."""
    reign: str = ""
    """Its replication id: another one for each promotion of each server; empty where it does not tell."""
    replicas: int = 0
    """How many are attached, in whatever state."""

    @classmethod
    def read(cls, info: bytes | str) -> Self:
        """What the text says; what it leaves out is as above."""
        info = info if isinstance(info, bytes) else info.encode()
        found = {name: value.decode(errors="replace") for name, value in _LINE.findall(info)}
        replicas = found.get(b"connected_slaves", "")
        return cls(
            primary=found.get(b"role", "master") == "master",
            reign=found.get(b"master_replid", ""),
            replicas=int(replicas) if replicas.isdecimal() else 0,
        )

    def same_reign(self, before: "ReplicationInfo | None") -> bool:
        """Whether it is the same primary as before, and has been it all the time."""
        return before is not None and self.primary and bool(self.reign) and self.reign == before.reign
