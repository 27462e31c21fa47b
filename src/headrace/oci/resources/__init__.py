"""Streams, stream pools, connect harnesses and work requests, stored as documents.

Every topic is a stream. A topic created through Kafka has no document.
"""
