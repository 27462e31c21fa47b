"""Streams, stream pools, connect harnesses and work requests, stored as documents.

Every topic of a virtual cluster is a stream. A topic created through Kafka has no document.
"""
