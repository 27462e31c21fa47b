"""The Kafka protocol as bytes: message tables in one notation, compiled at import. No I/O."""
