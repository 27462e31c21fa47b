"""Profiles of the command line: a TOML file with a table for each server.

    [default]
    bootstrap = "127.0.0.1:9092"

    [staging]
    bootstrap = "broker.example.org:9092"
    username = "acme/jane/ocid1.streampool.oc1..aaaa"
    password = "..."

The table `default` is used if no profile is named. This module does not read the environment.
"""

import os
import stat
import tomllib
from pathlib import Path

import msgspec

from headrace.topics.config_keys import suggestion

DEFAULT = "default"


class ProfileError(Exception):
    """The message is one line with the cause and the remedy."""


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Keys of a profile; None: not set."""

    bootstrap: str | None = None
    """HOST:PORT of the Kafka listener; several are separated by commas."""
    username: str | None = None
    password: str | None = None
    ca: str | None = None
    """PEM file of the certificate authority; enables TLS."""
    http: str | None = None
    """URL or HOST:PORT of the HTTP listener."""
    redis: str | None = None
    """URL of the server's storage, for `headrace archive`."""


def choose(path: Path, name: str | None) -> Profile:
    """Return the named profile, `default`, or an empty one.

    Raises ProfileError, also for a password in a file that other users can read.
    """
    profiles = _read(path)
    if name is None:
        return profiles.get(DEFAULT, Profile())
    if name not in profiles:
        found = f"it has {', '.join(sorted(profiles))}" if profiles else "it has none"
        raise ProfileError(f"no profile {name!r} in {path}: {suggestion(name, profiles) or found}")
    return profiles[name]


def names(path: Path) -> list[str]:
    """Return the names of profiles. Raises ProfileError."""
    return sorted(_read(path))


def _read(path: Path) -> dict[str, Profile]:
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            tables = tomllib.load(file)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise ProfileError(f"cannot read the profiles in {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ProfileError(f"{path} is not a TOML file: {error}") from None
    profiles = {name: _profile(path, name, table) for name, table in tables.items()}
    if mode & 0o077 and any(profile.password for profile in profiles.values()):
        raise ProfileError(f"{path} holds a password and others may read it (mode {mode:04o}): chmod 600 {path}")
    return profiles


def _profile(path: Path, name: str, table: object) -> Profile:
    if not isinstance(table, dict):
        raise ProfileError(f"{name} in {path}: expected a table for each profile, such as [default]")
    for key, value in table.items():
        if key not in Profile.__struct_fields__:
            hint = suggestion(key, Profile.__struct_fields__) or f"it has {', '.join(Profile.__struct_fields__)}"
            raise ProfileError(f"unknown key {key} of profile [{name}] in {path}: {hint}")
        if not isinstance(value, str):
            raise ProfileError(f"{key} of profile [{name}] in {path}: expected text in quotes")
    return Profile(**table)
