"""Encoding of the Kafka protocol. No I/O."""
