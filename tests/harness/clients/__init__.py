"""Kafka clients with one interface, for tests that run with each of them.

The libraries are development extras of this project, and kcat is a program: import the adapters that are there.
"""

from tests.harness.clients.interface import CODECS, Client, ClientFailed, Codec, Headers, Member, Received, Record

__all__ = ["CODECS", "Client", "ClientFailed", "Codec", "Headers", "Member", "Received", "Record"]
