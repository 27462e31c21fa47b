"""Encoding of the Kafka protocol: message tables in one notation, compiled at import. No I/O."""
