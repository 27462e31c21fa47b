"""Kafka clients behind one interface, for tests that hold each of them to the same.

The libraries are development extras of this project, and kcat is a program: import the adapters that are there.
"""

from tests.harness.clients.interface import CODECS, Client, ClientFailed, Codec, Headers, Member, Received, Record

__all__ = ["CODECS", "Client", "ClientFailed", "Codec", "Headers", "Member", "Received", "Record"]
